"""Marked rows whose digests differ: counted and reported, but deciding no verdict.

There are two kinds: ops that may have read uninitialised memory, and events with data from outside torch, whether or
not an op reads it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.diff.base.bisect import MARKED, Bisection
from rltrace.diff.base.findings import RowAt
from rltrace.diff.base.model import EventSummary, UninitialisedCount
from rltrace.diff.base.sequences import Indices
from rltrace.diff.base.view import RowRange
from rltrace.errors import HoleError
from rltrace.trace.format.events import event_of

MAX_SCANNED = 1 << 18
"""Rows that are read at most only to count marked ones."""

CHUNK_ROWS = 1 << 16


@dataclass
class MarkedRows:
    """Counts of marked rows so far."""

    ops: int = 0
    unequal_ops: int = 0
    first_op: str | None = None
    unequal_events: int = 0
    first_event: str | None = None
    whole: bool = False
    """Every row that could count was read."""

    def add(self, a: RowRange, at_a: Indices, b: RowRange, at_b: Indices) -> None:
        """Add matched rows; places within the ranges."""
        own = a.marked_ops[at_a]
        self.ops += int(own.sum())
        unequal = a.hashes.marked[at_a] != b.hashes.marked[at_b]
        if not unequal.any():
            return
        ops, events = at_a[unequal & own], at_a[unequal & ~own]
        self.unequal_ops += len(ops)
        self.unequal_events += len(events)
        if len(ops) and self.first_op is None:
            self.first_op = _words(RowAt(a.view, a.rows, int(ops[0])))
        if len(events) and self.first_event is None:
            self.first_event = _words_of_event(RowAt(a.view, a.rows, int(events[0])))

    @property
    def marked(self) -> UninitialisedCount:
        return UninitialisedCount(self.ops, self.unequal_ops, self.first_op, self.whole)

    @property
    def events(self) -> EventSummary:
        return EventSummary(self.unequal_events, self.first_event, self.whole)


def count_marked(search: Bisection, end: int, found: MarkedRows) -> MarkedRows:
    """``found`` plus the marked rows before row ``end``, up to which the streams match position by position."""
    first = search.first(MARKED, before=end)
    if first.row is None:
        return found
    before = MarkedRows()
    stop = min(end, first.row + MAX_SCANNED)
    try:
        for at in range(first.row, stop, CHUNK_ROWS):
            a, b = (view.read(at, min(at + CHUNK_ROWS, stop)) for view in (search.a, search.b))
            rows = np.arange(len(a))
            before.add(a, rows, b, rows)
    except HoleError:
        stop = first.row
    return MarkedRows(
        before.ops + found.ops,
        before.unequal_ops + found.unequal_ops,
        before.first_op or found.first_op,
        before.unequal_events + found.unequal_events,
        before.first_event or found.first_event,
        stop == end and not (found.unequal_ops or found.unequal_events),
    )


def _words(row: RowAt) -> str:
    return f"{row}, row {row.index:,}"


def _words_of_event(row: RowAt) -> str:
    what = event_of(row.rows, row.place, row.view.skeleton(row.rows, row.place)).what
    return f"{row.op.replace('-', ' ')} of {what}, row {row.index:,}"
