"""The series of one trace or of several, for people: what there is, where scalers part, how two runs come apart.

Owns the order and the words; readable at 80 columns. Computes nothing.
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
from rltrace.report.curves import account, bounds_of, growing, spark
from rltrace.report.diff_text import WIDTH, wrapped
from rltrace.report.phrases import cut
from rltrace.report.style import Style

SPARK_WIDTH = 24
NAME_WIDTH = 29
SHOWN = 60
"""Series of one trace that are listed as text."""


@dataclass(frozen=True)
class TraceSeries:
    """What one trace has."""

    path: str
    series: tuple[Series, ...]
    scalers: tuple[Scaler, ...]
    divergences: tuple[ScalerDivergence, ...]
    holes: tuple[str, ...] = ()
    """What of it cannot be read."""


@dataclass(frozen=True)
class PairSeries:
    """How two traces' series come apart."""

    a: str
    b: str
    drift: tuple[Drift, ...]
    """Of every series that both have, those that differ first."""
    only_a: tuple[Series, ...]
    only_b: tuple[Series, ...]


def render_trace(told: TraceSeries, *, color: bool) -> str:
    """One trace: the scalers that part, then every series with its course."""
    style = Style(color)
    streams = {series.stream for series in told.series}
    sections = [_head(told, style), _partings(told, style)]
    for kind in KINDS:
        own = [series for series in told.series if series.kind == kind]
        if own:
            sections.append(_listed(KINDS[kind], own, len(streams) > 1, style))
    sections.append(_holes(told, style))
    texts = ["\n".join(lines) for lines in sections]
    return "\n\n".join(text for text in texts if text)


def render_pair(told: PairSeries, values: dict[tuple[object, ...], tuple[Series, Series]], *, color: bool) -> str:
    """Two traces: the series that come apart, then those that are equal, then those of one side.

    ``values``: the series of both sides, by what they are known by.
    """
    style = Style(color)
    apart = [drift for drift in told.drift if drift.first is not None]
    equal = [drift for drift in told.drift if drift.first is None]
    lines = [
        style.bold(f"A  {told.a}"),
        style.bold(f"B  {told.b}"),
        f"{len(apart)} of {len(told.drift)} series differ",
    ]
    both = {(a.kind, a.name, a.stream, a.place): (a, b) for a, b in values.values()}
    for drift in apart:
        lines += ["", *_apart(drift, *both[drift.kind, drift.name, drift.stream, drift.place], style)]
    if equal:
        lines += ["", style.bold("Equal" if all(drift.whole for drift in equal) else "Equal where read")]
        lines += [f"  {cut(drift.name, WIDTH - 24)}  {_counted(drift.matched)}" for drift in equal[:SHOWN]]
        lines += _more(len(equal))
    for side, series in (("A", told.only_a), ("B", told.only_b)):
        if series:
            lines += ["", style.bold(f"Only in {side}")]
            lines += [f"  {cut(one.name, WIDTH - 24)}  {_counted(len(one))}" for one in series[:SHOWN]]
            lines += _more(len(series))
    return "\n".join(lines)


# --- one trace --------------------------------------------------------------------------------------------------------


def _head(told: TraceSeries, style: Style) -> Iterator[str]:
    count = len(told.series)
    yield style.bold(told.path) + f"  {count} series" + ("" if count else ": no number was recorded")


def _listed(title: str, series: Sequence[Series], streams: bool, style: Style) -> Iterator[str]:
    yield style.bold(title)
    for one in series[:SHOWN]:
        yield from _line(one, streams)
    yield from _more(len(series))


def _line(series: Series, streams: bool) -> Iterator[str]:
    where = " ".join([*([series.place] if series.place else []), *([series.stream] if streams else [])])
    if len(series.name) > NAME_WIDTH or where:
        yield f"  {cut(f'{series.name}  {where}'.rstrip(), WIDTH - 2)}"
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
    return [f"  … and {count - SHOWN:,} more (--name GLOB chooses, --format json has all)"] if count > SHOWN else []


def _counted(count: int) -> str:
    return f"{count:,} {'number' if count == 1 else 'numbers'}"


def _holes(told: TraceSeries, style: Style) -> Iterator[str]:
    if told.holes:
        yield style.bold("Cannot be read")
    for hole in told.holes:
        yield from wrapped(hole)


