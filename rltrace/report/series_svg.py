"""Series as one SVG file that stands by itself: a chart under the other, both runs on one scale where there are two.

Owns the layout of the file. Curves, scales and labels are drawn by ``html/charts.py``, as on the report page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rltrace.diff.metrics.series import Series
from rltrace.diff.metrics.timeline import Curve, points_of
from rltrace.report.html.charts import HIGH, MOST_POINTS, WIDE, drawn_curve, inner, label, scale_of, share
from rltrace.report.html.elements import Content, Element, StyleSheet, el, render
from rltrace.report.phrases import cut

WIDTH, MARGIN = 960, 24
HEAD, PLOT, FOOT = 52, 120, 28
"""Lines of text above a chart, the chart, the steps under it; in pixels."""

MOST = 100
"""Charts of one file."""

MOST_ODD = 200
"""Ticks for numbers that are not finite, of one side."""

CSS = """
:root { --ink: #1f2328; --soft: #57606a; --edge: #d0d7de; --paper: #ffffff; }
:root { --bad: #cf222e; --a: #0969da; --b: #bc4c00; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #8b949e; --edge: #30363d; --paper: #0d1117; }
  :root { --bad: #ff7b72; --a: #58a6ff; --b: #f0883e; }
}
text { font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: var(--soft); }
.name { fill: var(--ink); font-weight: 600; }
.mark-text { fill: var(--bad); font-weight: 600; }
.mark { stroke: var(--bad); stroke-width: 1; stroke-dasharray: 2 2; }
.odd { stroke: var(--bad); stroke-width: 2; }
.paper { fill: var(--paper); }
.frame { fill: none; stroke: var(--edge); }
.side-a { stroke: var(--a); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.two .side-a { stroke-width: 5; stroke-opacity: 0.45; }
.side-b { stroke: var(--b); stroke-width: 1.5; stroke-dasharray: 5 3; }
.dot { stroke-width: 5; stroke-linecap: round; }
"""


@dataclass(frozen=True)
class SeriesChart:
    """What one chart shows."""

    a: Series
    b: Series | None = None
    """Drawn thin and dashed over it."""
    mark: int | None = None
    """A step to point at."""
    sides: tuple[str, str] = ("A", "B")
    """What the two are called."""


def series_svg(drawn: Sequence[SeriesChart], title: str) -> str:
    """The file's content."""
    shown = drawn[:MOST]
    each = HEAD + PLOT + FOOT
    height = MARGIN + 24 + each * len(shown) + (24 if len(drawn) > MOST else 0)
    more = f"… and {len(drawn) - MOST:,} more; --name GLOB chooses" if len(drawn) > MOST else None
    document = el(
        "svg",
        StyleSheet(CSS),
        el("title", title),
        el("rect", width=WIDTH, height=height, class_="paper"),
        el("text", title, x=MARGIN, y=MARGIN, class_="name"),
        [_placed(one, MARGIN + 24 + each * number) for number, one in enumerate(shown)],
        el("text", more, x=MARGIN, y=height - 8) if more else None,
        xmlns="http://www.w3.org/2000/svg",
        width=WIDTH,
        height=height,
        view_box=f"0 0 {WIDTH} {height}",
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{render(document)}\n'


def _placed(drawn: SeriesChart, y: int) -> Element:
    high = HEAD + PLOT + FOOT
    return el("svg", _chart(drawn), x=MARGIN, y=y, width=WIDTH - 2 * MARGIN, height=high, class_=_class(drawn))


def _class(drawn: SeriesChart) -> str:
    return "one" if drawn.b is None else "two"


def _chart(drawn: SeriesChart) -> Iterator[Content]:
    curve = _curve(drawn)
    scale = scale_of(curve.a, curve.b)
    span = scale.last - scale.first
    yield el("text", cut(_name(drawn), 110), x=0, y=12, class_="name")
    yield el("text", _told(drawn, scale.low, scale.high), x=0, y=28)
    yield el("rect", y=HEAD, width="100%", height=PLOT, class_="frame")
    odd = [_ticks(series, scale.first, span) for series in (drawn.a, drawn.b) if series is not None]
    yield inner(drawn_curve(curve, scale, MOST_POINTS), odd, y=str(HEAD), height=str(PLOT))
    if drawn.mark is not None and scale.first <= drawn.mark <= scale.last:
        at = share(drawn.mark - scale.first, span)
        yield el("line", x1=at, x2=at, y1=HEAD, y2=HEAD + PLOT, class_="mark")
        yield label(f"▼ step {drawn.mark:,}", drawn.mark - scale.first, span, HEAD - 4, "mark-text")
    yield label(f"{scale.first:,}", 0, 1, HEAD + PLOT + 16)
    yield label(f"{scale.last:,}", 1, 1, HEAD + PLOT + 16) if span else None


def _name(drawn: SeriesChart) -> str:
    if drawn.b is not None and drawn.b.name != drawn.a.name:
        return f"{drawn.a.name} and {drawn.b.name}"
    return f"{drawn.a.name}  {drawn.a.place}".rstrip()


def _curve(drawn: SeriesChart) -> Curve:
    a = tuple(points_of(drawn.a))
    b = () if drawn.b is None else tuple(points_of(drawn.b))
    whole = drawn.a.whole and (drawn.b is None or drawn.b.whole)
    return Curve(drawn.a.name, drawn.a.place, a, b, None, whole)


def _told(drawn: SeriesChart, low: float, high: float) -> str:
    """``400 numbers in A (broad), 400 in B (dashed); from 0.2 to 5.1; 3 NaN or infinite (ticks at the top)``."""
    both = [series for series in (drawn.a, drawn.b) if series is not None]
    count = "1 number" if len(drawn.a) == 1 else f"{len(drawn.a):,} numbers"
    if drawn.b is not None:
        count += f" in {drawn.sides[0]} (solid), {len(drawn.b):,} in {drawn.sides[1]} (dashed)"
    told = [count, f"from {low:.6g} to {high:.6g}"]
    odd = sum(len(series) - int(np.isfinite(series.values).sum()) for series in both)
    if odd:
        told.append(f"{odd:,} NaN or infinite (ticks at the top)")
    if not all(series.whole for series in both):
        told.append("read in places")
    return "; ".join(told)


def _ticks(series: Series, first: int, span: int) -> list[Element]:
    """Where numbers are not finite."""
    steps = np.unique(series.steps[~np.isfinite(series.values)])
    if len(steps) > MOST_ODD:
        steps = steps[np.linspace(0, len(steps) - 1, MOST_ODD).astype(np.int64)]
    at = [f"{WIDE * (step - first) / max(1, span):.5g}" for step in steps.tolist()]
    return [el("line", x1=x, x2=x, y1=0, y2=HIGH // 12, class_="odd", vector_effect="non-scaling-stroke") for x in at]
