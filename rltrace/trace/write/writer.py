"""The writer of one process's rows, tables and steps, chunk by chunk.

Owns the order of a commit (chunks, then ``zarr.json``, then the journal's record) and the splitting of batches into
segments. Runs inside the recorded program, from a background thread and at exit: imports neither zarr nor torch, starts
no thread, draws no random number. After an error it writes nothing more; earlier commits stay readable.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_hexdigest

from rltrace.errors import RecordError
from rltrace.trace.format import chunk_codec as codec
from rltrace.trace.format.arrays import (
    ACTIVATION_ARRAYS,
    CELLS,
    JOURNAL_FOLDER,
    ROWS,
    SERIES,
    STEPS,
    TABLES,
    VALUE_BYTES,
    VALUE_INDEX,
    ArraySpec,
    group_document,
)
from rltrace.trace.format.files import write_whole
from rltrace.trace.format.journal import JournalWriter, first_digest
from rltrace.trace.format.process_start import STARTS, this_process
from rltrace.trace.format.root import JOURNAL, PROCESSES, name_file, record_error
from rltrace.trace.format.row_hashes import Chains, Digests
from rltrace.trace.format.rows import Rows, StepRecord, TableEntry, pack_notes
from rltrace.trace.format.schema import MARK_ROWS, SEGMENT_CELLS, SEGMENT_ROWS, STEP_CHUNK, Sample, Step
from rltrace.trace.format.tables import KeyTables, pack_lines, table_line
from rltrace.trace.write.packers import PendingSteps, RowPacker

if TYPE_CHECKING:
    from rltrace.trace.format.records import ActivationRequest, ValueRequest
    from rltrace.trace.kernels.launches import NewLaunches
    from rltrace.trace.write.packers import ActivationPacker, NewActivations, NewValues, ValuePacker


# --- segments ---------------------------------------------------------------------------------------------------------


def split_segments(rows: Rows) -> list[Rows]:
    """Split rows into as few segments as possible, of at most SEGMENT_ROWS rows and SEGMENT_CELLS cells each.

    Raises ValueError for a row with too many cells.
    """
    if len(rows) <= SEGMENT_ROWS and _cells(rows) <= SEGMENT_CELLS:
        return [rows]
    cells = rows.link_offsets + rows.integer_offsets + rows.float_offsets + rows.digest_offsets
    cells = cells + np.searchsorted(rows.link_notes[:, 0], rows.link_offsets)
    parts, start = [], 0
    while start < len(rows):
        fits = int(np.searchsorted(cells, cells[start] + SEGMENT_CELLS, side="right")) - 1
        stop = min(fits, start + SEGMENT_ROWS, len(rows))
        if stop == start:
            raise ValueError(f"row {rows.first + start} has more than {SEGMENT_CELLS} cells")
        parts.append(rows.cut(start, stop))
        start = stop
    return parts


def _cells(rows: Rows) -> int:
    return len(rows.links) + len(rows.integers) + len(rows.floats) + len(rows.digests) + len(rows.link_notes)


# --- claims -----------------------------------------------------------------------------------------------------------
#
# Processes that start at the same time get different names and folders by exclusive creation.


def make_node(folder: Path, document: bytes) -> None:
    """Create a zarr node: its folder and its ``zarr.json``."""
    folder.mkdir(mode=0o700, exist_ok=True)
    write_whole(os.fspath(folder / "zarr.json"), document)


def claim_name(trace: Path, base: str) -> str:
    """Claim the first of ``base``, ``base#2``, … that no process of the trace has."""
    count = 1
    while True:
        name = base if count == 1 else f"{base}#{count}"
        with suppress(FileExistsError), (trace / STARTS / name_file(name.encode())).open("xb") as file:
            file.write(name.encode())
            return name
        count += 1


def claim_folder(trace: Path) -> Path:
    """Claim the first free ``processes/N``."""
    number = 0
    while True:
        folder = trace / PROCESSES / str(number)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder
        number += 1


# --- writer -----------------------------------------------------------------------------------------------------------


Record = dict[str, object]

NO_SAMPLES: NDArray[np.uint64] = np.zeros((0, len(Sample)), np.uint64)


