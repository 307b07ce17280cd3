"""How the curves of two runs diverge: the first difference, the first visible one, and the growth of the distance.

Numbers are paired by optimizer attempt and occurrence within its step. Owns what counts as visible. Works on the
arrays of ``series.py``; decides no verdict.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.align.blocks import attempt_keys
from rltrace.diff.base.model import Drift, DriftPoint
from rltrace.diff.base.sequences import Tokens, occurrences
from rltrace.diff.base.tokens import mix
from rltrace.diff.metrics.series import RATE, Series, StepNumbers, Values
from rltrace.trace.format.schema import Step
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace

TOLERANCE = 0.01
"""A distance that is visible in a chart of the curve, as a share of its range."""

MIN_RANGE = 0.01
"""A curve counts as ranging over at least this share of its largest magnitude: a flat one is not magnified."""

POOL = "/pool:"
"""In the name of a stream without an order."""


@dataclass(frozen=True)
class AttemptTable:
    """The attempt that ended each step of a process, as a token of its optimizer and count."""

    steps: StepNumbers
    tokens: Tokens
    asleep: Sequence[tuple[int, int]] = ()
    """(first, end) of steps that were not recorded, as the run was not armed."""

    @staticmethod
    def of(process: ProcessTrace) -> AttemptTable:
        steps = process.steps
        return AttemptTable(steps[:, Step.STEP].astype(np.int64), attempt_keys(process, steps), tuple(process.asleep))

    def at(self, steps: StepNumbers) -> Tokens:
        """A token for each of these steps; for a step without an attempt, from the last attempt before it."""
        if not len(self.steps):
            return np.zeros(len(steps), np.uint64)
        at = np.searchsorted(self.steps, steps)
        ended = (at < len(self.steps)) & (self.steps[np.minimum(at, len(self.steps) - 1)] == steps)
        before = mix(self.tokens[np.maximum(at - 1, 0)], np.uint64(1) + (at > 0).astype(np.uint64))
        return np.where(ended, self.tokens[np.minimum(at, len(self.steps) - 1)], before)


AttemptTables = Callable[[], tuple[AttemptTable, AttemptTable]]
"""Returns the attempts of both processes, read on the first call."""


def drift_of(a: Series, b: Series, attempts: AttemptTables | None = None, tolerance: float = TOLERANCE) -> Drift:
    """How two series of one name diverge. ``attempts``: of their processes; None: compare step numbers."""
    held = _held(a, b, attempts)
    if held is None:
        at_a, at_b = paired(a, b, attempts)
        steps, x, y = a.steps[at_a], a.values[at_a], b.values[at_b]
    else:
        steps, x, y = held
    apart = distances(x, y)
    threshold = tolerance * range_of(a.values, b.values)
    differs, exceeds = np.flatnonzero(apart > 0), np.flatnonzero(apart > threshold)
    return Drift(
        kind=a.kind,
        name=a.name,
        stream=a.stream,
        place=a.place,
        a_count=len(a),
        b_count=len(b),
        matched=len(steps),
        first=_point(steps, x, y, differs),
        exceeds=_point(steps, x, y, exceeds),
        threshold=threshold,
        growth=growth(steps, apart),
        largest=float(apart.max()) if len(apart) else 0.0,
        whole=a.whole and b.whole,
    )


def paired(a: Series, b: Series, attempts: AttemptTables | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places of paired numbers, ascending in A."""
    if np.array_equal(a.steps, b.steps) and (attempts is None or a.values.tobytes() == b.values.tobytes()):
        every = np.arange(len(a))
        return every, every
    known = (None, None) if attempts is None else attempts()
    tokens = [
        series.steps.astype(np.uint64) if own is None else own.at(series.steps)
        for series, own in zip((a, b), known, strict=True)
    ]
    if np.array_equal(tokens[0], tokens[1]):
        every = np.arange(len(a))
        return every, every
    if logs_more_often(*(Counter(own.tolist()) for own in tokens)):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    keys = [mix(own, occurrences(own).astype(np.uint64)) for own in tokens]
    _, at_a, at_b = np.intersect1d(keys[0], keys[1], return_indices=True)
    order = np.argsort(at_a)
    return at_a[order].astype(np.int64), at_b[order].astype(np.int64)


def logs_more_often(a: Mapping[Hashable, int], b: Mapping[Hashable, int]) -> bool:
    """Whether one side logs several numbers for each of the other's, as one with smaller batches does: then they are
    not of the same thing. ``a``, ``b``: how many, by step."""
    ratios = Counter(Fraction(a[step], b[step]) for step in a.keys() & b.keys())
    ((ratio, count),) = ratios.most_common(1) or [(Fraction(1), 0)]
    return ratio != 1 and 1 in (ratio.numerator, ratio.denominator) and 2 * count > ratios.total()


