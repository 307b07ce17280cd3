"""A finding has what its rows record of the program around them."""

from pathlib import Path

from views import opened, view_of

from rltrace.diff.base.findings import Judgement, attempt_of, make_finding, optimizer_count, row_at
from rltrace.diff.base.model import Cause, InputsMatch, OptimizerCount, Pair
from rltrace.testing import TraceBuilder
from rltrace.trace.format.schema import Step


def test_the_attempt_of_a_row(tmp_path: Path) -> None:
    """The next one of its stream; after the last, the one that ends its step in another; else none."""
    trace = TraceBuilder(tmp_path / "a.zarr")
    for step in range(4):
        trace.op("aten.mm.default", outputs=["x"])
        (trace.stream("rank0/main/worker") if step == 3 else trace).end_step(
            "Adam", step % 2, environment_steps=10 * step
        )
    trace.op("aten.mm.default", outputs=["y"])
    view = opened(trace.finish())
    found = [attempt_of(row_at(view, row)) for row in range(5)]
    attempts = [None if one is None else (one[0].ordinal, one[1]) for one in found]
    assert attempts == [(0, None), (1, 10), (0, 20), (1, 30), None]
    judged = Judgement(Cause.UNKNOWN, InputsMatch.UNKNOWN, "why")
    finding = make_finding(row_at(view, 2), None, judged, 2)
    assert finding.optimizer is not None and isinstance(finding.optimizer, OptimizerCount)
    assert (finding.optimizer.name, finding.step, finding.environment_step) == ("Adam", 2, 20)
    assert (finding.a_index, finding.b_index, len(finding.outputs)) == (2, None, 1)
    assert finding.outputs[0].b is None and finding.settings == ()


def test_an_optimizer_whose_entry_is_lost(tmp_path: Path) -> None:
    """It has no name, and the count of its attempt."""
    process = view_of(tmp_path / "a.zarr", lambda trace: [trace.end_step("SGD"), trace.end_step("SGD")]).process
    step = process.steps[1].copy()
    assert optimizer_count(process, step) == OptimizerCount(0, "SGD", 1, None)
    step[Step.OPTIMIZER] += 1
    assert optimizer_count(process, step) == OptimizerCount(0, "?", 1, None)


def test_a_trace_without_steps(tmp_path: Path) -> None:
    """Rows of a trace without steps have none; the digests of both sides are paired as far as they go."""
    views = [
        view_of(tmp_path / f"{side}.zarr", lambda trace, n=n: trace.op("aten.mm.default", outputs=["x", "y"][:n]))
        for n, side in ((2, "a"), (1, "b"))
    ]
    judged = Judgement(Cause.UNKNOWN, InputsMatch.UNKNOWN, "why")
    finding = make_finding(row_at(views[0], 0), row_at(views[1], 0), judged, 0)
    assert (finding.step, finding.optimizer, finding.environment_step) == (None, None, None)
    assert [isinstance(one, Pair) and (one.a == one.b, one.b is None) for one in finding.outputs] == [
        (True, False),
        (False, True),
    ]
