"""Chunks of a trace, verified: length and digest of the encoded bytes must match the journal.

Owns that check, and the counts of chunks and bytes read.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_hexdigest

from rltrace.trace.format import chunk_codec
from rltrace.trace.format.arrays import SERIES, STEPS, ArraySpec
from rltrace.trace.format.chunk_codec import CodecError, rows_from_text
from rltrace.trace.format.files import FileRequest, TraceStore, UnreadableError
from rltrace.trace.format.journal import Record
from rltrace.trace.format.records import MAX_COUNT, ArrayPart, StepPart, add_step_part, parse_step_part
from rltrace.trace.format.rows import ChunkFile
from rltrace.trace.format.schema import Sample, Step


class Counter:
    """Chunks and bytes read so far."""

    def __init__(self) -> None:
        self.chunks = 0
        self.bytes = 0


def read_chunk(folder: TraceStore, base: str, spec: ArraySpec, file: ChunkFile, counter: Counter) -> NDArray[Any]:
    """One chunk, verified. Raises UnreadableError with its key and the reason."""
    try:
        return _read_chunk(folder, base, spec, file, counter)
    except UnreadableError as error:
        raise UnreadableError(f"{base}/{file.key} {error}") from None


def _read_chunk(folder: TraceStore, base: str, spec: ArraySpec, file: ChunkFile, counter: Counter) -> NDArray[Any]:
    key = f"{base}/{file.key}"
    try:
        encoded = folder.read(key, chunk_codec.max_bytes(spec), file.digest)
        counter.chunks += 1
        counter.bytes += len(encoded)
        if len(encoded) != file.length:
            raise UnreadableError(_other_size(len(encoded), file))
        if xxh3_64_hexdigest(encoded) != file.digest:
            raise UnreadableError("is not what was written")
        return chunk_codec.decode(spec, encoded)
    except chunk_codec.CodecError as error:
        raise UnreadableError(f"cannot be used: {error}") from None


def read_ahead(folder: TraceStore, base: str, spec: ArraySpec, files: Iterable[ChunkFile]) -> None:
    """These chunks are read next."""
    limit = chunk_codec.max_bytes(spec)
    folder.read_ahead(FileRequest(f"{base}/{file.key}", limit, file.digest) for file in files)


def read_rows(
    folder: TraceStore,
    base: str,
    spec: ArraySpec,
    parts: Sequence[ArrayPart],
    counter: Counter,
    lost: Callable[[str], None],
) -> NDArray[np.uint64]:
    """The readable rows of these parts of a table, shape [n, columns]; ``lost`` gets a sentence for each other."""
    found = [np.zeros((0, spec.chunk[1]), np.uint64)]
    read_ahead(folder, base, spec, [file for part in parts for file in part.files])
    for part in parts:
        for i, file in enumerate(part.files):
            try:
                rows = min(spec.chunk[0], part.rows - i * spec.chunk[0])
                found.append(read_chunk(folder, base, spec, file, counter)[:, :rows].T)
            except UnreadableError as error:
                lost(str(error))
    return np.concatenate(found)


def check_sizes(folder: TraceStore, base: str, files: Iterable[ChunkFile], report: Callable[[str], None]) -> None:
    """Report chunks that are missing or of another length, without reading any."""
    files = list(files)
    folder.size_ahead(f"{base}/{file.key}" for file in files)
    for file in files:
        if (why := missing_or_cut(folder, base, file)) is not None:
            report(why)


def missing_or_cut(folder: TraceStore, base: str, file: ChunkFile) -> str | None:
    """A sentence on a chunk that is missing or of another length, found without reading it; None: it is not."""
    try:
        size = folder.size(f"{base}/{file.key}")
    except UnreadableError as error:
        return f"{base}/{file.key} {error}"
    return None if size == file.length else f"{base}/{file.key} {_other_size(size, file)}"


def _other_size(size: int, file: ChunkFile) -> str:
    return f"has {size} bytes; {file.length} were written"


# --- incremental arrays -----------------------------------------------------------------------------------------------
#
# Finished optimizer attempts and samples of series: a few rows with every commit, in chunks or in the journal.


FEW_PARTS = 64
"""So many are asked for at once when the first of them is read; of more only those that are read."""


class IncrementalArray:
    """Rows of one array by the part that holds them; each part is read once."""

    spec: ArraySpec
    noun: str
    """Plural noun for rows, and the field of a record that counts them."""

    def __init__(self, folder: TraceStore, base: str, counter: Counter, damage: list[str]) -> None:
        self.parts: list[StepPart] = []
        """In the order of writing."""
        self._folder = folder
        self._base = base
        self._counter = counter
        self._damage = damage
        """Gets a sentence for every part that cannot be read."""
        self._read: dict[int, NDArray[np.uint64]] = {}
        """By the number of the first row of the part."""

    def add_record(self, record: Record) -> None:
        """Add the part of a journal record. Raises ValueError, KeyError or TypeError."""
        add_step_part(self.parts, parse_step_part(record, self.spec, self.noun))

    @cached_property
    def all(self) -> NDArray[np.uint64]:
        """All readable rows, shape [n, columns]. Use it after all records are added."""
        self.read_ahead()
        return np.concatenate([self._none(), *(self.of(part) for part in self.parts)])

    def read_ahead(self) -> None:
        """All parts are read next."""
        unread = [part.file for part in self.parts if part.file is not None and part.first not in self._read]
        read_ahead(self._folder, self._base, self.spec, unread)

    def read_few_ahead(self) -> None:
        """All parts are read next, if there are few."""
        if len(self.parts) <= FEW_PARTS:
            self.read_ahead()

    def of(self, part: StepPart) -> NDArray[np.uint64]:
        """The readable rows of one part."""
        if part.first not in self._read:
            self.read_few_ahead()
            self._read[part.first] = self._read_part(part)
        return self._read[part.first]

    def _read_part(self, part: StepPart) -> NDArray[np.uint64]:
        try:
            rows = self._stored(part)
            self._check(rows)
            return rows
        except (UnreadableError, CodecError) as error:
            where = f"{self._base}/{part.file.key}" if part.file else "their journal record"
            copies = [rows for own in part.journal_parts if len(rows := self._read_part(own))]
            rest = f"; {sum(map(len, copies))} of them are in the journal" if copies else ""
            self._damage.append(f"{self.noun} {part.first} to {part.stop - 1}: {where} {error}{rest}")
            return np.concatenate([self._none(), *copies])

    def _stored(self, part: StepPart) -> NDArray[np.uint64]:
        if part.file is None:
            return rows_from_text(self.spec, part.text, part.rows)
        chunk = _read_chunk(self._folder, self._base, self.spec, part.file, self._counter)
        rows: NDArray[np.uint64] = chunk[:, : part.rows].T.copy()  # a view would keep the whole chunk
        return rows

    def _none(self) -> NDArray[np.uint64]:
        return np.zeros((0, self.spec.chunk[1]), np.uint64)

    def _check(self, rows: NDArray[np.uint64]) -> None:
        """Raise UnreadableError for inconsistent rows."""


class StoredAttempts(IncrementalArray):
    """Finished optimizer attempts, in the order of their end."""

    spec, noun = STEPS, "steps"

    def __init__(
        self, folder: TraceStore, base: str, counter: Counter, damage: list[str], latest_end: Callable[[int], int]
    ) -> None:
        super().__init__(folder, base, counter, damage)
        self._latest_end = latest_end
        """Upper bound of the rows at which steps of a stream end, by its number."""

    def _check(self, steps: NDArray[np.uint64]) -> None:
        """Raise UnreadableError for steps out of order, or with an end beyond the rows."""
        in_order = bool((steps[1:, Step.STEP] > steps[:-1, Step.STEP]).all())
        for stream in np.unique(steps[:, Step.STREAM]).tolist():
            ends = steps[steps[:, Step.STREAM] == stream, Step.END_ROW]
            in_order = in_order and bool((ends[1:] >= ends[:-1]).all()) and int(ends[-1]) <= self._latest_end(stream)
        if not in_order:
            raise UnreadableError("is inconsistent")


class Samples(IncrementalArray):
    """Samples of series, in the order of sampling."""

    spec, noun = SERIES, "samples"

    def _check(self, samples: NDArray[np.uint64]) -> None:
        """Raise UnreadableError for samples with impossible counts."""
        if (samples[:, : Sample.VALUE] > np.uint64(MAX_COUNT)).any():
            raise UnreadableError("is inconsistent")
