"""Every step at a glance, and the numbers both runs read: from the digests of steps and a few segments."""

from dataclasses import replace
from pathlib import Path

import pytest
from programs import Do, Record, training
from views import both, compare_in, paths_in

from rltrace.diff import compare
from rltrace.diff.display.single_trace import own_curves
from rltrace.diff.metrics import timeline
from rltrace.diff.metrics.timeline import StepState, curves, timelines
from rltrace.extensions.page.data import gather
from rltrace.extensions.page.page import html_page
from rltrace.testing import In
from rltrace.trace.read.reader import open_trace

OTHER = (("library", "ATen"), ("isa", "AVX512"), ("threads", 4))
SAME, DIFFERS, OTHER_OPS, ONE_SIDED = StepState.SAME, StepState.DIFFERS, StepState.OTHER_OPS, StepState.ONE_SIDED


def states(a: Path, b: Path) -> list[StepState]:
    first, second = open_trace(a), open_trace(b)
    (found,) = timelines(first, second, compare(first, second))
    return list(found.states)


def diverged_in_step(step: int) -> list[Do]:
    program = training()
    places = [k for k, do in enumerate(program) if do.name == "aten.mean.default"]
    return [replace(do, kernel=OTHER) if k == places[step] else do for k, do in enumerate(program)]


@pytest.mark.parametrize("level", ["op", "step"])
def test_steps_differ_from_where_values_diverge(record: Record, level: str) -> None:
    """At either level; of a loss alone, which nothing computes with, only the ops show it."""
    program = training()
    changed = [replace(do, noise="x") if do.line == 24 and k > 30 else do for k, do in enumerate(program)]
    found = states(record(program, level=level).path, record(changed, level=level).path)
    assert found[0] is SAME and found[-1] is DIFFERS and set(found) == {SAME, DIFFERS}
    assert found == sorted(found, key=[SAME, DIFFERS].index)


def test_a_log_line_is_no_difference(record: Record) -> None:
    """Ops that one side alone has make the step another one, never one that differs."""
    log = Do("aten.mean.default", ("e",), "log", 50)
    places = [k for k, do in enumerate(training()) if do.name == "aten.sub.Tensor"]
    logged = [x for k, do in enumerate(training()) for x in ([do, log] if k == places[1] else [do])]
    assert states(record(training()).path, record(logged).path) == [SAME, OTHER_OPS, SAME, SAME]


def test_a_read_on_one_side_is_no_difference(tmp_path: Path) -> None:
    """A first read that only one side made changes the digest of the step, and no verdict: the step is not unequal."""
    for trace, read in both(tmp_path, "w", None):
        made = trace.op("aten.randn.default", outputs=["w"], rng="g")
        trace.op("aten.relu.default", inputs=[In(made, read)], outputs=["r"])
        trace.end_step(parameters="w", gradients="g", generators="g")
    assert compare_in(tmp_path).agrees
    assert DIFFERS not in states(*paths_in(tmp_path))


def test_a_run_that_goes_on(record: Record) -> None:
    """Steps that one side alone made stand at the end, whichever side it is."""
    a, b = record(training(2)).path, record(training(4)).path
    assert states(a, b) == states(b, a) == [SAME, SAME, ONE_SIDED, ONE_SIDED]


def test_curves_of_both_sides(record: Record) -> None:
    """One curve for each place that reads a number, with the first step at which the two diverge."""
    a, b = record(training()).path, record(diverged_in_step(2)).path
    (curve,) = curves(open_trace(a), open_trace(b))
    assert (curve.name, curve.place) == ("losses.append(loss.item())", "train.py:23")
    assert [step for step, _ in curve.a] == [0, 1, 2, 3] and curve.whole
    assert curve.diverges_at == 2 and curve.a[:2] == curve.b[:2] and curve.a[2] != curve.b[2]


def test_a_long_trace_is_read_in_places(record: Record, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No more segments than agreed, the ends among them, and the curve says that it is not whole."""
    monkeypatch.setattr(timeline, "MAX_SEGMENTS", 3)
    for trace, _ in both(tmp_path):
        for step in range(10):
            trace.op("aten._local_scalar_dense.default", inputs=["unknown"], value=float(step))
            trace.end_step()
            trace.commit()
    a, b = map(open_trace, paths_in(tmp_path))
    (curve,) = curves(a, b)
    assert [step for step, _ in curve.a] == [0, 4, 9] and not curve.whole and curve.diverges_at is None
    assert a.processes[0].streams[0].counter.chunks == 2 * 3


def test_not_a_number_is_equal_to_itself(tmp_path: Path) -> None:
    """NaN on both sides is no difference, NaN on one side is."""
    for trace, values in both(tmp_path, [float("nan"), 1.0], [float("nan"), float("nan")]):
        for value in values:
            trace.op("aten._local_scalar_dense.default", inputs=["unknown"], value=value)
            trace.end_step()
    (curve,) = curves(*map(open_trace, paths_in(tmp_path)))
    assert curve.diverges_at == 1


def test_every_curve_is_there(tmp_path: Path) -> None:
    """However many places read numbers out: what does not fit on a page is counted there, not dropped here."""
    for builder, side in both(tmp_path, 0, 1):
        for number in range(70):
            site = ("train.py", number, "train", f"losses[{number}].item()")
            builder.op("aten._local_scalar_dense.default", site=site, value=float(number * side))
    traces = [open_trace(path) for path in paths_in(tmp_path)]
    assert len(curves(*traces)) == len(own_curves(traces[0])) == 70
    page = html_page(gather(*paths_in(tmp_path)), version="0")
    assert "… and 46 more curves" in page


def test_recorded_series_are_curves(tmp_path: Path) -> None:
    """What was watched, rates and scales are drawn beside logged scalars; what never moves is left out."""
    for builder, side in both(tmp_path, 0, 1):
        for step in range(4):
            builder.sample("optimizer:0/group:0/lr", 0.5, "learning-rate")
            builder.sample("return", step + side * (step > 2))
            builder.sample("return", 2 * step + side * (step > 2))
            builder.end_step()
    a, b = map(open_trace, paths_in(tmp_path))
    (curve,) = curves(a, b)
    assert (curve.name, curve.place, curve.diverges_at) == ("return", "rltrace.watch", 3)
    assert curve.a == ((0, 0.0), (1, 2.0), (2, 4.0), (3, 6.0)) and curve.b[-1] == (3, 7.0)
    (own,) = own_curves(a)
    assert own.a == curve.a and own.b == ()


def test_curves_are_paired_by_attempt(tmp_path: Path) -> None:
    """An attempt more of another optimizer on one side makes no curve diverge."""
    for builder, side in both(tmp_path, 0, 1):
        for step in range(4):
            builder.op("aten._local_scalar_dense.default", value=float(step))
            builder.end_step()
            if side and step == 1:
                builder.end_step(ordinal=1)
    (curve,) = curves(*map(open_trace, paths_in(tmp_path)))
    assert curve.diverges_at is None and [step for step, _ in curve.b] == [0, 1, 3, 4]
