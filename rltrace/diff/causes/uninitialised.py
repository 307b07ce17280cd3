"""Marked rows whose digests differ: counted and reported, but deciding no verdict.

There are two kinds: ops that may have read uninitialised memory, and events with data from outside torch, whether or
not an op reads it. Nor do ops that compute with what such an op returned, where the step of an optimizer that follows
proves that training did not use it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rltrace.diff.align.window import unequal_pairs
from rltrace.diff.base.bisect import MARKED, Bisection
from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.findings import RowAt, row_at, writer_of
from rltrace.diff.base.model import EventSummary, InputsMatch, UninitialisedCount
from rltrace.diff.base.row_diff import Difference
from rltrace.diff.base.sequences import Indices
from rltrace.diff.base.view import RowRange
from rltrace.diff.causes.exchanged_objects import carries_equal_objects
from rltrace.diff.causes.inputs import Input, match_inputs, same_bytes
from rltrace.diff.causes.no_op_writes import writes_in_place
from rltrace.errors import HoleError
from rltrace.trace.format.events import event_of
from rltrace.trace.format.schema import Column, Origin, Phase, RowFlag

# --- counts -----------------------------------------------------------------------------------------------------------

ATEN = "aten."
"""Ops of other namespaces may do more than compute: communicate, or save."""

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
    first_event: RowAt | None = None
    unused: int = 0
    """Other ops that compute with what those returned, to no effect."""
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
            self.first_event = RowAt(a.view, a.rows, int(events[0]))

    @property
    def marked(self) -> UninitialisedCount:
        return UninitialisedCount(self.ops, self.unequal_ops, self.first_op, self.whole, self.unused)

    @property
    def events(self) -> EventSummary:
        row = self.first_event
        if row is None:
            return EventSummary(self.unequal_events, None, self.whole)
        what = event_of(row.rows, row.place, row.view.skeleton(row.rows, row.place)).what
        words = f"{row.op.replace('-', ' ')} of {what}, row {row.index:,}"
        return EventSummary(self.unequal_events, words, self.whole, row.view.name, row.index)


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
        found.unused,
        stop == end and not (found.unequal_ops or found.unequal_events),
    )


def _words(row: RowAt) -> str:
    return f"{row}, row {row.index:,}"


# --- ops that compute with it -----------------------------------------------------------------------------------------
#
# A library may run a model on empty memory, to learn shapes. What follows from such memory is harmless where the step
# of an optimizer after it shows that: every other op up to its end is equal, and no later step reads it.


class HarmlessRows(NamedTuple):
    """Rows of A among some pairs that differ to no effect, up to a pair with another difference."""

    unused: set[int]
    """Those that only compute with uninitialised memory."""
    exchanged: set[int]
    """Those that carry an object between processes which is equal on both sides."""
    other: int | None
    """The number of the pair with another difference, or in which such memory affects more than tensors that are
    dropped; None: there is none."""


def harmless_rows(context: DiffContext, a: RowRange, at_a: Indices, b: RowRange, at_b: Indices) -> HarmlessRows:
    unused: set[int] = set()
    exchanged: set[int] = set()
    for k, differs in unequal_pairs(a, at_a, b, at_b):
        pair = RowAt(a.view, a.rows, int(at_a[k])), RowAt(b.view, b.rows, int(at_b[k]))
        if not _has_only_other_values(pair[0], differs):
            return HarmlessRows(unused, exchanged, k)
        if carries_equal_objects(*pair):
            exchanged.add(pair[0].index)
        elif _only_computes(pair[0]) and _follows_from(context, *pair, unused):
            unused.add(pair[0].index)
        else:
            return HarmlessRows(unused, exchanged, k)
    return HarmlessRows(unused, exchanged, None)


def _has_only_other_values(row: RowAt, differs: Difference) -> bool:
    return row.is_op and not (differs.structure or differs.arguments or differs.rng or differs.value)


def _only_computes(row: RowAt) -> bool:
    """Whether nothing but tensors of this process can depend on it, and no optimizer runs it."""
    in_optimizer = int(row.rows.columns[row.place, Column.PHASE]) == Phase.OPTIMIZER
    return row.op.startswith(ATEN) and not in_optimizer


def _follows_from(context: DiffContext, a: RowAt, b: RowAt, unused: set[int]) -> bool:
    """Whether all inputs of a pair that are not known to be equal were written, in this step, by ops that compute with
    uninitialised memory. ``unused``: rows of A of earlier such pairs."""
    known = InputsMatch.READ, InputsMatch.INFERRED
    unequal = [operand for operand in match_inputs(context, a, b) if operand.match not in known]
    for operand in unequal:
        writers = garbage_writers(context, a, b, operand, unused)
        if writers is None or writers[0].step != a.step:
            return False
    return bool(unequal)


def garbage_writers(
    context: DiffContext, a: RowAt, b: RowAt, operand: Input, unused: set[int]
) -> tuple[RowAt, RowAt] | None:
    """The pair that wrote an input, where its results differ and a side may have read uninitialised memory for them, or
    it is among ``unused``; None: there is none. Of an input that several ops wrote, the last one that may have."""
    if operand.match is InputsMatch.DIFFER and operand.a.distance == operand.b.distance == Origin.MIXED:
        return _last_in_place(context, a, unused)
    writer_a, writer_b = writer_of(a, operand.a), writer_of(b, operand.b)
    if writer_a is None or writer_b is None or not _is_garbage(context, writer_a, writer_b, unused):
        return None
    return writer_a, writer_b


def _is_garbage(context: DiffContext, a: RowAt, b: RowAt, unused: set[int]) -> bool:
    marked = a.index in unused or bool((a.rows.flags(a.place) | b.rows.flags(b.place)) & RowFlag.MARKED)
    return marked and context.matching.partner(a.index) == b.index and not same_bytes(a, None, b, None)


def _last_in_place(context: DiffContext, before: RowAt, unused: set[int]) -> tuple[RowAt, RowAt] | None:
    """The last such pair before a row that wrote one of its arguments in place."""
    try:
        rows = before.view.read(max(0, before.index - CHUNK_ROWS), before.index).rows
        for place in reversed(range(len(rows))):
            row = RowAt(before.view, rows, place)
            if not writes_in_place(row):
                continue
            partner = context.matching.partner(row.index)
            other = None if partner is None else row_at(context.b, partner)
            if other is not None and _is_garbage(context, row, other, unused):
                return row, other
    except HoleError:
        pass
    return None
