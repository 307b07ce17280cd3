"""Marked rows: differences in what they hold are counted and listed, and are no verdict by themselves.

Owns the count. There are two kinds: ops that may have read memory that no op wrote, and events, which tell what came in
from outside of torch, whether anything depends on it or not.
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

SCAN = 1 << 18
"""Rows that are read at most to count marked ones, where nothing else needs them read."""

PIECE = 1 << 16


@dataclass
class MarkedRows:
    """What was met so far."""

    ops: int = 0
    unequal_ops: int = 0
    first_op: str | None = None
    unequal_events: int = 0
    first_event: str | None = None
    whole: bool = False
    """Every row that could count was looked at."""

    def take(self, a: RowRange, at_a: Indices, b: RowRange, at_b: Indices) -> None:
        """Pairs of matched rows, places within the stretches."""
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
    def told(self) -> EventSummary:
        return EventSummary(self.unequal_events, self.first_event, self.whole)


def count_marked(search: Bisection, end: int, found: MarkedRows) -> MarkedRows:
    """Marked rows before row ``end``, up to which the streams match position by position, on top of what was met."""
    first = search.first(MARKED, before=end)
    if first.row is None:
        return found
    before = MarkedRows()
    stop = min(end, first.row + SCAN)
    try:
        for at in range(first.row, stop, PIECE):
            a, b = (view.read(at, min(at + PIECE, stop)) for view in (search.a, search.b))
            rows = np.arange(len(a))
            before.take(a, rows, b, rows)
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
