"""Ops that carry an object between processes, and differ only in addresses within its pickle.

The recorder writes an event for each object that a collective sends or receives, with a digest of its pickle without
addresses (``recorder/integrations/exchanged_objects.py``).
"""

from itertools import takewhile
from typing import Final

import numpy as np

from rltrace.diff.base.findings import RowAt
from rltrace.diff.causes.events import event_at
from rltrace.diff.causes.no_op_writes import layouts_of
from rltrace.errors import HoleError
from rltrace.trace.format.events import OBJECT_CONTENT, RECEIVED_OBJECT, SENT_OBJECT
from rltrace.trace.format.schema import Column, Kind

CHUNK_ROWS: Final = 1 << 10
"""Rows before and after an op among which the events of its objects are."""

BYTES: Final = "uint8"


def carries_equal_objects(a: RowAt, b: RowAt) -> bool:
    """Whether a pair carries objects that are known to be equal: torch calls its op, on tensors of bytes, and all
    events of the call that sent or received objects there have equal digests."""
    if not all(row.view.is_inside_torch(row.rows, row.place) for row in (a, b)):
        return False
    if any(not layouts or {layout[0] for layout in layouts} != {BYTES} for layouts in map(layouts_of, (a, b))):
        return False
    try:
        found = _objects_of(a), _objects_of(b)
    except HoleError:
        return False
    return bool(found[0]) and found[0] == found[1] and all(digest for _, digest in found[0])


def _objects_of(row: RowAt) -> list[tuple[str, int]]:
    """The objects of the call that an op belongs to. A call sends its objects, communicates, and receives others; so
    these are the last objects that its line sent, and all that it received since and next."""
    view, index = row.view, row.index
    before = _objects_at(row, max(index - CHUNK_ROWS, view.start), index)[::-1]
    found = list(takewhile(_is_received, before))
    found += takewhile(_is_sent, before[len(found) :])
    return found + list(takewhile(_is_received, _objects_at(row, index + 1, min(index + CHUNK_ROWS, view.rows))))


def _objects_at(row: RowAt, start: int, stop: int) -> list[tuple[str, int]]:
    """The objects of events between two rows with the call site of ``row``: sent or received, and their digest (0: not
    known)."""
    rows = row.view.read(start, stop).rows
    events = [RowAt(row.view, rows, at) for at in np.flatnonzero(rows.column(Column.KIND) == Kind.OBJECT).tolist()]
    objects = [event_at(event) for event in events if event.stack == row.stack]
    return [(each.what, each.evidence(OBJECT_CONTENT) or 0) for each in objects]


def _is_sent(event: tuple[str, int]) -> bool:
    return event[0] == SENT_OBJECT


def _is_received(event: tuple[str, int]) -> bool:
    return event[0] == RECEIVED_OBJECT
