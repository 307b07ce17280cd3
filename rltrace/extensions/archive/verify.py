"""Verification of a whole trace: every chunk, every digest, every file in the folder.

Owns the list of possible damage and of harmless leftovers. Reads everything and changes nothing.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from rltrace.errors import HoleError
from rltrace.trace.format.arming import ASLEEP, REQUEST
from rltrace.trace.format.arrays import (
    ACTIVATION_ARRAYS,
    CELLS,
    JOURNAL_FOLDER,
    ROWS,
    SERIES,
    STARTS_FOLDER,
    STEPS,
    TABLES,
    VALUE_BYTES,
    VALUE_INDEX,
    ArraySpec,
    group_document,
    root_document,
)
from rltrace.trace.format.files import PARTIAL, FileRequest, UnreadableError
from rltrace.trace.format.location import Location
from rltrace.trace.format.process_start import MAX_START_BYTES, STARTS, parse_start
from rltrace.trace.format.root import COMPLETE, JOURNAL, PROCESSES, RUNNING, STOPPED, name_file
from rltrace.trace.format.row_hashes import Chains
from rltrace.trace.format.rows import Segment
from rltrace.trace.format.schema import Step, StepFlag
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import LONGEST_DOCUMENT, Trace, open_trace
from rltrace.trace.read.stream import AHEAD, StreamTrace

# --- digests of streams -----------------------------------------------------------------------------------------------


STEP_DIGESTS = (Step.PREFIX_STRUCTURE, Step.PREFIX_VALUES, Step.STRUCTURE, Step.VALUES, Step.ANY_ORDER)


class StreamCheck:
    """Compares the recorded digests of a stream with those computed from its rows, up to the first missing row."""

    def __init__(self, process: ProcessTrace, stream: StreamTrace, steps: NDArray[np.uint64] | None) -> None:
        self.read = 0
        self.damage: list[str] = []
        self._process = process
        self._stream = stream
        self._chains: Chains | None = Chains()
        self._steps = [] if steps is None else steps.tolist()
        self._next = 0
        self.proved = 0

    def segment(self, segment: Segment) -> None:
        try:
            rows = self._stream.read_segment(segment)
        except HoleError:
            self._chains = None
            return
        self.read += len(rows)
        if self._chains is None or self._chains.rows != segment.first:
            self._chains = None
            return
        marks = {mark[0]: mark[1:] for mark in segment.marks}
        pending = (step[Step.END_ROW] for step in islice(self._steps, self._next, None))
        ends = set(takewhile(lambda row: row <= segment.stop, pending))
        self._chains.load(rows, self._process.tables, ends)
        for row in sorted({row for row in marks.keys() | ends if row >= segment.first}):
            self._chains.advance_to(row)
            if row in marks and marks[row] != tuple(self._chains.digests()):
                self.damage.append(f"prefix digests at row {row} of {self._stream.name} do not match its rows")
                self._chains = None
                return
            self._check_steps(self._chains)
        self.proved = self._chains.rows

    def _check_steps(self, chains: Chains) -> None:
        prefix = chains.digests()
        while self._next < len(self._steps) and self._steps[self._next][Step.END_ROW] == chains.rows:
            step = self._steps[self._next]
            self._next += 1
            digests = list(chains.end_step())
            expected = digests if step[Step.FLAGS] & StepFlag.RECORDED else [0, 0, 0]
            found = [step[column] for column in STEP_DIGESTS]
            if found != [prefix.structure, prefix.values, *expected]:
                self.damage.append(f"digests of step {step[Step.STEP]} of {self._stream.name} do not match its rows")


# --- verify -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckedProcess:
    """The result for one process."""

    name: str
    state: str
    rows: int
    rows_read: int
    """Readable rows; the others are damaged."""
    rows_proved: int
    """Rows with matching prefix digests; those after the first missing row cannot be checked."""
    why: str | None
    values: int = 0
    """Number of recorded values."""
    values_read: int = 0
    """Values that match their digests; the others are damaged."""


@dataclass(frozen=True)
class Verification:
    """The result of ``verify``."""

    SCHEMA: ClassVar = "rltrace.verify/1"
    COMPUTED: ClassVar = ("sound",)

    path: str
    processes: tuple[CheckedProcess, ...]
    chunks: int
    bytes: int
    damage: tuple[str, ...]
    """A sentence for each damaged part."""
    notes: tuple[str, ...]
    """Sentences on harmless findings: torn tails and leftovers."""
    lost_steps: tuple[int, int] | None = None
    """Steps (half open) with unreadable rows; None: none."""

    @property
    def sound(self) -> bool:
        """Whether every part is what was written."""
        return not self.damage


def verify(path: Location | str, progress: Callable[[int, int], None] | None = None) -> Verification:
    """Read and check everything. ``progress`` is called with (segments done, segments in total).

    Raises the errors of ``open_trace``.
    """
    trace = open_trace(path, cached=False)
    if trace.nodes:
        return _of_nodes(trace, [verify(node.path, progress) for node in trace.nodes])
    total = sum(len(s.segments) for p in trace.processes for s in p.streams)
    work = _Work(trace, total, progress)
    checked = [work.check_process(process) for process in trace.processes]
    work.check_documents()
    if trace.journal.torn:
        work.notes.append(f"{JOURNAL}: {trace.journal.torn}")
    if trace.exit is None:
        work.notes.append("the end of the launch was not recorded; it was killed, or is still running")
    work.check_process_starts()
    work.check_leftovers()
    damage = tuple(dict.fromkeys([*map(_hole_text, trace.holes), *work.damage]))
    lost = [steps for process in trace.processes for steps in _lost_steps(process)]
    hull = (min(first for first, _ in lost), max(end for _, end in lost)) if lost else None
    return Verification(str(trace.path), tuple(checked), work.chunks, work.bytes, damage, tuple(work.notes), hull)


def _of_nodes(trace: Trace, parts: Sequence[Verification]) -> Verification:
    """What was found in the traces of all machines."""
    checked = [process for part in parts for process in part.processes]
    named = (replace(one, name=process.name) for one, process in zip(checked, trace.processes, strict=True))
    lost = [part.lost_steps for part in parts if part.lost_steps is not None]

    def all_of(texts: Callable[[Verification], tuple[str, ...]]) -> tuple[str, ...]:
        return tuple(
            f"{node.path.name}: {t}" for node, part in zip(trace.nodes, parts, strict=True) for t in texts(part)
        )

    return Verification(
        str(trace.path),
        tuple(named),
        sum(part.chunks for part in parts),
        sum(part.bytes for part in parts),
        (*trace.lost[: len(trace.lost) - sum(len(node.lost) for node in trace.nodes)], *all_of(lambda p: p.damage)),
        all_of(lambda p: p.notes),
        (min(first for first, _ in lost), max(end for _, end in lost)) if lost else None,
    )


class _Work:
    def __init__(self, trace: Trace, total: int, progress: Callable[[int, int], None] | None) -> None:
        self.trace = trace
        self.damage: list[str] = []
        self.notes: list[str] = []
        self.chunks = 0
        self.bytes = 0
        self._done = 0
        self._total = total
        self._progress = progress

    def check_process(self, process: ProcessTrace) -> CheckedProcess:
        process.load()
        read = proved = 0
        for stream in process.streams:
            steps = process.steps[process.steps[:, Step.STREAM] == stream.index] if process.has_all_steps else None
            check = StreamCheck(process, stream, steps)
            for place, segment in enumerate(stream.segments):
                stream.read_ahead(stream.segments[place : place + AHEAD])
                check.segment(segment)
                self._done += 1
                if self._progress is not None:
                    self._progress(self._done, self._total)
            read, proved = read + check.read, proved + check.proved
            self.damage += check.damage
            self.chunks += stream.counter.chunks
            self.bytes += stream.counter.bytes
        values = process.values
        values_read = values.read_all()
        activations = process.activations
        activations.read_all([stream.index for stream in process.streams])
        for part in (process, values, activations):
            self.chunks += part.counter.chunks
            self.bytes += part.counter.bytes
        if process.journal.torn:
            self.notes.append(f"{process.name}: {process.journal.torn}")
        return CheckedProcess(
            process.name, process.state, process.after_op, read, proved, process.why, len(values), values_read
        )

    def check_documents(self) -> None:
        """Compare every ``zarr.json`` with the one that follows from the journal.

        They are read first: of what is written meanwhile a chunk is there before its document counts it.
        """
        keys = [f"{key}zarr.json" for key, _ in self._documents()]
        self.trace.folder.read_ahead(FileRequest(key, LONGEST_DOCUMENT) for key in keys)
        read = list(map(self._read_document, keys))
        for key, found, (_, valid) in zip(keys, read, self._documents(), strict=True):
            if isinstance(found, UnreadableError):
                self.damage.append(f"{key} {found}")
            elif found not in valid:
                self.damage.append(f"{key} is not what was written; zarr may show this array wrong")

    def _read_document(self, key: str) -> bytes | UnreadableError:
        try:
            return self.trace.folder.read(key, LONGEST_DOCUMENT)
        except UnreadableError as error:
            return error

    def check_process_starts(self) -> None:
        """Check the small files of process starts and of claimed names."""
        names = [name for name in self.trace.folder.names(STARTS) if name.endswith((".json", ".name"))]
        names = [name for name in names if name != "zarr.json"]
        self.trace.folder.read_ahead(FileRequest(f"{STARTS}/{name}", MAX_START_BYTES) for name in names)
        for name in names:
            try:
                data = self.trace.folder.read(f"{STARTS}/{name}", MAX_START_BYTES)
                if not data and name.endswith(".name"):
                    self.notes.append(f"{STARTS}/{name} was being written when its process ended")
                elif not _is_own(name, data):
                    self.damage.append(f"{STARTS}/{name} is not what was written")
            except UnreadableError as error:
                self.damage.append(f"{STARTS}/{name} {error}")

    def check_leftovers(self) -> None:
        """Report files that do not belong to the trace."""
        known = set(self._known())
        running = [process for process in self.trace.processes if process.state == RUNNING]
        self.notes += [f"{p.name} is still being recorded; what it wrote since was not read" for p in running]
        growing = tuple(f"{process.base}/" for process in running)
        files = self.trace.folder.walk()
        if files is None:
            self.notes.append("the server lists no files: those that do not belong to the trace were not looked for")
        for key, _ in files or ():
            if key in known or key.startswith(growing):
                continue
            if key.endswith(PARTIAL):
                self.notes.append(f"{key} was being written when its process ended; it does not belong to the trace")
            elif os.path.basename(key).startswith("c."):  # noqa: PTH119 (a key, not a path)
                self.notes.append(f"{key} was written but never committed; it does not belong to the trace")
            else:
                self.notes.append(f"{key} does not belong to the trace")

    def _documents(self) -> Iterator[tuple[str, list[bytes]]]:
        """(folder, valid documents) of every ``zarr.json``."""
        yield "", [root_document()]
        yield "journal/", [JOURNAL_FOLDER]
        yield f"{STARTS}/", [STARTS_FOLDER]
        yield f"{PROCESSES}/", [group_document()]
        for process in self.trace.processes:
            if process.start_record:
                yield from self._process_documents(process)

    def _process_documents(self, process: ProcessTrace) -> Iterator[tuple[str, list[bytes]]]:
        base = process.base
        yield f"{base}/", [group_document()]
        yield f"{base}/journal/", [JOURNAL_FOLDER]
        yield f"{base}/streams/", [group_document()]
        tables = max((first + len(files) for first, _, files in process.table_records), default=0)
        yield self._array(process, f"{base}/tables/", TABLES, tables)
        steps = max((part.chunk + 1 for part in process.step_parts if part.chunk is not None), default=0)
        yield self._array(process, f"{base}/steps/", STEPS, steps)
        if process.sample_parts:
            series = max((part.chunk + 1 for part in process.sample_parts if part.chunk is not None), default=0)
            yield self._array(process, f"{base}/series/", SERIES, series)
        if process.value_request is not None:
            yield f"{base}/values/", [group_document()]
            last = process.value_parts[-1] if process.value_parts else None
            index = last.rows.stop if last else 0
            yield self._array(process, f"{base}/{VALUE_INDEX.name}/", VALUE_INDEX, index)
            chunks = last.first_chunk + len(last.files) if last else 0
            yield self._array(process, f"{base}/{VALUE_BYTES.name}/", VALUE_BYTES, chunks)
        if process.activations:
            yield f"{base}/activations/", [group_document()]
            for spec in ACTIVATION_ARRAYS:
                parts = (array for part in process.activation_parts for own, array in part.arrays if own is spec)
                chunks = max((array.chunk + len(array.files) for array in parts), default=0)
                yield self._array(process, f"{base}/{spec.name}/", spec, chunks)
        for stream in process.streams:
            segments = stream.segments[-1].chunk + 1 if stream.segments else 0
            yield f"{base}/streams/{stream.index}/", [group_document({"name": stream.name})]
            for spec in (ROWS, CELLS):
                yield self._array(process, f"{base}/streams/{stream.index}/{spec.name}/", spec, segments)

    def _array(self, process: ProcessTrace, key: str, spec: ArraySpec, chunks: int) -> tuple[str, list[bytes]]:
        """The valid documents of an array: a writer killed before a record has counted the chunks after it."""
        last = chunks
        while process.state not in (COMPLETE, STOPPED) and self.trace.folder.holds(f"{key}{spec.key(last)}"):
            last += 1
        return key, [spec.document(number) for number in range(chunks, last + 1)]

    def _known(self) -> Iterator[str]:
        yield JOURNAL
        for key, _ in self._documents():
            yield f"{key}zarr.json"
        for name in self.trace.folder.names(STARTS):
            if name.endswith(
                (".json", ".name", ".failed", ".left-out", ".stopped", ".children", f".{ASLEEP}", f".{REQUEST}")
            ):
                yield f"{STARTS}/{name}"
        for process in self.trace.processes:
            yield f"{process.base}/{JOURNAL}"
            files = [f for _, _, fs in process.table_records for f in fs]
            parts = (*process.step_parts, *process.sample_parts)
            files += [part.file for part in parts if part.file is not None]
            files += [f for stream in process.streams for segment in stream.segments for f in segment.files]
            files += [f for part in process.value_parts for f in (*part.rows.files, *part.files)]
            files += process.activations.files
            yield from (f"{process.base}/{file.key}" for file in files)


def _is_own(name: str, data: bytes) -> bool:
    """Whether the content of a file of ``starts/`` matches its name."""
    if name.endswith(".name"):
        return name_file(data) == name
    start, token = parse_start(data), name.removesuffix(".json")
    return start is not None and start.get("token", token) == token


def _lost_steps(process: ProcessTrace) -> Iterator[tuple[int, int]]:
    """(first, end) of the steps that each hole overlaps, as far as the steps are known."""
    for stream in process.streams:
        steps = process.steps[process.steps[:, Step.STREAM] == stream.index]
        for first, rows, _ in stream.holes:
            ended = int(np.searchsorted(steps[:, Step.END_ROW], first, side="right"))
            last = int(np.searchsorted(steps[:, Step.END_ROW], first + rows, side="left"))
            within = steps[ended : last + 1, Step.STEP]
            if len(within):
                yield int(within[0]), int(within[-1]) + 1


def _hole_text(hole: Mapping[str, object] | tuple[object, ...]) -> str:
    process, stream, first, rows, why = hole
    if stream is None:
        return f"{process}: {why}" if process else str(why)
    return f"{stream}: rows {first} to {int(str(first)) + int(str(rows)) - 1}: {why}"
