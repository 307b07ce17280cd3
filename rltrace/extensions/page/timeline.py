"""Both runs over time, as inline SVG: every optimizer step, and their logged scalars.

Owns geometry, and the text beside the charts, which says where a chart is a sample. A chart stretches to the available
width while text and lines keep their size: an inner drawing has fixed coordinates, labels are at fractions of the outer
one. Each has a title and a description in words. Shapes show everything that colours show. Reads nothing.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rltrace.diff.base.model import Finding
from rltrace.diff.metrics.series import Point, decimated
from rltrace.diff.metrics.timeline import WORSE, Curve, StepState, Timeline
from rltrace.extensions.page.data import PageData
from rltrace.extensions.page.elements import (
    IN_TERMINAL,
    Content,
    Element,
    blocks,
    code,
    el,
    more,
    muted,
    row,
    section,
    side,
    table,
)
from rltrace.report.diff import step_word
from rltrace.report.document import Document
from rltrace.wording import counted

# --- decimation -------------------------------------------------------------------------------------------------------


WIDE_GAP = 4
"""A gap this many times as wide as the median was not read."""


def stretches(points: Sequence[Point], limit: int, *, whole: bool, mark: int | None = None) -> list[list[Point]]:
    """``points`` decimated to about ``limit``, keeping step ``mark``, in stretches that a line may join.

    Unless ``whole`` they are a sample, and the line is broken at gaps.
    """
    cuts = [] if whole else _gaps(points)
    pieces = [points[first:end] for first, end in pairwise([0, *cuts, len(points)]) if end > first]
    return [_decimated(piece, max(4, limit // len(pieces)), mark) for piece in pieces]


def _decimated(points: Sequence[Point], limit: int, mark: int | None) -> list[Point]:
    marked = [place for place, (step, _) in enumerate(points) if step == mark]
    return [points[place] for place in decimated(np.array([number for _, number in points]), limit, marked).tolist()]


def _gaps(points: Sequence[Point]) -> list[int]:
    """Indices of the points after a wide gap between steps."""
    steps = [after - before for (before, _), (after, _) in pairwise(points)]
    median = sorted(steps)[len(steps) // 2] if steps else 0
    return [number for number, gap in enumerate(steps, 1) if gap > WIDE_GAP * median]


def state_runs(states: Sequence[StepState], limit: int) -> list[tuple[int, int, StepState]]:
    """(first step, step after the last, state) of each run of equal states, at most ``limit``.

    If there are more, neighbouring steps are merged, and have the worst of their states.
    """
    found = _runs(states, 1)
    width = 1
    while len(found) > limit:
        width = max(width + 1, width * 2)
        found = _runs(states, width)
    return found


def _runs(states: Sequence[StepState], width: int) -> list[tuple[int, int, StepState]]:
    found: list[tuple[int, int, StepState]] = []
    for first in range(0, len(states), width):
        piece = states[first : first + width]
        worst = piece[0] if width == 1 else max(set(piece), key=WORSE.index)
        if found and found[-1][2] is worst:
            found[-1] = (found[-1][0], first + len(piece), worst)
        else:
            found.append((first, first + len(piece), worst))
    return found


# --- charts -----------------------------------------------------------------------------------------------------------


WIDE, HIGH = 1000, 100
"""Inner coordinates."""

MIN_WIDTH = 2.0
"""Width of what must be visible however small it is."""

MAX_POINTS, MAX_RUNS, MAX_SINGLE = 240, 240, 100

HEIGHTS = {
    StepState.SAME: 20,
    StepState.OTHER_OPS: 55,
    StepState.ONE_SIDED: 40,
    StepState.UNKNOWN: 8,
    StepState.DIFFERS: 100,
}
"""Height of a step."""


def share(part: float, whole: float) -> str:
    """``37.5%``."""
    return f"{100 * part / whole:.4g}%" if whole else "0%"


def chart(name: str, title: str, text: str, *drawing: Content, class_: str) -> Element:
    """A chart with a title and a description; ``name``: unique in the page."""
    return el(
        "svg",
        el("title", title, id=f"{name}-title"),
        el("desc", text, id=f"{name}-text"),
        drawing,
        class_=f"chart {class_}",
        role="img",
        aria_labelledby=f"{name}-title {name}-text",
        width="100%",
    )


def inner(*drawing: Content, height: str) -> Element:
    """A drawing that stretches, below the labels of marks."""
    box = f"0 0 {WIDE} {HIGH}"
    return el("svg", drawing, view_box=box, preserve_aspect_ratio="none", width="100%", height=height, y="20")


def marked(step: int, part: float, whole: float, bottom: int) -> list[Content]:
    """A line down to ``bottom`` at ``part / whole`` of the drawing's width, labelled with a step."""
    at = share(part, whole)
    line = el("line", x1=at, x2=at, y1=16, y2=bottom, class_="mark")
    return [line, label(f"▼ step {step:,}", part, whole, 12, "mark-text")]


