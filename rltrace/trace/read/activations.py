"""The recorded activation rows of one process: module calls, ops, and a digest for each row.

Owns lookup and verification. A call or an op of which a tensor cannot be read is left out as a whole, and reported. No
torch, no zarr.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property, partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.format.activation_rows import ActivationRows, ModuleCall, OpRows, Part
from rltrace.trace.format.arrays import ACTIVATION_CALLS, ACTIVATION_DIGESTS, ACTIVATION_TENSORS, ArraySpec
from rltrace.trace.format.files import TraceStore, UnreadableError
from rltrace.trace.format.records import MAX_AXES, MAX_COUNT, ActivationPart, ActivationRequest, ArrayPart, LeftOut
from rltrace.trace.format.rows import ChunkFile
from rltrace.trace.format.schema import DIGEST_CHUNK, ActivationColumn, CallFlag, ModuleCallColumn, Phase, TensorOwner
from rltrace.trace.format.tables import Table
from rltrace.trace.read.chunks import Counter, check_sizes, read_chunk, read_rows

# --- arrays -----------------------------------------------------------------------------------------------------------


INCONSISTENT = "its description is inconsistent"


class ActivationArrays:
    """The arrays in ``activations`` of one process, as far as they can be read."""

    def __init__(
        self, folder: TraceStore, base: str, parts: Sequence[ActivationPart], report: Callable[[str], None]
    ) -> None:
        """``report`` gets a sentence for each damage."""
        self.counter = Counter()
        self._folder = folder
        self._base = base
        self._parts = parts
        self._report = report
        self._digest_chunks: dict[int, NDArray[np.uint64]] = {}

    def check_sizes(self) -> None:
        """Report chunks that are missing or of another length, without reading any."""
        check_sizes(self._folder, self._base, self.files, self._report)

    @property
    def files(self) -> Iterator[ChunkFile]:
        """All chunks."""
        return (file for part in self._parts for _, array in part.arrays for file in array.files)

    @cached_property
    def calls(self) -> NDArray[np.uint64]:
        """The readable module calls, shape [n, len(ModuleCallColumn)]."""
        return self._array(ACTIVATION_CALLS, [part.calls for part in self._parts])

    @cached_property
    def tensors(self) -> NDArray[np.uint64]:
        """The readable tensors, shape [n, len(ActivationColumn)]."""
        return self._array(ACTIVATION_TENSORS, [part.tensors for part in self._parts])

    @cached_property
    def by_owner(self) -> NDArray[np.uint64]:
        """The tensors sorted by call or op, in recorded order within each."""
        table = self.tensors
        columns = ActivationColumn.NUMBER, ActivationColumn.STREAM, ActivationColumn.OWNER  # the first one last
        return table[np.lexsort([table[:, column] for column in columns])]

    def places(self, owner: TensorOwner, stream: int) -> Mapping[int, tuple[int, int]]:
        """(first, stop) in ``by_owner`` of the tensors of each call, or op, of a stream."""
        return self._all_places.get((int(owner), stream), {})

    @cached_property
    def _all_places(self) -> dict[tuple[int, int], dict[int, tuple[int, int]]]:
        keys = self.by_owner[:, [ActivationColumn.OWNER, ActivationColumn.STREAM, ActivationColumn.NUMBER]]
        cuts = (np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1).tolist()
        starts = [0, *cuts] if len(keys) else []
        found: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
        for first, stop in zip(starts, [*cuts, len(keys)], strict=False):
            owner, stream, number = keys[first].tolist()
            found.setdefault((owner, stream), {})[number] = first, stop
        return found

    def _array(self, spec: ArraySpec, parts: Sequence[ArrayPart]) -> NDArray[np.uint64]:
        """The readable rows of an array, shape [n, columns]."""

        def lose(why: str) -> None:
            self._report(f"{why}; the activation rows that it describes are lost")

        return read_rows(self._folder, self._base, spec, parts, self.counter, lose)

    def digests(self, offset: int, count: int) -> NDArray[np.uint64]:
        """``count`` digests from ``offset`` on, or as many as there are. Raises UnreadableError."""
        first, stop = offset // DIGEST_CHUNK, -(-(offset + count) // DIGEST_CHUNK)
        if not count:
            return np.zeros(0, np.uint64)
        start = offset - first * DIGEST_CHUNK
        chunks = [self._digest_chunk(number) for number in range(first, stop)]
        found = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
        return found[start : start + count]

    @cached_property
    def _digest_files(self) -> Mapping[int, tuple[ChunkFile, int]]:
        """Chunks of ``activations/digests`` by number, with their number of digests."""
        return {
            part.digests.chunk + i: (file, min(DIGEST_CHUNK, part.digests.rows - i * DIGEST_CHUNK))
            for part in self._parts
            for i, file in enumerate(part.digests.files)
        }

    def _digest_chunk(self, number: int) -> NDArray[np.uint64]:
        """The digests of one chunk, without its padding."""
        if number not in self._digest_chunks:
            if number not in self._digest_files:
                raise UnreadableError(f"chunk {number} of {ACTIVATION_DIGESTS.name}, which it needs, is missing")
            file, count = self._digest_files[number]
            chunk = read_chunk(self._folder, self._base, ACTIVATION_DIGESTS, file, self.counter)
            self._digest_chunks[number] = chunk[:count]
        return self._digest_chunks[number]


# --- activations ------------------------------------------------------------------------------------------------------


class Activations:
    """The recorded activation rows of one process. Falsy where none were requested."""

    def __init__(
        self,
        folder: TraceStore,
        base: str,
        request: ActivationRequest | None,
        parts: Sequence[ActivationPart],
        tables: Callable[[], Mapping[str, Table]],
        rows: Callable[[int], int],
        report: Callable[[str], None],
    ) -> None:
        """``rows``: number of rows of a stream, by its number. ``report`` gets a sentence for each damage."""
        self.request = request
        """None: none."""
        self.left_out: tuple[LeftOut, ...] = tuple(entry for part in parts for entry in part.left_out)
        """Requested tensors whose activation rows were not recorded, in the order of recording."""
        self._base = base
        self._parts = parts
        self._tables = tables
        self._rows = rows
        self._report = cache(report)
        self._arrays = ActivationArrays(folder, base, parts, self._report)
        self.counter = self._arrays.counter
        self._calls: dict[int, tuple[ModuleCall, ...]] = {}
        self._ops: dict[int, Mapping[int, OpRows]] = {}

    def __bool__(self) -> bool:
        return self.request is not None

    @property
    def call_count(self) -> int:
        """Number of calls in the journal."""
        return sum(part.calls.rows for part in self._parts)

    @property
    def tensor_count(self) -> int:
        """Number of tensors in the journal."""
        return sum(part.tensors.rows for part in self._parts)

    @property
    def digest_count(self) -> int:
        """Number of digests in the journal; equal tensors share theirs."""
        return sum(part.digests.rows for part in self._parts)

    def calls(self, stream: int) -> Sequence[ModuleCall]:
        """The readable module calls of one stream, in the order of their start."""
        if stream not in self._calls:
            table = self._arrays.calls
            own = table[table[:, ModuleCallColumn.STREAM] == stream]
            own = own[np.argsort(own[:, ModuleCallColumn.NUMBER], kind="stable")]
            calls = {row[ModuleCallColumn.NUMBER]: self._call(stream, row) for row in own.tolist()}
            if len(calls) < len(own):
                self._report(f"activation rows of stream {stream} of {self._base}: two calls have the same number")
            self._calls[stream] = tuple(call for call in calls.values() if call is not None)
        return self._calls[stream]

    def ops(self, stream: int) -> Mapping[int, OpRows]:
        """The readable ops of one stream with activation rows, by row."""
        if stream not in self._ops:
            self._ops[stream] = _Ops(list(self._arrays.places(TensorOwner.OP, stream)), partial(self._op, stream))
        return self._ops[stream]

    def why_missing(self, stream: int, first: int, stop: int) -> str | None:
        """Why requested activation rows of these rows may not have been recorded; None: no reason is known."""
        found = (gap for gap in self.left_out if gap.stream == stream and gap.first < stop and first <= gap.last)
        return next((gap.why for gap in found), None)

    def check_sizes(self) -> None:
        """Report chunks that are missing or of another length, without reading any."""
        self._arrays.check_sizes()

    @property
    def files(self) -> Iterator[ChunkFile]:
        """All chunks."""
        return self._arrays.files

    def read_all(self, streams: Sequence[int]) -> int:
        """Read everything and report damage. Returns the number of readable calls and ops."""
        for stream in {
            *streams,
            *self._arrays.calls[:, ModuleCallColumn.STREAM].tolist(),
            *self._arrays.tensors[:, ActivationColumn.STREAM].tolist(),
        }:
            if stream not in streams:
                self._report(f"activation rows of stream {stream} of {self._base}: there is no such stream")
        return sum(len(self.calls(stream)) + len(self.ops(stream)) for stream in streams)

    # --- one call, one op ---------------------------------------------------------------------------------------------

    def _call(self, stream: int, row: list[int]) -> ModuleCall | None:
        number = row[ModuleCallColumn.NUMBER]
        tensors = self._tensors_of(TensorOwner.CALL, stream, number, row[ModuleCallColumn.TENSORS])
        if tensors is None:
            return None
        try:
            if not row[ModuleCallColumn.FLAGS] & CallFlag.CALL or not row[ModuleCallColumn.PARENT] <= number:
                raise UnreadableError(INCONSISTENT)
            ends = row[ModuleCallColumn.FIRST_ROW], row[ModuleCallColumn.END_ROW]
            if not ends[0] <= ends[1] <= self._rows(stream) or row[ModuleCallColumn.STEP] > MAX_COUNT:
                raise UnreadableError(INCONSISTENT)
            return ModuleCall(
                number=number,
                parent=row[ModuleCallColumn.PARENT] - 1 if row[ModuleCallColumn.PARENT] else None,
                module=self._text("modules", row[ModuleCallColumn.MODULE]),
                kind=self._text("names", row[ModuleCallColumn.CLASS]),
                step=row[ModuleCallColumn.STEP],
                phase=_phase(row[ModuleCallColumn.PHASE]),
                grad=bool(row[ModuleCallColumn.FLAGS] & CallFlag.GRAD),
                first_row=row[ModuleCallColumn.FIRST_ROW],
                end_row=row[ModuleCallColumn.END_ROW],
                tensors=tensors,
                raised=bool(row[ModuleCallColumn.FLAGS] & CallFlag.RAISED),
            )
        except UnreadableError as error:
            self._report_lost(TensorOwner.CALL, stream, number, error)
            return None

    def _op(self, stream: int, row: int) -> OpRows | None:
        tensors = self._tensors_of(TensorOwner.OP, stream, row, None)
        if tensors is None:
            return None
        if row >= self._rows(stream):
            self._report_lost(TensorOwner.OP, stream, row, UnreadableError("there is no such row"))
            return None
        return OpRows(row, tensors)

    def _tensors_of(
        self, owner: TensorOwner, stream: int, number: int, count: int | None
    ) -> tuple[ActivationRows, ...] | None:
        """The tensors of one call or op, ``count`` if known; None: one of them cannot be read."""
        first, stop = self._arrays.places(owner, stream).get(number, (0, 0))
        rows = self._arrays.by_owner[first:stop].tolist()
        try:
            expected = count if count is not None else rows[0][ActivationColumn.TENSORS]
            if len(rows) != expected or any(row[ActivationColumn.TENSORS] != expected for row in rows):
                raise UnreadableError(f"{expected} tensors of it were recorded, but {len(rows)} can be read")
            return tuple(map(self._tensor, rows))
        except UnreadableError as error:
            self._report_lost(owner, stream, number, error)
        return None

    def _tensor(self, row: list[int]) -> ActivationRows:
        """One tensor. Raises UnreadableError."""
        payload: Any = self._payload("layouts", row[ActivationColumn.LAYOUT])
        dtype, shape = payload[0], payload[1]
        has_axes = len(shape) <= MAX_AXES and row[ActivationColumn.AXES] < 1 << len(shape)
        has_sizes = all(type(size) is int and 0 <= size < MAX_COUNT for size in shape)
        if row[ActivationColumn.PART] not in (Part.INPUT, Part.OUTPUT) or not has_axes or not has_sizes:
            raise UnreadableError(INCONSISTENT)
        axes = tuple(axis for axis in range(len(shape)) if row[ActivationColumn.AXES] >> axis & 1)
        lengths = [shape[axis] for axis in axes]
        if prod(lengths) != row[ActivationColumn.COUNT]:
            raise UnreadableError(INCONSISTENT)
        try:
            digests = self._arrays.digests(row[ActivationColumn.OFFSET], row[ActivationColumn.COUNT]).reshape(lengths)
        except ValueError:  # larger than an array can be, or than what there is
            raise UnreadableError(INCONSISTENT) from None
        name = self._text("names", row[ActivationColumn.NAME])
        return ActivationRows(
            Part(row[ActivationColumn.PART]), name, dtype, tuple(shape), axes, digests, row[ActivationColumn.WHOLE]
        )

    def _report_lost(self, owner: TensorOwner, stream: int, number: int, error: Exception) -> None:
        what = f"call {number}" if owner is TensorOwner.CALL else f"row {number}"
        self._report(f"activation rows of {what} of stream {stream} of {self._base} cannot be read: {error}")

    # --- tables -------------------------------------------------------------------------------------------------------

    def _payload(self, table: str, number: int) -> object:
        found = self._tables()[table]
        if not (number < len(found) and found.present[number]):
            raise UnreadableError(f'entry {number} of table "{table}", which it needs, is lost')
        return found.payloads[number]

    def _text(self, table: str, number: int) -> str:
        return str(self._payload(table, number))


def _phase(number: int) -> str:
    try:
        return Phase(number).name.lower()
    except ValueError:
        raise UnreadableError(INCONSISTENT) from None


class _Ops(Mapping[int, OpRows]):
    """Ops by row, each read when it is first used."""

    def __init__(self, places: Sequence[int], read: Callable[[int], OpRows | None]) -> None:
        self._read = read
        self._found: dict[int, OpRows | None] = {}
        self._places = dict.fromkeys(places)

    def __getitem__(self, row: int) -> OpRows:
        if row in self._places and row not in self._found:
            self._found[row] = self._read(row)
        found = self._found.get(row)
        if found is None:
            raise KeyError(row)
        return found

    def __iter__(self) -> Iterator[int]:
        return (row for row in self._places if row in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def __contains__(self, row: object) -> bool:
        return isinstance(row, int) and self.get(row) is not None
