"""Every optimizer step of two runs at a glance, and the numbers that both read out: for charts.

Owns what a step is called from its digests alone, and the sampling of numbers: a large trace is read in places that lie
evenly over it, never whole. Decides no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.blocks import Steps, match_steps
from rltrace.diff.model import Comparison, Verdict
from rltrace.diff.view import StreamView, Stretch
from rltrace.errors import HoleError
from rltrace.trace.reader import ProcessTrace, StreamTrace, Trace
from rltrace.trace.schema import VALUE_FLAGS, Column, RowFlag, Step, StepFlag

MOST_SEGMENTS = 32
"""Segments of a stream that are read for its numbers."""


class StepState(StrEnum):
    SAME = "same"
    DIFFERS = "differs"
    OTHER_OPS = "other-ops"
    """Other ops were run or other reads made, or the same ones in another order; no value is known to differ."""
    ONE_SIDED = "one-sided"
    UNKNOWN = "unknown"
    """A side has no digests of it."""


@dataclass(frozen=True)
class Timeline:
    """The steps of one process, by A's numbers; those that B alone made stand at the end."""

    process: str
    states: tuple[StepState, ...]

    @property
    def first_unequal(self) -> int | None:
        return next((n for n, state in enumerate(self.states) if state is not StepState.SAME), None)


@dataclass(frozen=True)
class Curve:
    """The numbers that one place in the program read out, step by step: the last one of each step."""

    name: str
    """The source line."""
    place: str
    """``train.py:12``."""
    a: tuple[tuple[int, float], ...]
    """(step, number)."""
    b: tuple[tuple[int, float], ...]
    parts_at: int | None
    """The first step read at which the two sides hold other numbers."""
    whole: bool
    """False: read in places only."""


def timelines(a: Trace, b: Trace, comparison: Comparison) -> tuple[Timeline, ...]:
    """One for every process of both sides that made steps; ``comparison``: what is known of their ops."""
    others = {process.name: process for process in b.processes}
    found = [_timeline(p, others[p.name], _settled(comparison, p.name)) for p in a.processes if p.name in others]
    return tuple(timeline for timeline in found if timeline.states)


def _settled(comparison: Comparison, process: str) -> int | None:
    """The step before which the comparison, op by op, found no value of a process to differ; None: all of them."""
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
    early = states[before]  # a digest of a step tells of every read; the comparison knows which of them count
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
    """The numbers of the streams that both sides have; those that part first come first."""
    found: list[Curve] = []
    others = {process.name: process for process in b.processes}
    for process in a.processes:
        other = others.get(process.name)
        streams = {stream.name: stream for stream in other.streams} if other else {}
        for stream in process.streams:
            if other and stream.name in streams and not cancelled():
                pair = StreamView(process, stream), StreamView(other, streams[stream.name])
                found += _curves_of(*pair, cancelled)
    late = float("inf")
    ordered = sorted(found, key=lambda c: (late if c.parts_at is None else c.parts_at, -len(c.a)))
    return tuple(ordered)


Points = dict[int, dict[int, float]]
"""Place in the code to (step to number)."""


def _curves_of(a: StreamView, b: StreamView, cancelled: Callable[[], bool]) -> list[Curve]:
    names: dict[int, tuple[str, str]] = {}
    (points_a, whole_a), (points_b, whole_b) = (points_of(view, names, cancelled) for view in (a, b))
    found = []
    for site in points_a.keys() & points_b.keys():
        x, y = points_a[site], points_b[site]
        parts = [step for step in x.keys() & y.keys() if not _same(x[step], y[step])]
        found.append(
            Curve(
                *names[site],
                tuple(sorted(x.items())),
                tuple(sorted(y.items())),
                min(parts, default=None),
                whole_a and whole_b,
            )
        )
    return found


def _same(x: float, y: float) -> bool:
    return x == y or (math.isnan(x) and math.isnan(y))


def points_of(
    view: StreamView, names: dict[int, tuple[str, str]], cancelled: Callable[[], bool]
) -> tuple[Points, bool]:
    points: Points = {}
    chosen = sampled(view.stream)
    whole = len(chosen) == len(view.stream.segments)
    for number in chosen:
        if cancelled():
            return points, False
        try:
            stretch = Stretch(view, view.stream.read_segment(view.stream.segments[number]))
        except HoleError:
            whole = False
            continue
        wanted = stretch.flags((VALUE_FLAGS & ~RowFlag.VALUE_COMPLEX) & ~RowFlag.VALUE_BOOL)
        for i in np.flatnonzero(wanted).tolist():
            value = stretch.rows.value(i)
            assert isinstance(value, (int, float))
            site = int(view.keys("sites", stretch.rows.columns[i : i + 1, Column.SITE])[0])
            if site not in names:
                names[site] = _name(stretch, i)
            points.setdefault(site, {})[int(stretch.rows.columns[i, Column.STEP])] = float(value)
    return points, whole


def sampled(stream: StreamTrace) -> list[int]:
    """Numbers of the segments that are read: all of a few, else some that lie evenly, the ends among them."""
    count = len(stream.segments)
    if count <= MOST_SEGMENTS:
        return list(range(count))
    return sorted({round(k * (count - 1) / (MOST_SEGMENTS - 1)) for k in range(MOST_SEGMENTS)})


def _name(stretch: Stretch, i: int) -> tuple[str, str]:
    stack = stretch.view.stack(stretch.rows, i)
    if not stack:
        return stretch.view.op(stretch.rows, i), ""
    return " ".join(stack[0].source.split()) or stack[0].function, f"{stack[0].file}:{stack[0].line}"