def label(text: str, part: float, whole: float, y: int | str, class_: str | None = None) -> Element:
    """Text at ``part / whole`` of the drawing's width, kept inside it."""
    at = part / whole if whole else 0.0
    anchor = "start" if at < 0.12 else "end" if at > 0.88 else "middle"
    return el("text", text, x=share(part, whole), y=y, text_anchor=anchor, class_=class_)


# --- timeline -------------------------------------------------------------------------------------------------------


def timeline_chart(timeline: Timeline, mark: int | None, name: str, text: str) -> Element:
    """The state of each step: the higher, the worse. ``mark``: the finding's step."""
    count = len(timeline.states)
    if count <= MAX_SINGLE:  # separate bars with a gap
        runs = [(step, step + 1, state) for step, state in enumerate(timeline.states)]
        gap = min(0.12, count / 250)
    else:
        runs, gap = state_runs(timeline.states, MAX_RUNS), 0.0
    bars = [_bar(first, end - gap, count, state) for first, end, state in runs]
    drawing: list[Content] = [inner(bars, height="40")]
    drawing += marked(mark, mark, count, 62) if mark is not None and mark < count else []
    drawing += [label("0", 0, 1, 76), label(f"{count - 1:,}", 1, 1, 76)] if count > 1 else [label("0", 0, 1, 76)]
    return chart(name, f"Steps of {timeline.process}", text, drawing, class_="timeline")


def _bar(first: float, end: float, count: int, state: StepState) -> Element:
    minimum = 0.0 if state is StepState.SAME else MIN_WIDTH
    width = f"{max(WIDE * (end - first) / count, minimum):.5g}"
    height = HEIGHTS[state]
    return el(
        "rect", x=f"{WIDE * first / count:.5g}", y=HIGH - height, width=width, height=height, class_=f"is-{state.value}"
    )


# --- curves ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """Maps steps and numbers to coordinates."""

    first: int
    last: int
    low: float
    high: float

    def x(self, step: int) -> float:
        return WIDE * (step - self.first) / max(1, self.last - self.first)

    def y(self, number: float) -> float:
        """From the top; a flat curve is in the middle."""
        if self.high <= self.low:
            return HIGH / 2
        half = 0.5 if math.isinf(self.high - self.low) else 1.0  # halves cannot overflow
        return HIGH - HIGH * ((number * half - self.low * half) / (self.high * half - self.low * half))


def scale_of(*series: Sequence[Point]) -> Scale:
    """The scale that all series fit on."""
    points = [point for one in series for point in one]
    finite = [value for _, value in points if math.isfinite(value)] or [0.0]
    steps = [step for step, _ in points] or [0]
    return Scale(min(steps), max(steps), min(finite), max(finite))


