"""Text and JSON of ``rltrace series``: the series of a trace, scalers that diverge, and how two runs diverge.

Owns the order and the wording, for 80 columns. Computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rltrace.diff.base.model import Drift
from rltrace.diff.metrics.scalers import ScaledOptimizer, Scaler, ScalerDivergence, ScalerDivergenceCause, ScalerGroup
from rltrace.diff.metrics.series import KINDS, Series
from rltrace.diff.metrics.timeline import points_of
from rltrace.report.curves import bounds_of, drift_text, growth_text, short_name, spark
from rltrace.report.diff_text import WIDTH, wrapped
from rltrace.report.style import Style
from rltrace.wording import counted, cut, joined

SPARK_WIDTH = 24
NAME_WIDTH = 29
MIN_NAME = 20
SIDE_COLORS = {"A": "34", "B": "33"}
"""Blue and yellow, as escape sequences."""

MAX_FIRST = 3
"""Series that are named together."""

MAX_SERIES = 60
"""Series in one list of the text."""


@dataclass(frozen=True)
class TraceSeries:
    """Series and scalers of one trace."""

    path: str
    series: tuple[Series, ...]
    scalers: tuple[Scaler, ...]
    divergences: tuple[ScalerDivergence, ...]
    holes: tuple[str, ...] = ()
    """Why some of it cannot be read."""


@dataclass(frozen=True)
class PairSeries:
    """How the series of two traces diverge."""

    a: str
    b: str
    drift: tuple[Drift, ...]
    """One for each series that both have, those that differ first."""
    only_a: tuple[Series, ...]
    only_b: tuple[Series, ...]


def render_trace(trace: TraceSeries, *, color: bool) -> str:
    """One trace: scalers that diverge, then every series."""
    style = Style(color)
    streams = {series.stream for series in trace.series}
    sections = [_head(trace, style), _divergences(trace, style)]
    for kind in KINDS:
        own = [series for series in trace.series if series.kind == kind]
        if own:
            sections.append(_listed(KINDS[kind], own, len(streams) > 1, style))
    sections.append(_holes(trace, style))
    texts = ["\n".join(lines) for lines in sections]
    return "\n\n".join(text for text in texts if text)


def render_pair(pair: PairSeries, values: dict[tuple[object, ...], tuple[Series, Series]], *, color: bool) -> str:
    """Two traces: the series that diverge, those that are equal, then those on one side only.

    ``values``: the series of both sides, by key.
    """
    style = Style(color)
    differing = [drift for drift in pair.drift if drift.first is not None]
    equal = [drift for drift in pair.drift if drift.first is None]
    several = len({d.stream for d in pair.drift} | {s.stream for s in (*pair.only_a, *pair.only_b)}) > 1
    lines = [
        style.bold(f"A  {pair.a}"),
        style.bold(f"B  {pair.b}"),
        *wrapped(f"{len(differing)} of {len(pair.drift)} series differ{_first_text(differing, several)}", "  ", ""),
    ]
    both = {(a.kind, a.name, a.stream, a.place): (a, b) for a, b in values.values()}
    for drift in differing:
        lines += ["", *_drift_lines(drift, *both[drift.kind, drift.name, drift.stream, drift.place], several, style)]
    if equal:
        lines += ["", style.bold("Equal" if all(drift.whole for drift in equal) else "Equal where read")]
        lines += [_name_line(drift, several, drift.matched) for drift in equal[:MAX_SERIES]]
        lines += _more(len(equal))
    for side, series in (("A", pair.only_a), ("B", pair.only_b)):
        if series:
            lines += ["", style.bold(f"Only in {side}")]
            lines += [_name_line(one, several, len(one)) for one in series[:MAX_SERIES]]
            lines += _more(len(series))
    return "\n".join(lines)


def _name_line(series: Series | Drift, several: bool, numbers: int) -> str:
    """``  losses/value_loss  rank1/main  320 numbers``; with its stream where there are several."""
    return f"  {_named(series, several, WIDTH - 24, '')}  {counted(numbers, 'number')}"


def _named(series: Series | Drift, several: bool, width: int, place: str) -> str:
    """Name, place and, of several, stream; of a name that is too long the end is left out."""
    where = "  ".join(filter(None, (place, series.stream if several else "")))
    if not where:
        return cut(series.name, width)
    return cut(f"{cut(series.name, max(width - len(where) - 2, MIN_NAME))}  {where}", width)


def _first_text(differing: Sequence[Drift], several: bool) -> str:
    """``, the first from step 2,048: losses/value_loss, losses/entropy and 3 more``; where there are several streams,
    ``value_loss (rank1/main)``."""
    steps = [drift.first.step for drift in differing if drift.first is not None]
    if not steps:
        return ""
    first = [d for d in differing if d.first is not None and d.first.step == min(steps)]
    names = [short_name(d) + (f" ({d.stream})" if several and d.stream else "") for d in first]
    more = f" and {len(names) - MAX_FIRST:,} more" if len(names) > MAX_FIRST else ""
    return f", the first from step {min(steps):,}: {', '.join(names[:MAX_FIRST])}{more}"


# --- one trace --------------------------------------------------------------------------------------------------------


def _head(trace: TraceSeries, style: Style) -> Iterator[str]:
    count = len(trace.series)
    yield style.bold(trace.path) + f"  {count} series" + ("" if count else ": no number was recorded")


def _listed(title: str, series: Sequence[Series], streams: bool, style: Style) -> Iterator[str]:
    yield style.bold(title)
    for one in series[:MAX_SERIES]:
        yield from _line(one, streams)
    yield from _more(len(series))


def _line(series: Series, streams: bool) -> Iterator[str]:
    if len(series.name) > NAME_WIDTH or series.place or (streams and series.stream):
        yield f"  {_named(series, streams, WIDTH - 2, series.place)}"
        name = ""
    else:
        name = series.name
    course = spark(series.values, SPARK_WIDTH)
    yield f"  {name:<{NAME_WIDTH}}  {course:<{SPARK_WIDTH}}  {_numbers(series)}".rstrip()


def _numbers(series: Series) -> str:
    """``12: 0.42 … 0.16``."""
    if not len(series):
        return "no number"
    first, last = f"{series.values[0]:.4g}", f"{series.values[-1]:.4g}"
    ones = int((series.values == 1).sum())
    if ones and ones + int((series.values == 0).sum()) == len(series):
        course = f"{ones:,} of them 1"
    else:
        course = first if series.is_flat else f"{first} … {last}"
    return f"{len(series):,}: {course}" + ("" if series.whole else " (in places)")


def _more(count: int) -> list[str]:
    more = count - MAX_SERIES
    return [f"  … and {more:,} more (--name GLOB chooses, --format json has all)"] if more > 0 else []


def _holes(trace: TraceSeries, style: Style) -> Iterator[str]:
    if trace.holes:
        yield style.bold("Cannot be read")
    for hole in trace.holes:
        yield from wrapped(hole)


# --- scalers ----------------------------------------------------------------------------------------------------------


def _divergences(trace: TraceSeries, style: Style) -> Iterator[str]:
    if not trace.divergences:
        return
    yield style.bold("Gradient scalers that diverge")
    for divergence in trace.divergences:
        yield from wrapped(divergence_text(divergence, len({p.process for p in trace.divergences}) > 1))
    processes = {divergence.process for divergence in trace.divergences}
    for scaler in trace.scalers:
        if scaler.process in processes:
            yield from wrapped(scaler_text(scaler), "             ", f"  scaler {scaler.number:<3} ")


def divergence_text(divergence: ScalerDivergence, named: bool = False) -> str:
    """One sentence: which scalers diverge, when and why."""
    sides = sorted(divergence.sides, key=lambda side: (side.found_inf, side.scalers))
    where = f"{divergence.process}: " if named else ""
    if divergence.cause is ScalerDivergenceCause.START:
        starts = ", ".join(f"{_scalers(side)} at {side.after:g}" for side in sides)
        return f"{where}{_all_scalers(divergence)} start with different scales: {starts}."
    steps = sorted({side.step for side in sides})
    at = f"step{'s' if len(steps) > 1 else ''} {' and '.join(f'{step:,}' for step in steps)}"
    updates = counted(divergence.update - 1, "update")
    after = ", ".join(f"{side.after:g} in {_scalers(side)}" for side in sides)
    together = f"are the same for {updates} ({sides[0].before:g})" if divergence.update > 1 else "start the same"
    return (
        f"{where}{_all_scalers(divergence)} {together} and diverge at update {divergence.update:,} ({at}): "
        f"{_cause(divergence.cause, sides)}. The scale after it: {after}."
    )


def _cause(cause: ScalerDivergenceCause, sides: Sequence[ScalerGroup]) -> str:
    if cause is ScalerDivergenceCause.FOUND_INF:
        found = " and ".join(_scalers(side) for side in sides if side.found_inf)
        others = " and ".join(_scalers(side) for side in sides if not side.found_inf)
        return f"infinities were found in the gradients of {found}, none in those of {others}"
    if cause is ScalerDivergenceCause.GROWTH:
        trackers = ", ".join(f"{side.growth:,} of {_scalers(side)}" for side in sides)
        return f"infinities were found by all or none, but their growth trackers differ ({trackers})"
    return (
        "infinities were found by all or none, and their growth trackers were equal: the program set the scale, "
        "or its factors differ"
    )


def _scalers(side: ScalerGroup) -> str:
    return f"scaler{'s' if len(side.scalers) > 1 else ''} {joined(side.scalers)}"


def _all_scalers(divergence: ScalerDivergence) -> str:
    return f"Scalers {joined(sorted(number for side in divergence.sides for number in side.scalers))}"


def scaler_text(scaler: Scaler) -> str:
    """Scale, overflows and learning rates of a scaler."""
    found = f"{_count(scaler.overflows)} of {scaler.updates:,} updates found infinities"
    return "; ".join([f"scale {scaler.first:g} … {scaler.last:g}", found, *map(optimizer_text, scaler.optimizers)])


def optimizer_text(optimizer: ScaledOptimizer) -> str:
    """``actor's SGD #0 skipped 1 of 6 attempts, learning rate 0.1, 0.08333 on average``."""
    owner = f"{optimizer.owner}'s " if optimizer.owner else ""
    skipped = f"skipped {_count(optimizer.skipped)} of {optimizer.attempts:,} attempts"
    text = f"{owner}{optimizer.name} #{optimizer.ordinal} {skipped}"
    if optimizer.rate is None:
        return text
    effect = f", {optimizer.effective:.4g} on average" if optimizer.skipped and optimizer.effective is not None else ""
    return f"{text}, learning rate {optimizer.rate:.4g}{effect}"


