"""Launches on a device, as a profiler saw them: records ``launches`` of a process's journal.

Owns the form of the record, and how it replaces the kernel evidence of rows that are read. A record is of adjacent rows
of a stream and follows them: packed ids in table ``kernels``, 0 where the profiler adds nothing. In no hash.
"""

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
"""The array as a chunk of which ids are packed."""


class Unknown(NamedTuple):
    """Rows with unknown launches."""

    why: str
    stream: int
    first: int
    rows: int


Stray = tuple[str, str, int]
"""A launch outside of rows: its name, the innermost op or call around it ("": not known), and the count."""


class NewLaunches(NamedTuple):
    """Launches of adjacent rows."""

    stream: int
    first: int
    ids: NDArray[np.uint32]
    """In table "kernels"; 0: the row's own holds."""
    unknown: tuple[Unknown, ...] = ()
    strays: tuple[Stray, ...] = ()


def launches_record(new: NewLaunches) -> Record:
    """The journal record; earlier records hold its table entries."""
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


class RecordedLaunches:
    """All recorded launches of one process."""

    def __init__(self) -> None:
        self.unknown: list[Unknown] = []
        self.strays: dict[tuple[str, str], int] = {}
        """Counts by name and launcher."""
        self._parts: dict[int, list[tuple[int, int, str]]] = {}
        """By stream: (first, rows, ids), ascending."""

    def __bool__(self) -> bool:
        return bool(self._parts or self.unknown or self.strays)

    @property
    def rows(self) -> int:
        """Number of rows that were profiled."""
        return sum(rows for parts in self._parts.values() for _, rows, _ in parts)

    def parts(self, stream: int) -> list[tuple[int, int]]:
        """(first, rows) of the profiled rows of a stream, ascending."""
        return [(first, rows) for first, rows, _ in self._parts.get(stream, ())]

    def add(self, record: Record) -> None:
        """Add a record. Raises ValueError, KeyError or TypeError."""
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
        strays = [(str(name), str(by), number({"strays": n}, "strays")) for name, by, n in record["strays"]]
        if rows:
            self._parts.setdefault(stream, []).append((first, rows, record["ids"]))
        self.unknown += unknown
        for name, launcher, count in strays:
            self.strays[name, launcher] = self.strays.get((name, launcher), 0) + count

    def apply(self, stream: int, rows: Rows, kernels: Table) -> Rows:
        """The rows, with the known launches as their kernels."""
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
    """The ids, shape [rows]; zeros where the text is invalid."""
    try:
        return rows_from_text(IDS, packed, rows)[:, 0].astype(np.uint32)
    except CodecError:
        return np.zeros(rows, np.uint32)


def _unknown(entry: Any) -> Unknown:
    why, *counts = entry
    stream, first, rows = (number({"unknown": count}, "unknown") for count in counts)
    return Unknown(str(why), stream, first, rows)
