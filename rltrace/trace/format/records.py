"""Journal records, parsed and checked: bounds of numbers, keys of files, rows of marks.

Functions raise ValueError, KeyError or TypeError for an invalid record. Reads no file.
"""

from __future__ import annotations

import struct
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from rltrace.trace.format import chunk_codec
from rltrace.trace.format.arrays import (
    ACTIVATION_CALLS,
    ACTIVATION_DIGESTS,
    ACTIVATION_TENSORS,
    CELLS,
    ROWS,
    STEPS,
    VALUE_BYTES,
    VALUE_INDEX,
    ArraySpec,
)
from rltrace.trace.format.journal import Record
from rltrace.trace.format.rows import ChunkFile, Segment, expected_marks
from rltrace.trace.format.schema import GENERATORS, SEGMENT_CELLS, SEGMENT_ROWS

MAX_COUNT = 1 << 48
"""Of any count in a trace."""

MAX_STREAMS = 1 << 20

MAX_TIME = 253_402_300_799
"""Seconds since the epoch at the end of the year 9999."""


def check_fields(record: Record, **kinds: type) -> None:
    """Refuse a record that has one of these fields with another type."""
    for name, kind in kinds.items():
        if name in record and not isinstance(record[name], kind):
            raise ValueError(f'"{name}" is {record[name]!r:.40}, not a {kind.__name__}')


def check_facts(facts: Mapping[str, object]) -> None:
    """Refuse facts that are not text, a number or None."""
    for name, value in facts.items():
        if value is not None and not isinstance(value, (str, int, float)):
            raise ValueError(f'fact "{name}" is not a plain value')


def check_launch(record: Record) -> None:
    """Refuse a launch record whose known fields have other types."""
    check_fields(record, command=list, options=dict, host=str, cwd=str)
    created = record.get("created", 0)  # the command line writes ISO 8601, the library seconds
    if isinstance(created, str):
        return
    if not isinstance(created, (int, float)) or not 0 <= created <= MAX_TIME:
        raise ValueError(f'"created" is {created!r:.40}, not a time')


