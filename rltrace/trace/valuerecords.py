"""What a journal says of values: which were asked for, where they stand, and which of them were left out.

Owns the records ``keeps`` and ``values``, as they are written and as they are checked; reads no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rltrace.trace.arrays import VALUE_BYTES, VALUE_INDEX
from rltrace.trace.journal import Record
from rltrace.trace.records import MOST_STREAMS, chunk_file, number
from rltrace.trace.schema import INDEX_CHUNK
from rltrace.trace.segment import ChunkFile


@dataclass(frozen=True)
class Asked:
    """What of the values was to be kept."""

    selectors: tuple[str, ...]
    """As they were written; one must hold. None: values are kept only of tensors whose rows are, and need them."""
    inputs: bool
    """What the ops read too, not only what they returned and wrote."""
    limit: int
    """Bytes in all, as tensors hold them."""


@dataclass(frozen=True)
class LeftOut:
    """Values that were asked for and not kept, for one reason, in one stream."""

    why: str
    """A few words: ``the limit was reached``."""
    stream: int
    first: int
    last: int
    """The first and the last row they belong to."""
    values: int
    bytes: int


@dataclass(frozen=True)
class ValuePart:
    """What one commit wrote of values."""

    count: int
    """Rows of ``values/index``."""
    index_files: tuple[ChunkFile, ...]
    first_chunk: int
    """Number of the first chunk of ``values/bytes``."""
    files: tuple[ChunkFile | None, ...]
    """Chunks of ``values/bytes``; None where a slice left one out."""
    left_out: tuple[LeftOut, ...]
    index_chunk: int = 0
    """Number of the first chunk of ``values/index``."""


def asked_record(asked: Asked) -> dict[str, object]:
    return {"type": "keeps", **asdict(asked)}


def parse_asked(record: Record) -> Asked:
    """Raises ValueError, KeyError or TypeError where the record makes no sense."""
    selectors, inputs = record["selectors"], record["inputs"]
    if not isinstance(inputs, bool) or not isinstance(selectors, list) or not all(type(s) is str for s in selectors):
        raise ValueError("its request is not a list of selectors")
    return Asked(tuple(selectors), inputs, number(record, "limit"))


def values_record(part: ValuePart) -> dict[str, object]:
    """The journal's record of one commit's values."""
    return {
        "type": "values",
        "count": part.count,
        "chunk": part.index_chunk,
        "files": [_entry(file) for file in part.index_files],
        "bytes_chunk": part.first_chunk,
        "bytes_files": [_entry(file) for file in part.files],
        "left_out": [asdict(entry) for entry in part.left_out],
    }


def parse_values(record: Record, *, sliced: bool) -> ValuePart:
    """Raises ValueError, KeyError or TypeError where the record makes no sense."""
    count, index_chunk, first_chunk = (number(record, name) for name in ("count", "chunk", "bytes_chunk"))
    index_files = [chunk_file(entry, VALUE_INDEX, index_chunk + i) for i, entry in enumerate(record["files"])]
    if len(index_files) != -(-count // INDEX_CHUNK):
        raise ValueError("it does not name the files of its rows")
    files: list[ChunkFile | None] = []
    for i, entry in enumerate(record["bytes_files"]):
        files.append(None if entry is None and sliced else chunk_file(entry, VALUE_BYTES, first_chunk + i))
    left_out = tuple(map(parse_left_out, record["left_out"]))
    return ValuePart(count, tuple(index_files), first_chunk, tuple(files), left_out, index_chunk)


def add_part(parts: list[ValuePart], part: ValuePart) -> None:
    """Take a part in. Raises ValueError where its chunks are there already."""
    if parts:
        last = parts[-1]
        index, stop = last.index_chunk + len(last.index_files), last.first_chunk + len(last.files)
        if part.index_chunk < index or part.first_chunk < stop:
            raise ValueError("its chunks exist already")
    parts.append(part)


def add_up(left_out: Sequence[LeftOut]) -> list[LeftOut]:
    """One entry for each reason and stream, in the order of the first."""
    found: dict[tuple[str, int], LeftOut] = {}
    for entry in left_out:
        before = found.get((entry.why, entry.stream))
        found[entry.why, entry.stream] = entry if before is None else _joined(before, entry)
    return list(found.values())


def by_reason(left_out: Iterable[LeftOut]) -> list[LeftOut]:
    """One entry for each reason; whose rows they are is no longer said."""
    return add_up([LeftOut(entry.why, 0, 0, 0, entry.values, entry.bytes) for entry in left_out])


def _joined(a: LeftOut, b: LeftOut) -> LeftOut:
    first, last = min(a.first, b.first), max(a.last, b.last)
    return LeftOut(a.why, a.stream, first, last, a.values + b.values, a.bytes + b.bytes)


def parse_left_out(entry: Mapping[str, Any]) -> LeftOut:
    """Raises ValueError, KeyError or TypeError where the entry makes no sense."""
    if not isinstance(entry["why"], str):
        raise ValueError("a reason is not text")
    stream = number(entry, "stream", MOST_STREAMS)
    first, last, values, size = (number(entry, name) for name in ("first", "last", "values", "bytes"))
    return LeftOut(entry["why"], stream, first, last, values, size)


def _entry(file: ChunkFile | None) -> list[object] | None:
    return None if file is None else [file.key, file.length, file.digest]
