"""Chunks of a trace being read: taken only when length and digest of the encoded bytes are those the journal tells.

Owns that check, and the count of what was read. Which rows a chunk holds is for those who ask.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_hexdigest

from rltrace.trace.format import chunk_codec
from rltrace.trace.format.arrays import SERIES, STEPS, ArraySpec
from rltrace.trace.format.chunk_codec import CodecError, rows_from_text
from rltrace.trace.format.files import Folder, UnreadableError
from rltrace.trace.format.journal import Record
from rltrace.trace.format.records import MAX_COUNT
from rltrace.trace.format.rows import ChunkFile
from rltrace.trace.format.schema import Sample, Step
from rltrace.trace.write.packers import StepPart, add_part, parse_part


class Counter:
    """What was read from disk so far."""

    def __init__(self) -> None:
        self.chunks = 0
        self.bytes = 0


def read_chunk(folder: Folder, base: str, spec: ArraySpec, file: ChunkFile, counter: Counter) -> NDArray[Any]:
    """One chunk, verified. Raises UnreadableError saying what is wrong with it."""
    key = f"{base}/{file.key}"
    try:
        encoded = folder.read(key, chunk_codec.max_bytes(spec))
        counter.chunks += 1
        counter.bytes += len(encoded)
        if len(encoded) != file.length:
            raise UnreadableError(_other_size(len(encoded), file))
        if xxh3_64_hexdigest(encoded) != file.digest:
            raise UnreadableError("is not what was written")
        return chunk_codec.decode(spec, encoded)
    except chunk_codec.CodecError as error:
        raise UnreadableError(f"cannot be used: {error}") from None


def missing_or_cut(folder: Folder, base: str, file: ChunkFile) -> str | None:
    """What is wrong with a chunk as far as shows without reading it, its path included; None: nothing."""
    try:
        size = folder.size(f"{base}/{file.key}")
    except UnreadableError as error:
        return f"{base}/{file.key} {error}"
    return None if size == file.length else f"{base}/{file.key} {_other_size(size, file)}"


def _other_size(size: int, file: ChunkFile) -> str:
    return f"has {size} bytes; {file.length} were written"


# --- attempts ---------------------------------------------------------------------------------------------------------
#
# What a process writes a little of with every commit, read part by part, from chunks or from the journal.
#
# That are its finished optimizer attempts, and the samples of its series. Owns what stands in for a chunk that is
# damaged, and when steps or samples make no sense.


class Parted:
    """Rows of one array by the part that holds them; each part is read once."""

    spec: ArraySpec
    noun: str
    """What a row is one of; the field of a record that counts them, too."""

    def __init__(self, folder: Folder, base: str, counter: Counter, damage: list[str]) -> None:
        self.parts: list[StepPart] = []
        """Where they stand, in the order in which they were written."""
        self._folder = folder
        self._base = base
        self._counter = counter
        self._damage = damage
        """Told of every part that cannot be read."""
        self._read: dict[int, NDArray[np.uint64]] = {}
        """By the number of the first row of the part."""

    def take(self, record: Record) -> None:
        """A journal record of theirs. Raises ValueError, KeyError or TypeError where it makes no sense."""
        add_part(self.parts, parse_part(record, self.spec, self.noun))

    @cached_property
    def all(self) -> NDArray[np.uint64]:
        """Those that could be read, shape [n, columns]; to be asked for once all records are taken."""
        return np.concatenate([self._none(), *(self.of(part) for part in self.parts)])

    def of(self, part: StepPart) -> NDArray[np.uint64]:
        """The rows of one part, without reading the others; those that can be read."""
        if part.first not in self._read:
            self._read[part.first] = self._read_part(part)
        return self._read[part.first]

    def _read_part(self, part: StepPart) -> NDArray[np.uint64]:
        try:
            rows = self._stored(part)
            self._check(rows)
            return rows
        except (UnreadableError, CodecError) as error:
            where = f"{self._base}/{part.file.key}" if part.file else "their journal record"
            left = [rows for own in part.instead if len(rows := self._read_part(own))]
            kept = f"; {sum(map(len, left))} of them are in the journal" if left else ""
            self._damage.append(f"{self.noun} {part.first} to {part.stop - 1}: {where} {error}{kept}")
            return np.concatenate([self._none(), *left])

    def _stored(self, part: StepPart) -> NDArray[np.uint64]:
        if part.file is None:
            return rows_from_text(self.spec, part.text, part.count)
        chunk = read_chunk(self._folder, self._base, self.spec, part.file, self._counter)
        rows: NDArray[np.uint64] = chunk[:, : part.count].T.copy()  # a view would keep the whole chunk
        return rows

    def _none(self) -> NDArray[np.uint64]:
        return np.zeros((0, self.spec.chunk[1]), np.uint64)

    def _check(self, rows: NDArray[np.uint64]) -> None:
        """Refuse rows that make no sense. Raises UnreadableError."""


class StoredAttempts(Parted):
    """Finished optimizer attempts, in the order of their ending."""

    spec, noun = STEPS, "steps"

    def __init__(
        self, folder: Folder, base: str, counter: Counter, damage: list[str], latest_end: Callable[[int], int]
    ) -> None:
        super().__init__(folder, base, counter, damage)
        self._latest_end = latest_end
        """Number of a stream to the last row at which a step of it can end."""

    def _check(self, steps: NDArray[np.uint64]) -> None:
        """Refuse steps that are in no order, or end where no row is. Raises UnreadableError."""
        in_order = bool((steps[1:, Step.STEP] > steps[:-1, Step.STEP]).all())
        for stream in np.unique(steps[:, Step.STREAM]).tolist():
            ends = steps[steps[:, Step.STREAM] == stream, Step.END_ROW]
            in_order = in_order and bool((ends[1:] >= ends[:-1]).all()) and int(ends[-1]) <= self._latest_end(stream)
        if not in_order:
            raise UnreadableError("is inconsistent")


class Samples(Parted):
    """Samples of series, in the order in which they were taken."""

    spec, noun = SERIES, "samples"

    def _check(self, samples: NDArray[np.uint64]) -> None:
        """Refuse samples with counts that none can have. Raises UnreadableError."""
        if (samples[:, : Sample.VALUE] > np.uint64(MAX_COUNT)).any():
            raise UnreadableError("is inconsistent")
