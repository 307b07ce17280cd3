"""Long series made short enough to be drawn, without hiding what a reader looks for.

Owns which points of a curve and which steps of a timeline are drawn where not all can be. Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from rltrace.diff.numbers.timeline import StepState

Point = tuple[int, float]
"""(step, number)."""

WIDE_GAP = 4
"""A gap between numbers so many times as wide as usual: there, nothing was read."""

WORSE = (StepState.SAME, StepState.UNKNOWN, StepState.ONE_SIDED, StepState.OTHER_OPS, StepState.DIFFERS)
"""States, the worst last: that is the one shown where several steps share a place."""


def thinned(points: Sequence[Point], most: int) -> list[Point]:
    """At most about ``most`` of ``points``, in order: of each stretch the first, last, smallest and largest.

    A spike stays a spike. Numbers that are not finite are no smallest and no largest.
    """
    if len(points) <= most:
        return list(points)
    stretches = max(1, most // 4)
    kept: list[Point] = []
    for k in range(stretches):
        part = points[k * len(points) // stretches : (k + 1) * len(points) // stretches]
        finite = [p for p in part if math.isfinite(p[1])]
        chosen = {part[0], part[-1], *((min(finite, key=_number), max(finite, key=_number)) if finite else ())}
        kept += sorted(chosen)
    return kept


def _number(point: Point) -> float:
    return point[1]


def stretches(points: Sequence[Point], most: int, *, whole: bool) -> list[list[Point]]:
    """``points`` in the stretches that a line may join, thinned to about ``most`` in all.

    Not ``whole``: they were read in places, and between two places nothing is known; a line there would be made up.
    """
    cuts = [] if whole else _gaps(points)
    parts = [points[first:end] for first, end in pairwise([0, *cuts, len(points)]) if end > first]
    return [thinned(part, max(4, most // len(parts))) for part in parts]


def _gaps(points: Sequence[Point]) -> list[int]:
    """Where, in points, steps are missing: many more than usual between two of them."""
    steps = [after - before for (before, _), (after, _) in pairwise(points)]
    usual = sorted(steps)[len(steps) // 2] if steps else 0
    return [number for number, apart in enumerate(steps, 1) if apart > WIDE_GAP * usual]


def apart(a: Sequence[Point], b: Sequence[Point]) -> list[Point]:
    """(step, |A - B|) of every step at which both sides hold a finite number."""
    others = dict(b)
    found = [(step, abs(value - others[step])) for step, value in a if step in others]
    return [(step, distance) for step, distance in found if math.isfinite(distance)]


def state_runs(states: Sequence[StepState], most: int) -> list[tuple[int, int, StepState]]:
    """(first step, step after the last, state) of each run of steps that are drawn alike, at most ``most``.

    Where there are more, neighbouring steps share a place, and the worst of them is drawn.
    """
    found = _runs(states, 1)
    width = 1
    while len(found) > most:
        width = max(width + 1, width * 2)
        found = _runs(states, width)
    return found


def _runs(states: Sequence[StepState], width: int) -> list[tuple[int, int, StepState]]:
    found: list[tuple[int, int, StepState]] = []
    for first in range(0, len(states), width):
        part = states[first : first + width]
        worst = part[0] if width == 1 else max(set(part), key=WORSE.index)
        if found and found[-1][2] is worst:
            found[-1] = (found[-1][0], first + len(part), worst)
        else:
            found.append((first, first + len(part), worst))
    return found
