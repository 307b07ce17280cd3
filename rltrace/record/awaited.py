"""Digests that were yet to come when their rows were written, put in before the rows leave for the trace.

Owns the front of a stream's ``later``, as the committer owns that of its rows. Waits for devices; never in the thread
of the stream, but as the recording ends.
"""

from __future__ import annotations

from rltrace.record.open_rows import Later, OpenRows
from rltrace.record.readback import ReadBack
from rltrace.trace.rows import Rows
from rltrace.trace.schema import Column, RowFlag


def come(stream: OpenRows, end: int, readback: ReadBack, *, last: bool) -> tuple[int, list[Later]]:
    """The end of the rows before ``end`` whose digests are all known, and those of them that had to be awaited.

    ``last``: there will be no later; what cannot be had now is not known.
    """
    came: list[Later] = []
    while stream.later and stream.later[0].row < end:
        awaited = stream.later.popleft()
        if not readback.settle(awaited.pending, last=last):
            stream.later.appendleft(awaited)
            end = awaited.row
            while came and came[-1].row >= end:
                stream.later.appendleft(came.pop())
            break
        came.append(awaited)
    return end, came


def put_in(rows: Rows, came: list[Later]) -> None:
    """The digests that were awaited. A row with one that is not known may hold anything, as far as anybody can tell."""
    for row, place, pending in came:
        i = row - rows.first
        rows.digests[rows.digest_offsets[i] + place] = pending.digest
        if pending.unread:
            rows.columns[i, Column.FLAGS] |= RowFlag.MARKED
