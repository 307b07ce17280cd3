"""One process of a trace being read: its state, and what it wrote, read when it is asked for.

Owns what follows from what its journal tells (``rltrace.trace.read.process``), and which state the process is in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.format.arrays import ROWS, TABLES
from rltrace.trace.format.files import Folder, UnreadableError, printable
from rltrace.trace.format.journal import Journal, Record
from rltrace.trace.format.records import (
    MOST,
    MOST_STREAMS,
    ActivationPart,
    ActivationRequest,
    ValuePart,
    ValueRequest,
    add_kept,
    check_facts,
    check_fields,
    chunk_files,
    number,
    parse_asked,
    parse_asked_rows,
    parse_generators,
    parse_kept,
    parse_parameters,
    parse_segment,
    parse_values,
)
from rltrace.trace.format.records import add_part as add_values
from rltrace.trace.format.root import COMPLETE, DAMAGED, JOURNAL, KILLED, NEVER_RECORDED, RUNNING, STOPPED
from rltrace.trace.format.rows import ChunkFile, Rows
from rltrace.trace.format.schema import Step
from rltrace.trace.format.tables import Table, parse_tables
from rltrace.trace.kernels.launches import Launched
from rltrace.trace.kernels.library_reports import LibraryReports, ReportedKernels
from rltrace.trace.read.activations import Activations
from rltrace.trace.read.chunks import Counter, Samples, StoredAttempts, read_chunk
from rltrace.trace.read.names import Words
from rltrace.trace.read.stream import StreamTrace
from rltrace.trace.read.values import Values
from rltrace.trace.write.packers import StepPart

# --- told -------------------------------------------------------------------------------------------------------------
#
# What the journal of one process tells, record by record; and where a record makes no sense.
#
# Owns the rule that the journal's records decide what is there. Which chunks hold it is noted here, none is read.


LOST_RECORD = "the journal's record of them is damaged"


class JournalContent:
    """Everything that the records of one journal say, those of them that make sense."""

    def __init__(
        self,
        base: str,
        damage: list[str],
        stream: Callable[[str, int], StreamTrace],
        attempts: StoredAttempts,
        samples: Samples,
        *,
        sliced: bool,
    ) -> None:
        """``damage`` is told of records that make no sense; ``stream`` makes one of a name and a number."""
        self.base = base
        self.birth: Record = {}
        self.facts: dict[str, object] = {}
        """Of the machine and the process; the later of one name."""
        self.level = ""
        self.engine = ""
        self.state: str | None = None
        """How it ended; None: it left no word."""
        self.exit: Record | None = None
        """What is known of the ending; None: it left no word."""
        self.generators: tuple[int, ...] | None = None
        self.parameters: dict[int, int] = {}
        self.windows: list[tuple[int, int | None]] = []
        self.streams: dict[int, StreamTrace] = {}
        self.attempts = attempts
        self.samples = samples
        self.table_records: list[tuple[int, dict[str, int], list[ChunkFile]]] = []
        self.asked: ValueRequest | None = None
        self.value_parts: list[ValuePart] = []
        self.asked_rows: ActivationRequest | None = None
        self.kept_parts: list[ActivationPart] = []
        self.launched = Launched()
        self._for_now = False
        """Whether that is how it ends only where no more rows follow."""
        self._damage = damage
        self._make_stream = stream
        self._sliced = sliced

    @property
    def name(self) -> str:
        return str(self.birth.get("name") or self.base)

    def take_all(self, journal: Journal) -> None:
        for at, record in enumerate(printable(journal.records) if journal.unprintable else journal.records):
            self._take(at, record)

    def _take(self, at: int, record: Record) -> None:
        if self._for_now and record["type"] in ("commit", "steps"):  # it went on; facts it may tell on its way out
            self._for_now, self.state, self.exit = False, None, None
        try:
            take = getattr(self, f"_take_{record['type']}", None)
            if take is not None:
                take(record)
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            self._damage.append(f"the journal's record {at} ({record['type']}) is inconsistent: {error}")

    def _take_birth(self, record: Record) -> None:
        if self.birth:
            raise ValueError("a process starts only once")
        check_fields(record, name=str, token=str)
        self.birth = record

    def _take_facts(self, record: Record) -> None:
        check_fields(record, level=str, engine=str, facts=dict)
        check_facts(record["facts"])
        self.level, self.engine = record["level"], record["engine"]
        self.facts.update(record["facts"])

    def _take_stream(self, record: Record) -> None:
        check_fields(record, name=str)
        index, name = number(record, "stream", MOST_STREAMS), record["name"]
        if any(stream.name == name for stream in self.streams.values()):
            raise ValueError(f"there is already a stream {name}")
        self._stream(index).name = name

    def _take_window(self, record: Record) -> None:
        first, end = number(record, "first_step"), record["end_step"]
        window = (first, None if end is None else number(record, "end_step"))
        self._stream(number(record, "stream", MOST_STREAMS)).windows.append((*window, number(record, "row")))
        if window not in self.windows:
            self.windows.append(window)

    def _take_commit(self, record: Record) -> None:
        stream = self._stream(number(record, "stream", MOST_STREAMS))
        segment = parse_segment(record, sliced=self._sliced)
        last = stream.segments[-1].index if stream.segments else -1
        if segment.first < stream.rows or segment.index <= last:
            raise ValueError("its rows exist already")
        if segment.first > stream.rows:
            stream.add_hole(stream.rows, segment.first - stream.rows, LOST_RECORD)
        stream.segments.append(segment)

    def _take_tables(self, record: Record) -> None:
        entries = {str(name): number(record["entries"], name) for name in record["entries"]}
        chunk, files = number(record, "chunk"), chunk_files(record, "tables", TABLES)
        if self.table_records and chunk < self.table_records[-1][0] + len(self.table_records[-1][2]):
            raise ValueError("its chunks exist already")
        self.table_records.append((chunk, entries, files))

    def _take_steps(self, record: Record) -> None:
        self.attempts.take(record)

    def _take_series(self, record: Record) -> None:
        self.samples.take(record)

    def _take_value_request(self, record: Record) -> None:
        self.asked = parse_asked(record)

    def _take_values(self, record: Record) -> None:
        add_values(self.value_parts, parse_values(record, sliced=self._sliced))

    def _take_activation_request(self, record: Record) -> None:
        self.asked_rows = parse_asked_rows(record)

    def _take_activations(self, record: Record) -> None:
        add_kept(self.kept_parts, parse_kept(record, sliced=self._sliced))

    def _take_launches(self, record: Record) -> None:
        self.launched.take(record)

    def _take_provisional_end(self, record: Record) -> None:
        self.state = self.exit = None
        self._for_now = record["state"] is not None
        if self._for_now:
            self._take_ending(record)

    def _take_ending(self, record: Record) -> None:
        check_fields(record, state=str, exit=dict)
        state = record["state"]
        self.state = state if state in (COMPLETE, STOPPED, DAMAGED) else STOPPED
        self.exit = record["exit"]

    def _take_end(self, record: Record) -> None:
        self._take_ending(record)
        self.generators = parse_generators(record)
        self.parameters = parse_parameters(record)

    def _stream(self, index: int) -> StreamTrace:
        if index not in self.streams:
            self.streams[index] = self._make_stream(f"{self.name}/stream{index}", index)
        return self.streams[index]


# --- process ----------------------------------------------------------------------------------------------------------


MOST_TABLES = 1 << 28
"""Bytes of tables that are read of one process."""


class TraceHole(NamedTuple):
    """A part of a trace that cannot be read."""

    process: str
    stream: str | None
    """None: the damage is not in rows."""
    first: int | None
    rows: int | None
    """None: not known how many."""
    why: str


class ProcessTrace:
    """One process that opened its part of a trace."""

    def __init__(
        self, folder: Folder, base: str, journal: Journal, slice_: str | None = None, ran: LibraryReports | None = None
    ) -> None:
        self.base = base
        """Its folder in the trace, ``processes/N``."""
        self.ran = ran
        """What the libraries said that they ran; None: they were not asked."""
        self.journal = journal
        self.other_holes: list[str] = list(journal.damage)
        self._folder = folder
        self._slice = slice_
        self._counter = Counter()
        self._attempts = StoredAttempts(folder, base, self._counter, self.other_holes, self._latest_end)
        self._samples = Samples(folder, base, self._counter, self.other_holes)
        self._told = told = JournalContent(
            base, self.other_holes, self._new_stream, self._attempts, self._samples, sliced=slice_ is not None
        )
        told.take_all(journal)
        self._take_over(told)
        if not self.other_holes:
            self._miss_records()
        self.record_damage = tuple(self.other_holes)
        """Records that are lost, or that make no sense."""
        if self.record_damage:
            self._miss_rows_of_steps()
        for stream in self._streams.values():
            stream.check_sizes()

    def _take_over(self, told: JournalContent) -> None:
        self.birth = told.birth
        self.facts = told.facts
        """Of the machine and the process; the later of one name."""
        self.level, self.engine = told.level, told.engine
        self.exit = told.exit
        """What is known of the process's ending; None: it left no word."""
        self.generators = told.generators
        """Digests of the generators' states as it ended, in the order of ``schema.GENERATORS``; None: not known."""
        self.parameters = told.parameters
        """By the ordinal of an optimizer, the digest of its parameters as the process ended, where that is known."""
        self.windows = told.windows
        """(first step, end step or None) of the recorded ops; empty: everything or nothing was."""
        self.table_records = told.table_records
        """(first chunk, entries of each table so far, files)."""
        self.asked = told.asked
        """Which values were to be kept; None: none."""
        self.value_parts = told.value_parts
        """Where the values stand, commit by commit."""
        self.kept_parts = told.kept_parts
        """Where rows of tensors stand, commit by commit."""
        self.launched = told.launched
        """What a profiler saw launched for rows; falsy: none looked."""
        self._ended = told.state
        self._streams = told.streams

    @property
    def name(self) -> str:
        return self._told.name

    @property
    def token(self) -> str | None:
        token = self.birth.get("token")
        return token if isinstance(token, str) else None

    @property
    def streams(self) -> tuple[StreamTrace, ...]:
        return tuple(self._streams[index] for index in sorted(self._streams))

    @property
    def after_op(self) -> int:
        """Visible rows of all streams together."""
        return sum(stream.rows for stream in self._streams.values())

    @property
    def holes(self) -> tuple[TraceHole, ...]:
        """All damage found so far; reading may find more."""
        own = [TraceHole(self.name, None, None, None, why) for why in self.other_holes]
        return (*own, *(TraceHole(self.name, s.name, *hole) for s in self.streams for hole in s.holes))

    @property
    def state(self) -> str:
        """One of "complete", "running", "killed", "damaged", "stopped", "never-recorded"."""
        if self.holes:
            return DAMAGED
        if not self.journal.records:
            return NEVER_RECORDED
        if self._ended is not None:
            return self._ended
        return RUNNING if self.journal.alive else KILLED

    def broke_off(self, why: str) -> None:
        """Its recorder failed, and left word of that beside the journal, which could not take it."""
        self._ended, self.exit = DAMAGED, {"why": why}

    @property
    def told_its_end(self) -> bool:
        """Whether its journal is whole and says that it ran to its end: then it had no rows but those told of."""
        return self._ended == COMPLETE and not self.record_damage

    @property
    def why(self) -> str | None:
        """One sentence on a state that is not "complete"."""
        state = self.state
        if state == DAMAGED and self.holes:
            return self.holes[0].why
        if state == RUNNING:
            return f"process {self.birth.get('pid')} is still recording"
        if state == NEVER_RECORDED:
            return "it ended before its first record"
        if state == KILLED:
            torn = f"; {self.journal.torn}" if self.journal.torn else ""
            return f"it ended without an end record; what it had not committed after op {self.after_op} is lost{torn}"
        if state in (STOPPED, DAMAGED):
            return str((self.exit or {}).get("why") or "recording ended before the process did")
        return None

    @cached_property
    def tables(self) -> Mapping[str, Table]:
        """The interned tables, by name; entries that damage took are not ``present``. With what the libraries said."""
        return self._stored if self._kernels is None else {**self._stored, "kernels": self._kernels.table}

    @cached_property
    def words(self) -> Words:
        """What the entries of the tables read."""
        return Words({name: table.payloads for name, table in self.tables.items()})

    @cached_property
    def _kernels(self) -> ReportedKernels | None:
        return None if self.ran is None else ReportedKernels(self._stored["kernels"], self.ran.calls.values())

    def _with_what_ran(self, stream: int, rows: Rows) -> Rows:
        told = rows if self._kernels is None else self._kernels.put(rows, self._stored)
        return self.launched.put(stream, told, self._stored["kernels"]) if self.launched else told

    @cached_property
    def _stored(self) -> Mapping[str, Table]:
        """The tables as they were written."""
        parts: list[bytes] = []
        counts: dict[str, int] = {}
        expected = size = 0
        for first, entries, files in self.table_records:
            counts = entries
            parts.extend([b"\n"] if first > expected else [])
            for file in files:
                parts.append(self._table_bytes(file))
                size += len(parts[-1])
            if size > MOST_TABLES:
                self.other_holes.append(f"its tables exceed the reader's limit of {MOST_TABLES:,} bytes")
                break
            expected = first + len(files)
        return parse_tables(b"".join(parts), counts)

    @cached_property
    def values(self) -> Values:
        """The tensor values that were asked for; falsy where none were. Their files' sizes are looked at now."""
        layouts, parts = self.tables["layouts"], self.value_parts
        made = Values(self._folder, self.base, self.asked, parts, layouts, self._slice, self.other_holes.append)
        made.check_sizes()
        return made

    @cached_property
    def kept_rows(self) -> Activations:
        """The rows of tensors that were asked for; falsy where none were. Their files' sizes are looked at now."""
        made = Activations(
            self._folder,
            self.base,
            self._told.asked_rows,
            self.kept_parts,
            lambda: self.tables,
            lambda stream: self._streams[stream].rows if stream in self._streams else 0,
            self.other_holes.append,
        )
        made.check_sizes()
        return made

    @property
    def step_parts(self) -> list[StepPart]:
        """Where the finished attempts stand, in the order of their ending."""
        return self._attempts.parts

    @property
    def steps(self) -> NDArray[np.uint64]:
        """Finished optimizer attempts that could be read, shape [n, len(Step)], in the order of their ending."""
        return self._attempts.all

    def steps_of(self, part: StepPart) -> NDArray[np.uint64]:
        """The attempts of one of ``step_parts``, without reading the others; none where they cannot be read."""
        return self._attempts.of(part)

    @property
    def step_count(self) -> int:
        """Attempts that the journal tells of, whether or not they can be read."""
        return sum(part.count for part in self.step_parts)

    @property
    def has_all_steps(self) -> bool:
        """Whether every attempt from the first to the last one that is known of can be read."""
        return len(self.steps) == (self.step_parts[-1].stop if self.step_parts else 0)

    @property
    def sample_parts(self) -> list[StepPart]:
        """Where the samples of series stand, in the order in which they were taken."""
        return self._samples.parts

    @property
    def samples(self) -> NDArray[np.uint64]:
        """Samples of all series that could be read, shape [n, len(Sample)], in the order in which they were taken."""
        return self._samples.all

    @property
    def chunks_read(self) -> int:
        return self._counter.chunks

    @property
    def bytes_read(self) -> int:
        return self._counter.bytes

    def load(self) -> None:
        """Read tables, steps and samples now, so that their damage shows in ``holes``."""
        _ = self.tables, self.steps, self.samples

    def _latest_end(self, stream: int) -> int:
        """No step of this stream ends at a later row."""
        known = self._streams.get(stream)
        return known.rows if known is not None and not self.record_damage else MOST

    def _miss_records(self) -> None:
        """A writer begins a segment once the journal tells of the one before; two that it doesn't tell of were told."""
        for stream in self._streams.values():
            later = (stream.segments[-1].index if stream.segments else -1) + 2
            key = f"{self.base}/streams/{stream.index}/{ROWS.name}/{ROWS.key(later)}"
            if self._folder.holds(key) and self._folder.size(f"{self.base}/{JOURNAL}") == self.journal.length:
                self.other_holes.append(
                    f"{self.base}/{JOURNAL} has lost its last records: {key} was written after them"
                )

    def _miss_rows_of_steps(self) -> None:
        """Rows up to the end of a step were there, though the damaged journal tells of none."""
        for stream, end in self.steps[:, [Step.STREAM, Step.END_ROW]].tolist():
            if stream in self._streams and end > self._streams[stream].rows:
                self._streams[stream].miss_rows(end, LOST_RECORD)

    def _table_bytes(self, file: ChunkFile) -> bytes:
        try:
            chunk = read_chunk(self._folder, self.base, TABLES, file, self._counter)
        except UnreadableError as error:
            self.other_holes.append(f"{self.base}/{file.key} {error}; rows that need its table entries cannot be read")
            return b"\n"
        return chunk.tobytes().partition(b"\0")[0]  # lines hold no zero byte, JSON escapes it

    def _new_stream(self, name: str, index: int) -> StreamTrace:
        finish = partial(self._with_what_ran, index)
        return StreamTrace(name, index, self._folder, self.base, lambda: self._stored, self._slice, finish)
