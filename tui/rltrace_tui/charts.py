"""Bars and curves in characters: where the search looked, what each step is, the numbers that were read out.

Owns glyphs and scales within a width. Pure functions; no widget, nothing is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from textual.content import Content

from rltrace.diff.base.model import Probe
from rltrace.diff.display.single_trace import OwnSteps
from rltrace.diff.metrics.timeline import WORSE, Curve, Point, StepState, Timeline
from rltrace.report.curves import BARS, bars, bounds_of

STATES = {
    StepState.SAME: "=",
    StepState.DIFFERS: "≠",
    StepState.OTHER_OPS: "±",
    StepState.ONE_SIDED: "·",
    StepState.UNKNOWN: "?",
}
ROOM = 16
"""Columns beside a curve: its name and its last number."""

WIDEST_NUMBER = ROOM - 4

HIGHEST = 6
"""Lines of one curve."""

WIDEST_STEP = 8
"""Characters for one step."""


def bisect_bar(probes: Sequence[Probe], rows: int, width: int) -> str:
    """Where the search looked: ``=`` known equal, ``≠`` known to differ after, ``?`` not known."""
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
    """What was asked, how far it is known, how many probes that took, and the latest of them."""
    count = f"{len(probes)} probe{'' if len(probes) == 1 else 's'}"
    room = max(10, (width - 22) // 2)
    told = f"{label:<12}[{bisect_bar(probes, rows, room)}] {count}"
    return Content(f"{told}  {probe_text(probes, width - len(told) - 2)}")


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
    """Characters for that many steps: several for each where they are few, at most the width where they are many."""
    if steps <= 0 or width <= 0:
        return 0
    return width if steps > width else steps * min(WIDEST_STEP, width // steps)


def place(step: int, steps: int, room: int) -> int:
    """The first character that stands for a step."""
    return step * room // steps if room >= steps else ((step + 1) * room - 1) // steps


def state_bar(timeline: Timeline, width: int) -> str:
    """What the steps are; where several share a character, the worst of them."""
    count, room = len(timeline.states), cells(len(timeline.states), width)
    found = []
    for k in range(room):
        first = k * count // room
        part = timeline.states[first : max(first + 1, (k + 1) * count // room)]
        found.append(STATES[max(part, key=WORSE.index)])
    return "".join(found)


def axis(steps: int, mark: int | None, width: int) -> str:
    """Step numbers over a bar: ``▼`` at the marked one, the first and the last where there is room."""
    room = cells(steps, width)
    text = [" "] * width
    wanted = [] if mark is None or not room else [(min(place(mark, steps, room), max(0, width - 8)), f"▼{mark:,}")]
    last = f"{steps - 1:,}"
    wanted += [(0, "0"), (max(0, room - len(last)), last)] if room else []
    for at, word in wanted:
        around = text[max(0, at - 1) : at + len(word) + 1]
        if not "".join(around).strip() and at + len(word) <= width:
            text[at : at + len(word)] = word
    return "".join(text).rstrip()


def curve_lines(curve: Curve, steps: int, width: int, height: int = 1) -> Iterator[Content]:
    """The curves of A and B on one scale, each with its last number, each so many lines high."""
    low, high = bounds_of(*(np.array([number for _, number in side]) for side in (curve.a, curve.b)))
    sides = (("A", curve.a), ("B", curve.b)) if curve.b else ((" ", curve.a),)
    ends = numbers_apart([points[-1][1] for _, points in sides if points])
    for side, points in sides:
        last = next(ends) if points else ""
        *above, lowest = chart(points, steps, low, high, width - ROOM, min(height, HIGHEST))
        yield from (Content(f"  {line}") for line in above)
        yield Content.assemble((f"{side} ", "bold"), lowest, f"  {last}")


def numbers_apart(values: Sequence[float]) -> Iterator[str]:
    """Numbers in six digits, or in as many more as tell them apart, if there is room for those."""
    for digits in range(6, 18):
        texts = [f"{value:.{digits}g}" for value in values]
        if len(set(texts)) == len(set(values)) and max(map(len, texts), default=0) <= WIDEST_NUMBER:
            return iter(texts)
    return (f"{value:.6g}" for value in values)


def chart(points: Sequence[Point], steps: int, low: float, high: float, width: int, height: int) -> list[str]:
    """A curve in bars, a column for each step or for several: then the last number; a space where none was read."""
    room = cells(steps, width)
    values: list[float | None] = [None] * room
    for step, value in points:
        if 0 <= step < steps:
            first = place(step, steps, room)
            for at in range(first, max(first + 1, place(step + 1, steps, room) if room >= steps else 0)):
                values[at] = value
    return bars(values, low, high, height)


def step_bar(own: OwnSteps, width: int) -> str:
    """Ops of each step as bars, the mean where several share a character; ``s``: skipped, ``·``: not recorded."""
    count, room = len(own.steps), cells(len(own.steps), width)
    most = max((step.ops or 0 for step in own.steps), default=0)
    found = []
    for k in range(room):
        first = k * count // room
        part = own.steps[first : max(first + 1, (k + 1) * count // room)]
        ops = [step.ops for step in part if step.ops is not None]
        if any(step.skipped for step in part):
            found.append("s")
        else:
            found.append(BARS[max(1, min(8, math.ceil(8 * sum(ops) / len(ops) / max(most, 1))))] if ops else "·")
    return "".join(found)


def step_sizes(own: OwnSteps) -> str:
    """The most ops that a step has."""
    most = max((step.ops or 0 for step in own.steps), default=0)
    return f"  ≤ {most:,} ops" if most else ""
