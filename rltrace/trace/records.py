"""Journal records, checked: bounded numbers, files that are where they must be, marks where they are due.

Owns what a record may say. Everything raises ValueError (KeyError, TypeError) with a sentence; nothing is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rltrace.trace import codec
from rltrace.trace.arrays import CELLS, ROWS, ArraySpec
from rltrace.trace.journal import Record
from rltrace.trace.schema import GENERATORS, SEGMENT_CELLS, SEGMENT_ROWS
from rltrace.trace.segment import ChunkFile, Segment, expected_marks

MOST = 1 << 48
"""No count in a trace is larger."""

MOST_STREAMS = 1 << 20
"""Nor is the number of a stream."""

LATEST = 253_402_300_799
"""Seconds since the epoch at the end of the year 9999."""


def check_fields(record: Record, **kinds: type) -> None:
    """Refuse a record in which one of these fields, where it is there, is of another kind."""
    for name, kind in kinds.items():
        if name in record and not isinstance(record[name], kind):
            raise ValueError(f'"{name}" is {record[name]!r:.40}, not a {kind.__name__}')


def check_facts(facts: Mapping[str, object]) -> None:
    """Refuse facts that are no plain values."""
    for name, value in facts.items():
        if value is not None and not isinstance(value, (str, int, float)):
            raise ValueError(f'fact "{name}" is not a plain value')


def check_launch(record: Record) -> None:
    """Refuse a launch record whose known fields are of other kinds."""
    check_fields(record, command=list, options=dict, host=str, cwd=str)
    created = record.get("created", 0)  # the command line writes ISO 8601, the library seconds
    if isinstance(created, str):
        return
    if not isinstance(created, (int, float)) or not 0 <= created <= LATEST:
        raise ValueError(f'"created" is {created!r:.40}, not a time')


def check_slice(record: Record) -> None:
    """Refuse a slice record without its steps."""
    number(record, "first_step"), number(record, "end_step")


def number(record: Mapping[str, Any], name: str, most: int = MOST) -> int:
    """A count of a record, from 0 to ``most``."""
    value = record[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f'"{name}" is {value!r}, not a number from 0 to {most}')
    return value


def chunk_files(record: Record, folder: str, spec: ArraySpec) -> list[ChunkFile]:
    """The files of a record that holds consecutive chunks of one array."""
    first = number(record, "chunk")
    return [_file(entry, f"{folder}/{spec.key(first + i)}", spec) for i, entry in enumerate(record["files"])]


def chunk_file(entry: Sequence[object], spec: ArraySpec, chunk: int) -> ChunkFile:
    """One file of a process's own array, named as its place below the process."""
    return _file(entry, f"{spec.name}/{spec.key(chunk)}", spec)


def parse_segment(record: Record, *, sliced: bool) -> Segment:
    """The segment of a commit record; one without files only in a slice."""
    stream, index, first = number(record, "stream"), number(record, "segment"), number(record, "first")
    rows = number(record, "rows", SEGMENT_ROWS)
    sections = tuple(number({"sections": count}, "sections", SEGMENT_CELLS) for count in record["sections"])
    if rows == 0 or len(sections) != 4 or sum(sections) > SEGMENT_CELLS:
        raise ValueError("no segment can have its sizes")
    files: tuple[ChunkFile, ...] = ()
    if record["files"] or not sliced:
        folder = f"streams/{stream}"
        specs = (ROWS, CELLS)
        if len(record["files"]) != len(specs):
            raise ValueError("it does not name its two files")
        files = tuple(
            _file(entry, f"{folder}/{spec.name}/{spec.key(index)}", spec)
            for entry, spec in zip(record["files"], specs, strict=True)
        )
    marks = (*(_mark(mark) for mark in record["marks"]), _mark([first + rows, *record["end"]]))
    if [mark[0] for mark in marks] != expected_marks(first, rows):
        raise ValueError("its marks are misplaced")
    links, integers, floats, digests = sections
    return Segment(index, first, rows, (links, integers, floats, digests), marks, files)


def parse_generators(record: Record) -> tuple[int, ...] | None:
    """Digests of generators' states in the record of an ending; None where it has none."""
    if "generators" not in record:
        return None
    check_fields(record, generators=list)
    digests = tuple(map(_digest, record["generators"]))
    if len(digests) != len(GENERATORS):
        raise ValueError(f"{len(digests)} generators, not {len(GENERATORS)}")
    return digests


def parse_parameters(record: Record) -> dict[int, int]:
    """Digests of optimizers' parameters in the record of an ending, by the optimizer's ordinal."""
    if "parameters" not in record:
        return {}
    check_fields(record, parameters=list)
    found = [{"ordinal": ordinal, "digest": digest} for ordinal, digest in record["parameters"]]
    return {number(entry, "ordinal"): _digest(entry["digest"]) for entry in found}


def _mark(mark: Sequence[object]) -> tuple[int, int, int, int]:
    row, structure, values, marked = mark
    digests = [_digest(d) for d in (structure, values, marked)]
    return number({"row": row}, "row"), digests[0], digests[1], digests[2]


def _digest(text: object) -> int:
    if not isinstance(text, str) or len(text) != 16:
        raise ValueError(f"{text!r} is not a digest")
    return int(text, 16)


def _file(entry: Sequence[object], key: str, spec: ArraySpec) -> ChunkFile:
    found, length, digest = entry
    if found != key:
        raise ValueError(f"it names the file {found!r} instead of {key}")
    size = number({"length": length}, "length", codec.longest(spec))
    return ChunkFile(key, size, f"{_digest(digest):016x}")
