"""What is drawn stands where the numbers say."""

from __future__ import annotations

import math

import pytest
from pages import Node, parse

from rltrace.diff.metrics.timeline import Curve, StepState, Timeline
from rltrace.extensions.page.elements import Element, render
from rltrace.extensions.page.timeline import (
    curve_chart,
    lines,
    scale_of,
    timeline_chart,
)


def drawn(element: Element | None) -> Node:
    assert element is not None
    return parse(render(element)).children[0]


def points(node: Node) -> list[tuple[float, float]]:
    return [tuple(map(float, pair.split(","))) for pair in node.attributes["points"].split()]  # type: ignore[misc]


def curve(a: list[float], b: list[float]) -> Curve:
    parts = next((k for k, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)
    return Curve("loss", "train.py:1", tuple(enumerate(a)), tuple(enumerate(b)), parts, True)


def test_a_curve() -> None:
    """Both sides on one scale, from the smallest number of both at the bottom to the largest at the top."""
    both = drawn(curve_chart(curve([0.0, 1.0, 2.0], [0.0, 1.0, 4.0]), 2, "c", "words"))
    chart = both.one("svg", class_="curve")
    a, b = (chart.one("polyline", class_=name) for name in ("side-a", "side-b"))
    assert points(a) == [(0, 100), (500, 75), (1000, 50)]
    assert points(b) == [(0, 100), (500, 75), (1000, 0)]
    assert [chart.one("title").text, chart.one("desc").text] == ["loss, step by step", "words"]
    assert chart.attributes["aria-labelledby"] == "c-title c-text"
    assert [edge.text for edge in both.one("div", class_="scale").children] == ["4", "0"]


def test_numbers_that_cannot_be_drawn() -> None:
    """A line is broken at NaN and infinities, a lone number is a dot, and nothing but numbers is written."""
    series = [(0, 1.0), (1, math.nan), (2, 2.0), (3, math.inf), (4, 3.0), (5, 4.0)]
    found = [points(drawn(line)) for line in lines(series, scale_of(series), "x")]
    assert [len(part) for part in found] == [2, 2, 2]
    assert found[0][0] == found[0][1]
    assert [drawn(line).attributes["class"] for line in lines(series, scale_of(series), "x")] == ["x dot", "x dot", "x"]
    assert all(math.isfinite(x) and math.isfinite(y) for part in found for x, y in part)


@pytest.mark.parametrize("numbers", [[], [math.nan], [3.0], [3.0, 3.0], [1e308, -1e308], [5e-324, 0.0]])
def test_odd_scales(numbers: list[float]) -> None:
    """No, one, equal, huge and tiny numbers are drawn within the picture."""
    chart = drawn(curve_chart(curve(numbers, numbers), None, "c", ""))
    for line in chart.all("polyline"):
        assert all(0 <= x <= 1000 and 0 <= y <= 100 for x, y in points(line))


def test_a_timeline() -> None:
    """A bar a step where they are few; where they are many, runs of steps, and one that differs is never too thin."""
    few = drawn(timeline_chart(Timeline("rank0", (StepState.SAME, StepState.DIFFERS)), 1, "t", ""))
    assert [bar.attributes["class"] for bar in few.all("rect")] == ["is-same", "is-differs"]
    heights = [float(bar.attributes["height"]) for bar in few.all("rect")]
    assert heights[0] < heights[1]
    states = [StepState.SAME] * 100_000
    states[70_000] = StepState.DIFFERS
    many = drawn(timeline_chart(Timeline("rank0", tuple(states)), 70_000, "t", ""))
    (bad,) = many.all("rect", class_="is-differs")
    assert float(bad.attributes["width"]) == 2
    assert float(bad.attributes["x"]) == pytest.approx(700, abs=0.1)
    assert len(many.all("rect")) == 3
    assert "▼ step 70,000" in many.text
