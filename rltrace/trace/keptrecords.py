"""What a journal says of tensors' rows: of which they were asked for, where they stand, what was left out.

Owns the records ``keeps_rows`` and ``kept``, as they are written and as they are checked; reads no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rltrace.trace.arrays import KEPT_CALLS, KEPT_DIGESTS, KEPT_TENSORS, ArraySpec
from rltrace.trace.journal import Record
from rltrace.trace.records import chunk_file, number
from rltrace.trace.segment import ChunkFile
from rltrace.trace.valuerecords import LeftOut, parse_left_out

MOST_AXES = 64
"""No tensor has more."""


@dataclass(frozen=True)
class AskedRows:
    """Of which calls and ops the tensors' rows were to be kept."""

    selectors: tuple[str, ...]
    """As they were written; one must hold."""
    axes: tuple[int, ...] | None
    """Along which rows are counted, as far as a tensor has them; None: along all but its last."""
    limit: int
    """Bytes in all: of digests, and of what says whose they are."""


@dataclass(frozen=True)
class ArrayPart:
    """Some adjacent rows of one array."""

    count: int
    chunk: int
    """Number of the first chunk."""
    files: tuple[ChunkFile | None, ...]
    """None where a slice left one out."""


@dataclass(frozen=True)
class KeptPart:
    """What one commit wrote of tensors' rows."""

    calls: ArrayPart
    tensors: ArrayPart
    digests: ArrayPart
    left_out: tuple[LeftOut, ...]

    @property
    def arrays(self) -> tuple[tuple[ArraySpec, ArrayPart], ...]:
        return (KEPT_CALLS, self.calls), (KEPT_TENSORS, self.tensors), (KEPT_DIGESTS, self.digests)


def axes_of(asked: tuple[int, ...] | None, dimensions: int) -> tuple[int, ...]:
    """Along which axes the rows of a tensor with so many dimensions are counted."""
    if asked is None:
        return tuple(range(dimensions - 1))
    return tuple(axis for axis in asked if axis < dimensions)


def asked_rows_record(asked: AskedRows) -> dict[str, object]:
    return {"type": "keeps_rows", **asdict(asked)}


def parse_asked_rows(record: Record) -> AskedRows:
    """Raises ValueError, KeyError or TypeError where the record makes no sense."""
    selectors, axes = record["selectors"], record["axes"]
    if not isinstance(selectors, list) or not all(type(s) is str for s in selectors):
        raise ValueError("its request is not a list of selectors")
    if axes is not None:
        axes = tuple(number({"axis": axis}, "axis", MOST_AXES - 1) for axis in axes)
        if list(axes) != sorted(set(axes)):
            raise ValueError("its axes are not in order")
    return AskedRows(tuple(selectors), axes, number(record, "limit"))


def kept_record(part: KeptPart) -> dict[str, object]:
    """The journal's record of one commit's rows of tensors."""
    arrays = {spec.name.split("/")[1]: _array_record(array) for spec, array in part.arrays}
    return {"type": "kept", **arrays, "left_out": [asdict(entry) for entry in part.left_out]}


def parse_kept(record: Record, *, sliced: bool) -> KeptPart:
    """Raises ValueError, KeyError or TypeError where the record makes no sense."""
    calls, tensors = _array(record["calls"], KEPT_CALLS), _array(record["tensors"], KEPT_TENSORS)
    digests = _array(record["digests"], KEPT_DIGESTS, sliced=sliced)
    return KeptPart(calls, tensors, digests, tuple(map(parse_left_out, record["left_out"])))


def add_kept(parts: list[KeptPart], part: KeptPart) -> None:
    """Take a part in. Raises ValueError where its chunks are there already."""
    if parts:
        for (_, before), (_, array) in zip(parts[-1].arrays, part.arrays, strict=True):
            if array.chunk < before.chunk + len(before.files):
                raise ValueError("its chunks exist already")
    parts.append(part)


def _array_record(part: ArrayPart) -> dict[str, object]:
    files = [None if file is None else [file.key, file.length, file.digest] for file in part.files]
    return {"count": part.count, "chunk": part.chunk, "files": files}


def _array(record: Mapping[str, Any], spec: ArraySpec, *, sliced: bool = False) -> ArrayPart:
    count, first = number(record, "count"), number(record, "chunk")
    files: list[ChunkFile | None] = []
    for i, entry in enumerate(record["files"]):
        files.append(None if entry is None and sliced else chunk_file(entry, spec, first + i))
    if len(files) != -(-count // spec.chunk[0]):
        raise ValueError(f"it does not name the files of its rows of {spec.name}")
    return ArrayPart(count, first, tuple(files))