def _count(number: int) -> str:
    return f"{number:,}" if number else "none"


# --- two traces -------------------------------------------------------------------------------------------------------


def _drift_lines(drift: Drift, a: Series, b: Series, several: bool, style: Style) -> Iterator[str]:
    yield style.bold(_named(drift, several, WIDTH, drift.place))
    bounds = bounds_of(a.values, b.values)
    for side, series in (("A", a), ("B", b)):
        course = style.paint(spark(series.values, 2 * SPARK_WIDTH, bounds), SIDE_COLORS[side])
        yield f"  {side}  {course}  {_numbers(series)}"
    yield from wrapped(drift_text(drift), "     ")
    if len(drift.growth) > 1:
        yield from wrapped(f"by {growth_text(drift)}", "     ")


# --- JSON -------------------------------------------------------------------------------------------------------------


SCHEMA = "rltrace.series/1"

MAX_POINTS = 240
"""Points of a series in the JSON; a longer series is decimated."""


@dataclass(frozen=True)
class SeriesSummary:
    """One series, decimated."""

    kind: str
    """`watch`, `scaler`, `stacked` or `callback` (of JAX), `learning-rate`, `effective-rate`, `item`, `inner` (read
    within torch) or `tensorboard`."""
    name: str
    """For `item`, the source line."""
    stream: str
    place: str
    """`train.py:12`; for a learning rate its optimizer, `critic's Adam`; of a JAX program the function with the loop,
    or the callback; else empty."""
    count: int
    min: float | None
    max: float | None
    """Of its finite numbers, as `min`."""
    not_finite: int
    """How many are NaN or infinite."""
    whole: bool
    """False: sampled, or some of it cannot be read."""
    points: tuple[tuple[int, float], ...]
    """Step and number, at most about 240; a longer series keeps the first, last, smallest and largest of each piece."""


def series_json(traces: Sequence[TraceSeries], pairs: Sequence[PairSeries]) -> dict[str, Any]:
    """The object that ``rltrace series --format json`` prints."""
    return {
        "schema": SCHEMA,
        "traces": [
            {
                "path": found.path,
                "series": [summary_of(series) for series in found.series],
                "scalers": found.scalers,
                "divergences": found.divergences,
                "holes": found.holes,
            }
            for found in traces
        ],
        "comparisons": [
            {
                "a": pair.a,
                "b": pair.b,
                "drift": pair.drift,
                "only_a": [summary_of(series) for series in pair.only_a],
                "only_b": [summary_of(series) for series in pair.only_b],
            }
            for pair in pairs
        ],
    }


def summary_of(series: Series) -> SeriesSummary:
    finite = series.values[np.isfinite(series.values)]
    return SeriesSummary(
        kind=series.kind,
        name=series.name,
        stream=series.stream,
        place=series.place,
        count=len(series),
        min=float(finite.min()) if len(finite) else None,
        max=float(finite.max()) if len(finite) else None,
        not_finite=len(series) - len(finite),
        whole=series.whole,
        points=tuple(points_of(series, MAX_POINTS)),
    )
