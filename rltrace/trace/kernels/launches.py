"""What was launched on a device for rows, as a profiler saw it: records ``launched`` of a process's journal.

Owns the record's form, and how what it tells gets to be the kernel evidence of rows as they are read. A record is of
some adjacent rows of a stream: ids in table ``kernels``, packed, 0 where no more is known than what the row was written
with. It comes after the rows. Nothing of this is in any hash.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.format.arrays import ArraySpec
from rltrace.trace.format.chunk_codec import CodecError, rows_from_text, rows_to_text
from rltrace.trace.format.journal import Record
from rltrace.trace.format.records import MAX_COUNT, MAX_STREAMS, check_fields, number
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind
from rltrace.trace.format.tables import Table

MAX_ROWS: Final = 1 << 24
"""Of one record."""

IDS: Final = ArraySpec("launches", "uint32", (MAX_ROWS, 1), level=3, order=(1, 0))
"""How ids are packed: as a chunk of so many rows would be."""


class Unknown(NamedTuple):
    """Rows of which it is not known what was launched."""

    why: str
    stream: int
    first: int
    rows: int


Stray = tuple[str, str, int]
"""What was launched for no row: its name, the innermost op or call around that ("": not known), how often."""


class NewLaunched(NamedTuple):
    """What is known of some adjacent rows."""

    stream: int
    first: int
    ids: NDArray[np.uint32]
    """In table "kernels"; 0: no more than is known already."""
    unknown: tuple[Unknown, ...] = ()
    strays: tuple[Stray, ...] = ()


def launched_record(new: NewLaunched) -> Record:
    """The journal's record; its table entries are in records before it."""
    packed = rows_to_text(IDS, new.ids.reshape(-1, 1)) if len(new.ids) else ""
    return {
        "type": "launches",
        "stream": new.stream,
        "first": new.first,
        "rows": len(new.ids),
        "ids": packed,
        "unknown": [list(entry) for entry in new.unknown],
        "strays": [list(entry) for entry in new.strays],
    }


class Launched:
    """All that was told of one process."""

    def __init__(self) -> None:
        self.unknown: list[Unknown] = []
        self.strays: dict[tuple[str, str], int] = {}
        """How often each was launched, by its name and what launched it."""
        self._parts: dict[int, list[tuple[int, int, str]]] = {}
        """By stream: (first, rows, ids), ascending."""

    def __bool__(self) -> bool:
        return bool(self._parts or self.unknown or self.strays)

    @property
    def rows(self) -> int:
        """How many were looked at."""
        return sum(rows for parts in self._parts.values() for _, rows, _ in parts)

    def parts(self, stream: int) -> list[tuple[int, int]]:
        """(first, rows) of what was looked at of a stream, ascending."""
        return [(first, rows) for first, rows, _ in self._parts.get(stream, ())]

    def take(self, record: Record) -> None:
        """One more record. Raises ValueError, KeyError, TypeError where it makes no sense."""
        check_fields(record, ids=str, unknown=list, strays=list)
        stream, first, rows = (
            number(record, name, most)
            for name, most in (("stream", MAX_STREAMS), ("first", MAX_COUNT), ("rows", MAX_ROWS))
        )
        parts = self._parts.get(stream, [])
        if not rows and record["ids"]:
            raise ValueError("its ids belong to no rows")
        if parts and rows and first < parts[-1][0] + parts[-1][1]:
            raise ValueError(f"rows {first} and on were already described")
        unknown = [_unknown(entry) for entry in record["unknown"]]
        strays = [_stray(entry) for entry in record["strays"]]
        if rows:
            self._parts.setdefault(stream, []).append((first, rows, record["ids"]))
        self.unknown += unknown
        for name, launcher, count in strays:
            self.strays[name, launcher] = self.strays.get((name, launcher), 0) + count

    def put(self, stream: int, rows: Rows, kernels: Table) -> Rows:
        """The same rows; those whose launches are known have them as their kernels."""
        ids = self._ids(stream, rows.first, rows.first + len(rows))
        if ids is None:
            return rows
        known = (ids != 0) & (ids < len(kernels)) & (rows.column(Column.KIND) == Kind.OP)
        known[known] = kernels.present[ids[known]]
        columns: NDArray[np.uint32] = rows.columns.copy(order="K")
        columns[known, Column.KERNEL] = ids[known]
        return replace(rows, columns=columns)

    def _ids(self, stream: int, start: int, stop: int) -> NDArray[np.uint32] | None:
        parts: Sequence[tuple[int, int, str]] = self._parts.get(stream, ())
        at = max(bisect_right(parts, (start, MAX_COUNT, "")) - 1, 0)
        found = None
        for first, rows, packed in parts[at:]:
            if first >= stop:
                break
            low, high = max(first, start), min(first + rows, stop)
            if low < high:
                found = np.zeros(stop - start, np.uint32) if found is None else found
                found[low - start : high - start] = _unpack(packed, rows)[low - first : high - first]
        return found


def _unpack(packed: str, rows: int) -> NDArray[np.uint32]:
    """Zeros where these are not so many ids."""
    try:
        return rows_from_text(IDS, packed, rows)[:, 0].astype(np.uint32)
    except CodecError:
        return np.zeros(rows, np.uint32)


def _unknown(entry: Any) -> Unknown:
    why, *counts = entry
    stream, first, rows = (number({"unknown": count}, "unknown") for count in counts)
    return Unknown(str(why), stream, first, rows)


def _stray(entry: Any) -> Stray:
    name, launcher, count = entry
    return str(name), str(launcher), number({"strays": count}, "strays")
