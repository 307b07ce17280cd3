"""``record --against`` a trace that has ended: what is said at the end of the run is what a comparison says."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rltrace.trace.read.reader import open_trace

PROGRAM = Path(__file__).parent / "programs" / "op_kinds.py"

STEPS = """
import torch
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(3):
    (weight * step).sum().backward()
    optimizer.step()
"""


@pytest.mark.processor
def test_another_kernel(cli: Any, kernel_setting: str) -> None:
    """The finding of a comparison of both traces, named at the end of the run, and in its exit status."""
    cli.record_both(PROGRAM.name, kernel_setting)
    wanted = cli.diff("a.zarr", "b.zarr")[1]["first_value"]
    if wanted is None:
        pytest.skip(f"{kernel_setting} changes none of these ops on this processor")
    asked = ("record", "-o", "c.zarr", "--against", "a.zarr", "--exit-code", "--result", "found.json")
    done = cli.rltrace(*asked, "--", sys.executable, PROGRAM, setting=kernel_setting)
    result = json.loads((cli.folder / "found.json").read_text())
    first = result["processes"][0]["first"]
    assert (result["verdict"], done.returncode) == ("differs", 1)
    names = ("a_index", "b_index", "stream", "op", "cause", "inputs_match", "outputs")
    assert [first[name] for name in names] == [wanted[name] for name in names]
    assert f"rltrace: differs from a.zarr at op {first['b_index']:,} of rank0/main" in done.stderr
    assert "rltrace diff a.zarr c.zarr" in done.stderr


@pytest.mark.parametrize("level", ["op", "step"])
def test_a_trace_that_has_ended(cli: Any, level: str) -> None:
    """The run records the level and the steps of A, and is equal."""
    steps = ("--steps", "1:2") if level == "op" else ()
    program = ("-c", STEPS)
    cli.rltrace("record", "-o", "a.zarr", "--level", level, *steps, "--", sys.executable, *program)
    asked = ("record", "-o", "b.zarr", "--against", "a.zarr", "--exit-code")
    done = cli.rltrace(*asked, "--", sys.executable, *program)
    assert (done.returncode, "equal to a.zarr" in done.stderr) == (0, True), done.stderr
    a, b = (open_trace(cli.folder / name) for name in ("a.zarr", "b.zarr"))
    assert (b.level, b.processes[0].windows) == (a.level, a.processes[0].windows)
    assert [stream.rows for stream in b.processes[0].streams] == [stream.rows for stream in a.processes[0].streams]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--stop",), "--against A"),
        (("--against", sys.executable), "no trace"),
    ],
)
def test_what_does_not_go_together(cli: Any, options: tuple[str, ...], message: str) -> None:
    """Said before anything runs."""
    done = cli.rltrace("record", "-o", "c.zarr", *options, "--", sys.executable, "-c", "print('ran')")
    assert done.returncode == 125
    assert message in done.stderr
    assert done.stdout == ""
    assert not (cli.folder / "c.zarr").exists()
