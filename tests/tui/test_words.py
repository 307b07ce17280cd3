"""Bars, axes and curves: what a character stands for."""

from __future__ import annotations

import pytest

from rltrace.diff.model import Probe
from rltrace.diff.timeline import StepState, Timeline
from rltrace_tui import words


def test_bisect_bar() -> None:
    """Equal up to the last equal probe, unequal from the first unequal one, unknown between."""
    assert words.bisect_bar([], 100, 10) == "??????????"
    probes = [Probe(100, False), Probe(50, True), Probe(75, False)]
    assert words.bisect_bar(probes, 100, 20) == "==========?????≠≠≠≠≠"
    assert words.bisect_bar([Probe(100, True)], 100, 10) == "=========="
    narrow = words.bisect_bar([Probe(100, False), Probe(50, True), Probe(51, False)], 100, 10)
    assert len(narrow) == 10 and "?" in narrow


@pytest.mark.parametrize("count", [1, 3, 9, 10, 11, 1000])
def test_state_bar_shows_the_worst_of_what_shares_a_character(count: int) -> None:
    """One step that differs is seen at any scale, at its place."""
    for at in {0, count // 2, count - 1}:
        states = [StepState.SAME] * count
        states[at] = StepState.DIFFERS
        bar = words.state_bar(Timeline("p", tuple(states)), 10)
        assert len(bar) <= 10 and set(bar) <= {"=", "≠"}
        assert bar.index("≠") == words.place(at, count, len(bar))
        if count <= 10:
            assert bar.count("≠") == len(bar) // count


def test_axis_never_mixes_numbers() -> None:
    """The mark has its place; an end is left out where both would run into each other."""
    assert words.axis(100, 50, 40).split() == ["0", "▼50", "99"]
    for mark in range(100):
        for word in words.axis(100, mark, 24).split():
            assert word in ("0", "99", f"▼{mark}")


def test_spark_scales_both_ends_and_tells_what_is_no_number() -> None:
    """The smallest is the lowest block, the largest the full one; a gap is a space, NaN an exclamation mark."""
    points = [(0, 0.0), (1, 7.0), (3, float("nan"))]
    assert words.spark(points, 4, 0.0, 7.0, 4) == "▁█ !"
    assert words.spark([(0, 1.0)], 1, 1.0, 1.0, 3) == "▅▅▅"


def test_labels_stand_in_a_column() -> None:
    """Text is wrapped beside its label, never under it."""
    lines = [line.plain for line in words.labelled("cause", "one two three four", 20)]
    assert lines == ["cause   one two", "        three four"]
