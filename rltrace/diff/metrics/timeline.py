"""Every optimizer step of two runs at a glance, and the scalars that both logged: for charts.

Owns what a step is called from its digests alone, the sampling of numbers (a large trace is read in places that lie
evenly over it, never whole). Decides no verdict.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.align.blocks import Steps, match_steps
from rltrace.diff.base.model import Comparison, Verdict
from rltrace.diff.metrics.curves import matching_processes, paired_series
from rltrace.diff.metrics.series import INNER, ITEM, KINDS, Series, all_series, points_of
from rltrace.trace.format.schema import Step, StepFlag
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace

MAX_SEGMENTS = 32
"""Segments of a stream that are read for its numbers."""


class StepState(StrEnum):
    SAME = "same"
    DIFFERS = "differs"
    OTHER_OPS = "other-ops"
    """Ops or their order differ; no value is known to differ."""
    ONE_SIDED = "one-sided"
    UNKNOWN = "unknown"
    """A side has no digests of it."""


WORSE = (StepState.SAME, StepState.UNKNOWN, StepState.ONE_SIDED, StepState.OTHER_OPS, StepState.DIFFERS)
"""States, the worst last: that is the one shown where several steps share a place."""


@dataclass(frozen=True)
class Timeline:
    """The steps of one process, by A's numbers; steps of only B are at the end."""

    process: str
    states: tuple[StepState, ...]

    @property
    def first_unequal(self) -> int | None:
        return next((n for n, state in enumerate(self.states) if state is not StepState.SAME), None)


@dataclass(frozen=True)
class Curve:
    """A series, step by step: the last number of each step."""

    name: str
    """For a logged scalar, the source line."""
    place: str
    """``train.py:12``, or the kind of series."""
    a: tuple[tuple[int, float], ...]
    """(step, number)."""
    b: tuple[tuple[int, float], ...]
    diverges_at: int | None
    """The first step read at which the two sides hold other numbers."""
    whole: bool
    """False: sampled."""


def timelines(a: Trace, b: Trace, comparison: Comparison) -> tuple[Timeline, ...]:
    """One for every process of both sides that made steps; ``comparison``: what is known of their ops."""
    others = {process.name: process for process in b.processes}
    found = [_timeline(p, others[p.name], _settled(comparison, p.name)) for p in a.processes if p.name in others]
    return tuple(timeline for timeline in found if timeline.states)


def _settled(comparison: Comparison, process: str) -> int | None:
    """The step before which the comparison, op by op, found no value of a process to differ; None: no value differs."""
    if comparison.level != "op" or comparison.verdict is Verdict.UNKNOWN:
        return 0
    if comparison.verdict is not Verdict.DIVERGED:
        return None
    findings = [comparison.decisive, comparison.first_value, *comparison.unordered, *comparison.later]
    steps = [f.step for f in findings if f is not None and f.step is not None and f.stream.startswith(process)]
    return min(steps, default=0)


def _timeline(a: ProcessTrace, b: ProcessTrace, settled: int | None) -> Timeline:
    steps_a, steps_b = a.steps, b.steps
    at_a, at_b = match_steps(a, steps_a, b, steps_b)
    states = np.full(len(steps_a), list(StepState).index(StepState.ONE_SIDED))
    states[at_a] = _states(steps_a[at_a], steps_b[at_b])
    before = slice(None) if settled is None else steps_a[:, Step.STEP] < np.uint64(settled)
    names = list(StepState)
    early = states[before]  # step digests cover every read; the comparison knows which reads count
    states[before] = np.where(early == names.index(StepState.DIFFERS), names.index(StepState.OTHER_OPS), early)
    more = len(steps_b) - (int(at_b[-1]) + 1 if len(at_b) else 0)
    return Timeline(a.name, (*(names[k] for k in states.tolist()), *[StepState.ONE_SIDED] * more))


def _states(a: Steps, b: Steps) -> NDArray[np.int64]:
    flags = a[:, Step.FLAGS] & b[:, Step.FLAGS]
    recorded, digested = ((flags & np.uint64(flag)) != 0 for flag in (StepFlag.RECORDED, StepFlag.DIGESTED))
    structure = a[:, Step.STRUCTURE] == b[:, Step.STRUCTURE]
    values = a[:, Step.VALUES] == b[:, Step.VALUES]
    watched = [Step.PARAMETERS, Step.GRADIENTS, Step.TORCH_GENERATOR, Step.DEVICE_GENERATORS]
    results = (a[:, watched] == b[:, watched]).all(axis=1)
    words = list(StepState)
    chosen = np.select(
        [recorded & structure & values, recorded & structure, digested & ~results, recorded, digested],
        [words.index(s) for s in (StepState.SAME, StepState.DIFFERS, StepState.DIFFERS, StepState.OTHER_OPS)] + [0],
        words.index(StepState.UNKNOWN),
    )
    return chosen.astype(np.int64)


# --- numbers --------------------------------------------------------------------------------------------------------


def curves(a: Trace, b: Trace, cancelled: Callable[[], bool] = lambda: False) -> tuple[Curve, ...]:
    """The series that both sides have; those that diverge first come first. Constant ones are left out."""
    own = all_series(a, segments=MAX_SEGMENTS, cancelled=cancelled)
    others = all_series(b, segments=MAX_SEGMENTS, renames_of=a, cancelled=cancelled)
    found = [
        _curve(x, y, None if drift.first is None else drift.first.step)
        for drift, x, y in paired_series(own, others, matching_processes(a, b))
        if drift.first is not None or is_curve(x)
    ]
    late = float("inf")
    ordered = sorted(found, key=lambda c: (late if c.diverges_at is None else c.diverges_at, -len(c.a)))
    return tuple(ordered)


def is_curve(series: Series) -> bool:
    """Whether to show a series: not scalars that torch itself reads, nor recorded numbers that never change."""
    return series.kind == ITEM or not (series.kind == INNER or series.is_flat)


def own_curve(series: Series) -> Curve:
    """The curve of a series of one trace."""
    return Curve(series.name, place_of(series), tuple(points_of(series, last=True)), (), None, series.whole)


def place_of(series: Series) -> str:
    """Its place in the code, or its kind in words."""
    return series.place or KINDS[series.kind]


def _curve(a: Series, b: Series, diverges_at: int | None) -> Curve:
    x, y = (tuple(points_of(series, last=True)) for series in (a, b))
    return Curve(a.name, place_of(a), x, y, diverges_at, a.whole and b.whole)
