"""What an experiment judges: ops of a control in the trace that it repeats, and the steps it covers alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recorded import Recorded

import rltrace
from rltrace.diff.compare import compare
from rltrace.experiment.confirm.arms import row_in, state_difference
from rltrace.experiment.confirm.steps_covered import StepsCovered, agrees
from rltrace.testing import TraceBuilder
from rltrace.trace.read.reader import Trace, open_trace

STEPS = 6


def made(path: Path, first: int, end: int) -> Trace:
    """A run of six steps of three ops each, of which these are recorded op by op."""
    builder = TraceBuilder(path)
    for step in range(STEPS):
        for nth in range(3 if first <= step < end else 0):
            builder.op("aten.mm.default", outputs=[f"{step}.{nth}"])
        builder.end_step()
    return open_trace(builder.finish())


@pytest.mark.parametrize(
    ("a", "control", "step", "row", "found"),
    [
        ((0, STEPS), (0, STEPS), 0, 4, 4),
        ((0, STEPS), (3, 5), 3, 0, 9),
        ((0, STEPS), (3, 5), 3, 4, 13),
        ((2, STEPS), (3, 5), 3, 4, 7),
        ((3, 4), (3, 5), 3, 2, 2),
        ((3, 4), (3, 5), 3, 4, None),  # of a step that A does not hold
        ((0, 0), (3, 5), 3, 0, None),  # A has no ops
    ],
)
def test_row(
    tmp_path: Path, a: tuple[int, int], control: tuple[int, int], step: int, row: int, found: int | None
) -> None:
    """By the step at which the control's window begins; no row where A has none there."""
    traces = made(tmp_path / "a.zarr", *a), made(tmp_path / "a0.zarr", *control)
    assert row_in(*traces, "rank0/main", row, step) == found
    assert row_in(*traces, "rank0/main/thread:other", row, step) is None


def test_rows_that_show_what_a_window_began_with(tmp_path: Path) -> None:
    """They are no ops of the program, and the run that was recorded whole has none of them."""
    for name, steps in (("a.zarr", None), ("a0.zarr", (2, 4))):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([weight], lr=0.5)
        with rltrace.record(tmp_path / name, steps=steps):
            for _ in range(4):
                (weight * torch.rand(3)).sum().backward()
                optimizer.step()
    whole, window = Recorded(tmp_path / "a.zarr"), Recorded(tmp_path / "a0.zarr")
    drawn = [row.index for row in window.rows if row.name == "rand"]
    found = [row_in(whole.trace, window.trace, whole.stream.name, row, 2) for row in drawn]
    assert found == [row.index for row in whole.rows if row.name == "rand"][2:]
    assert row_in(whole.trace, window.trace, whole.stream.name, 0, 2) is None


APART = 2
"""The step in which the second of two runs computes something else."""


def run(path: Path, other: bool) -> Trace:
    """Four steps, ops of the first one recorded."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    with rltrace.record(path, steps=(0, 1)):
        for step in range(4):
            (weight * (2.0 if other and step >= APART else 1.0)).sum().backward()
            optimizer.step()
    return open_trace(path)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Trace]:
    folder = tmp_path_factory.mktemp("covered")
    first, second = (run(folder / name, other) for name, other in (("a.zarr", False), ("b.zarr", True)))
    return first, second


@pytest.mark.parametrize(("end", "same"), [(1, True), (2, True), (3, False), (4, False)])
def test_what_comes_after_it_does_not_count(traces: tuple[Trace, Trace], end: int, same: bool) -> None:
    """Two runs that diverge in step 2 are the same to the end of step 1, whatever they end with."""
    found, covered = compare(*traces), StepsCovered(0, end)
    assert agrees(found, covered) is same
    assert (state_difference(*traces, covered) is None) is same
    assert agrees(found) is False
