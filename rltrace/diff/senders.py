"""Who sent what a process received: the row of another process that wrote the bytes, by their digests.

Two digests prove it: what one side read from outside is what a row of its other process wrote, and what the other side
read is what the same op wrote there.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rltrace.diff.base.findings import RowAt, row_at
from rltrace.diff.base.model import Finding, Sender
from rltrace.diff.base.view import StreamView
from rltrace.diff.happened_before import HappenedBefore
from rltrace.errors import HoleError
from rltrace.trace.format.schema import Origin
from rltrace.trace.read.reader import Trace

ROWS_AT_ONCE = 1 << 14

MAX_SCANNED = 1 << 18
"""Rows of a stream that are searched, from the last one before the receipt."""


class Senders:
    """What the processes of two traces sent each other."""

    def __init__(self, a: Trace, b: Trace, happened: tuple[HappenedBefore, HappenedBefore]) -> None:
        self._sides = tuple(
            ({s.name: StreamView(p, s) for p in trace.processes for s in p.streams}, relation)
            for trace, relation in zip((a, b), happened, strict=True)
        )

    def of(self, finding: Finding) -> Sender | None:
        """The row of another process that wrote what a finding's op reads from outside; None: none is known to."""
        at = finding.stream, finding.at_op.a_index, finding.at_op.b_index
        (views_a, _), (views_b, _) = self._sides
        if at[1] is None or at[2] is None or not (at[0] in views_a and at[0] in views_b):
            return None
        try:
            a, b = row_at(views_a[at[0]], at[1]), row_at(views_b[at[0]], at[2])
            for x, y in zip(a.rows.inputs(a.place), b.rows.inputs(b.place), strict=False):
                if x.distance == y.distance == Origin.OUTSIDE and x.digest is not None and y.digest is not None:
                    found = self._writer(a, x.digest, b, y.digest) if x.digest != y.digest else None
                    if found is not None:
                        return found
        except HoleError:
            pass
        return None

    def _writer(self, a: RowAt, in_a: int, b: RowAt, in_b: int) -> Sender | None:
        (views_a, before_a), (views_b, before_b) = self._sides
        for name, view in views_a.items():
            other = views_b.get(name)
            if other is None or view.process.name == a.view.process.name:
                continue
            x = next(_written(view, in_a, before_a.rows_before(name, (a.view.name, a.index))), None)
            if x is None:
                continue
            for y in _written(other, in_b, before_b.rows_before(name, (b.view.name, b.index))):
                if x.op == y.op:
                    return Sender(name, x.index, y.index, x.op, x.step if len(view.process.steps) else None)
        return None


def _written(view: StreamView, digest: int, end: int | None) -> Iterator[RowAt]:
    """The rows that wrote these bytes, from the last before ``end`` on backwards; None: from the last one."""
    stop = view.rows if end is None else min(end, view.rows)
    for at in range(stop, max(stop - MAX_SCANNED, 0), -ROWS_AT_ONCE):
        rows = view.read(max(at - ROWS_AT_ONCE, 0), at).rows
        cells = np.flatnonzero(rows.digests == np.uint64(digest))
        places = np.unique(np.searchsorted(rows.digest_offsets, cells, "right") - 1)
        for place in places[::-1].tolist():
            if digest in rows.outputs(place):
                yield RowAt(view, rows, place)
