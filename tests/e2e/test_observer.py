"""Watching changes nothing: recorded and unrecorded runs end with the same bits, words and status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rltrace.trace.read.reader import open_trace


@pytest.fixture(autouse=True)
def some_in_new_processes(request: pytest.FixtureRequest, program: str) -> None:
    """As users start them, in every respect."""
    if program in ("ppo.py", "hostile.py"):
        request.getfixturevalue("new_processes")


@pytest.mark.parametrize("program", ["ppo.py", "sac.py", "zoo.py", "many_ops.py"])
def test_recorded_runs_compute_the_same_bits(cli: Any, as_it_is: Callable[[str], Any], program: str) -> None:
    """Weights, states of optimizers and generators, exit status and stderr are equal at both levels."""
    plain = cli.python(program)
    assert "weights" in plain.stdout
    assert plain.returncode == 7
    steps = cli.record("step.zarr", program, "--level", "step")
    ops = as_it_is(program)
    for trace, recorded in (("step.zarr", steps), (ops.trace, ops)):
        assert recorded.stdout == plain.stdout
        assert recorded.stderr == plain.stderr
        assert recorded.returncode == plain.returncode
        assert cli.rltrace("verify", trace).returncode == 0


LEVELS = {"step": ("--level", "step"), "op": (), "all": ("--values", "all", "--values-inputs", "--rows", "all")}


@pytest.mark.parametrize(
    ("program", "setting", "levels"),
    [
        ("threads_joined.py", "", ("step", "op")),
        ("hostile.py", "", ("step", "op", "all")),
        ("hostile.py", "CHANGED=1", ("step", "op")),
    ],
)
def test_programs_that_a_recorder_stumbles_over(cli: Any, program: str, setting: str, levels: tuple[str, ...]) -> None:
    """They end as they do unrecorded, they do not hang, and what is recorded is whole."""
    cli = replace(cli, seconds=120)
    plain = cli.python(program, setting=setting)
    assert "weights" in plain.stdout
    assert plain.returncode == 7
    for level in levels:
        recorded = cli.record(f"{level}.zarr", program, *LEVELS[level], setting=setting)
        assert recorded.stdout == plain.stdout
        assert recorded.stderr == plain.stderr
        assert recorded.returncode == plain.returncode
        assert cli.rltrace("verify", f"{level}.zarr").returncode == 0
        [process] = open_trace(cli.folder / f"{level}.zarr").processes
        assert process.state == "complete"
