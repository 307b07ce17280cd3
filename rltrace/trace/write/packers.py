"""Packers: steps, samples, values and activation rows, from a commit to full chunks.

Steps and samples of a commit stay in its journal record until they fill a chunk. A separate chunk for each commit would
be a tenth full, and a comparison that needs all steps would read ten times as many.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.format import chunk_codec
from rltrace.trace.format.arrays import (
    ACTIVATION_ARRAYS,
    ACTIVATION_CALLS,
    ACTIVATION_DIGESTS,
    ACTIVATION_TENSORS,
    VALUE_BYTES,
    VALUE_INDEX,
    ArraySpec,
)
from rltrace.trace.format.chunk_codec import rows_to_text
from rltrace.trace.format.journal import Record
from rltrace.trace.format.records import (
    ActivationPart,
    ArrayPart,
    LeftOut,
    ValuePart,
    activations_record,
    values_record,
)
from rltrace.trace.format.row_hashes import Chains
from rltrace.trace.format.rows import ChunkFile, StepRecord
from rltrace.trace.format.schema import (
    GENERATORS,
    VALUE_CHUNK,
    ActivationColumn,
    ModuleCallColumn,
    Step,
    StepFlag,
    TensorOwner,
    ValueIndex,
    ValueKind,
)

WriteChunk = Callable[[str, ArraySpec, int, NDArray[Any]], list[Any]]
"""Folder, array, chunk number, chunk in stored order; writes the chunk and returns its journal entry."""


class RowPacker:
    """Packs rows of ``steps`` or ``series``: as arrays, as a program may watch a number at every environment step."""

    def __init__(self, spec: ArraySpec, counted: str) -> None:
        """``counted``: the field of a journal record with the number of its rows."""
        self.count = 0
        """Rows so far."""
        self._spec = spec
        self._counted = counted
        self._chunks = 0
        self._tail: NDArray[np.uint64] = np.zeros((0, spec.chunk[1]), np.uint64)

    @property
    def chunk_rows(self) -> int:
        return self._spec.chunk[0]

    def write(self, new: NDArray[np.uint64], write_chunk: WriteChunk, *, last: bool = False) -> list[Record]:
        """Add rows and write the full chunks (``last``: a partial one, too); returns their records, and that of rows in
        none."""
        name, pending = self._spec.name, np.concatenate([self._tail, new])
        first = self.count - len(self._tail)
        self.count = first + len(pending)
        records: list[Record] = []
        while len(pending) >= self.chunk_rows or (last and len(pending)):
            part, pending = pending[: self.chunk_rows], pending[self.chunk_rows :]
            file = write_chunk(name, self._spec, self._chunks, next(_chunks(self._spec, part)))
            record = {"type": name, "first": first, self._counted: len(part)}
            records.append({**record, "chunk": self._chunks, "files": [file]})
            first += len(part)
            self._chunks += 1
        count = min(len(new), len(pending))
        if count:
            text = rows_to_text(self._spec, pending[-count:])
            records.append({"type": name, "first": self.count - count, self._counted: count, "rows": text})
        self._tail = pending.copy()
        return records


# --- pending steps ----------------------------------------------------------------------------------------------------
#
# Ended steps, until their rows are written and the digests of these rows are known.


class _PendingStep:
    def __init__(self, record: StepRecord) -> None:
        self.record = record
        self.row: list[int] | None = None
        """None: not filled in yet."""


class PendingSteps:
    """Ended steps in the order of their end; a step is ready once it and all before it are filled in."""

    def __init__(self) -> None:
        self._steps: deque[_PendingStep] = deque()
        self._unfilled: defaultdict[int, dict[int, list[_PendingStep]]] = defaultdict(dict)
        """By stream, then by the row after them."""

    def add(self, step: StepRecord, rows: int) -> None:
        """Add a step of a stream with ``rows`` rows so far."""
        if step.end_row < rows:
            raise ValueError(f"step {step.step} ended at row {step.end_row}; rows up to {rows} are written already")
        pending = _PendingStep(step)
        self._steps.append(pending)
        self._unfilled[step.stream].setdefault(step.end_row, []).append(pending)

    def ends(self, stream: int) -> set[int]:
        """End rows of the stream's steps that are not filled in yet."""
        return set(self._unfilled[stream])

    def fill(self, stream: int, chains: Chains) -> None:
        """Fill in the steps of the stream that end at the current row of its chains."""
        for step in self._unfilled[stream].pop(chains.rows, ()):
            step.row = _fill(step.record, chains)

    def pop_ready(self, streams: Sequence[Chains], *, give_up: bool = False) -> NDArray[np.uint64]:
        """Remove the ready steps; returns their rows. ``give_up``: all steps, unfilled ones as not recorded."""
        ready = []
        for stream, chains in enumerate(streams):
            self.fill(stream, chains)
        while self._steps and (self._steps[0].row is not None or give_up):
            step = self._steps.popleft()
            ready.append(step.row or _fill(step.record, streams[step.record.stream], complete=False))
        return np.array(ready, np.uint64).reshape(-1, len(Step))


