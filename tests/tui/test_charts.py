"""Bars, axes and curves: what shares a character, where a mark stands, both ends of a scale."""

import math

import pytest

from rltrace.diff.base.model import Probe
from rltrace.diff.display.single_trace import OwnStep, OwnSteps
from rltrace.diff.metrics.timeline import Curve, StepState, Timeline
from rltrace_tui import charts


def test_bisect_bar() -> None:
    """Equal up to the last equal probe, unequal from the first unequal one, unknown between."""
    assert charts.bisect_bar([], 100, 10) == "??????????"
    probes = [Probe(100, False), Probe(50, True), Probe(75, False)]
    assert charts.bisect_bar(probes, 100, 20) == "==========?????≠≠≠≠≠"
    assert charts.bisect_bar([Probe(100, True)], 100, 10) == "=========="
    narrow = charts.bisect_bar([Probe(100, False), Probe(50, True), Probe(51, False)], 100, 10)
    assert len(narrow) == 10 and "?" in narrow


@pytest.mark.parametrize("count", [1, 3, 9, 10, 11, 1000])
def test_state_bar_shows_the_worst_of_what_shares_a_character(count: int) -> None:
    """One step that differs is seen at any scale, at its place."""
    for at in {0, count // 2, count - 1}:
        states = [StepState.SAME] * count
        states[at] = StepState.DIFFERS
        bar = charts.state_bar(Timeline("p", tuple(states)), 10)
        assert len(bar) <= 10 and set(bar) <= {"=", "≠"}
        assert bar.index("≠") == charts.place(at, count, len(bar))
        if count <= 10:
            assert bar.count("≠") == len(bar) // count


def test_axis_never_mixes_numbers() -> None:
    """The mark has its place; an end is left out where both would run into each other."""
    assert charts.axis(100, 50, 40).split() == ["0", "▼50", "99"]
    for mark in range(100):
        for word in charts.axis(100, mark, 24).split():
            assert word in ("0", "99", f"▼{mark}")


def test_a_chart_scales_both_ends_and_marks_what_is_no_number() -> None:
    """The smallest is the lowest block, the largest the full one; a gap is a space, NaN an exclamation mark."""
    points = [(0, 0.0), (1, 7.0), (3, float("nan"))]
    assert charts.chart(points, 4, 0.0, 7.0, 4, 1) == ["▁█ !"]
    assert charts.chart([(0, 1.0)], 1, 1.0, 1.0, 3, 1) == ["▄▄▄"]


def test_a_chart_has_eight_levels_a_line() -> None:
    """Over several lines the same curve has more levels; a full column fills all of them, NaN stands on the lowest."""
    points = [(0, 0.0), (1, 15.0), (2, 7.5), (3, float("inf"))]
    assert charts.chart(points, 4, 0.0, 15.0, 4, 2) == [" █▁ ", "▁██!"]
    assert charts.chart([(0, -1e308), (1, 1e308)], 2, -1e308, 1e308, 2, 1) == ["▁█"]
    assert charts.chart([(0, 0.0), (1, 5e-324)], 2, 0.0, 5e-324, 2, 1) == ["▁█"]


def test_a_sparse_curve_is_drawn_without_its_gaps() -> None:
    """One number in sixteen steps, as PPO logs them: one column each, A and B aligned; others keep theirs."""
    a = tuple((step, float(step)) for step in range(15, 160, 16))
    b = (*a[:4], *((step, 0.0) for step, _ in a[5:]))
    sparse = Curve("loss", "t.py:1", a, b, 63, True)
    drawn = charts.without_gaps(sparse, 160)
    assert [step for step, _ in drawn.a] == list(range(10))
    assert [step for step, _ in drawn.b] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert [value for _, value in drawn.b] == [value for _, value in b]
    assert charts.without_gaps(sparse, 19) is sparse
    assert charts.range_text(sparse) == "0 to 159"
    on_a, on_b = charts.curve_lines(drawn, 10, 10 + charts.MARGIN)
    assert on_a.plain.startswith("A ▁▂▃▄▄▅▆▇██  159") and on_b.plain.startswith("B ▁▂▃▄ ▁▁▁▁▁  0")
    assert {span.style for span in on_a.spans} != {span.style for span in on_b.spans}


def test_steps_of_one_trace() -> None:
    """As high as a step has ops; a skipped one and one whose ops were not recorded have signs of their own."""
    steps = (OwnStep(0, 80, False, 0), OwnStep(1, 10, False, 0), OwnStep(2, 40, True, 0), OwnStep(3, None, False, 0))
    assert charts.step_bar(OwnSteps("p", steps), 4) == "█▁s·"
    assert charts.step_bar(OwnSteps("p", steps[3:]), 1) == "·" and charts.step_sizes(OwnSteps("p", steps[3:])) == ""


def test_numbers_that_differ_are_distinct_where_there_is_room() -> None:
    """In six digits, or in as many more as it takes, up to the room beside a curve."""
    assert list(charts.distinct_numbers([1.5, 2.25])) == ["1.5", "2.25"]
    assert list(charts.distinct_numbers([41.80981, 41.80982])) == ["41.80981", "41.80982"]
    assert list(charts.distinct_numbers([3.0, 3.0])) == ["3", "3"]
    assert list(charts.distinct_numbers([0.1, math.nextafter(0.1, 1)])) == ["0.1", "0.1"]  # seventeen digits do not fit
    assert list(charts.distinct_numbers([math.inf, -1.23456789e-05])) == ["inf", "-1.23457e-05"]
    assert list(charts.distinct_numbers([])) == []
