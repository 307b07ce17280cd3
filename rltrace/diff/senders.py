"""Who sent what a process received: the row of another process that wrote the bytes, by their digests.

Two digests prove it: what one side read from outside is what a row of its other process wrote, and what the other side
read is what the same op wrote there. They prove nothing where several processes wrote the same bytes, unless all others
are known to have done so before.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from rltrace.diff.base.findings import RowAt, row_at
from rltrace.diff.base.model import Cause, Finding, Sender
from rltrace.diff.base.view import StreamView
from rltrace.diff.happened_before import HappenedBefore, Instant
from rltrace.errors import HoleError
from rltrace.trace.format.schema import Origin

ROWS_AT_ONCE = 1 << 14

MAX_SCANNED = 1 << 18
"""Rows of a stream that are searched, from the last one before the receipt."""


class Senders:
    """What the processes of two traces sent each other."""

    def __init__(self, a: HappenedBefore, b: HappenedBefore) -> None:
        self._sides = a, b

    def of(self, finding: Finding) -> Sender | None:
        """The row of another process that wrote what a finding's op reads from outside, or in shared memory; None: none
        is known to."""
        at = finding.stream, finding.at_op.a_index, finding.at_op.b_index
        views_a, views_b = (side.views for side in self._sides)
        if at[1] is None or at[2] is None or not (at[0] in views_a and at[0] in views_b):
            return None
        try:
            a, b = row_at(views_a[at[0]], at[1]), row_at(views_b[at[0]], at[2])
            for x, y in zip(a.rows.inputs(a.place), b.rows.inputs(b.place), strict=False):
                is_sent = x.distance == y.distance == Origin.OUTSIDE or finding.cause is Cause.UNTRACKED_WRITE
                if is_sent and x.digest is not None and y.digest is not None:
                    found = self._writer(a, x.digest, b, y.digest) if x.digest != y.digest else None
                    if found is not None:
                        return found
        except HoleError:
            pass
        return None

    def by_side(self, finding: Finding) -> str:
        """``in B it is what aten.stack.default (row 20) of rank0/worker:2 wrote``, of each side on which a matched op
        reads from outside; "" where no row is known to have written it. Where both sides do, of the first input that
        differs: it is the one that the finding is of."""
        sides = (finding.a_index, finding.b_index)
        if None in sides or any(finding.stream not in side.views for side in self._sides):
            return ""
        try:
            rows = [row_at(side.views[finding.stream], at or 0) for at, side in zip(sides, self._sides, strict=True)]
            for links in zip(*(row.rows.inputs(row.place) for row in rows), strict=False):
                outside = [side for side, link in enumerate(links) if link.distance == Origin.OUTSIDE]
                if not outside or (len(outside) == 2 and links[0].digest == links[1].digest):
                    continue
                clauses = [self._clause(side, rows[side], links[side].digest) for side in outside]
                if all(clauses):
                    return ", and ".join(clauses)
                if len(outside) == 2:
                    break
        except HoleError:
            pass
        return ""

    def _clause(self, side: int, reader: RowAt, digest: int | None) -> str:
        """Who wrote what ``reader`` read from outside; "" where not exactly one row may have."""
        found = [] if digest is None else list(self._written_to(side, reader, digest))
        if len(found) != 1:
            return ""
        (row,) = found
        return f"in {'AB'[side]} it is what {Sender(row.view.name, row.index, row.index, row.op, None).text} wrote"

    def _written_to(self, side: int, reader: RowAt, digest: int) -> Iterator[RowAt]:
        """The last row of each other process of a side that may have sent these bytes."""
        before, here = self._sides[side], Instant(reader.view.name, reader.index)
        views = before.views
        own = {stream.name for stream in reader.view.process.streams}
        direct = {views[name].process.name for name in before.senders_to(own) if name in views}
        found = set[str]()
        for name, view in views.items():
            if view.process.name == reader.view.process.name or view.process.name in found:
                continue
            row = next(_possible_sendings(view, digest, before.rows_before(name, here)), None)
            if row is None or before.orders(here, Instant(name, row.index)):
                continue
            known = _rows_with(view, digest, row.index + 1)
            if view.process.name not in direct and any(_has_read(each, digest) for each in known):
                continue  # it read the same bytes from outside, where they may come from for both
            found.add(view.process.name)
            yield row

    def _writer(self, a: RowAt, in_a: int, b: RowAt, in_b: int) -> Sender | None:
        before_b = self._sides[1]
        found: list[Sender] = []
        for x in self._written_to(0, a, in_a):
            other = before_b.views.get(x.view.name)
            if other is None:
                continue
            for y in _possible_sendings(other, in_b, before_b.rows_before(x.view.name, Instant(b.view.name, b.index))):
                if x.op == y.op:
                    step = x.step if len(x.view.process.steps) else None
                    found.append(Sender(x.view.name, x.index, y.index, x.op, step))
                    break
        return next((one for one in found if self._is_last(one, found)), None)

    def _is_last(self, one: Sender, others: Iterable[Sender]) -> bool:
        """Whether all others are known to have written the bytes before."""
        at = Instant(one.stream, one.a_index)
        return all(self._sides[0].orders(Instant(o.stream, o.a_index), at) for o in others if o is not one)


def _has_read(row: RowAt, digest: int) -> bool:
    """Whether a row read these bytes from outside."""
    return any(link.distance == Origin.OUTSIDE and link.digest == digest for link in row.rows.inputs(row.place))


def _possible_sendings(view: StreamView, digest: int, end: int | None) -> Iterator[RowAt]:
    """The rows that wrote these bytes, from the last that happened before a receipt on backwards. Where none did, the
    first row that has them at all, if it wrote them: in shared memory, no message need say that it was before."""
    known = False
    for row in _rows_with(view, digest, end):
        if digest in row.rows.outputs(row.place):
            known = True
            yield row
    if known or end is None or view.rows > MAX_SCANNED:
        return
    first = list(_rows_with(view, digest, None))[-1:]
    yield from (row for row in first if digest in row.rows.outputs(row.place) and not _has_read(row, digest))


def _rows_with(view: StreamView, digest: int, end: int | None) -> Iterator[RowAt]:
    """The rows that read or wrote these bytes, from the last before ``end`` on backwards; None: from the last one."""
    stop = view.rows if end is None else min(end, view.rows)
    for at in range(stop, max(stop - MAX_SCANNED, 0), -ROWS_AT_ONCE):
        rows = view.read(max(at - ROWS_AT_ONCE, 0), at).rows
        cells = np.flatnonzero(rows.digests == np.uint64(digest))
        places = np.unique(np.searchsorted(rows.digest_offsets, cells, "right") - 1)
        for place in places[::-1].tolist():
            yield RowAt(view, rows, place)
