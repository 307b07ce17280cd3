"""``record --against`` a trace that has ended: what is said at the end of the run is what a comparison says."""

import json
import sys
from typing import Any

import pytest

from rltrace.trace.read.reader import open_trace

STEPS = """
import sys, torch
odd = int(sys.argv[1]) if sys.argv[1:] else -1
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(3):
    (weight * (step + (step == odd))).sum().backward()
    optimizer.step()
"""


def test_another_number(cli: Any) -> None:
    """The finding of a comparison of both traces, named at the end of the run, and in its exit status."""
    cli.rltrace("record", "-o", "a.zarr", "--", sys.executable, "-c", STEPS)
    asked = ("record", "-o", "b.zarr", "--against", "a.zarr", "--exit-code", "--result", "found.json")
    done = cli.rltrace(*asked, "--", sys.executable, "-c", STEPS, "2")
    wanted = cli.diff("a.zarr", "b.zarr")[1]["first_value"]
    result = json.loads((cli.folder / "found.json").read_text())
    first = result["processes"][0]["first"]
    assert (result["verdict"], done.returncode, wanted["step"]) == ("differs", 1, 2)
    names = ("a_index", "b_index", "stream", "op", "cause", "inputs_match", "outputs")
    assert [first[name] for name in names] == [wanted[name] for name in names]
    assert f"rltrace: differs from a.zarr at op {first['b_index']:,} of rank0/main" in done.stderr
    assert "rltrace diff a.zarr b.zarr" in done.stderr


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
