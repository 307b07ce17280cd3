"""The recorded values of one process, found by digest.

Owns lookup and verification: a value is returned only if its bytes, dtype and shape have the requested digest. No
torch, no zarr.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.digest import digest_buffer, seed_of
from rltrace.errors import HoleError
from rltrace.trace.format import dtypes
from rltrace.trace.format.arrays import VALUE_BYTES, VALUE_INDEX
from rltrace.trace.format.files import TraceStore, UnreadableError
from rltrace.trace.format.records import LeftOut, ValuePart, ValueRequest
from rltrace.trace.format.rows import ChunkFile
from rltrace.trace.format.schema import PLACEMENT_SHIFT, VALUE_CHUNK, WITHOUT_BYTES, PlacementBit, ValueIndex, ValueKind
from rltrace.trace.format.tables import Table
from rltrace.trace.read.chunks import Counter, check_sizes, read_chunk, read_rows

CACHED_CHUNKS = 16
"""Decoded chunks of ``values/bytes`` in the cache of a process, of 4 MiB each."""

GENERATOR = "generator"
"""Replaces the dtype for an RNG state, as torch's ``Generator.get_state`` returns it."""


@dataclass(frozen=True)
class StoredPlacement:
    """Placement of a tensor in memory, where it shared a storage or was not aligned as a fresh allocation."""

    with_: int
    """Index of the first tensor of the row in the same storage; may be its own."""
    offset: int
    """Bytes from the lowest start address of the row's tensors in this storage."""
    alignment: int
    """That lowest address modulo PLACEMENT_ALIGNMENT."""
    conjugated: bool
    negated: bool
    """Whether the storage held the lazy conjugate, or the lazy negative, of the value."""


@dataclass(frozen=True)
class Value:
    """Dtype, shape and logical bytes of a tensor, or an RNG state."""

    digest: int
    dtype: str
    """torch's name without ``torch.``, or GENERATOR."""
    shape: tuple[int, ...]
    data: memoryview
    """The elements in row-major order, little endian. Read-only."""

    @property
    def raw(self) -> NDArray[Any]:
        """The stored elements; of dtypes that NumPy lacks (bfloat16, float8), their bits as integers."""
        return dtypes.raw("uint8" if self.dtype == GENERATOR else self.dtype, self.data).reshape(self.shape)

    @property
    def numbers(self) -> NDArray[Any]:
        """The elements as numbers; dtypes that NumPy lacks are widened exactly to float32 or complex64."""
        return dtypes.numbers(self.dtype, self.raw)


