"""Coarse first, then fine: the step that the step level names, and the op that its window finds."""

import json
import random
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rltrace
from rltrace.diff import compare
from rltrace.diff.base.model import Verdict
from rltrace.trace.read.reader import open_trace


def test_step_level_leads_to_the_op(cli: Any, kernel_setting: str, as_it_is: Callable[[str], Any]) -> None:
    """The step level finds the step of the full recording; the commands it prints, run, find the op of it."""
    cli.record("step-a.zarr", "late.py", "--level", "step")
    for level in ("op", "step"):
        cli.record(f"{level}-b.zarr", "late.py", "--level", level, setting=kernel_setting)
    status, full = cli.diff(as_it_is("late.py").trace, "op-b.zarr")
    assert status == 1
    assert full["first_value"]["step"] == 4
    status, coarse = cli.diff("step-a.zarr", "step-b.zarr")
    assert status == 1
    assert coarse["first"]["step"] == full["first_value"]["step"]

    text = cli.rltrace("diff", "step-a.zarr", "step-b.zarr").stdout
    lines = [line.strip().removeprefix("$ ") for line in text.splitlines() if "rltrace record" in line]
    assert len(lines) == 2
    traces = []
    for line, setting in zip(lines, ("", kernel_setting), strict=True):
        words = shlex.split(line)
        words = words[words.index("rltrace") + 1 :]
        assert cli.rltrace(*words, setting=setting).returncode == 0  # not the status of its own end: --until ends it
        traces.append(words[words.index("-o") + 1])
    status, window = cli.diff(*traces)
    assert status == 1
    for name in ("op", "cause", "step", "site", "kernel"):
        assert window["first_value"][name] == full["first_value"][name]


def test_window_leaves_out_the_rest(cli: Any) -> None:
    """A window has rows of its steps alone, and the program still runs to its end."""
    result = cli.record("window.zarr", "late.py", "--steps", "2:4")
    assert result.returncode == 7
    lines = cli.rltrace("ops", "window.zarr", "op=*", "--format", "json").stdout.splitlines()
    assert {json.loads(line)["step"] for line in lines} == {2, 3}


def test_until_ends_the_program(cli: Any) -> None:
    """``--until`` ends the program after that step, without a traceback; the trace says that it was intended."""
    result = cli.record("until.zarr", "late.py", "--until", "2")
    assert result.returncode == 0
    assert "Traceback" not in result.stderr
    assert "weights" not in result.stdout
    assert "stopped" in cli.rltrace("info", "until.zarr").stdout


def test_unseeded_generators(tmp_path: Path) -> None:
    """A program that seeds nothing and draws nothing is the same in every run, step by step and in a window, though
    every run begins with generators in other states."""
    for name in ("a", "b"):
        for kind, options in (("step", {"level": "step"}), ("window", {"steps": (1, 2)})):
            random.seed()  # as a process begins: torch alone has a state of its own choice
            np.random.seed()
            with rltrace.record(tmp_path / f"{kind}-{name}.zarr", **options):  # type: ignore[arg-type]
                undrawn()
    for kind in ("step", "window"):
        found = compare(tmp_path / f"{kind}-a.zarr", tmp_path / f"{kind}-b.zarr")
        assert found.verdict is Verdict.IDENTICAL
        assert len(open_trace(tmp_path / f"{kind}-b.zarr").processes[0].steps) == 3


def undrawn() -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        (weight * 2).sum().backward()
        optimizer.step()
