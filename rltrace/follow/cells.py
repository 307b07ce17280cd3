"""The row that a stream is about to finish, read back from the arrays it is made in, in A's ids.

Owns where its cells stand: at the end of the arrays, since nothing of the next row is there yet.
"""

from __future__ import annotations

from typing import NamedTuple

from rltrace.follow.judging import Here
from rltrace.follow.reference import Content, Ids, Place
from rltrace.record.open_rows import OpenRows
from rltrace.trace.schema import VALUE_FLAGS, RowFlag

_BOOL, _FLOAT, _COMPLEX = int(RowFlag.VALUE_BOOL), int(RowFlag.VALUE_FLOAT), int(RowFlag.VALUE_COMPLEX)
_WHOLE = _BOOL | int(RowFlag.VALUE_INTEGER)
_NUMBER = int(VALUE_FLAGS)  # plain integers: the arithmetic of an IntFlag costs as much as all the rest

Fixed = tuple[int, int, int, int, int, int, int]
"""Op, structure, site, module, scalars, flags, digests: what ``OpenRows.fixed`` gets of a row."""


class _Known(NamedTuple):
    """What the ids of a row mean in A, and how many numbers its arguments have."""

    place: Place
    called: tuple[int, int]
    integers: int
    floats: int


class OpenCells:
    """The last row of one stream."""

    def __init__(self, stream: OpenRows, ids: Ids) -> None:
        self._row = stream
        self._ids = ids
        self._known: dict[tuple[int, int, int, int], _Known] = {}

    def _translate(self, ids: tuple[int, int, int, int]) -> _Known:
        op, structure, site, scalars = ids
        counts, of = self._row.process.calls.scalar_counts, self._ids.of
        made = self._known[ids] = _Known(
            (of("ops", op), of("sites", site)),
            (of("structures", structure), of("scalars", scalars)),
            counts[2 * scalars],
            counts[2 * scalars + 1],
        )
        return made

    def content(self, fixed: Fixed) -> tuple[Place, Content]:
        """What the row is, and what it tells."""
        ids = fixed[0], fixed[1], fixed[2], fixed[4]
        flags, digests, row = fixed[5], fixed[6], self._row
        place, called, integers, floats = self._known.get(ids) or self._translate(ids)
        if flags & _NUMBER:
            integers += bool(flags & _WHOLE)
            floats += bool(flags & _FLOAT) + 2 * bool(flags & _COMPLEX)
        return place, Content(
            called,
            row.integers[-integers:].tobytes() if integers else b"",
            row.floats[-floats:].tobytes() if floats else b"",
            row.digests[-digests:].tobytes() if digests else b"",
        )

    def here(self, fixed: Fixed, content: Content) -> Here:
        """The same, with its links, for the judge."""
        row = self._row
        links = self._row.process.calls.structure_sizes[fixed[1]]
        flags = fixed[5] & 0xFFFF
        digests = row.digests[-fixed[6] :].tolist() if fixed[6] else []
        cells = row.links[-links:].tolist() if links else []
        return Here(row.row, content, digests, cells, flags, self._number(flags))

    def _number(self, flags: int) -> bool | int | float | complex | None:
        row = self._row
        if flags & _FLOAT:
            return row.floats[-1]
        if flags & _COMPLEX:
            return complex(*row.floats[-2:])
        if flags & _WHOLE:
            return bool(row.integers[-1]) if flags & _BOOL else row.integers[-1]
        return None
