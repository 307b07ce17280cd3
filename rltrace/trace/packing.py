"""Steps on their way into a full chunk: each commit's own in its journal record, and a whole chunk once there is one.

Owns the text form of a few steps and the moment a chunk is due. A chunk of its own for the steps of each commit would
be a tenth full, and a comparison that needs all steps would read ten times as many.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace import codec
from rltrace.trace.arrays import STEPS, ArraySpec
from rltrace.trace.journal import Record
from rltrace.trace.records import chunk_files, number
from rltrace.trace.schema import STEP_CHUNK
from rltrace.trace.segment import ChunkFile

WriteChunk = Callable[[str, ArraySpec, int, NDArray[Any]], list[Any]]
"""Folder, array, number of the chunk, the chunk as it is stored; writes it, and returns its journal entry."""


class StepPacker:
    """Rows of ``steps`` that are in no chunk yet."""

    def __init__(self) -> None:
        self.packed = 0
        """Rows that are in chunks."""
        self.chunks = 0
        self._tail: list[list[int]] = []

    def add(self, rows: list[list[int]]) -> None:
        self._tail += rows

    def take_chunk(self, *, last: bool = False) -> NDArray[np.uint64] | None:
        """The next chunk, as it is stored, once it is full; ``last``: with whatever there is. None: not yet."""
        if len(self._tail) < STEP_CHUNK and not (last and self._tail):
            return None
        part, self._tail = self._tail[:STEP_CHUNK], self._tail[STEP_CHUNK:]
        stored = np.zeros(codec.stored_shape(STEPS), np.uint64)
        stored[:, : len(part)] = np.array(part, np.uint64).T
        self.packed += len(part)
        self.chunks += 1
        return stored

    def write(self, rows: list[list[int]], write_chunk: WriteChunk, *, last: bool = False) -> list[Record]:
        """Take rows in, write the chunks that are full now; their records, and that of new rows that are in none."""
        records: list[Record] = []
        self.add(rows)
        first = self.packed
        while (chunk := self.take_chunk(last=last)) is not None:
            file = write_chunk("steps", STEPS, self.chunks - 1, chunk)
            record = {"type": "steps", "first": first, "steps": self.packed - first}
            records.append({**record, "chunk": self.chunks - 1, "files": [file]})
            first = self.packed
        first, waiting = self.newest(len(rows))
        if waiting:
            text = steps_to_text(waiting)
            records.append({"type": "steps", "first": first, "steps": len(waiting), "rows": text})
        return records

    def newest(self, count: int) -> tuple[int, list[list[int]]]:
        """(number of the first, rows) of those of the ``count`` rows added last that are in no chunk."""
        rows = self._tail[-count:] if count else []
        return self.packed + len(self._tail) - len(rows), rows


def steps_to_text(rows: Sequence[Sequence[int]]) -> str:
    """A few rows of ``steps`` as a journal record holds them: base64 of a chunk of just as many rows."""
    return rows_to_text(STEPS, np.array(rows, np.uint64))


def steps_from_text(text: str, count: int) -> NDArray[np.uint64]:
    """The rows, shape [count, columns of ``steps``]. Raises CodecError where the text is none of so many."""
    return rows_from_text(STEPS, text, count)


def rows_to_text(spec: ArraySpec, rows: NDArray[Any]) -> str:
    """A few rows of an array as a journal record holds them."""
    return b64encode(codec.encode(_cut(spec, len(rows)), np.ascontiguousarray(rows.T))).decode()


def rows_from_text(spec: ArraySpec, text: str, count: int) -> NDArray[Any]:
    """The rows, shape [count, columns]. Raises CodecError where the text is none of so many."""
    spec = _cut(spec, count)
    if len(text) > codec.longest(spec) * 2:
        raise codec.CodecError("it is longer than so many rows can be")
    try:
        encoded = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise codec.CodecError(f"it is not base64: {error}") from None
    return codec.decode(spec, encoded).T


def _cut(spec: ArraySpec, count: int) -> ArraySpec:
    return spec._replace(chunk=(count, *spec.chunk[1:]))


@dataclass(frozen=True)
class StepPart:
    """Some adjacent rows of ``steps`` (or of ``series``, which is packed alike), as the journal tells of them."""

    first: int
    """Number of the first, counted over all of the process."""
    count: int
    chunk: int | None
    """Number of the chunk they are in; None: their journal record holds them."""
    file: ChunkFile | None
    text: str = ""
    instead: tuple[StepPart, ...] = ()
    """Of a chunk: what journal records hold of it as well, from the time before there was one."""

    @property
    def stop(self) -> int:
        return self.first + self.count


def parse_part(record: Record, spec: ArraySpec = STEPS, counted: str = "steps") -> StepPart:
    """What a journal record says of rows of ``spec``; ``counted``: the field that says how many.

    Raises ValueError, KeyError or TypeError where it makes no sense.
    """
    first, count = number(record, "first"), number(record, counted, spec.chunk[0])
    if not count:
        raise ValueError(f"it describes no {counted}")
    if "rows" in record:
        if not isinstance(record["rows"], str):
            raise ValueError('"rows" is not text')
        return StepPart(first, count, None, None, record["rows"])
    files = chunk_files(record, spec.name, spec)
    if len(files) != 1:
        raise ValueError(f"{counted} are one chunk a record")
    return StepPart(first, count, number(record, "chunk"), files[0])


def add_part(parts: list[StepPart], part: StepPart) -> None:
    """Take a part in; a chunk takes the place of those that journal records held until then."""
    kept = len(parts)
    if part.chunk is not None:
        while kept and parts[kept - 1].chunk is None and parts[kept - 1].first >= part.first:
            kept -= 1
        last = next((p.chunk for p in reversed(parts) if p.chunk is not None), -1)
        if part.chunk <= last:
            raise ValueError("its chunk exists already")
    if kept and part.first < parts[kept - 1].stop:
        raise ValueError("its steps exist already")
    inside = tuple(old for old in parts[kept:] if old.stop <= part.stop)
    parts[kept:] = [replace(part, instead=inside) if inside else part]
