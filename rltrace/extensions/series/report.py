"""Series of a trace, scalers that diverge, and how two runs diverge: what is printed as JSON, and its documents."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rltrace.diff.base.model import Drift
from rltrace.diff.metrics.series import KINDS, Series
from rltrace.extensions.series.scalers import (
    ScaledOptimizer,
    Scaler,
    ScalerDivergence,
    ScalerDivergenceCause,
    ScalerGroup,
)
from rltrace.report.curves import bounds_of, drift_text, growth_text, short_name, spark
from rltrace.report.document import Code, Document, Fact, Inline, Number, Section, inline_text
from rltrace.wording import counted, cut, joined, sentences

SPARK_WIDTH = 24

MAX_FIRST = 3
"""Series that are named together."""

MAX_NAME = 44
"""Characters of a name, which may be a source line."""

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


@dataclass(frozen=True)
class SeriesReport:
    """Series of traces, and how those of each but the first diverge from those of the first."""

    SCHEMA: ClassVar = "rltrace.series/1"

    traces: tuple[TraceSeries, ...]
    comparisons: tuple[PairSeries, ...]


def trace_document(trace: TraceSeries) -> Document:
    """One trace: scalers that diverge, then every series."""
    several = len({series.stream for series in trace.series}) > 1
    kinds = (
        _listed(kind, title, [series for series in trace.series if series.kind == kind], several)
        for kind, title in KINDS.items()
    )
    count = len(trace.series)
    sections = (
        _divergences(trace),
        *kinds,
        Section("holes", "Cannot be read", trace.holes),
    )
    return Document(
        trace.path,
        scope=f"{count} series" if count else "0 series: no such number was recorded",
        sections=tuple(filter(None, sections)),
    )


def pair_document(pair: PairSeries, both: Sequence[tuple[Series, Series]]) -> Document:
    """Two traces: the series that diverge, those that are equal, then those on one side only.

    ``both``: the series of both sides.
    """
    differing = [drift for drift in pair.drift if drift.first is not None]
    equal = [drift for drift in pair.drift if drift.first is None]
    several = len({d.stream for d in pair.drift} | {s.stream for s in (*pair.only_a, *pair.only_b)}) > 1
    sides = {(a.kind, a.name, a.stream, a.place): (a, b) for a, b in both}
    sections = (
        *(_drift(drift, *sides[drift.kind, drift.name, drift.stream, drift.place], several) for drift in differing),
        _counted(
            "equal",
            "Equal" if all(drift.whole for drift in equal) else "Equal where read",
            [(drift, drift.matched) for drift in equal],
            several,
        ),
        _counted("only-a", "Only in A", [(series, len(series)) for series in pair.only_a], several),
        _counted("only-b", "Only in B", [(series, len(series)) for series in pair.only_b], several),
    )
    return Document(
        lead=(f"{len(differing)} of {len(pair.drift)} series differ{_first_text(differing, several)}",),
        facts=(Fact("A", Code(pair.a)), Fact("B", Code(pair.b))),
        sections=tuple(filter(None, sections)),
    )


def _counted(name: str, title: str, entries: Sequence[tuple[Series | Drift, int]], several: bool) -> Section:
    rows = ((_named(series, several), Number(counted(count, "number"))) for series, count in entries)
    return Section(name, title, columns=("", ""), rows=tuple(rows), limit=MAX_SERIES)


def _named(series: Series | Drift, several: bool) -> Inline:
    """Name, place and, of several, stream."""
    where = filter(None, (series.place, series.stream if several else ""))
    return (Code(cut(series.name, MAX_NAME)), *(f"  {text}" for text in where))


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


def _listed(name: str, title: str, series: Sequence[Series], several: bool) -> Section:
    rows = ((_named(one, several), spark(one.values, SPARK_WIDTH), _numbers(one)) for one in series)
    return Section(name, title, columns=("", "", ""), rows=tuple(rows), limit=MAX_SERIES)


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


def _drift(drift: Drift, a: Series, b: Series, several: bool) -> Section:
    bounds = bounds_of(a.values, b.values)
    facts = (
        Fact(side, f"{spark(series.values, 2 * SPARK_WIDTH, bounds)}  {_numbers(series)}")
        for side, series in (("A", a), ("B", b))
    )
    growth = f"by {growth_text(drift)}" if len(drift.growth) > 1 else ""
    name = f"drift-{drift.kind}-{drift.name}-{drift.stream}-{drift.place}"
    return Section(name, inline_text(_named(drift, several)), sentences(drift_text(drift), growth), tuple(facts))


# --- scalers ----------------------------------------------------------------------------------------------------------


def _divergences(trace: TraceSeries) -> Section:
    processes = {divergence.process for divergence in trace.divergences}
    scalers = (scaler for scaler in trace.scalers if scaler.process in processes)
    return Section(
        "scalers",
        "Gradient scalers that diverge",
        tuple(divergence_text(divergence, len(processes) > 1) for divergence in trace.divergences),
        tuple(Fact(f"scaler {scaler.number}", scaler_text(scaler)) for scaler in scalers),
    )


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
    """``actor's SGD #0 skipped 1 of 6 steps, learning rate 0.1, 0.08333 on average``."""
    owner = f"{optimizer.owner}'s " if optimizer.owner else ""
    skipped = f"skipped {_count(optimizer.skipped)} of {optimizer.attempts:,} steps"
    text = f"{owner}{optimizer.name} #{optimizer.ordinal} {skipped}"
    if optimizer.rate is None:
        return text
    effect = f", {optimizer.effective:.4g} on average" if optimizer.skipped and optimizer.effective is not None else ""
    return f"{text}, learning rate {optimizer.rate:.4g}{effect}"


def _count(number: int) -> str:
    return f"{number:,}" if number else "none"
