"""Where the numbers that a program reads out (losses, returns) first differ: its curves, for free.

Every ``.item()`` passes through one op that records the number. Owns the look-ahead from a first difference: a
bounded number of rows, so that a search stays a search.
"""

from __future__ import annotations

import numpy as np

from rltrace.diff.aligning.blocks import attempt_keys
from rltrace.diff.model import CurvePoint, Finding
from rltrace.diff.view import StreamView, Stretch
from rltrace.errors import HoleError
from rltrace.trace.schema import VALUE_FLAGS, Column, RowFlag, Step

LOOK_AHEAD = 1 << 17
"""Rows read from the first difference on."""

MOST = 50


def curve_points(a: StreamView, b: StreamView, first: Finding, same_structure: bool) -> tuple[CurvePoint, ...]:
    """For each place that reads a number, the first step after ``first`` where the two sides read another one.

    ``same_structure``: the two sides made the same attempts in the same order, so a step's number stands for itself.
    """
    if first.a_index is None or first.b_index is None:
        return ()
    try:
        numbers_a = _numbers(a, first.a_index, {} if same_structure else _attempts(a))
        numbers_b = _numbers(b, first.b_index, {} if same_structure else _attempts(b))
    except HoleError:
        return ()
    found: dict[int, CurvePoint] = {}
    for key, (value_a, step, name) in numbers_a.items():
        site = key[1]
        if site in found or key not in numbers_b:
            continue
        value_b = numbers_b[key][0]
        if value_a != value_b and not (value_a != value_a and value_b != value_b):
            found[site] = CurvePoint(name, step, value_a, value_b)
    return tuple(sorted(found.values(), key=lambda point: point.step))[:MOST]


Numbers = dict[tuple[object, int, int], tuple[float, int, str]]
"""(attempt, site, how manieth) to (number, step, name), in execution order."""


def _numbers(view: StreamView, start: int, attempts: dict[int, int]) -> Numbers:
    counts: dict[tuple[object, int], int] = {}
    found: Numbers = {}
    stop = min(view.rows, start + LOOK_AHEAD)
    for at in range(start, stop, 1 << 16):
        stretch = view.read(at, min(at + (1 << 16), stop))
        for i in np.flatnonzero(stretch.flags(VALUE_FLAGS & ~RowFlag.VALUE_COMPLEX)).tolist():
            step = int(stretch.rows.columns[i, Column.STEP])
            attempt, site = attempts.get(step, step), _site(stretch, i)
            nth = counts[attempt, site] = counts.get((attempt, site), -1) + 1
            value = stretch.rows.value(i)
            if isinstance(value, (bool, int, float)):
                found[attempt, site, nth] = (float(value), step, _name(stretch, i))
    return found


def _attempts(view: StreamView) -> dict[int, int]:
    """What a step's number stands for: its optimizer and that one's own count, as one token."""
    steps = view.process.steps
    return dict(zip(steps[:, Step.STEP].tolist(), attempt_keys(view.process, steps).tolist(), strict=True))


def _site(stretch: Stretch, i: int) -> int:
    return int(stretch.view.keys("sites", stretch.rows.columns[i : i + 1, Column.SITE])[0])


def _name(stretch: Stretch, i: int) -> str:
    stack = stretch.view.stack(stretch.rows, i)
    if not stack:
        return stretch.view.op(stretch.rows, i)
    return stack[0].source or f"{stack[0].file} ({stack[0].function})"
