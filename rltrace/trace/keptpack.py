"""Tensors' rows on their way into the trace: what calls and ops had, laid into three arrays and cut into chunks.

Owns what a commit writes of them. Runs inside the recorded program: imports neither zarr nor torch, and verifies
nothing; whoever hands digests over vouches for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.trace import codec
from rltrace.trace.arrays import KEPT_CALLS, KEPT_DIGESTS, KEPT_TENSORS, ArraySpec
from rltrace.trace.keptrecords import ArrayPart, KeptPart, kept_record
from rltrace.trace.schema import Called, Kept, Owner
from rltrace.trace.segment import ChunkFile
from rltrace.trace.tensor_rows import Part
from rltrace.trace.valuerecords import LeftOut

WriteChunk = Callable[[str, ArraySpec, int, NDArray[Any]], list[Any]]
"""Writes one chunk of the array in a folder; returns its key, length and digest."""


class Block:
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
    block: Block


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
class NewKept:
    """What has come together since the last commit."""

    entries: Sequence[NewCall | NewOp] = ()
    left_out: Sequence[LeftOut] = ()

    def __bool__(self) -> bool:
        return bool(self.entries or self.left_out)


class KeptPacker:
    """Counts chunks; every commit begins new ones, because a chunk is written once."""

    def __init__(self) -> None:
        self._chunks = {spec.name: 0 for spec in (KEPT_CALLS, KEPT_TENSORS, KEPT_DIGESTS)}

    def write(self, new: NewKept, write_chunk: WriteChunk) -> dict[str, object]:
        """Write what a commit has of tensors' rows; returns its journal record."""
        digests = self._write(KEPT_DIGESTS, self._digests(new.entries), write_chunk)
        call_rows = [_call(entry) for entry in new.entries if isinstance(entry, NewCall)]
        tensor_rows = [row for entry in new.entries for row in _tensors(entry)]
        calls, tensors = (
            self._write(spec, np.array(rows, np.uint64).reshape(-1, spec.chunk[1]), write_chunk)
            for spec, rows in ((KEPT_CALLS, call_rows), (KEPT_TENSORS, tensor_rows))
        )
        return kept_record(KeptPart(calls, tensors, digests, tuple(new.left_out)))

    def _digests(self, entries: Sequence[NewCall | NewOp]) -> NDArray[np.uint64]:
        """The digests that no commit has written, one block after the other; each block is told its place."""
        found: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
        at = self._chunks[KEPT_DIGESTS.name] * KEPT_DIGESTS.chunk[0]
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
        stored = np.zeros(codec.stored_shape(spec), np.uint64)
        stored[..., : part.shape[-1]] = part
        yield stored


def _call(call: NewCall) -> list[int]:
    row = [0] * len(Called)
    row[Called.FLAGS] = call.flags
    row[Called.STREAM], row[Called.NUMBER] = call.stream, call.number
    row[Called.PARENT] = 0 if call.parent is None else call.parent + 1
    row[Called.MODULE], row[Called.CLASS] = call.module, call.class_
    row[Called.STEP], row[Called.PHASE] = call.step, call.phase
    row[Called.FIRST_ROW], row[Called.END_ROW] = call.first_row, call.end_row
    row[Called.TENSORS] = len(call.tensors)
    return row


def _tensors(entry: NewCall | NewOp) -> Iterator[list[int]]:
    owner, number = (Owner.CALL, entry.number) if isinstance(entry, NewCall) else (Owner.OP, entry.row)
    for tensor in entry.tensors:
        row = [0] * len(Kept)
        row[Kept.OWNER], row[Kept.STREAM], row[Kept.NUMBER] = owner, entry.stream, number
        row[Kept.TENSORS], row[Kept.PART], row[Kept.NAME] = len(entry.tensors), tensor.part, tensor.name
        row[Kept.LAYOUT], row[Kept.AXES] = tensor.layout, sum(1 << axis for axis in tensor.axes)
        row[Kept.WHOLE], row[Kept.OFFSET], row[Kept.COUNT] = tensor.whole, tensor.block.offset, tensor.block.count
        yield row