class ProcessWriter:
    """Writes one process of a trace. Thread-safe; refuses to write in a forked child."""

    def __init__(self, folder: Path, name: str, journal: JournalWriter) -> None:
        self.name = name
        """The claimed name: the requested one, with ``#2``, ``#3`` … where that was taken."""
        self._folder = os.fspath(folder)
        self._journal = journal
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._failure: str | None = None
        self._closed = False
        self.ended = False
        """Whether the end record is written."""
        self._streams: list[Chains] = []
        self._segments: list[int] = []
        self._tables = KeyTables()
        self._table_chunks = 0
        self._pending = PendingSteps()
        self._steps = RowPacker(STEPS, "steps")
        self._samples = RowPacker(SERIES, "samples")
        self._columns_buffer = np.zeros(codec.stored_shape(ROWS), np.uint32)
        self._cells_buffer = np.zeros(SEGMENT_CELLS, np.uint64)

    @classmethod
    def open(cls, trace: Path, facts: Mapping[str, object]) -> ProcessWriter:
        """Claim a name and a folder in the trace for this process. Raises RecordError.

        ``facts``: the requested "name" and more for the first record; pid, host and start time are added.
        """
        requested = str(facts.get("name", "main"))
        try:
            name = claim_name(Path(trace), requested)
            folder = claim_folder(Path(trace))
            for group, document in (("", group_document()), ("journal", JOURNAL_FOLDER), ("streams", group_document())):
                make_node(folder / group, document)
            for spec in (TABLES, STEPS):
                make_node(folder / spec.name, spec.document(0))
            launch = first_digest(os.fspath(Path(trace, JOURNAL)))
            own = {"name": name, "requested": requested, "launch": None if launch is None else f"{launch:016x}"}
            journal = JournalWriter(os.fspath(folder / JOURNAL))
            journal.append([{"type": "start", **this_process(), **facts, **own}])
        except OSError as error:
            raise record_error(f"{trace} cannot be written", error) from error
        return cls(folder, name, journal)

    def facts(self, level: str, engine: str, facts: Mapping[str, str | int | float | bool | None]) -> None:
        """Record facts about the machine and the process; the later of one name counts."""
        self.append({"type": "facts", "level": level, "engine": engine, "facts": dict(facts)})

    def append(self, record: Mapping[str, object]) -> None:
        """Append a record of another type; readers skip types that they do not know."""
        with self._writing("the journal cannot be written"):
            self._journal.append([record])

    def window(self, stream: int, first_step: int, end_step: int | None, row: int) -> None:
        """Record that recording of ops began at ``row``, for these steps (half open; None: to the end)."""
        self.append({"type": "window", "stream": stream, "first_step": first_step, "end_step": end_step, "row": row})

    @cached_property
    def _values(self) -> ValuePacker:
        from rltrace.trace.write.packers import ValuePacker  # most recordings have no values

        return ValuePacker()

    @cached_property
    def _activations(self) -> ActivationPacker:
        from rltrace.trace.write.packers import ActivationPacker

        return ActivationPacker()

    def request_values(self, request: ValueRequest) -> None:
        """Record the request for values, before the first of them."""
        with self._writing("values cannot be recorded"):
            self._make_group("values", VALUE_BYTES, VALUE_INDEX)
            self._journal.append([{"type": "value_request", **request._asdict()}])

    def request_activations(self, request: ActivationRequest) -> None:
        """Record the request for activation rows, before the first of them."""
        with self._writing("activation rows cannot be recorded"):
            self._make_group("activations", *ACTIVATION_ARRAYS)
            self._journal.append([{"type": "activation_request", **request._asdict()}])

    def stream(self, name: str) -> int:
        """Create a stream; returns its number."""
        with self._writing("a stream cannot be started"):
            number = len(self._streams)
            folder = Path(self._folder, "streams", str(number))
            make_node(folder, group_document({"name": name}))
            for spec in (ROWS, CELLS):
                make_node(folder / spec.name, spec.document(0))
            self._journal.append([{"type": "stream", "stream": number, "name": name}])
            self._streams.append(Chains())
            self._segments.append(0)
            return number

    def commit(
        self,
        stream: int,
        rows: Rows | None,
        entries: Sequence[TableEntry] = (),
        steps: Sequence[StepRecord] = (),
        values: NewValues | None = None,
        samples: NDArray[np.uint64] | None = None,
        activations: NewActivations | None = None,
    ) -> None:
        """Write rows of one stream with their table entries and values, and the steps that ended.

        ``rows.first`` is the number of rows committed so far; a step waits for its last row. ``samples``: new samples,
        shape [n, len(Sample)], of series among the entries so far. ``activations``: finished calls, and ops among the
        rows so far.

        Raises RecordError, with ``errno`` after a system error.
        """
        with self._writing("rows cannot be written"):
            records: list[Record] = []
            if entries:
                records += self._write_entries(entries)
            if values:
                records.append(self._values.write(values, self._write_chunk))
            if activations:
                records.append(self._activations.write(activations, self._write_chunk))
            for step in steps:
                self._pending.add(step, self._streams[step.stream].rows)
            chains = self._streams[stream]
            if rows is not None and len(rows):
                if rows.first != chains.rows:
                    raise ValueError(f"stream {stream} has {chains.rows} rows; the next is not row {rows.first}")
                for part in split_segments(rows):
                    records.append(self._write_segment(stream, part))
                    self._journal.append(records)
                    records = []
            records += self._steps.write(self._pending.pop_ready(self._streams), self._write_chunk)
            if samples is not None and len(samples):
                if not self._samples.count:
                    make_node(Path(self._folder, SERIES.name), SERIES.document(0))
                records += self._samples.write(samples, self._write_chunk)
            if records:
                self._journal.append(records)

    def commit_launches(self, entries: Sequence[TableEntry], launches: NewLaunches) -> None:
        """Write launches of rows that were committed earlier, with their table entries. Raises RecordError."""
        from rltrace.trace.kernels.launches import launches_record

        with self._writing("rows cannot be written"):
            records = self._write_entries(entries) if entries else []
            self._journal.append([*records, launches_record(launches)])

    def steps_asleep(self, steps: NDArray[np.uint64], entries: Sequence[TableEntry]) -> None:
        """Write attempts of one stream, shape [n, len(Step)], of which only STEP to SKIPPED are known: the recorder was
        asleep. ``entries``: of their optimizers. All rows and attempts before them are committed. Raises RecordError.
        """
        with self._writing("steps cannot be written"):
            stream = int(steps[0, Step.STREAM])
            chains = self._streams[stream]
            chains.end_step()
            steps[:, Step.END_ROW] = chains.rows
            steps[:, [Step.PREFIX_STRUCTURE, Step.PREFIX_VALUES]] = chains.digests()[:2]
            records = self._write_entries(entries) if entries else []
            records += self._steps.write(self._pending.pop_ready(self._streams), self._write_chunk)
            for at in range(0, len(steps), STEP_CHUNK):
                records += self._steps.write(steps[at : at + STEP_CHUNK], self._write_chunk)
            first, last = steps[[0, -1], Step.STEP].tolist()
            self._journal.append([*records, {"type": "asleep", "first_step": first, "end_step": last + 1}])

    def close(
        self,
        state: str,
        ending: Mapping[str, object],
        generators: tuple[int, int, int, int] | None = None,
        parameters: Mapping[int, int] | None = None,
    ) -> None:
        """Write the end record; ``state`` is "complete", "stopped" or "damaged". A second call does nothing.

        ``generators``: digests of RNG states, in the order of ``schema.GENERATORS``; None: not known.
        ``parameters``: digests of parameters by the ordinal of their optimizer, where known.
        """
        with self._lock:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
            try:
                records: list[Record] = []
                if not self._failure:
                    left = self._pending.pop_ready(self._streams, give_up=True)
                    records = self._steps.write(left, self._write_chunk, last=True)
                    records += self._samples.write(NO_SAMPLES, self._write_chunk, last=True)
                end: Record = {"type": "end", "state": state, "exit": dict(ending)}
                if generators is not None:
                    end["generators"] = [f"{digest:016x}" for digest in generators]
                end["parameters"] = [[k, f"{digest:016x}"] for k, digest in sorted((parameters or {}).items())]
                self._journal.append([*records, end])
                self.ended = True
            except OSError as error:
                raise record_error(f"the end of {self.name} cannot be written", error) from error

    def _make_group(self, name: str, *arrays: ArraySpec) -> None:
        make_node(Path(self._folder, name), group_document())
        for spec in arrays:
            make_node(Path(self._folder, spec.name), spec.document(0))

    @contextmanager
    def _writing(self, what: str) -> Iterator[None]:
        """Hold the lock; turn an error while writing into RecordError, and refuse all later writes."""
        with self._lock:
            if os.getpid() != self._pid:
                raise RecordError(f"{self.name} is another process's recording; a forked child opens a separate one")
            if self._closed:
                raise RecordError(f"the recording of {self.name} has ended")
            if self._failure:
                raise RecordError(f"the recording of {self.name} stopped before: {self._failure}")
            try:
                yield
            except BaseException as error:
                self._failure = f"{what} ({self.name}): {error}"
                if isinstance(error, OSError):
                    raise record_error(f"{what} ({self.name})", error) from error
                raise

    def _write_entries(self, entries: Sequence[TableEntry]) -> list[Record]:
        self._tables.extend(entries)
        files = []
        for data in pack_lines([table_line(entry) for entry in entries]):
            chunk = np.zeros(TABLES.chunk, np.uint8)
            chunk[: len(data)] = np.frombuffer(data, np.uint8)
            files.append(self._write_chunk("tables", TABLES, self._table_chunks, chunk))
            self._table_chunks += 1
        first = self._table_chunks - len(files)
        return [{"type": "tables", "chunk": first, "entries": self._tables.counts(), "files": files}]

    def _write_segment(self, stream: int, rows: Rows) -> Record:
        chains = self._streams[stream]
        segment = self._segments[stream]
        folder = f"streams/{stream}"
        sections = [rows.links, rows.integers, rows.floats, rows.digests]
        notes = pack_notes(rows)
        self._columns_buffer[:, : len(rows)] = rows.columns.T
        self._columns_buffer[:, len(rows) :] = 0
        files = [
            self._write_chunk(f"{folder}/rows", ROWS, segment, self._columns_buffer),
            self._write_chunk(f"{folder}/cells", CELLS, segment, self._fill_cells([*sections, notes])),
        ]
        marks = self._advance(stream, rows)
        self._segments[stream] += 1
        return {
            "type": "commit",
            "stream": stream,
            "segment": segment,
            "first": rows.first,
            "rows": len(rows),
            "sections": [len(section) for section in sections],
            **({"link_notes": len(notes)} if len(notes) else {}),
            "marks": [[row, *_hex(digests)] for row, digests in marks],
            "end": _hex(chains.digests()),
            "files": files,
        }

    def _advance(self, stream: int, rows: Rows) -> list[tuple[int, Digests]]:
        """Chain the rows, stopping at marks and ends of steps; returns the marks within the segment."""
        chains = self._streams[stream]
        end = rows.first + len(rows)
        due = set(range(rows.first // MARK_ROWS * MARK_ROWS + MARK_ROWS, end, MARK_ROWS))
        ending = {row for row in self._pending.ends(stream) if rows.first <= row <= end}
        chains.load(rows, self._tables, ending)
        marks = []
        for row in sorted(due | ending | {end}):
            chains.advance_to(row)
            self._pending.fill(stream, chains)
            if row in due:
                marks.append((row, chains.digests()))
        return marks

    def _write_chunk(self, folder: str, spec: ArraySpec, chunk: int, stored: NDArray[Any]) -> list[Any]:
        """Write one chunk and the array's new shape; returns its journal entry: key, length, digest."""
        encoded = codec.encode(spec, stored)
        write_whole(f"{self._folder}/{folder}/{spec.key(chunk)}", encoded)
        write_whole(f"{self._folder}/{folder}/zarr.json", spec.document(chunk + 1))
        return [f"{folder}/{spec.key(chunk)}", len(encoded), xxh3_64_hexdigest(encoded)]

    def _fill_cells(self, sections: Sequence[NDArray[Any]]) -> NDArray[np.uint64]:
        at = 0
        for section in sections:
            self._cells_buffer[at : at + len(section)] = section.view(np.uint64)
            at += len(section)
        self._cells_buffer[at:] = 0
        return self._cells_buffer


def _hex(digests: Digests) -> list[str]:
    return [f"{digest:016x}" for digest in digests]