def lines(points: Sequence[Point], scale: Scale, class_: str) -> Iterator[Element]:
    """Lines through ``points``, broken where a number is not finite; a single point is a dot."""
    run: list[Point] = []
    for point in [*points, (0, math.nan)]:
        if math.isfinite(point[1]):
            run.append(point)
            continue
        if run:
            is_dot = len(run) == 1
            at = " ".join(f"{scale.x(step):.4g},{scale.y(value):.4g}" for step, value in (run * 2 if is_dot else run))
            look = f"{class_} dot" if is_dot else class_
            yield el("polyline", points=at, class_=look, fill="none", vector_effect="non-scaling-stroke")
        run = []


def curve_lines(curve: Curve, scale: Scale, limit: int) -> Iterator[Element]:
    """The lines of both sides, of at most about ``limit`` points each."""
    for points, class_ in ((curve.a, "side-a"), (curve.b, "side-b")):
        for piece in stretches(points, limit, whole=curve.whole, mark=curve.diverges_at):
            yield from lines(piece, scale, class_)


def curve_chart(curve: Curve, mark: int | None, name: str, text: str) -> Element:
    """Both runs on one scale: A broad and light, B thin and dashed over it."""
    scale = scale_of(curve.a, curve.b)
    span = scale.last - scale.first
    is_shown = mark is not None and scale.first <= mark <= scale.last
    drawing = chart(
        name,
        f"{curve.name}, step by step",
        text,
        inner(curve_lines(curve, scale, MAX_POINTS), height="128"),
        marked(mark, mark - scale.first, span, 152) if mark is not None and is_shown else None,
        label(f"{scale.first:,}", 0, 1, 168),
        label(f"{scale.last:,}", 1, 1, 168) if span else None,
        class_="curve",
    )
    edges = dict.fromkeys((f"{scale.high:.6g}", f"{scale.low:.6g}"))  # one of a flat curve
    return el("div", el("div", [el("span", edge) for edge in edges], class_="scale"), drawing, class_="plot")


# --- steps and curves -------------------------------------------------------------------------------------------------


MAX_CURVES, MAX_PROCESSES = 24, 16
MAX_NUMBERS = 6
"""Steps around the divergence of a curve whose numbers are listed."""

STATES = {
    StepState.SAME: "equal",
    StepState.DIFFERS: "differs",
    StepState.OTHER_OPS: "other ops, or the same in another order; no value known to differ",
    StepState.ONE_SIDED: "on one side only",
    StepState.UNKNOWN: "without digests on one side",
}

COUNTED = {
    StepState.SAME: "equal",
    StepState.DIFFERS: "differing",
    StepState.OTHER_OPS: "other ops or another order",
    StepState.ONE_SIDED: "on one side only",
    StepState.UNKNOWN: "without digests",
}

# --- timeline -------------------------------------------------------------------------------------------------------


def timeline_section(material: PageData) -> Element | None:
    """A timeline for every process that made steps."""
    if not material.timelines:
        return None
    finding = material.comparison.shown
    shown = material.timelines[:MAX_PROCESSES]
    return section(
        "timeline",
        f"Every {step_word(material.comparison.a.engine)}",
        [_timeline(timeline, finding, number, len(shown) > 1) for number, timeline in enumerate(shown)],
        _timeline_legend(shown),
        more(len(material.timelines) - len(shown), "processes", IN_TERMINAL),
    )


def _timeline(timeline: Timeline, finding: Finding | None, place: int, named: bool) -> Content:
    mark = finding.step if finding is not None and finding.stream.startswith(timeline.process) else None
    counts = Counter(timeline.states)
    listed = ", ".join(f"{counts[state]:,} {words}" for state, words in COUNTED.items() if counts[state])
    text = f"{len(timeline.states):,} steps: {listed}."
    drawn = state_runs(timeline.states, MAX_RUNS)
    exact = sum(1 for k in range(1, len(timeline.states)) if timeline.states[k] is not timeline.states[k - 1]) + 1
    sampled = " Neighbouring steps share a place; the worst of them is drawn." if exact > len(drawn) else ""
    return [
        el("h3", code(timeline.process)) if named else None,
        timeline_chart(timeline, mark, f"timeline-{place}", text),
        el("p", text, sampled, class_="small"),
    ]