class Values:
    """The values of one process. Falsy where none were requested (activation rows may need a few)."""

    def __init__(
        self,
        folder: TraceStore,
        base: str,
        request: ValueRequest | None,
        parts: Sequence[ValuePart],
        layouts: Table,
        report: Callable[[str], None],
    ) -> None:
        self.request = request
        """None: none."""
        self.left_out: tuple[LeftOut, ...] = tuple(entry for part in parts for entry in part.left_out)
        """Requested values that were not recorded, in the order of recording."""
        self._folder = folder
        self._base = base
        self._parts = parts
        self._layouts = layouts
        self._report = cache(report)
        self._lost_index: list[str] = []
        self.counter = Counter()
        self._chunks: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()

    def __bool__(self) -> bool:
        return self.request is not None and bool(self.request.selectors)

    def __len__(self) -> int:
        """Number of values."""
        return len(self.digests)

    def __contains__(self, digest: int) -> bool:
        return len(self._places(digest)) > 0

    @cached_property
    def digests(self) -> NDArray[np.uint64]:
        """Digests of all values, ascending."""
        return np.unique(self._stored[:, ValueIndex.DIGEST])

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all values, before compression."""
        _, first = np.unique(self._stored[:, ValueIndex.DIGEST], return_index=True)
        return int(self._stored[first, ValueIndex.LENGTH].sum())

    @cached_property
    def rerunnable_rows(self) -> int:
        """Rows whose ops can be run again (``record --rerunnable``), allocations included."""
        placed = self.index[self.index[:, ValueIndex.KIND] == ValueKind.TENSOR]
        return len(np.unique(placed[:, [ValueIndex.STREAM, ValueIndex.ROW]], axis=0))

    @cached_property
    def memory_bytes(self) -> int:
        """Bytes of what storages held that ops read (``record --rerunnable``)."""
        return int(self.index[self.index[:, ValueIndex.KIND] == ValueKind.STORAGE][:, ValueIndex.LENGTH].sum())

    def get(self, digest: int) -> Value | None:
        """The value with this digest; None: not recorded. Raises HoleError where it cannot be read."""
        trouble: HoleError | None = None
        for place in self._places(digest):
            try:
                return self._read(self._stored[place].tolist())
            except UnreadableError as error:
                trouble = HoleError(f"value {digest:016x} of {self._base} cannot be read: {error}")
                self._report(str(trouble))
        if trouble is None and self._lost_index:
            trouble = HoleError(f"value {digest:016x} may have been recorded: {self._lost_index[0]}")
        if trouble is not None:
            raise trouble
        return None

    def inputs(self, stream: int, row: int) -> Mapping[int, int]:
        """Digests of the recorded inputs of one row, by index among its tensors."""
        found = self._of_row(stream, row, ValueKind.INPUT, ValueKind.SAME_INPUT)
        return {entry[ValueIndex.PLACE]: entry[ValueIndex.DIGEST] for entry in found}

    def placements(self, stream: int, row: int) -> Mapping[int, StoredPlacement]:
        """Placements of a row's tensors, by index, where they are not those of fresh allocations."""
        found = {}
        for entry in self._of_row(stream, row, ValueKind.PLACEMENT):
            layout = entry[ValueIndex.LAYOUT]
            flags = bool(layout & PlacementBit.CONJUGATED), bool(layout & PlacementBit.NEGATED)
            at = entry[ValueIndex.DIGEST], entry[ValueIndex.OFFSET], layout >> PLACEMENT_SHIFT
            found[entry[ValueIndex.PLACE]] = StoredPlacement(*at, *flags)
        return found

    def _of_row(self, stream: int, row: int, *kinds: ValueKind) -> list[list[int]]:
        """The entries of these kinds of one row."""
        own = (self.index[:, ValueIndex.STREAM] == stream) & (self.index[:, ValueIndex.ROW] == row)
        found: list[list[int]] = self.index[own & np.isin(self.index[:, ValueIndex.KIND], kinds)].tolist()
        return found

    def why_missing(self, stream: int, row: int) -> str | None:
        """Why requested values of a row may not have been recorded; None: no reason is known."""
        return next((gap.why for gap in self.left_out if gap.stream == stream and gap.first <= row <= gap.last), None)

    @cached_property
    def index(self) -> NDArray[np.uint64]:
        """The readable rows of ``values/index``, shape [n, len(ValueIndex)]."""

        def lose(why: str) -> None:
            self._lost_index.append(f"{why}; the values it describes cannot be found")
            self._report(self._lost_index[-1])

        parts = [part.rows for part in self._parts]
        return read_rows(self._folder, self._base, VALUE_INDEX, parts, self.counter, lose)

    def check_sizes(self) -> None:
        """Report chunks that are missing or of another length, without reading any."""
        files = (file for part in self._parts for file in (*part.rows.files, *part.files))
        check_sizes(self._folder, self._base, files, self._report)

    def read_all(self) -> int:
        """Read every value, in stored order, and report damage. Returns the number of readable values."""
        read = set()
        for entry in sorted(self._stored.tolist(), key=lambda entry: int(entry[ValueIndex.OFFSET])):
            try:
                read.add(self._read(entry).digest)
            except UnreadableError as error:
                self._report(f"value {entry[ValueIndex.DIGEST]:016x} of {self._base} cannot be read: {error}")
        return len(read)

    @cached_property
    def _stored(self) -> NDArray[np.uint64]:
        """Rows of the index that have bytes, by digest; equal digests in the order of recording."""
        kinds = self.index[:, ValueIndex.KIND]
        stored: NDArray[np.uint64] = self.index[~np.isin(kinds, WITHOUT_BYTES)]
        return stored[np.argsort(stored[:, ValueIndex.DIGEST], kind="stable")]

    def _places(self, digest: int) -> range:
        column = self._stored[:, ValueIndex.DIGEST]
        value = np.uint64(digest)
        return range(int(np.searchsorted(column, value)), int(np.searchsorted(column, value, side="right")))

    def _read(self, entry: list[int]) -> Value:
        """The value of one row of the index. Raises UnreadableError."""
        length = entry[ValueIndex.LENGTH]
        is_state = entry[ValueIndex.KIND] == ValueKind.GENERATOR
        dtype, shape = self._layout(entry[ValueIndex.LAYOUT]) if not is_state else (GENERATOR, (length,))
        seed = 0 if is_state else seed_of(dtype, shape)
        if not is_state and (dtypes.itemsize(dtype) or 0) * prod(shape) != length:
            raise UnreadableError(f"a {dtype} tensor of shape {list(shape)} has no {length} bytes")
        data = self._bytes(entry[ValueIndex.OFFSET], length) if length else memoryview(b"")
        if digest_buffer(data, seed) != entry[ValueIndex.DIGEST]:
            raise UnreadableError("its bytes do not match its digest")
        return Value(entry[ValueIndex.DIGEST], dtype, shape, data)

    def _layout(self, number: int) -> tuple[str, tuple[int, ...]]:
        if self._layouts.lacks(np.array([number], np.uint64)) is not None:
            raise UnreadableError(f'entry {number} of table "layouts", which it needs, is lost')
        payload: Any = self._layouts.payloads[number]
        if not all(type(size) is int and 0 <= size < 1 << 48 for size in payload[1]):
            raise UnreadableError(f"its shape is {payload[1]!r:.80}")
        return payload[0], tuple(payload[1])

    def _bytes(self, offset: int, length: int) -> memoryview:
        """``length`` bytes of ``values/bytes`` from ``offset`` on."""
        first, stop = offset // VALUE_CHUNK, -(-(offset + length) // VALUE_CHUNK)
        files = [self._file(number) for number in range(first, min(stop, first + len(self._files) + 1))]
        start = offset - first * VALUE_CHUNK
        if len(files) == 1:
            return memoryview(self._chunk(files[0], first)[start : start + length].tobytes())  # no view of the chunk
        joined = np.empty(length, np.uint8)
        at = 0
        for i, file in enumerate(files):
            piece = self._chunk(file, first + i)[start : start + length - at]
            joined[at : at + len(piece)] = piece
            at, start = at + len(piece), 0
        return joined.data.toreadonly()

    @cached_property
    def _files(self) -> Mapping[int, ChunkFile]:
        """Chunks of ``values/bytes`` by number."""
        return {part.first_chunk + i: file for part in self._parts for i, file in enumerate(part.files)}

    def _file(self, number: int) -> ChunkFile:
        if number not in self._files:
            raise UnreadableError(f"chunk {number} of {self._base}/{VALUE_BYTES.name}, which it needs, is missing")
        return self._files[number]

    def _chunk(self, file: ChunkFile, number: int) -> NDArray[np.uint8]:
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = self._chunks[number] = read_chunk(self._folder, self._base, VALUE_BYTES, file, self.counter)
            if len(self._chunks) > CACHED_CHUNKS:
                self._chunks.popitem(last=False)
        self._chunks.move_to_end(number)
        return chunk
