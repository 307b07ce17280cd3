"""Steps on their way into a full chunk: each commit's own in its journal record, and a whole chunk once there is one.

Owns the text form of a few steps and the moment a chunk is due. A chunk of its own for the steps of each commit would
be a tenth full, and a comparison that needs all steps would read ten times as many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.format import chunk_codec
from rltrace.trace.format.activation_rows import Part
from rltrace.trace.format.arrays import (
    ACTIVATION_ARRAYS,
    ACTIVATION_CALLS,
    ACTIVATION_DIGESTS,
    ACTIVATION_TENSORS,
    SERIES,
    STEPS,
    VALUE_BYTES,
    VALUE_INDEX,
    ArraySpec,
)
from rltrace.trace.format.chunk_codec import rows_from_text, rows_to_text
from rltrace.trace.format.journal import Record
from rltrace.trace.format.records import (
    ActivationPart,
    ArrayPart,
    LeftOut,
    ValuePart,
    activations_record,
    chunk_files,
    number,
    values_record,
)
from rltrace.trace.format.row_hashes import Chains
from rltrace.trace.format.rows import ChunkFile, StepRecord
from rltrace.trace.format.schema import (
    GENERATORS,
    INDEX_CHUNK,
    SAMPLE_CHUNK,
    STEP_CHUNK,
    VALUE_CHUNK,
    ActivationColumn,
    ModuleCallColumn,
    Sample,
    Step,
    StepFlag,
    TensorOwner,
    ValueIndex,
    ValueKind,
)

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
        stored = np.zeros(chunk_codec.stored_shape(STEPS), np.uint64)
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
    journal_parts: tuple[StepPart, ...] = ()
    """Of a chunk: the parts in earlier journal records that hold its rows, too."""

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
    parts[kept:] = [replace(part, journal_parts=inside) if inside else part]


# --- waiting ----------------------------------------------------------------------------------------------------------
#
# Steps that have ended, until the rows before their end are written.
#
# Owns the filling in of what only the writer knows of a step: the digests of its rows. Writes nothing itself.


@dataclass
class _Waiting:
    record: StepRecord
    filled: list[int] | None = None


class WaitingSteps:
    """Ended steps in the order of their ending; each leaves once it and all before it are filled in."""

    def __init__(self) -> None:
        self._steps: deque[_Waiting] = deque()

    def add(self, step: StepRecord, rows: int) -> None:
        """Take in a step of a stream that has ``rows`` rows so far."""
        if step.end_row < rows:
            raise ValueError(f"step {step.step} ended at row {step.end_row}; rows up to {rows} are written already")
        self._steps.append(_Waiting(step))

    def ends(self, stream: int) -> set[int]:
        """Rows of the stream at which a step ends that is not filled in yet."""
        return {w.record.end_row for w in self._steps if w.filled is None and w.record.stream == stream}

    def reached(self, stream: int, chains: Chains) -> None:
        """Fill in the steps of the stream that end where its chains now stand."""
        for waiting in self._steps:
            record = waiting.record
            if waiting.filled is None and record.stream == stream and record.end_row == chains.rows:
                waiting.filled = _fill(record, chains)

    def take(self, streams: Sequence[Chains], *, give_up: bool = False) -> list[list[int]]:
        """Rows for the ``steps`` array. ``give_up``: those whose rows never came too, as not recorded."""
        taken = []
        for stream, chains in enumerate(streams):
            self.reached(stream, chains)
        while self._steps and (self._steps[0].filled is not None or give_up):
            waiting = self._steps.popleft()
            taken.append(waiting.filled or _fill(waiting.record, streams[waiting.record.stream], complete=False))
        return taken


def _fill(record: StepRecord, chains: Chains, *, complete: bool = True) -> list[int]:
    alone = chains.end_step()
    recorded = record.recorded and complete
    digested = None not in (record.parameters, record.gradients, record.generators)
    prefix = chains.digests()
    row = [0] * len(Step)
    row[Step.STEP] = record.step
    row[Step.STREAM] = record.stream
    row[Step.OPTIMIZER] = record.optimizer
    row[Step.COUNT] = record.count
    row[Step.SKIPPED] = record.skipped
    row[Step.BACKWARDS] = record.backwards
    row[Step.ENVIRONMENT_STEPS] = record.environment_steps
    row[Step.END_ROW] = chains.rows
    row[Step.STRUCTURE], row[Step.VALUES], row[Step.ANY_ORDER] = alone if recorded else (0, 0, 0)
    row[Step.PREFIX_STRUCTURE], row[Step.PREFIX_VALUES] = prefix.structure, prefix.values
    row[Step.PARAMETERS] = record.parameters or 0
    row[Step.GRADIENTS] = record.gradients or 0
    for column, state in zip(GENERATORS, record.generators or (0, 0, 0, 0), strict=True):
        row[column] = state
    row[Step.FLAGS] = (StepFlag.RECORDED if recorded else 0) | (StepFlag.DIGESTED if digested else 0)
    return row


# --- samplepack -------------------------------------------------------------------------------------------------------
#
# Samples of series on their way into full chunks; until there is one, each commit's own are in its journal record.
#
# Owns the journal's records of series, as they are written. Steps are packed alike (``packing.py``); but a program may
# watch a number at every environment step, so samples stay arrays.


class SamplePacker:
    """Samples that are in no chunk yet."""

    def __init__(self) -> None:
        self.count = 0
        """Samples so far."""
        self._chunks = 0
        self._tail: NDArray[np.uint64] = np.zeros((0, len(Sample)), np.uint64)

    def write(self, new: NDArray[np.uint64] | None, write_chunk: WriteChunk, *, last: bool = False) -> list[Record]:
        """Records of the chunks that are full now, and of new samples that are in none; ``last``: all go into one."""
        waiting = self._tail if new is None else np.concatenate([self._tail, new])
        first = self.count - len(self._tail)
        self.count = first + len(waiting)
        records: list[Record] = []
        while len(waiting) >= SAMPLE_CHUNK or (last and len(waiting)):
            part, waiting = waiting[:SAMPLE_CHUNK], waiting[SAMPLE_CHUNK:]
            stored = np.zeros(chunk_codec.stored_shape(SERIES), np.uint64)
            stored[:, : len(part)] = part.T
            file = write_chunk(SERIES.name, SERIES, self._chunks, stored)
            records.append({"type": "series", "first": first, "samples": len(part), "chunk": self._chunks})
            records[-1]["files"] = [file]
            first += len(part)
            self._chunks += 1
        told = 0 if new is None else min(len(new), len(waiting))
        if told:
            text = rows_to_text(SERIES, waiting[-told:])
            records.append({"type": "series", "first": self.count - told, "samples": told, "rows": text})
        self._tail = waiting.copy()
        return records


# --- valuepack --------------------------------------------------------------------------------------------------------
#
# Values on their way into the trace: laid one after the other and cut into chunks.
#
# Owns what a commit writes of values. Runs inside the recorded program: imports neither zarr nor torch, and verifies
# nothing; whoever hands a value over vouches that its digest is that of its bytes.


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
    """Its logical bytes; none for SAME_INPUT and PLACEMENT."""
    offset: int = 0
    """PLACEMENT: of the tensor within its storage."""


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
        rows = np.zeros((len(values), len(ValueIndex)), np.uint64)
        at = self.chunks * VALUE_CHUNK
        for row, value in zip(rows, values, strict=True):
            place = (value.stream, value.row, value.place)
            offset = at if value.data else value.offset
            row[:] = (value.kind, value.digest, *place, value.layout, offset, len(value.data))
            at += len(value.data)
        for first in range(0, len(rows), INDEX_CHUNK):
            stored = np.zeros(chunk_codec.stored_shape(VALUE_INDEX), np.uint64)
            part = rows[first : first + INDEX_CHUNK]
            stored[:, : len(part)] = part.T
            yield self.index_chunks, stored
            self.index_chunks += 1


# --- keptpack ---------------------------------------------------------------------------------------------------------
#
# Tensors' rows on their way into the trace: what calls and ops had, laid into three arrays and cut into chunks.
#
# Owns what a commit writes of them. Runs inside the recorded program: imports neither zarr nor torch, and verifies
# nothing; whoever hands digests over vouches for them.


class DigestBlock:
    """Digests of the rows of one tensor. Tensors that are equal share one: it is written with the first of them."""

    __slots__ = ("count", "digests", "offset")

    def __init__(self, digests: NDArray[np.uint64]) -> None:
        self.digests: NDArray[np.uint64] | None = digests
        """None: they are written."""
        self.count = digests.size
        self.offset = 0
        """Where they stand, once they are written."""


@dataclass(slots=True)
class NewTensor:
    """One tensor of a call or an op. Made by the thousand, and so not frozen: that would take three times as long."""

    part: Part
    name: int
    """Id in table "names"."""
    layout: int
    """Id in table "layouts"."""
    axes: tuple[int, ...]
    whole: int
    """Digest of the tensor."""
    block: DigestBlock


@dataclass(frozen=True, slots=True)
class NewCall:
    """One call of a module that has ended."""

    stream: int
    number: int
    parent: int | None
    module: int
    """Id in table "modules"."""
    class_: int
    """Id in table "names"."""
    step: int
    phase: int
    flags: int
    """CallFlag."""
    first_row: int
    end_row: int
    tensors: Sequence[NewTensor]


@dataclass(frozen=True, slots=True)
class NewOp:
    """One op."""

    stream: int
    row: int
    tensors: Sequence[NewTensor]


@dataclass(frozen=True)
class NewActivations:
    """What has come together since the last commit."""

    entries: Sequence[NewCall | NewOp] = ()
    left_out: Sequence[LeftOut] = ()

    def __bool__(self) -> bool:
        return bool(self.entries or self.left_out)


class ActivationPacker:
    """Counts chunks; every commit begins new ones, because a chunk is written once."""

    def __init__(self) -> None:
        self._chunks = {spec.name: 0 for spec in ACTIVATION_ARRAYS}

    def write(self, new: NewActivations, write_chunk: WriteChunk) -> dict[str, object]:
        """Write what a commit has of tensors' rows; returns its journal record."""
        digests = self._write(ACTIVATION_DIGESTS, self._digests(new.entries), write_chunk)
        call_rows = [_call(entry) for entry in new.entries if isinstance(entry, NewCall)]
        tensor_rows = [row for entry in new.entries for row in _tensors(entry)]
        calls, tensors = (
            self._write(spec, np.array(rows, np.uint64).reshape(-1, spec.chunk[1]), write_chunk)
            for spec, rows in ((ACTIVATION_CALLS, call_rows), (ACTIVATION_TENSORS, tensor_rows))
        )
        return activations_record(ActivationPart(calls, tensors, digests, tuple(new.left_out)))

    def _digests(self, entries: Sequence[NewCall | NewOp]) -> NDArray[np.uint64]:
        """The digests that no commit has written, one block after the other; each block is told its place."""
        found: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
        at = self._chunks[ACTIVATION_DIGESTS.name] * ACTIVATION_DIGESTS.chunk[0]
        for entry in entries:
            for tensor in entry.tensors:
                block = tensor.block
                if block.digests is not None:
                    found.append(block.digests.reshape(-1))
                    block.offset, block.digests = at, None
                    at += block.count
        return np.concatenate(found)

    def _write(self, spec: ArraySpec, rows: NDArray[np.uint64], write_chunk: WriteChunk) -> ArrayPart:
        first = self._chunks[spec.name]
        files = tuple(ChunkFile(*write_chunk(spec.name, spec, first + i, c)) for i, c in enumerate(_chunks(spec, rows)))
        self._chunks[spec.name] += len(files)
        return ArrayPart(len(rows), first, files)