def _timeline_legend(shown: tuple[Timeline, ...]) -> Element:
    present = {state for timeline in shown for state in timeline.states}
    return el(
        "ul", [el("li", _key(state), words) for state, words in STATES.items() if state in present], class_="legend"
    )


def _key(state: StepState) -> Element:
    """A bar as high as in the chart."""
    high = max(1, HEIGHTS[state] * 16 // 100)
    bar = el("rect", y=16 - high, width=8, height=high, class_=f"is-{state.value}")
    return el("svg", bar, class_="key", width=8, height=16, aria_hidden="true")


# --- curves ---------------------------------------------------------------------------------------------------------


def curves_section(material: PageData, document: Document) -> Element | None:
    """Where logged scalars diverge, and their charts, of which the first is unfolded."""
    facts = [[el("h3", words.title), blocks(words)] for words in document.named("drift")]
    shown = material.curves[:MAX_CURVES]
    if not shown and not facts:
        return None
    return section(
        "curves",
        "Logged scalars of both runs",
        facts,
        el("div", [_curve(curve, number) for number, curve in enumerate(shown)], class_="curves"),
        more(len(material.curves) - len(shown), "curves", IN_TERMINAL),
        class_="long",
    )


def _curve(curve: Curve, place: int) -> Element:
    name = f"curve-{place}"
    return el(
        "details",
        el("summary", code(curve.name), el("span", _divergence(curve), class_="badge")),
        el(
            "ul",
            el("li", side("A"), " solid"),
            el("li", side("B"), " dashed"),
            el("li", code(curve.place)),
            class_="legend",
        ),
        curve_chart(curve, curve.diverges_at, name, _curve_text(curve)),
        el("p", _curve_text(curve), class_="small"),
        _numbers(curve),
        id=name,
        open=place == 0,
    )


def _divergence(curve: Curve) -> str:
    if curve.diverges_at is None:
        return "equal" if curve.whole else "equal where read"
    return f"diverges at step {curve.diverges_at:,}" if curve.whole else f"differs at step {curve.diverges_at:,}"


def _curve_text(curve: Curve) -> str:
    """The chart in words: how many numbers, their range, and what is left out."""
    finite = [value for _, value in (*curve.a, *curve.b) if math.isfinite(value)]
    clauses = [f"{counted(len(curve.a), 'number')} in A, {len(curve.b):,} in B"]
    if finite:
        clauses.append(f"between {min(finite):.6g} and {max(finite):.6g}")
    not_finite = len(curve.a) + len(curve.b) - len(finite)
    if not_finite:
        clauses.append(f"{not_finite:,} NaN or infinite, not drawn")
    if not curve.whole:
        clauses.append("read at evenly spaced steps, not at all of them")
    if max(len(curve.a), len(curve.b)) > MAX_POINTS:
        clauses.append(f"about {MAX_POINTS} of a side are drawn: of each stretch the first, last, smallest and largest")
    return "; ".join(clauses) + "."


def _numbers(curve: Curve) -> Content:
    """The numbers around the divergence, in full."""
    if curve.diverges_at is None:
        return None
    others = dict(curve.b)
    steps = [(step, value) for step, value in curve.a if step in others]
    at = next((k for k, (step, _) in enumerate(steps) if step >= curve.diverges_at), 0)
    chosen = steps[max(0, at - 2) : at + MAX_NUMBERS - 2]
    rows = [
        row(
            el("th", f"{step:,}", scope="row"),
            el("td", code(repr(value))),
            el("td", code(repr(others[step]))),
            el("td", _difference(value, others[step])),
        )
        for step, value in chosen
    ]
    head = (("step", None), ("A", None), ("B", None), ("A - B", None))
    return el(
        "details",
        el("summary", "Logged scalars around the divergence"),
        table(head, rows, "Logged scalars around the first difference"),
    )


def _difference(a: float, b: float) -> Content:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return muted("equal")
    return code(f"{a - b:.3g}")
