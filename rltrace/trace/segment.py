"""A segment: what the journal says of it, and its rows put together from two decoded chunks.

Owns the agreement between the journal's counts, the rows and the cells; reads no file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.files import UnreadableError
from rltrace.trace.rows import Rows
from rltrace.trace.schema import MARK_ROWS, VALUE_FLAGS, Column, Origin, RowFlag


class ChunkFile(NamedTuple):
    """A chunk as the journal names it."""

    key: str
    length: int
    digest: str
    """XXH3-64 of the encoded bytes, 16 hex digits."""


@dataclass(frozen=True)
class Segment:
    """What one commit wrote of a stream."""

    index: int
    """Number of the chunk in ``rows`` and ``cells``."""
    first: int
    rows: int
    sections: tuple[int, int, int, int]
    """Cells: links, integers, floats, digests."""
    marks: tuple[tuple[int, int, int, int], ...]
    """(row, structure, values, marked), ascending, the end of the segment included."""
    files: tuple[ChunkFile, ...]
    """Of ``rows`` and ``cells``; empty where a slice left the rows out."""

    @property
    def stop(self) -> int:
        return self.first + self.rows


def expected_marks(first: int, rows: int) -> list[int]:
    """Rows at which a segment has marks: the multiples of MARK_ROWS within it, and its end."""
    return [*range(first // MARK_ROWS * MARK_ROWS + MARK_ROWS, first + rows, MARK_ROWS), first + rows]


def empty_rows(first: int) -> Rows:
    """A stretch of no rows."""
    return Rows(
        first,
        np.zeros((0, len(Column)), np.uint32),
        np.zeros(0, np.int64),
        np.zeros(0, np.int64),
        np.zeros(0, np.float64),
        np.zeros(0, np.uint64),
    )


def assemble(segment: Segment, columns: NDArray[np.uint32], cells: NDArray[np.uint64]) -> Rows:
    """Rows of the decoded chunks. Raises UnreadableError where they are not the rows the journal tells of."""
    used = sum(segment.sections)
    if segment.rows * 2 < columns.shape[1]:
        columns = columns[:, : segment.rows].copy()
    if used * 2 < len(cells):
        cells = cells[:used].copy()
    cuts = np.cumsum(segment.sections)
    links, integers, floats, digests = np.split(cells[:used], cuts[:-1])
    rows = Rows(
        segment.first,
        columns[:, : segment.rows].T,
        links.view(np.int64),
        integers.view(np.int64),
        floats.view(np.float64),
        digests,
    )
    for column, count in zip(
        (Column.LINKS, Column.INTEGERS, Column.FLOATS, Column.DIGESTS), segment.sections, strict=True
    ):
        if int(rows.column(column).sum(dtype=np.uint64)) != count:
            raise UnreadableError("its rows and its cells do not match")
    if not rows.column(Column.KIND).all() or not _has_own_cells(rows) or not _links_lead_back(rows):
        raise UnreadableError("its rows are inconsistent")
    return rows


def _links_lead_back(rows: Rows) -> bool:
    """Whether every link leads to an earlier row of the stream, or says why it does not."""
    if not len(rows.links):
        return True
    distances = rows.links >> 12
    if distances.min() < min(Origin):
        return False
    far = np.flatnonzero(distances > rows.first)  # the others cannot lead to before the first row
    if not len(far):
        return True
    owners = np.searchsorted(rows.link_offsets, far, side="right") - 1
    return bool((distances[far] <= rows.first + owners).all())


def _has_own_cells(rows: Rows) -> bool:
    """Whether every row has the cells that its links and its flags speak of."""
    flags = rows.column(Column.FLAGS)
    digests = rows.reads + ((flags & np.uint32(RowFlag.RNG)) != 0)
    integers = (flags & np.uint32(RowFlag.VALUE_BOOL | RowFlag.VALUE_INTEGER)) != 0
    floats = ((flags & np.uint32(RowFlag.VALUE_FLOAT)) != 0) + 2 * ((flags & np.uint32(RowFlag.VALUE_COMPLEX)) != 0)
    if rows.evidence is not None:
        digests = digests + rows.evidence
    if not (digests <= rows.column(Column.DIGESTS)).all():
        return False
    if not (flags & np.uint32(VALUE_FLAGS)).any():
        return True
    return bool((integers <= rows.column(Column.INTEGERS)).all() and (floats <= rows.column(Column.FLOATS)).all())