def _fill(record: StepRecord, chains: Chains, *, complete: bool = True) -> list[int]:
    digests = chains.end_step()
    recorded = record.recorded and complete
    digested = None not in (record.parameters, record.gradients, record.generators)
    prefix = chains.digests()
    row = [0] * len(Step)
    row[Step.STEP] = record.step
    row[Step.STREAM] = record.stream
    row[Step.OPTIMIZER] = record.optimizer
    row[Step.COUNT] = record.own_count
    row[Step.SKIPPED] = record.skipped
    row[Step.BACKWARDS] = record.backwards
    row[Step.ENVIRONMENT_STEPS] = record.environment_steps
    row[Step.END_ROW] = chains.rows
    row[Step.STRUCTURE], row[Step.VALUES], row[Step.ANY_ORDER] = digests if recorded else (0, 0, 0)
    row[Step.PREFIX_STRUCTURE], row[Step.PREFIX_VALUES] = prefix.structure, prefix.values
    row[Step.PARAMETERS] = record.parameters or 0
    row[Step.GRADIENTS] = record.gradients or 0
    for column, state in zip(GENERATORS, record.generators or (0, 0, 0, 0), strict=True):
        row[column] = state
    row[Step.FLAGS] = (StepFlag.RECORDED if recorded else 0) | (StepFlag.DIGESTED if digested else 0)
    return row


# --- values -----------------------------------------------------------------------------------------------------------
#
# Concatenated and split into chunks. Digests are not verified: the recorder computed them from the same bytes.


class NewValue(NamedTuple):
    """One value of an op of the recorded program."""

    kind: ValueKind
    digest: int
    stream: int
    row: int
    place: int
    """Index of the input or output of that row."""
    layout: int
    """Id in table "layouts"; 0 where the kind has none."""
    data: bytes
    """Logical bytes; empty for SAME_INPUT, PLACEMENT, CONTENT and TENSOR."""
    offset: int = 0
    """PLACEMENT and TENSOR only: of the tensor within its storage."""


class NewValues(NamedTuple):
    """The values since the last commit."""

    values: Sequence[NewValue] = ()
    left_out: Sequence[LeftOut] = ()

    def __bool__(self) -> bool:
        return bool(self.values or self.left_out)


class ValuePacker:
    """Counts chunks. Every commit begins new chunks, because a chunk is written once."""

    def __init__(self) -> None:
        self.chunks = 0
        """Chunks of ``values/bytes`` so far."""
        self.index_chunks = 0

    def write(self, new: NewValues, write_chunk: WriteChunk) -> dict[str, object]:
        """Write the values of a commit; returns its journal record."""
        index, first = _write_rows(VALUE_INDEX, self.index_chunks, self._index(new.values), write_chunk), self.chunks
        self.index_chunks = index.stop
        chunks = self._bytes(new.values)
        files = [ChunkFile(*write_chunk(VALUE_BYTES.name, VALUE_BYTES, number, stored)) for number, stored in chunks]
        return values_record(ValuePart(index, first, tuple(files), tuple(new.left_out)))

    def _bytes(self, values: Sequence[NewValue]) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """(number, chunk) of the chunks, the last one padded. All share one buffer."""
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

    def _index(self, values: Sequence[NewValue]) -> NDArray[np.uint64]:
        """Rows of the index of values whose bytes begin at the next chunk."""
        rows = np.zeros((len(values), len(ValueIndex)), np.uint64)
        at = self.chunks * VALUE_CHUNK
        for row, value in zip(rows, values, strict=True):
            place = (value.stream, value.row, value.place)
            offset = at if value.data else value.offset
            row[:] = (value.kind, value.digest, *place, value.layout, offset, len(value.data))
            at += len(value.data)
        return rows


