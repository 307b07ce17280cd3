"""The three arrays of kept rows of one process, read: calls, tensors and, by their offset, digests; verified.

Owns which chunk holds what, and which tensors are of one call or op. What a row of them means is for
``rltrace.trace.kept``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.arrays import KEPT_CALLS, KEPT_DIGESTS, KEPT_TENSORS, ArraySpec
from rltrace.trace.chunks import Counter, missing_or_cut, read_chunk
from rltrace.trace.files import Folder, UnreadableError
from rltrace.trace.keptrecords import ArrayPart, KeptPart
from rltrace.trace.schema import DIGEST_CHUNK, Kept, Owner
from rltrace.trace.segment import ChunkFile

NO_SENSE = "its description is inconsistent"


class NotThereError(Exception):
    """The digests of a tensor's rows were left out of a slice."""


class KeptArrays:
    """What stands in ``kept`` of one process, as far as it can be read."""

    def __init__(self, folder: Folder, base: str, parts: Sequence[KeptPart], miss: Callable[[str], None]) -> None:
        """``miss`` is told of damage."""
        self.counter = Counter()
        self._folder = folder
        self._base = base
        self._parts = parts
        self._miss = miss
        self._digest_chunks: dict[int, NDArray[np.uint64]] = {}

    def check_sizes(self) -> None:
        """Find the chunks that are missing or of another length, without reading any."""
        for file in self.files:
            if (why := missing_or_cut(self._folder, self._base, file)) is not None:
                self._miss(why)

    @property
    def files(self) -> Iterator[ChunkFile]:
        """All chunks that are here."""
        arrays = (array for part in self._parts for _, array in part.arrays)
        return (file for array in arrays for file in array.files if file is not None)

    @cached_property
    def calls(self) -> NDArray[np.uint64]:
        """Every call of a module that can be read, shape [n, len(Called)]."""
        return self._array(KEPT_CALLS, [part.calls for part in self._parts])

    @cached_property
    def tensors(self) -> NDArray[np.uint64]:
        """Every tensor that can be read, shape [n, len(Kept)]."""
        return self._array(KEPT_TENSORS, [part.tensors for part in self._parts])

    @cached_property
    def by_owner(self) -> NDArray[np.uint64]:
        """Tensors, those of one call or op next to each other and in the order in which they stand."""
        table = self.tensors
        return table[np.lexsort((table[:, Kept.NUMBER], table[:, Kept.STREAM], table[:, Kept.OWNER]))]

    def places(self, owner: Owner, stream: int) -> Mapping[int, tuple[int, int]]:
        """Where in ``by_owner`` the tensors of each call, or op, of a stream stand."""
        return self._all_places.get((int(owner), stream), {})

    @cached_property
    def _all_places(self) -> dict[tuple[int, int], dict[int, tuple[int, int]]]:
        keys = self.by_owner[:, [Kept.OWNER, Kept.STREAM, Kept.NUMBER]]
        cuts = (np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1).tolist()
        starts = [0, *cuts] if len(keys) else []
        found: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
        for first, stop in zip(starts, [*cuts, len(keys)], strict=False):
            owner, stream, number = keys[first].tolist()
            found.setdefault((owner, stream), {})[number] = first, stop
        return found

    def _array(self, spec: ArraySpec, parts: Sequence[ArrayPart]) -> NDArray[np.uint64]:
        """Every row of an array that could be read, shape [n, columns]."""
        found = [np.zeros((0, spec.chunk[1]), np.uint64)]
        for part in parts:
            for i, file in enumerate(part.files):
                assert file is not None  # slices carry these whole
                rows = min(spec.chunk[0], part.count - i * spec.chunk[0])
                try:
                    found.append(read_chunk(self._folder, self._base, spec, file, self.counter)[:, :rows].T)
                except UnreadableError as error:
                    self._miss(f"{self._base}/{file.key} {error}; the activation rows that it describes are lost")
        return np.concatenate(found)

    def digests(self, offset: int, count: int) -> NDArray[np.uint64]:
        """``count`` digests from ``offset`` on. Raises UnreadableError, NotThereError."""
        first, stop = offset // DIGEST_CHUNK, -(-(offset + count) // DIGEST_CHUNK)
        if not count:
            return np.zeros(0, np.uint64)
        start = offset - first * DIGEST_CHUNK
        if stop - first > len(self._digest_files):
            raise UnreadableError(NO_SENSE)
        chunks = [self._digest_chunk(number) for number in range(first, stop)]
        found = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
        own: NDArray[np.uint64] = found[start : start + count]
        if len(own) < count:
            raise UnreadableError(NO_SENSE)
        return own

    @cached_property
    def _digest_files(self) -> Mapping[int, tuple[ChunkFile | None, int]]:
        """Chunks of ``kept/digests`` by number (None where a slice left one out), with how many digests are in each."""
        return {
            part.digests.chunk + i: (file, min(DIGEST_CHUNK, part.digests.count - i * DIGEST_CHUNK))
            for part in self._parts
            for i, file in enumerate(part.digests.files)
        }

    def _digest_chunk(self, number: int) -> NDArray[np.uint64]:
        """The digests of one chunk, without its padding."""
        if number not in self._digest_chunks:
            if number not in self._digest_files:
                raise UnreadableError(f"chunk {number} of {KEPT_DIGESTS.name}, which it needs, is missing")
            file, count = self._digest_files[number]
            if file is None:
                raise NotThereError
            try:
                chunk = read_chunk(self._folder, self._base, KEPT_DIGESTS, file, self.counter)
            except UnreadableError as error:
                raise UnreadableError(f"{self._base}/{file.key} {error}") from None
            self._digest_chunks[number] = chunk[:count]
        return self._digest_chunks[number]
