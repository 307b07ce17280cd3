"""What becomes HTML, and what cannot."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import Node, parse

from rltrace.diff.metrics.series import decimated
from rltrace.diff.metrics.timeline import WORSE, Curve, StepState, Timeline
from rltrace.extensions.page.elements import Element, StyleSheet, el, render
from rltrace.extensions.page.timeline import curve_chart, lines, scale_of, state_runs, stretches, timeline_chart


def test_an_element() -> None:
    """Children in order, attributes by their HTML names, void and empty elements as HTML and SVG have them."""
    made = el(
        "p", "a ", [el("b", "c"), None, []], el("br"), el("rect", width=1), class_="x", aria_label="y", hidden=True
    )
    assert render(made) == '<p class="x" aria-label="y" hidden="">a <b>c</b><br><rect width="1"/></p>'
    assert render(el("input", checked=False, id=None)) == "<input>"
    assert render(el("svg", view_box="0 0 1 1")) == '<svg viewBox="0 0 1 1"></svg>'
    assert render(StyleSheet("a > b {}")) == "<style>a > b {}</style>"


@settings(max_examples=30)
@given(st.text(), st.text())
def test_any_text_is_text(text: str, value: str) -> None:
    """Whatever it is, it comes out as text and as nothing else."""
    page = render(el("div", el("p", text, title=value), el("q")))
    node = parse(page).one("div")
    assert [child.tag for child in node.children] == ["p", "q"]
    assert list(node.children[0].attributes) == ["title"]
    page.encode("utf-8")


def test_text_is_kept() -> None:
    """Letters of all kinds are kept; what cannot be seen or turns text around is shown to be there."""
    assert render("≠ naïve 日本 <b> & \"q\" 'q'") == "≠ naïve 日本 &lt;b&gt; &amp; \"q\" 'q'"
    assert render("a\u202eb\x00c\ud800d\x1b[1m\ne") == "a\ufffdb\ufffdc\ufffdd\ufffd[1m\ne"
    assert render(el("i", title="\"'<>&")) == '<i title="&quot;&#x27;&lt;&gt;&amp;"></i>'


@pytest.mark.parametrize(
    "attribute",
    [{"onclick": "x()"}, {"style": "color: red"}, {"src": "#x"}, {"href": "https://e.org"}, {"action": "x"}],
)
def test_nothing_that_loads_or_runs(attribute: dict[str, str]) -> None:
    """There is no way to write an attribute that loads, sends or runs anything."""
    with pytest.raises(ValueError, match="a report has no"):
        el("a", **attribute)
    assert render(el("a", href="#ops")) == '<a href="#ops"></a>'


# --- charts -----------------------------------------------------------------------------------------------------------


def drawn(element: Element) -> Node:
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


# --- thinned curves ---------------------------------------------------------------------------------------------------


NUMBERS = st.lists(st.floats(allow_nan=True), max_size=300)


@given(NUMBERS, st.integers(4, 100))
def test_decimated(numbers: list[float], most: int) -> None:
    """Few enough, in order, ends kept, nothing invented; the largest and the smallest number of all are there."""
    points = list(enumerate(numbers))
    kept = [points[place] for place in decimated(np.array(numbers), most).tolist()]
    assert len(kept) <= max(most, 4)
    assert [step for step, _ in kept] == sorted({step for step, _ in kept})
    assert {step for step, _ in kept} <= set(range(len(numbers)))
    finite = [value for value in numbers if math.isfinite(value)]
    if finite:
        assert {min(finite), max(finite)} <= {value for _, value in kept}
    if points:
        assert (kept[0][0], kept[-1][0]) == (0, len(numbers) - 1)


def test_a_spike_is_kept() -> None:
    """One step among thousands is still seen."""
    points = [(step, 100.0 if step == 4711 else 0.0) for step in range(10_000)]
    (drawn,) = stretches(points, 40, whole=True)
    assert (4711, 100.0) in drawn


def test_a_first_difference_is_kept() -> None:
    """The number at the step where two runs diverge is drawn, however unremarkable it is."""
    points = [(step, float(step)) for step in range(10_000)]
    assert (4711, 4711.0) not in stretches(points, 40, whole=True)[0]
    assert (4711, 4711.0) in stretches(points, 40, whole=True, mark=4711)[0]


def test_a_number_that_is_not_finite_is_kept() -> None:
    """So that a line breaks there."""
    values = np.zeros(10_000)
    values[4711] = np.nan
    assert 4711 in decimated(values, 40)


def test_what_was_read_in_places_is_drawn_in_places() -> None:
    """No line leads over steps that were not read; where all were read, rare numbers are joined as they are."""
    read = [(start + step, 1.0) for start in (0, 5000, 9000) for step in range(50)]
    parts = stretches(read, 60, whole=False)
    assert [(part[0][0], part[-1][0]) for part in parts] == [(0, 49), (5000, 5049), (9000, 9049)]
    assert sum(map(len, parts)) <= 60
    assert len(stretches(read, 60, whole=True)) == 1
    assert stretches([], 60, whole=False) == []
    assert stretches([(3, 1.0)], 60, whole=False) == [[(3, 1.0)]]


@given(st.lists(st.sampled_from(StepState), max_size=200), st.integers(1, 50))
def test_state_runs(states: list[StepState], most: int) -> None:
    """The runs cover every step once, are few enough, and never show a step as better than it is."""
    runs = state_runs(states, most)
    assert len(runs) <= most
    assert [start for start, _, _ in runs] == [0, *(stop for _, stop, _ in runs)][: len(runs)]
    assert (runs[-1][1] if runs else 0) == len(states)
    for start, stop, state in runs:
        assert all(WORSE.index(state) >= WORSE.index(inside) for inside in states[start:stop])
        assert state in states[start:stop]
