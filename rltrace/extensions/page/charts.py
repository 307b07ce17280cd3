"""Charts as inline SVG: a timeline of steps, and the curves of two runs.

Owns geometry. A chart stretches to the available width while text and lines keep their size: an inner drawing has fixed
coordinates, labels are at fractions of the outer one. Each has a title and a description in words. Shapes show
everything that colours show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rltrace.diff.metrics.series import Point, decimated
from rltrace.diff.metrics.timeline import WORSE, Curve, StepState, Timeline
from rltrace.extensions.page.elements import Content, Element, el

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
    return el("rect", x=_at(first, count), y=HIGH - height, width=width, height=height, class_=f"is-{state.value}")


def _at(part: float, whole: float) -> str:
    return f"{WIDE * part / whole:.5g}"


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
