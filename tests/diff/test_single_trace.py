"""One trace by itself: its steps and its numbers."""

from dataclasses import replace
from pathlib import Path

import pytest
from programs import Do, Record, training

from rltrace.diff.display.single_trace import OwnStep, own_curves, own_steps
from rltrace.testing import TraceBuilder
from rltrace.trace.read.reader import open_trace

READ = Do("aten._local_scalar_dense.default", ("e",), "", 26, source="errors.append(e.item())")


def test_steps_are_counted_without_reading_rows(record: Record) -> None:
    """Ops of each attempt, which optimizer made it, whether it was skipped; all rows but the last step's are in one."""
    program = [replace(do, skipped=True) if do.name == "step" and k > 60 else do for k, do in enumerate(training(4))]
    trace = open_trace(record(program).path)
    (found,) = own_steps(trace)
    stream = trace.processes[0].streams[0]
    assert [step.number for step in found.steps] == [0, 1, 2, 3]
    assert sum(step.ops or 0 for step in found.steps) == int(trace.processes[0].steps[-1][7]) <= stream.rows
    assert [step.skipped for step in found.steps] == [False, False, False, True]
    assert stream.counter.chunks == 0


def test_steps_without_rows(tmp_path: Path) -> None:
    """The number of ops of a step that was not recorded is unknown, which is not zero."""
    trace = TraceBuilder(tmp_path / "a.zarr")
    for _ in range(2):
        trace.end_step(parameters="w", gradients="g", generators="g", recorded=False)
    (found,) = own_steps(open_trace(trace.finish()))
    assert found.steps == (OwnStep(0, None, False, 0), OwnStep(1, None, False, 0))


@pytest.mark.parametrize("cancel", [False, True])
def test_numbers(record: Record, cancel: bool) -> None:
    """Every place that read a number has a curve, the last number of each step, and no side B; none once cancelled."""
    program = [x for do in training() for x in ([do, READ] if do.name == "aten.mean.default" else [do])]
    found = own_curves(open_trace(record(program).path), lambda: cancel)
    assert [curve.b for curve in found] == ([] if cancel else [(), ()])
    if not cancel:
        assert {curve.name for curve in found} >= {"errors.append(e.item())"}
        assert all([step for step, _ in curve.a] == [0, 1, 2, 3] and curve.whole for curve in found)
