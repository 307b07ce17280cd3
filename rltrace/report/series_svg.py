"""Series as one SVG file: one chart below the other, two runs on one scale.

Owns the layout of the file; ``html/charts.py`` draws curves, scales and labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rltrace.diff.metrics.series import Series, points_of
from rltrace.diff.metrics.timeline import Curve
from rltrace.report.html.charts import HIGH, MAX_POINTS, WIDE, curve_lines, inner, label, scale_of, share
from rltrace.report.html.elements import Content, Element, StyleSheet, el, render
from rltrace.wording import counted, cut

WIDTH, MARGIN = 960, 24
HEAD, PLOT, FOOT = 52, 120, 28
"""Lines of text above a chart, the chart, the steps under it; in pixels."""

MAX_CHARTS = 100
"""Charts in one file."""

MAX_TICKS = 200
"""Ticks for NaN and infinities of one side."""

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
    """The content of one chart."""

    a: Series
    b: Series | None = None
    """Drawn thin and dashed over ``a``."""
    mark: int | None = None
    """A step to mark."""
    sides: tuple[str, str] = ("A", "B")
    """Names of the two series."""


def series_svg(charts: Sequence[SeriesChart], title: str) -> str:
    """The content of the file."""
    shown = charts[:MAX_CHARTS]
    each = HEAD + PLOT + FOOT
    height = MARGIN + 24 + each * len(shown) + (24 if len(charts) > MAX_CHARTS else 0)
    more = f"… and {len(charts) - MAX_CHARTS:,} more; --name GLOB chooses" if len(charts) > MAX_CHARTS else None
    document = el(
        "svg",
        StyleSheet(CSS),
        el("title", title),
        el("rect", width=WIDTH, height=height, class_="paper"),
        el("text", title, x=MARGIN, y=MARGIN, class_="name"),
        [_placed(chart, MARGIN + 24 + each * number) for number, chart in enumerate(shown)],
        el("text", more, x=MARGIN, y=height - 8) if more else None,
        xmlns="http://www.w3.org/2000/svg",
        width=WIDTH,
        height=height,
        view_box=f"0 0 {WIDTH} {height}",
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{render(document)}\n'


def _placed(chart: SeriesChart, y: int) -> Element:
    high = HEAD + PLOT + FOOT
    return el("svg", _chart(chart), x=MARGIN, y=y, width=WIDTH - 2 * MARGIN, height=high, class_=_class(chart))


def _class(chart: SeriesChart) -> str:
    return "one" if chart.b is None else "two"


def _chart(chart: SeriesChart) -> Iterator[Content]:
    curve = _curve(chart)
    scale = scale_of(curve.a, curve.b)
    span = scale.last - scale.first
    yield el("text", cut(_name(chart), 110), x=0, y=12, class_="name")
    yield el("text", _description(chart, scale.low, scale.high), x=0, y=28)
    yield el("rect", y=HEAD, width="100%", height=PLOT, class_="frame")
    ticks = [_ticks(series, scale.first, span) for series in (chart.a, chart.b) if series is not None]
    yield inner(curve_lines(curve, scale, MAX_POINTS), ticks, y=str(HEAD), height=str(PLOT))
    if chart.mark is not None and scale.first <= chart.mark <= scale.last:
        at = share(chart.mark - scale.first, span)
        yield el("line", x1=at, x2=at, y1=HEAD, y2=HEAD + PLOT, class_="mark")
        yield label(f"▼ step {chart.mark:,}", chart.mark - scale.first, span, HEAD - 4, "mark-text")
    yield label(f"{scale.first:,}", 0, 1, HEAD + PLOT + 16)
    yield label(f"{scale.last:,}", 1, 1, HEAD + PLOT + 16) if span else None


def _name(chart: SeriesChart) -> str:
    if chart.b is not None and chart.b.name != chart.a.name:
        return f"{chart.a.name} and {chart.b.name}"
    return f"{chart.a.name}  {chart.a.place}".rstrip()


def _curve(chart: SeriesChart) -> Curve:
    a = tuple(points_of(chart.a))
    b = () if chart.b is None else tuple(points_of(chart.b))
    whole = chart.a.whole and (chart.b is None or chart.b.whole)
    return Curve(chart.a.name, chart.a.place, a, b, None, whole)


def _description(chart: SeriesChart, low: float, high: float) -> str:
    """``400 numbers in A (solid), 400 in B (dashed); from 0.2 to 5.1; 3 NaN or infinite (ticks at the top)``."""
    both = [series for series in (chart.a, chart.b) if series is not None]
    count = counted(len(chart.a), "number")
    if chart.b is not None:
        count += f" in {chart.sides[0]} (solid), {len(chart.b):,} in {chart.sides[1]} (dashed)"
    clauses = [count, f"from {low:.6g} to {high:.6g}"]
    not_finite = sum(len(series) - int(np.isfinite(series.values).sum()) for series in both)
    if not_finite:
        clauses.append(f"{not_finite:,} NaN or infinite (ticks at the top)")
    if not all(series.whole for series in both):
        clauses.append("read in places")
    return "; ".join(clauses)


def _ticks(series: Series, first: int, span: int) -> list[Element]:
    """A tick at each step whose number is not finite."""
    steps = np.unique(series.steps[~np.isfinite(series.values)])
    if len(steps) > MAX_TICKS:
        steps = steps[np.linspace(0, len(steps) - 1, MAX_TICKS).astype(np.int64)]
    at = [f"{WIDE * (step - first) / max(1, span):.5g}" for step in steps.tolist()]
    return [el("line", x1=x, x2=x, y1=0, y2=HIGH // 12, class_="odd", vector_effect="non-scaling-stroke") for x in at]