def _held(a: Series, b: Series, attempts: AttemptTables | None) -> tuple[StepNumbers, Values, Values] | None:
    """Steps, and the learning rates of both sides then: a rate is recorded where it changes, and holds until it does.

    None: another series, or step numbers of the two sides that do not belong together.
    """
    if a.kind != RATE or not len(a) or not len(b) or np.array_equal(a.steps, b.steps):
        return None
    steps = np.union1d(a.steps, b.steps)
    steps = steps[steps >= max(a.steps[0], b.steps[0])]
    tables = () if attempts is None else attempts()
    for table in tables:  # a run that ended earlier has no rate after its end
        steps = steps[steps <= table.steps[-1]] if len(table.steps) else steps
        for first, end in table.asleep:
            steps = steps[(steps < first) | (steps >= end)]
    if tables and not np.array_equal(tables[0].at(steps), tables[1].at(steps)):
        return None
    x, y = (series.values[np.searchsorted(series.steps, steps, side="right") - 1] for series in (a, b))
    return steps, x, y


def distances(x: Values, y: Values) -> Values:
    """|A - B| of each pair: 0 for two NaN or the same infinity, infinite where only one side is finite."""
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.abs(x - y)
    distance[np.isnan(distance)] = np.inf
    distance[same] = 0.0
    return distance


def range_of(*values: Values) -> float:
    """From the smallest to the largest finite number; at least a share of the largest magnitude."""
    finite = [own[np.isfinite(own)] for own in values]
    present = [own for own in finite if len(own)]
    if not present:
        return 0.0
    low, high = min(float(own.min()) for own in present), max(float(own.max()) for own in present)
    return max(high - low, MIN_RANGE * max(abs(low), abs(high)))


def _point(steps: StepNumbers, x: Values, y: Values, at: NDArray[np.int64]) -> DriftPoint | None:
    if not len(at):
        return None
    first = int(at[0])
    return DriftPoint(int(steps[first]), float(x[first]), float(y[first]))


def growth(steps: StepNumbers, distance: Values) -> tuple[tuple[int, float], ...]:
    """(step, distance) at the first difference, and at each step that first reaches another power of ten."""
    at = np.flatnonzero(distance > 0)
    if not len(at):
        return ()
    with np.errstate(divide="ignore"):
        powers = np.floor(np.log10(distance[at]))
    reached = np.maximum.accumulate(powers)
    new = np.concatenate([[True], reached[1:] > reached[:-1]])
    return tuple((int(steps[k]), float(distance[k])) for k in at[new])


def compare_series(
    a: Iterable[Series], b: Iterable[Series], processes: Sequence[tuple[ProcessTrace, ProcessTrace]], tolerance: float
) -> tuple[tuple[Drift, ...], tuple[Series, ...], tuple[Series, ...]]:
    """Drifts of the series that both sides have, the series that only A has, and those that only B has.

    Series of pool threads are left out, as timing decides which thread takes which task.
    """
    own, others = _by_key(a), _by_key(b)
    drifts = [drift for drift, _, _ in paired_series(own.values(), others.values(), processes, tolerance)]
    only_a = tuple(series for key, series in own.items() if key not in others)
    only_b = tuple(series for key, series in others.items() if key not in own)
    return ordered(drifts), only_a, only_b


def paired_series(
    a: Iterable[Series],
    b: Iterable[Series],
    processes: Sequence[tuple[ProcessTrace, ProcessTrace]],
    tolerance: float = TOLERANCE,
) -> Iterator[tuple[Drift, Series, Series]]:
    """(drift, A's series, B's series) for each series that both sides have."""
    others = _by_key(b)
    attempts = {p.name: attempt_tables(p, q) for p, q in processes}
    for key, series in _by_key(a).items():
        if key in others:
            yield drift_of(series, others[key], _attempts(attempts, series.stream), tolerance), series, others[key]


def matching_processes(a: Trace, b: Trace) -> list[tuple[ProcessTrace, ProcessTrace]]:
    """Pairs of processes with equal names."""
    others = {process.name: process for process in b.processes}
    return [(process, others[process.name]) for process in a.processes if process.name in others]


def _by_key(series: Iterable[Series]) -> dict[tuple[object, ...], Series]:
    return {one.key: one for one in series if POOL not in one.stream}


def attempt_tables(a: ProcessTrace, b: ProcessTrace) -> AttemptTables:
    """A function that returns the attempts of two processes; they are read on the first call."""
    return cache(lambda: (AttemptTable.of(a), AttemptTable.of(b)))


def _attempts(known: dict[str, AttemptTables], stream: str) -> AttemptTables | None:
    names = [name for name in known if stream == name or stream.startswith(f"{name}/")]
    return known[max(names, key=len)] if names else None


def ordered(drifts: Iterable[Drift]) -> tuple[Drift, ...]:
    """Drifts in the order in which they visibly diverge, then those that only differ, then equal ones."""

    def rank(drift: Drift) -> tuple[float, float]:
        seen = math.inf if drift.exceeds is None else drift.exceeds.step
        return seen, math.inf if drift.first is None else drift.first.step

    return tuple(sorted(drifts, key=rank))
