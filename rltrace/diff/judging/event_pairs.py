"""Events that both sides have, read back from a place in two matched streams.

Owns what a pair of them tells, and the way from row to row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rltrace.diff.findings import RowAt, row_at
from rltrace.diff.judging.scene import Scene
from rltrace.trace.events import NONE, Event, event_of
from rltrace.trace.schema import Column, Kind

GENERATORS = ("own generator", "Python generator", "NumPy generator")
"""Evidence of environments' events: states before them."""

TOLD = (Kind.ENVIRONMENT_RESET, Kind.ENVIRONMENT_STEP, Kind.CHECKPOINT)
"""Events that bring something in."""

PIECE = 1 << 14
"""Rows that are read at a time, from the difference back."""

FAR, FARTHEST = 1 << 17, 1 << 21
"""Rows that are gone back at most, to the first event met, and while events differ."""


class Told(Protocol):
    """An event that both sides have, wherever it was read."""

    event_a: Event
    event_b: Event

    @property
    def op(self) -> str:
        """``environment-step``."""

    @property
    def module(self) -> str:
        """Whose it is."""

    @property
    def place(self) -> str:
        """Of B's, as ``train.py:12``; empty where it is not known."""

    @property
    def differs(self) -> tuple[str, ...]:
        """Names of the cells that both tell and that differ."""
        told_a, told_b = self.event_a.told, self.event_b.told
        return tuple(name for name, cell in told_a.items() if name in told_b and not _same(cell, told_b[name]))

    @property
    def is_seeded(self) -> bool:
        """Whether it is a reset with one seed on both sides."""
        seeds = self.event_a.evidence("seed"), self.event_b.evidence("seed")
        return seeds[0] == seeds[1] and seeds[0] not in (None, NONE)

    @property
    def others_alike(self) -> bool:
        """Whether Python's and NumPy's generators stood alike before it."""
        return all(self.event_a.evidence(name) == self.event_b.evidence(name) for name in GENERATORS[1:])

    def brought(self, differs: Collection[str]) -> set[tuple[int, int]]:
        """What A and B tell in these cells."""
        told_a, told_b = self.event_a.told, self.event_b.told
        return {(int(told_a[name].value), int(told_b[name].value)) for name in differs}


@dataclass(frozen=True)
class EventPair(Told):
    """One of two rows."""

    a: RowAt
    b: RowAt
    event_a: Event
    event_b: Event

    @property
    def op(self) -> str:
        return self.a.op

    @property
    def module(self) -> str:
        return self.a.module

    @property
    def place(self) -> str:
        return f"{self.b.stack[0].file}:{self.b.stack[0].line}" if self.b.stack else ""


def event_at(row: RowAt) -> Event:
    skeleton = row.view.payload("scalars", int(row.rows.columns[row.place, Column.SCALARS]))
    return event_of(row.rows, row.place, skeleton)


def events_before(
    scene: Scene,
    end: int,
    end_b: int | None,
    is_open: Callable[[], bool],
    down_to: int = 0,
    kinds: Collection[Kind] = TOLD,
) -> Iterator[EventPair]:
    """Pairs of events before row ``end`` of A and ``end_b`` of B, the last first."""
    stop = end
    while stop > down_to and end - stop < (FARTHEST if is_open() else FAR):
        start = max(stop - PIECE, down_to)
        rows = scene.a.read(start, stop).rows
        for place in np.flatnonzero(np.isin(rows.column(Column.KIND), list(kinds)))[::-1].tolist():
            partner = scene.matching.partner(start + place)
            if partner is None or (end_b is not None and partner >= end_b) or partner >= scene.b.rows:
                continue
            a, b = RowAt(scene.a, rows, place), row_at(scene.b, partner)
            if a.op == b.op:
                yield EventPair(a, b, event_at(a), event_at(b))
        stop = start


def _same(x: object, y: object) -> bool:
    return repr(x) == repr(y)  # not a number is itself