def number(record: Mapping[str, Any], name: str, limit: int = MAX_COUNT) -> int:
    """A count of a record, from 0 to ``limit``."""
    value = record[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= limit:
        raise ValueError(f'"{name}" is {value!r}, not a number from 0 to {limit}')
    return value


def chunk_files(record: Record, folder: str, spec: ArraySpec) -> list[ChunkFile]:
    """The files of a record of consecutive chunks of one array."""
    first = number(record, "chunk")
    return [_file(entry, f"{folder}/{spec.key(first + i)}", spec) for i, entry in enumerate(record["files"])]


def parse_segment(record: Record) -> Segment:
    """The segment of a commit record."""
    stream, index, first = number(record, "stream"), number(record, "segment"), number(record, "first")
    rows = number(record, "rows", SEGMENT_ROWS)
    sections = tuple(number({"sections": count}, "sections", SEGMENT_CELLS) for count in record["sections"])
    notes = number({"link_notes": 0} | record, "link_notes", SEGMENT_CELLS)
    if rows == 0 or len(sections) != 4 or sum(sections) + notes > SEGMENT_CELLS:
        raise ValueError("no segment can have its sizes")
    specs = (ROWS, CELLS)
    if len(record["files"]) != len(specs):
        raise ValueError("it does not name its two files")
    files = tuple(
        _file(entry, f"streams/{stream}/{spec.name}/{spec.key(index)}", spec)
        for entry, spec in zip(record["files"], specs, strict=True)
    )
    marks = (*(_mark(mark) for mark in record["marks"]), _mark([first + rows, *record["end"]]))
    if [mark[0] for mark in marks] != expected_marks(first, rows):
        raise ValueError("its marks are misplaced")
    links, integers, floats, digests = sections
    return Segment(index, first, rows, (links, integers, floats, digests), marks, files, notes)


def parse_generators(record: Record) -> tuple[int, ...] | None:
    """Digests of the RNG states in an end record; None: it has none."""
    if "generators" not in record:
        return None
    check_fields(record, generators=list)
    digests = tuple(map(_digest, record["generators"]))
    if len(digests) != len(GENERATORS):
        raise ValueError(f"{len(digests)} generators, not {len(GENERATORS)}")
    return digests


class SourceLines(NamedTuple):
    """A source file as a process loaded it."""

    path: str
    """On the machine that recorded it."""
    digests: tuple[int, ...]
    """CRC-32 of each line; empty as well where the lines are not known."""
    text: str | None
    """None: not recorded."""


def parse_sources(record: Record) -> dict[str, SourceLines]:
    """Source files, by their names in call stacks."""
    check_fields(record, listed=list)
    found = {}
    for entry in record["listed"]:
        check_fields(entry, file=str, path=str, lines=str, text=str)
        data = b64decode(entry["lines"], validate=True)
        found[entry["file"]] = SourceLines(entry["path"], struct.unpack(f"<{len(data) // 4}I", data), entry.get("text"))
    return found


class OptimizerStart(NamedTuple):
    """What an optimizer's first attempt began with."""

    parameters: int
    """Digest, as of the attempts."""
    state: tuple[str, ...]
    """Names of the tensors of its state then: some only if a checkpoint was loaded."""
    kept: tuple[str, ...]
    """The same after the attempt."""


def parse_optimizer(record: Record) -> tuple[int, OptimizerStart]:
    """Ordinal of an optimizer, and what it began with."""
    check_fields(record, state=list, kept=list)
    names = (tuple(map(str, record[key])) for key in ("state", "kept"))
    return number(record, "ordinal"), OptimizerStart(_digest(record["parameters"]), *names)


def parse_parameters(record: Record) -> dict[int, int]:
    """Digests of parameters in an end record, by the ordinal of their optimizer."""
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
    size = number({"length": length}, "length", chunk_codec.max_bytes(spec))
    return ChunkFile(key, size, f"{_digest(digest):016x}")


# --- steps and series: records ``steps`` and ``series`` ---------------------------------------------------------------


class StepPart(NamedTuple):
    """Adjacent rows of ``steps`` or ``series``, as the journal describes them."""

    first: int
    """Number of the first row in the process."""
    rows: int
    chunk: int | None
    """Number of their chunk; None: their journal record holds them."""
    file: ChunkFile | None
    text: str = ""
    journal_parts: tuple[StepPart, ...] = ()
    """Of a chunk: the parts in earlier journal records that hold its rows, too."""

    @property
    def stop(self) -> int:
        return self.first + self.rows


def parse_step_part(record: Record, spec: ArraySpec = STEPS, counted: str = "steps") -> StepPart:
    """The part of a journal record of rows of ``spec``; ``counted``: the field with their number.

    Raises ValueError, KeyError or TypeError.
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


def add_step_part(parts: list[StepPart], part: StepPart) -> None:
    """Append a part; a chunk replaces the parts in journal records that hold its rows."""
    end = len(parts)
    if part.chunk is not None:
        while end and parts[end - 1].chunk is None and parts[end - 1].first >= part.first:
            end -= 1
        last = next((p.chunk for p in reversed(parts) if p.chunk is not None), -1)
        if part.chunk <= last:
            raise ValueError("its chunk exists already")
    if end and part.first < parts[end - 1].stop:
        raise ValueError("its steps exist already")
    inside = tuple(old for old in parts[end:] if old.stop <= part.stop)
    parts[end:] = [part._replace(journal_parts=inside) if inside else part]


# --- values: records ``value_request`` and ``values`` -----------------------------------------------------------------


class ValueRequest(NamedTuple):
    """Which values to record."""

    selectors: tuple[str, ...]
    """As text; one of them must match. Empty: only values that recorded activation rows need."""
    inputs: bool
    """Whether values of inputs are recorded, beside those that the ops returned and wrote."""
    limit: int
    """Bytes in total, before compression."""


class LeftOut(NamedTuple):
    """Requested values of one stream that were not recorded, for one reason."""

    why: str
    """``the limit was reached``."""
    stream: int
    first: int
    """First row that lacks values."""
    last: int
    values: int
    bytes: int


class ArrayPart(NamedTuple):
    """Adjacent rows of one array."""

    rows: int
    chunk: int
    """Number of the first chunk."""
    files: tuple[ChunkFile, ...]

    @property
    def stop(self) -> int:
        """Number of the chunk after the last one."""
        return self.chunk + len(self.files)


class ValuePart(NamedTuple):
    """The values that one commit wrote."""

    rows: ArrayPart
    """Rows of ``values/index``."""
    first_chunk: int
    """Number of the first chunk of ``values/bytes``."""
    files: tuple[ChunkFile, ...]
    """Chunks of ``values/bytes``."""
    left_out: tuple[LeftOut, ...]


def parse_value_request(record: Record) -> ValueRequest:
    selectors, inputs = record["selectors"], record["inputs"]
    if not isinstance(inputs, bool) or not isinstance(selectors, list) or not all(type(s) is str for s in selectors):
        raise ValueError("its request is not a list of selectors")
    return ValueRequest(tuple(selectors), inputs, number(record, "limit"))


def values_record(part: ValuePart) -> dict[str, object]:
    """The journal record of one commit's values."""
    files, left_out = list(map(_entry, part.files)), [entry._asdict() for entry in part.left_out]
    chunks = {"bytes_chunk": part.first_chunk, "bytes_files": files}
    return {"type": "values", **_array_record(part.rows), **chunks, "left_out": left_out}


def parse_values(record: Record) -> ValuePart:
    index, first = _array(record, VALUE_INDEX), number(record, "bytes_chunk")
    files = _chunk_files(record["bytes_files"], VALUE_BYTES, first)
    return ValuePart(index, first, files, tuple(map(parse_left_out, record["left_out"])))


def add_values(parts: list[ValuePart], part: ValuePart) -> None:
    """Append a part. Raises ValueError where its chunks exist already."""
    if parts:
        last = parts[-1]
        if part.rows.chunk < last.rows.stop or part.first_chunk < last.first_chunk + len(last.files):
            raise ValueError("its chunks exist already")
    parts.append(part)


def add_up(left_out: Sequence[LeftOut]) -> list[LeftOut]:
    """One entry for each reason and stream, in the order of first occurrence."""
    merged: dict[tuple[str, int], LeftOut] = {}
    for entry in left_out:
        before = merged.get((entry.why, entry.stream))
        merged[entry.why, entry.stream] = entry if before is None else _joined(before, entry)
    return list(merged.values())


def by_reason(left_out: Iterable[LeftOut]) -> list[LeftOut]:
    """One entry for each reason; rows and streams are 0."""
    return add_up([LeftOut(entry.why, 0, 0, 0, entry.values, entry.bytes) for entry in left_out])


def _joined(a: LeftOut, b: LeftOut) -> LeftOut:
    first, last = min(a.first, b.first), max(a.last, b.last)
    return LeftOut(a.why, a.stream, first, last, a.values + b.values, a.bytes + b.bytes)


def parse_left_out(entry: Mapping[str, Any]) -> LeftOut:
    if not isinstance(entry["why"], str):
        raise ValueError("a reason is not text")
    stream = number(entry, "stream", MAX_STREAMS)
    first, last, values, size = (number(entry, name) for name in ("first", "last", "values", "bytes"))
    return LeftOut(entry["why"], stream, first, last, values, size)


def _entry(file: ChunkFile) -> list[object]:
    return [file.key, file.length, file.digest]


# --- checks of links: records ``link_checks`` and ``link_fault`` ------------------------------------------------------


Place = tuple[int, int]
"""Stream and row of an op of one process."""


MAX_LINK_FAULTS = 1_000
"""Faults of one process that are recorded; later ones are not."""


class FaultKind(StrEnum):
    """What ``record --check-links`` found wrong with the links of a trace."""

    WRITE = "write"
    """Memory changed between two uses: no recorded op wrote it."""
    OP = "op"
    """An op wrote memory against its schema."""
    LINK = "link"
    """A row links memory to outside that a recorded op wrote."""
    CALL = "call"
    """Memory that no recorded op wrote changed within one call, which allocated it and read it."""


class LinkFault(NamedTuple):
    """One of these faults, with the ops around it."""

    kind: FaultKind
    found: Place | None
    """The op that read the memory, or wrote it against its schema; None: no op did until the step ended."""
    input: int | None
    """Which of that op's tensors has the memory."""
    step: int
    """In which it was found."""
    used: Place | None
    """The op that used the memory last before the write; ``op``: the one that wrote, ``link``: the one that the link
    should lead to."""
    writer: Place | None
    """The recorded op that wrote the memory last, or else allocated it; None: none did."""
    allocation: Place | None
    """The op that returned the memory first; None: it is older than the recording."""
    handed_out: bool
    """NumPy, DLPack or another process shares the memory: ops digest it at every use, so no link rests on it."""
    bytes: int
    """Size of the storage."""
    digest: int
    """Of its content afterwards, as far as ops used it."""


def link_checks_record() -> dict[str, object]:
    """The journal record that says that links are checked."""
    return {"type": "link_checks"}


def link_fault_record(fault: LinkFault) -> dict[str, object]:
    return {"type": "link_fault", **fault._asdict(), "digest": f"{fault.digest:016x}"}


def parse_link_fault(record: Record) -> LinkFault:
    if type(record["handed_out"]) is not bool:
        raise ValueError('"handed_out" is neither true nor false')
    return LinkFault(
        kind=FaultKind(record["kind"]),
        input=None if record["input"] is None else number(record, "input"),
        step=number(record, "step"),
        handed_out=record["handed_out"],
        bytes=number(record, "bytes"),
        digest=int(record["digest"], 16),
        **{name: _place(record[name]) for name in ("found", "used", "writer", "allocation")},
    )


def _place(entry: Any) -> Place | None:
    if entry is None:
        return None
    stream, row = entry
    return number({"stream": stream}, "stream", MAX_STREAMS), number({"row": row}, "row")


# --- activations: records ``activation_request`` and ``activations`` --------------------------------------------------


MAX_AXES = 64
"""Axes of a tensor, at most."""


class ActivationRequest(NamedTuple):
    """Which calls and ops to record activation rows of."""

    selectors: tuple[str, ...]
    """As text; one of them must match."""
    axes: tuple[int, ...] | None
    """Axes along which rows are counted, if a tensor has them; None: all but its last."""
    limit: int
    """Bytes in total, of digests and descriptions."""


class ActivationPart(NamedTuple):
    """The activation rows that one commit wrote."""

    calls: ArrayPart
    tensors: ArrayPart
    digests: ArrayPart
    left_out: tuple[LeftOut, ...]

    @property
    def arrays(self) -> tuple[tuple[ArraySpec, ArrayPart], ...]:
        return (ACTIVATION_CALLS, self.calls), (ACTIVATION_TENSORS, self.tensors), (ACTIVATION_DIGESTS, self.digests)


def axes_of(axes: tuple[int, ...] | None, dimensions: int) -> tuple[int, ...]:
    """The axes of a tensor with ``dimensions`` axes along which rows are counted."""
    if axes is None:
        return tuple(range(dimensions - 1))
    return tuple(axis for axis in axes if axis < dimensions)


def parse_activation_request(record: Record) -> ActivationRequest:
    selectors, axes = record["selectors"], record["axes"]
    if not isinstance(selectors, list) or not all(type(s) is str for s in selectors):
        raise ValueError("its request is not a list of selectors")
    if axes is not None:
        axes = tuple(number({"axis": axis}, "axis", MAX_AXES - 1) for axis in axes)
        if list(axes) != sorted(set(axes)):
            raise ValueError("its axes are not in order")
    return ActivationRequest(tuple(selectors), axes, number(record, "limit"))


def activations_record(part: ActivationPart) -> dict[str, object]:
    """The journal record of one commit's activation rows."""
    arrays = {spec.name.split("/")[1]: _array_record(array) for spec, array in part.arrays}
    return {"type": "activations", **arrays, "left_out": [entry._asdict() for entry in part.left_out]}


def parse_activations(record: Record) -> ActivationPart:
    calls, tensors = _array(record["calls"], ACTIVATION_CALLS), _array(record["tensors"], ACTIVATION_TENSORS)
    digests = _array(record["digests"], ACTIVATION_DIGESTS)
    return ActivationPart(calls, tensors, digests, tuple(map(parse_left_out, record["left_out"])))


def add_activations(parts: list[ActivationPart], part: ActivationPart) -> None:
    """Append a part. Raises ValueError where its chunks exist already."""
    if parts:
        for (_, before), (_, array) in zip(parts[-1].arrays, part.arrays, strict=True):
            if array.chunk < before.stop:
                raise ValueError("its chunks exist already")
    parts.append(part)


def _array_record(part: ArrayPart) -> dict[str, object]:
    return {"count": part.rows, "chunk": part.chunk, "files": list(map(_entry, part.files))}


def _array(record: Mapping[str, Any], spec: ArraySpec) -> ArrayPart:
    count, first = number(record, "count"), number(record, "chunk")
    files = _chunk_files(record["files"], spec, first)
    if len(files) != -(-count // spec.chunk[0]):
        raise ValueError(f"it does not name the files of its rows of {spec.name}")
    return ArrayPart(count, first, files)


def _chunk_files(entries: Any, spec: ArraySpec, first: int) -> tuple[ChunkFile, ...]:
    """Files of consecutive chunks."""
    return tuple(_file(entry, f"{spec.name}/{spec.key(first + i)}", spec) for i, entry in enumerate(entries))
