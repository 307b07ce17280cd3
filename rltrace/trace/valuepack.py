"""Values on their way into the trace: laid one after the other and cut into chunks.

Owns what a commit writes of values. Runs inside the recorded program: imports neither zarr nor torch, and verifies
nothing; whoever hands a value over vouches that its digest is that of its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace import codec
from rltrace.trace.arrays import VALUE_BYTES, VALUE_INDEX, ArraySpec
from rltrace.trace.schema import INDEX_CHUNK, VALUE_CHUNK, Held, ValueKind
from rltrace.trace.segment import ChunkFile
from rltrace.trace.valuerecords import LeftOut, ValuePart, values_record

WriteChunk = Callable[[str, ArraySpec, int, NDArray[Any]], list[Any]]
"""Writes one chunk of the array in a folder; returns its key, length and digest."""


@dataclass(frozen=True, slots=True)
class NewValue:
    """One value that an op of the recorded program had."""

    kind: ValueKind
    digest: int
    stream: int
    row: int
    place: int
    """Which input or output it was of that row."""
    layout: int
    """Id in table "layouts"; 0 where the kind has none."""
    data: bytes
    """Its logical bytes; none for SAME_INPUT and LYING."""
    offset: int = 0
    """LYING: of the tensor within its storage."""


@dataclass(frozen=True)
class NewValues:
    """What has come together since the last commit."""

    values: Sequence[NewValue] = ()
    left_out: Sequence[LeftOut] = ()

    def __bool__(self) -> bool:
        return bool(self.values or self.left_out)


class ValuePacker:
    """Counts chunks; every commit begins new ones, because a chunk is written once."""

    def __init__(self) -> None:
        self.chunks = 0
        """Chunks of ``values/bytes`` so far."""
        self.index_chunks = 0

    def write(self, new: NewValues, write_chunk: WriteChunk) -> dict[str, object]:
        """Write what a commit has of values; returns its journal record."""
        index, first = self.index_chunks, self.chunks
        index_files, files = (
            [ChunkFile(*write_chunk(spec.name, spec, number, stored)) for number, stored in chunks]
            for spec, chunks in ((VALUE_INDEX, self._index(new.values)), (VALUE_BYTES, self._bytes(new.values)))
        )
        return values_record(
            ValuePart(len(new.values), tuple(index_files), first, tuple(files), tuple(new.left_out), index)
        )

    def _bytes(self, values: Sequence[NewValue]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """(number, chunk) of as many chunks as the values fill; the last one is padded. A chunk is overwritten then."""
        chunk = np.zeros(VALUE_CHUNK, np.uint8)
        filled = 0
        for value in values:
            data = np.frombuffer(value.data, np.uint8)
            while len(data):
                piece = data[: VALUE_CHUNK - filled]
                chunk[filled : filled + len(piece)] = piece
                filled, data = filled + len(piece), data[len(piece) :]
                if filled == VALUE_CHUNK:
                    yield self.chunks, chunk
                    self.chunks, filled = self.chunks + 1, 0
        if filled:
            chunk[filled:] = 0
            yield self.chunks, chunk
            self.chunks += 1

    def _index(self, values: Sequence[NewValue]) -> Iterator[tuple[int, NDArray[np.uint64]]]:
        """(number, chunk as it is stored) for the index of values whose bytes begin with the next chunk."""
        rows = np.zeros((len(values), len(Held)), np.uint64)
        at = self.chunks * VALUE_CHUNK
        for row, value in zip(rows, values, strict=True):
            place = (value.stream, value.row, value.place)
            offset = at if value.data else value.offset
            row[:] = (value.kind, value.digest, *place, value.layout, offset, len(value.data))
            at += len(value.data)
        for first in range(0, len(rows), INDEX_CHUNK):
            stored = np.zeros(codec.stored_shape(VALUE_INDEX), np.uint64)
            part = rows[first : first + INDEX_CHUNK]
            stored[:, : len(part)] = part.T
            yield self.index_chunks, stored
            self.index_chunks += 1