# --- activations ------------------------------------------------------------------------------------------------------


TENSOR: Final = Struct("=7Q")
"""A tensor of a call or an op: its part, id in table "names", id in table "layouts", axes (``bits_of``) and digest; the
place of its rows' digests among all of its stream, and their number. Equal tensors may have one place."""

_CALL, _OP = Struct(f"={len(ModuleCallColumn)}Q"), Struct("=2Q")
"""A call, as in ``activations/calls``; the row of an op, and how many tensors it has."""


class PendingActivations:
    """Activation rows of one stream that no commit has written: of calls of modules that have ended, and of ops.

    They are kept as numbers: as objects, thousands of them would wait for each commit, and Python's garbage collector
    would look through them again and again.
    """

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._calls, self._of_calls, self._ops, self._of_ops, self._digests = (bytearray() for _ in range(5))
        self._taken = 0
        """Digests that were taken."""

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return sum(map(len, (self._calls, self._of_calls, self._ops, self._of_ops, self._digests)))

    def add_digests(self, digests: bytes) -> int:
        """Add the digests of a tensor's rows, and return their place."""
        place = self._taken + len(self._digests) // 8
        self._digests += digests
        return place

    def add_call(self, call: Sequence[int], tensors: bytes | bytearray) -> None:
        """Add a finished call. ``call``: its row in ``activations/calls``, but for the last column; ``tensors``: a
        ``TENSOR`` each."""
        self._calls += _CALL.pack(*call, len(tensors) // TENSOR.size)
        self._of_calls += tensors

    def add_op(self, row: int, tensors: bytes | bytearray) -> None:
        """Add an op whose row is the last or the next one."""
        self._ops += _OP.pack(row, len(tensors) // TENSOR.size)
        self._of_ops += tensors

    def forget_op(self, row: int) -> None:
        """Drop the op of a row whose writing was interrupted."""
        last = self._ops[-_OP.size :]
        if last and (found := _OP.unpack(last))[0] >= row:
            del self._ops[-_OP.size :], self._of_ops[len(self._of_ops) - found[1] * TENSOR.size :]

    def take(self, end: int, left_out: Sequence[LeftOut] = ()) -> NewActivations:
        """Remove and return what needs only the stream's rows before ``end``, and all digests."""
        calls = _cut(self._calls, len(ModuleCallColumn), lambda calls: calls[:, ModuleCallColumn.END_ROW] <= end)
        ops = _cut(self._ops, 2, lambda ops: ops[:, 0] < end)
        of_calls = (TensorOwner.CALL, *calls.T[[ModuleCallColumn.NUMBER, ModuleCallColumn.TENSORS]], self._of_calls)
        tensors = [self._tensors(*owners) for owners in (of_calls, (TensorOwner.OP, *ops.T, self._of_ops))]
        first, digests = self._taken, np.frombuffer(bytes(self._digests), np.uint64)
        self._digests.clear()
        self._taken += len(digests)
        return NewActivations(self._stream, calls, np.concatenate(tensors), digests, first, left_out)

    def _tensors(
        self, owner: TensorOwner, numbers: NDArray[np.uint64], counts: NDArray[np.uint64], tensors: bytearray
    ) -> NDArray[np.uint64]:
        """The tensors of calls or ops, which are removed, as rows of ``activations/tensors``."""
        rows = np.zeros((int(counts.sum()), len(ActivationColumn)), np.uint64)
        rows[:, ActivationColumn.OWNER], rows[:, ActivationColumn.STREAM] = owner, self._stream
        for column, values in ((ActivationColumn.NUMBER, numbers), (ActivationColumn.TENSORS, counts)):
            rows[:, column] = np.repeat(values, counts.astype(np.int64))
        size = len(rows) * TENSOR.size
        rows[:, ActivationColumn.PART :] = np.frombuffer(bytes(tensors[:size]), np.uint64).reshape(-1, TENSOR.size // 8)
        del tensors[:size]
        return rows


def _cut(
    table: bytearray, columns: int, choose: Callable[[NDArray[np.uint64]], NDArray[np.bool_]]
) -> NDArray[np.uint64]:
    """The first rows of a table, as many as are chosen in a row, which are removed from it."""
    rows = np.frombuffer(bytes(table), np.uint64).reshape(-1, columns)
    chosen = choose(rows)
    rows = rows if chosen.all() else rows[: int(chosen.argmin())]
    del table[: rows.nbytes]
    return rows


class NewActivations(NamedTuple):
    """Calls and ops of a stream with activation rows, for a commit."""

    stream: int
    calls: NDArray[np.uint64]
    """Shape [n, len(ModuleCallColumn)]."""
    tensors: NDArray[np.uint64]
    """Shape [n, len(ActivationColumn)], with the place of their rows' digests among all of the stream as OFFSET."""
    digests: NDArray[np.uint64]
    first: int
    """Place of the first of these digests."""
    left_out: Sequence[LeftOut] = ()

    def __bool__(self) -> bool:
        return bool(len(self.calls) or len(self.tensors) or len(self.digests) or self.left_out)


class ActivationPacker:
    """Counts chunks. Every commit begins new chunks, because a chunk is written once."""

    def __init__(self) -> None:
        self._chunks = {spec.name: 0 for spec in ACTIVATION_ARRAYS}
        self._places: dict[int, list[tuple[int, int]]] = {}
        """By stream, the places of the first digest of each commit: among those of the stream, and in the array."""

    def write(self, new: NewActivations, write_chunk: WriteChunk) -> dict[str, object]:
        """Write the activation rows of a commit; returns its journal record."""
        places = self._places.setdefault(new.stream, [(0, 0)])
        if len(new.digests):
            places.append((new.first, self._chunks[ACTIVATION_DIGESTS.name] * ACTIVATION_DIGESTS.chunk[0]))
        firsts, offsets = np.array(places, np.uint64).T
        found = new.tensors[:, ActivationColumn.OFFSET]
        commit = np.searchsorted(firsts, found, side="right") - 1
        new.tensors[:, ActivationColumn.OFFSET] = found - firsts[commit] + offsets[commit]
        digests = self._write(ACTIVATION_DIGESTS, new.digests, write_chunk)
        calls = self._write(ACTIVATION_CALLS, new.calls, write_chunk)
        tensors = self._write(ACTIVATION_TENSORS, new.tensors, write_chunk)
        return activations_record(ActivationPart(calls, tensors, digests, tuple(new.left_out)))

    def _write(self, spec: ArraySpec, rows: NDArray[np.uint64], write_chunk: WriteChunk) -> ArrayPart:
        part = _write_rows(spec, self._chunks[spec.name], rows, write_chunk)
        self._chunks[spec.name] = part.stop
        return part


def _write_rows(spec: ArraySpec, first: int, rows: NDArray[np.uint64], write_chunk: WriteChunk) -> ArrayPart:
    """Write rows as new chunks of an array, from chunk ``first`` on."""
    files = tuple(ChunkFile(*write_chunk(spec.name, spec, first + i, c)) for i, c in enumerate(_chunks(spec, rows)))
    return ArrayPart(len(rows), first, files)


def _chunks(spec: ArraySpec, rows: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
    """The chunks of an array in stored order, the last one padded."""
    for at in range(0, len(rows), spec.chunk[0]):
        part = rows[at : at + spec.chunk[0]].T
        stored = np.zeros(chunk_codec.stored_shape(spec), np.uint64)
        stored[..., : part.shape[-1]] = part
        yield stored


def bits_of(axes: tuple[int, ...]) -> int:
    """Axes as ``ActivationColumn.AXES`` has them."""
    return sum(1 << axis for axis in axes)