def _chunks(spec: ArraySpec, rows: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
    """The rows of an array in chunks as they are stored, the last one padded."""
    for at in range(0, len(rows), spec.chunk[0]):
        part = rows[at : at + spec.chunk[0]].T
        stored = np.zeros(chunk_codec.stored_shape(spec), np.uint64)
        stored[..., : part.shape[-1]] = part
        yield stored


def _call(call: NewCall) -> list[int]:
    row = [0] * len(ModuleCallColumn)
    row[ModuleCallColumn.FLAGS] = call.flags
    row[ModuleCallColumn.STREAM], row[ModuleCallColumn.NUMBER] = call.stream, call.number
    row[ModuleCallColumn.PARENT] = 0 if call.parent is None else call.parent + 1
    row[ModuleCallColumn.MODULE], row[ModuleCallColumn.CLASS] = call.module, call.class_
    row[ModuleCallColumn.STEP], row[ModuleCallColumn.PHASE] = call.step, call.phase
    row[ModuleCallColumn.FIRST_ROW], row[ModuleCallColumn.END_ROW] = call.first_row, call.end_row
    row[ModuleCallColumn.TENSORS] = len(call.tensors)
    return row


def _tensors(entry: NewCall | NewOp) -> Iterator[list[int]]:
    owner, number = (TensorOwner.CALL, entry.number) if isinstance(entry, NewCall) else (TensorOwner.OP, entry.row)
    for tensor in entry.tensors:
        row = [0] * len(ActivationColumn)
        row[ActivationColumn.OWNER], row[ActivationColumn.STREAM], row[ActivationColumn.NUMBER] = (
            owner,
            entry.stream,
            number,
        )
        row[ActivationColumn.TENSORS], row[ActivationColumn.PART], row[ActivationColumn.NAME] = (
            len(entry.tensors),
            tensor.part,
            tensor.name,
        )
        row[ActivationColumn.LAYOUT], row[ActivationColumn.AXES] = tensor.layout, sum(1 << axis for axis in tensor.axes)
        row[ActivationColumn.WHOLE], row[ActivationColumn.OFFSET], row[ActivationColumn.COUNT] = (
            tensor.whole,
            tensor.block.offset,
            tensor.block.count,
        )
        yield row