# --- scalers ----------------------------------------------------------------------------------------------------------


def _partings(told: TraceSeries, style: Style) -> Iterator[str]:
    if not told.divergences:
        return
    yield style.bold("Gradient scalers that diverge")
    for parting in told.divergences:
        yield from wrapped(parting_text(parting, len({p.process for p in told.divergences}) > 1))
    processes = {parting.process for parting in told.divergences}
    for scaler in told.scalers:
        if scaler.process in processes:
            yield from wrapped(scaler_text(scaler), "             ", f"  scaler {scaler.number:<3} ")


def parting_text(parting: ScalerDivergence, named: bool = False) -> str:
    """One sentence: which scalers part, when, and because of what."""
    sides = sorted(parting.sides, key=lambda side: (side.found_inf, side.scalers))
    where = f"{parting.process}: " if named else ""
    if parting.cause is ScalerDivergenceCause.START:
        starts = ", ".join(f"{_scalers(side)} at {side.after:g}" for side in sides)
        return f"{where}{_all_scalers(parting)} start with different scales: {starts}."
    steps = sorted({side.step for side in sides})
    at = f"step{'s' if len(steps) > 1 else ''} {' and '.join(f'{step:,}' for step in steps)}"
    updates = f"{parting.update - 1:,} {'update' if parting.update == 2 else 'updates'}"
    after = ", ".join(f"{side.after:g} in {_scalers(side)}" for side in sides)
    together = f"are the same for {updates} ({sides[0].before:g})" if parting.update > 1 else "start the same"
    return (
        f"{where}{_all_scalers(parting)} {together} and diverge at update {parting.update:,} ({at}): "
        f"{_cause(parting.cause, sides)}. The scale after it: {after}."
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
    return f"scaler{'s' if len(side.scalers) > 1 else ''} {_and(side.scalers)}"


def _all_scalers(parting: ScalerDivergence) -> str:
    return f"Scalers {_and(sorted(number for side in parting.sides for number in side.scalers))}"


def _and(numbers: Sequence[int]) -> str:
    """``0, 1 and 2``."""
    *before, last = map(str, numbers)
    return f"{', '.join(before)} and {last}" if before else last


def scaler_text(scaler: Scaler) -> str:
    """What became of a scaler, and of the learning rates behind it."""
    found = f"{_count(scaler.overflows)} of {scaler.updates:,} updates found infinities"
    told = [f"scale {scaler.first:g} … {scaler.last:g}", found, *map(optimizer_text, scaler.optimizers)]
    return "; ".join(told)


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


def _apart(drift: Drift, a: Series, b: Series, style: Style) -> Iterator[str]:
    place = f"  {drift.place}" if drift.place else ""
    yield style.bold(cut(f"{drift.name}{place}", WIDTH))
    bounds = bounds_of(a.values, b.values)
    for side, series in (("A", a), ("B", b)):
        yield f"  {side}  {spark(series.values, 2 * SPARK_WIDTH, bounds)}  {_numbers(series)}"
    yield from wrapped(account(drift), "     ")
    if len(drift.growth) > 1:
        yield from wrapped(f"by {growing(drift)}", "     ")


# --- JSON -------------------------------------------------------------------------------------------------------------


SCHEMA = "rltrace.series/1"

MOST_POINTS = 240
"""Numbers of a series that are in the report: of a longer one, of each stretch the first, last, smallest, largest."""


@dataclass(frozen=True)
class SeriesSummary:
    """One series, without most of its numbers."""

    kind: str
    """`watch`, `scaler`, `learning-rate`, `effective-rate`, `item` or `inner` (read out within torch)."""
    name: str
    """Of `item` the source line."""
    stream: str
    place: str
    """`train.py:12`; of a learning rate whose optimizer it is, `critic's Adam`; else empty."""
    count: int
    min: float | None
    max: float | None
    """Of its finite numbers."""
    not_finite: int
    """How many are NaN or infinite."""
    whole: bool
    """False: sampled, or a part cannot be read."""
    points: tuple[tuple[int, float], ...]
    """Step and number, at most about 240: of a longer series, of each stretch the first, last, smallest and largest."""


def series_json(traces: Sequence[TraceSeries], pairs: Sequence[PairSeries]) -> dict[str, Any]:
    """What ``rltrace series --format json`` prints."""
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
        points=tuple(points_of(series, MOST_POINTS)),
    )
