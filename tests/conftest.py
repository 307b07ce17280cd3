"""What all tests share: programs that they start are quick to start, and get signals as a shell hands them down.

Tests that need a CUDA device skip where there is none.
"""

import functools
import gc
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from suggested import PARSING
from warm_starts import PLAIN_POPEN, WarmPopen, end_all

from rltrace.fingerprint import sources

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
"""Threads that wait for work take no processor time from other tests, nor those of programs that tests start."""

NO_TIME: dict[str, Any] = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
"""No test asserts how long an example takes."""

hypothesis.settings.register_profile("same", derandomize=True, **NO_TIME)
hypothesis.settings.register_profile("new", **NO_TIME)
hypothesis.settings.load_profile(os.environ.get("EXAMPLES", "same"))
"""Examples are the same in every run, so that no run fails by chance; ``EXAMPLES=new make test`` draws new ones."""

HERE = str(Path(__file__).parent) + os.sep

HANDED_DOWN = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


COLD = ("launch", "trace", "e2e/test_ranks.py")
"""Tests that are about how programs begin and end, and those of ``torchrun``: with Python 3.12 it hangs in a fork."""


@pytest.fixture(scope="session", autouse=True)
def warm_pythons() -> Iterator[None]:
    """Processes that are forked for programs end with the tests."""
    yield
    end_all()


@pytest.fixture(scope="module", autouse=True)
def warm_starts(request: pytest.FixtureRequest, warm_pythons: None) -> Iterator[None]:
    """Python programs that tests start are forks of one that has imported torch: most of what they cost is that."""
    with pytest.MonkeyPatch.context() as patch:
        if not any(request.path.is_relative_to(HERE + cold) for cold in COLD):
            patch.setattr(subprocess, "Popen", WarmPopen)
        yield


@pytest.fixture
def new_processes(warm_starts: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python programs that a test starts are new processes."""
    monkeypatch.setattr(subprocess, "Popen", PLAIN_POPEN)


@pytest.fixture
def capsys(capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> pytest.CaptureFixture[str]:
    """pytest's; what a test has read from it is shown, too, where the test fails."""
    read = capsys.readouterr

    def readouterr() -> Any:
        captured = read()
        request.node.add_report_section("call", "stdout, read by the test", captured.out[-10_000:])
        request.node.add_report_section("call", "stderr, read by the test", captured.err[-10_000:])
        return captured

    capsys.readouterr = readouterr  # type: ignore[method-assign]
    return capsys


@pytest.fixture(scope="session")
def native_library() -> Any:
    """The native engine's library; a test that needs it is skipped where it is not there."""
    import engines

    found = engines.native_library()
    if found.why_not:
        pytest.skip(found.why_not)
    return found.module


@pytest.fixture(params=["mode", "native"])
def engine(request: pytest.FixtureRequest) -> str:
    """Both engines; the native one only where its library is there."""
    if request.param == "native":
        request.getfixturevalue("native_library")
    return str(request.param)


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
    """To a recording in the process of the tests all their hundreds of files belong to the program, which reads and
    hashes them anew; they stay as they are."""
    plain = sources._read
    known = functools.cache(plain)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "_read", lambda path: (known if path.startswith(HERE) else plain)(path))
        patch.setattr(sources, "_hash", functools.cache(sources._hash))
        patch.setattr(sources, "line_digests", functools.cache(sources.line_digests))
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
