"""What all tests share: programs that they start are quick to start, and get signals as a shell hands them down.

Tests that need a CUDA device skip where there is none.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from suggested import PARSING

from rltrace.fingerprint import sources

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
"""Threads that wait for work take no processor time from other tests, nor those of programs that tests start."""

hypothesis.settings.register_profile("same", derandomize=True)
hypothesis.settings.register_profile("new")
hypothesis.settings.load_profile(os.environ.get("EXAMPLES", "same"))
"""Examples are the same in every run, so that no run fails by chance; ``EXAMPLES=new make test`` draws new ones."""

CHILDREN = Path(__file__).parent / "support" / "children"
HERE = str(Path(__file__).parent) + os.sep

HANDED_DOWN = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(scope="session", autouse=True)
def children_are_quick_to_start() -> Iterator[None]:
    """Python processes that tests start find a ``sitecustomize`` which saves a third of their processor time.

    A fixture, and not done as this file is imported: a worker of pytest-xdist is a process that another one starts.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(CHILDREN), os.environ.get("PYTHONPATH")))))
        yield


@pytest.fixture(scope="module")
def children_as_ever(children_are_quick_to_start: None) -> Iterator[None]:
    """Python processes that tests start are not made quick: for tests of how programs begin and end."""
    others = [path for path in os.environ["PYTHONPATH"].split(os.pathsep) if path != str(CHILDREN)]
    with pytest.MonkeyPatch.context() as patch:
        if others:
            patch.setenv("PYTHONPATH", os.pathsep.join(others))
        else:
            patch.delenv("PYTHONPATH")
        yield


@pytest.fixture(scope="session")
def native_library() -> Any:
    """The native engine's library; a test that needs it is skipped where it is not there."""
    import engines

    found = engines.native_library()
    if found.why_not:
        pytest.skip(found.why_not)
    return found.module


@pytest.fixture(scope="session", autouse=True)
def suggested_commands_parse() -> Iterator[None]:
    """A command that rltrace suggests in any test, and that its verb would refuse, fails that test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rltrace.command_lines.shlex", PARSING)
        yield


@pytest.fixture(scope="session", autouse=True)
def signals_as_in_a_shell() -> Iterator[None]:
    """Programs that tests start inherit what is ignored and blocked here.

    A job in the background of a shell, ``nohup`` or a service manager ignores some signals; a program that inherits
    that would not notice the signal a test sends it.
    """
    before = {number: signal.getsignal(number) for number in HANDED_DOWN}
    mask = signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def tests_are_hashed_once() -> Iterator[None]:
    """To a recording in the process of the tests all their hundreds of files belong to the program, which hashes them
    anew; they stay as they are."""
    plain = sources._hash
    known = functools.cache(plain)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_hash", lambda path: (known if path.startswith(HERE) else plain)(path))
        yield


def pytest_collection_finish() -> None:
    """What has been imported by now stays: the garbage collector goes through what tests make, and no more that.

    It goes through all of it a tenth as often as elsewhere, as what tests import later stays too; through what is new,
    as ever.
    """
    gc.freeze()
    gc.set_threshold(*gc.get_threshold()[:2], 100)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Look for a device only when a collected test asks for one: importing torch takes a second."""
    wanting = [item for item in items if item.get_closest_marker("gpu")]
    if not wanting:
        return
    import torch

    if not torch.cuda.is_available():
        for item in wanting:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
