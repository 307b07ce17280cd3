"""Bars and curves in characters: the search, the states of steps, logged scalars.

Owns glyphs and scales within a width. Pure functions: no widget, no reading.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from textual.content import Content

from rltrace.diff.base.model import Probe
from rltrace.diff.display.single_trace import OwnSteps
from rltrace.diff.metrics.series import Point
from rltrace.diff.metrics.timeline import WORSE, Curve, StepState, Timeline
from rltrace.report.curves import BARS, bars, bounds_of

T = TypeVar("T")

STATES = {
    StepState.SAME: "=",
    StepState.DIFFERS: "≠",
    StepState.OTHER_OPS: "±",
    StepState.ONE_SIDED: "·",
    StepState.UNKNOWN: "?",
}
MARGIN = 16
"""Columns beside a curve, for its name and its last number."""

MAX_NUMBER = MARGIN - 4

SIDE_LOOKS = {"A": "$text-primary", "B": "$text-accent"}

MAX_HEIGHT = 6
"""Lines of one curve."""

MAX_STEP_WIDTH = 8
"""Characters of one step."""


def bisect_bar(probes: Sequence[Probe], rows: int, width: int) -> str:
    """Rows of a search: ``=`` known to be equal, ``≠`` known to differ, ``?`` unknown."""
    if rows <= 0 or width <= 0:
        return ""
    equal = max((p.row for p in probes if p.equal), default=0)
    unequal = min((p.row for p in probes if not p.equal), default=None)
    left = min(width, equal * width // rows)
    right = width if unequal is None else max(left, math.ceil(unequal * width / rows))
    middle = right - left
    if unequal is not None and middle == 0:
        left, middle = max(0, left - 1), 1
    return "=" * left + "?" * middle + "≠" * (width - left - middle)


def search_line(label: str, probes: Sequence[Probe], rows: int, width: int) -> Content:
    """A search: its label, the rows that are known, the number of probes, and the latest of them."""
    count = f"{len(probes)} probe{'' if len(probes) == 1 else 's'}"
    bar = bisect_bar(probes, rows, max(10, (width - 22) // 2))
    head = f"{label:<12}[{bar}] {count}"
    return Content(f"{head}  {probe_text(probes, width - len(head) - 2)}")


def probe_text(probes: Sequence[Probe], width: int) -> str:
    """The latest probes that fit."""
    words = [f"#{n} {probe.row:,} {'=' if probe.equal else '≠'}" for n, probe in enumerate(probes, 1)]
    chosen: list[str] = []
    for word in reversed(words):
        if len("   ".join([word, *chosen])) > width:
            break
        chosen.insert(0, word)
    return "   ".join(chosen)


def cells(steps: int, width: int) -> int:
    """Characters for ``steps``: several for each if they are few, at most ``width`` if they are many."""
    if steps <= 0 or width <= 0:
        return 0
    return width if steps > width else steps * min(MAX_STEP_WIDTH, width // steps)


def place(step: int, steps: int, cells: int) -> int:
    """The first of a step's characters."""
    return step * cells // steps if cells >= steps else ((step + 1) * cells - 1) // steps


def state_bar(timeline: Timeline, width: int) -> str:
    """The states of steps; the worst one where several share a character."""
    shared = _shares(timeline.states, width)
    return "".join(STATES[max(states, key=WORSE.index)] for states in shared)


def _shares(steps: Sequence[T], width: int) -> Iterator[Sequence[T]]:
    """The steps of each character of a bar."""
    count, size = len(steps), cells(len(steps), width)
    for k in range(size):
        first = k * count // size
        yield steps[first : max(first + 1, (k + 1) * count // size)]


def axis(steps: int, mark: int | None, width: int) -> str:
    """Step numbers above a bar: ``▼`` at the marked one, the first and the last if they fit."""
    size = cells(steps, width)
    text = [" "] * width
    labels = [] if mark is None or not size else [(min(place(mark, steps, size), max(0, width - 8)), f"▼{mark:,}")]
    last = f"{steps - 1:,}"
    labels += [(0, "0"), (max(0, size - len(last)), last)] if size else []
    for at, word in labels:
        around = text[max(0, at - 1) : at + len(word) + 1]
        if not "".join(around).strip() and at + len(word) <= width:
            text[at : at + len(word)] = word
    return "".join(text).rstrip()


def curve_lines(curve: Curve, steps: int, width: int, height: int = 1) -> Iterator[Content]:
    """The curves of A and B on one scale, each ``height`` lines high, with its last number."""
    low, high = bounds_of(*(np.array([number for _, number in side]) for side in (curve.a, curve.b)))
    sides = (("A", curve.a), ("B", curve.b)) if curve.b else ((" ", curve.a),)
    ends = distinct_numbers([points[-1][1] for _, points in sides if points])
    for side, points in sides:
        last = next(ends) if points else ""
        *above, lowest = chart(points, steps, low, high, width - MARGIN, min(height, MAX_HEIGHT))
        look = SIDE_LOOKS.get(side, "")
        yield from (Content.assemble("  ", (line, look)) for line in above)
        yield Content.assemble((f"{side} ", "bold"), (lowest, look), f"  {last}")


def without_gaps(curve: Curve, steps: int) -> Curve:
    """The curve itself; where more than half of ``steps`` have no number, with those that have one counted from 0.

    At their steps, such numbers would be lone bars far apart.
    """
    own = sorted({step for step, _ in (*curve.a, *curve.b)})
    if len(own) < 2 or 2 * len(own) > steps:
        return curve
    numbers = {step: number for number, step in enumerate(own)}
    a, b = (tuple((numbers[step], value) for step, value in side) for side in (curve.a, curve.b))
    return replace(curve, a=a, b=b)


def range_text(curve: Curve) -> str:
    """``0.16 to 0.42``: its smallest and its largest number."""
    low, high = bounds_of(*(np.array([number for _, number in side]) for side in (curve.a, curve.b)))
    return f"{low:.4g} to {high:.4g}"


def distinct_numbers(values: Sequence[float]) -> Iterator[str]:
    """Numbers with six digits, or with more if that makes them distinct and they fit."""
    for digits in range(6, 18):
        texts = [f"{value:.{digits}g}" for value in values]
        if len(set(texts)) == len(set(values)) and max(map(len, texts), default=0) <= MAX_NUMBER:
            return iter(texts)
    return (f"{value:.6g}" for value in values)


def chart(points: Sequence[Point], steps: int, low: float, high: float, width: int, height: int) -> list[str]:
    """A curve in bars; a column of several steps shows the last number, one without a number is blank."""
    size = cells(steps, width)
    values: list[float | None] = [None] * size
    for step, value in points:
        if 0 <= step < steps:
            first = place(step, steps, size)
            for at in range(first, max(first + 1, place(step + 1, steps, size) if size >= steps else 0)):
                values[at] = value
    return bars(values, low, high, height)


def step_bar(own: OwnSteps, width: int) -> str:
    """Ops of each step as bars, their mean where steps share a character; ``s``: skipped, ``·``: not recorded."""
    most = max((step.ops or 0 for step in own.steps), default=0)
    found = []
    for steps in _shares(own.steps, width):
        ops = [step.ops for step in steps if step.ops is not None]
        if any(step.skipped for step in steps):
            found.append("s")
        else:
            found.append(BARS[max(1, min(8, math.ceil(8 * sum(ops) / len(ops) / max(most, 1))))] if ops else "·")
    return "".join(found)


def step_sizes(own: OwnSteps) -> str:
    """The largest number of ops of a step."""
    most = max((step.ops or 0 for step in own.steps), default=0)
    return f"  ≤ {most:,} ops" if most else ""
