"""One process of a trace: its state, and its data, read when first used.

Owns the content of its journal, and the state of the process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.format.arrays import ROWS, TABLES
from rltrace.trace.format.files import TraceStore, UnreadableError, printable
from rltrace.trace.format.interleaving import last_of, parse_runs
from rltrace.trace.format.journal import Journal, Record
from rltrace.trace.format.messages import MessageEnds, parse_messages
from rltrace.trace.format.records import (
    MAX_COUNT,
    MAX_STREAMS,
    ActivationPart,
    ActivationRequest,
    LinkFault,
    OptimizerStart,
    SourceLines,
    StepPart,
    ValuePart,
    ValueRequest,
    add_activations,
    add_values,
    check_facts,
    check_fields,
    chunk_files,
    number,
    parse_activation_request,
    parse_activations,
    parse_generators,
    parse_link_fault,
    parse_optimizer,
    parse_parameters,
    parse_segment,
    parse_sources,
    parse_value_request,
    parse_values,
)
from rltrace.trace.format.root import COMPLETE, DAMAGED, JOURNAL, KILLED, NEVER_RECORDED, RUNNING, STOPPED
from rltrace.trace.format.rows import ChunkFile, Rows
from rltrace.trace.format.schema import Step
from rltrace.trace.format.shards import StepShards, parse_shards
from rltrace.trace.format.tables import Table, parse_tables
from rltrace.trace.kernels.launches import RecordedLaunches
from rltrace.trace.kernels.library_reports import LibraryReports, ReportedKernels
from rltrace.trace.read.activations import Activations
from rltrace.trace.read.chunks import Counter, Samples, StoredAttempts, read_ahead, read_chunk
from rltrace.trace.read.names import Words
from rltrace.trace.read.stream import StreamTrace
from rltrace.trace.read.values import Values

# --- journal ----------------------------------------------------------------------------------------------------------
#
# The journal's records decide what a process holds, and in which chunks; no chunk is read here.


LOST_RECORD = "the journal's record of them is damaged"


class JournalContent(ABC):
    """The content of the valid records of one journal."""

    _attempts: StoredAttempts
    _samples: Samples

    def __init__(self, base: str, damage: list[str]) -> None:
        """``damage`` gets a sentence for each invalid record."""
        self.base = base
        """The folder of the process in the trace, ``processes/N``."""
        self.start_record: Record = {}
        self.facts: dict[str, object] = {}
        """Of the machine and the process; the later of one name counts."""
        self.level = ""
        self.engine = ""
        self.exit: Record | None = None
        """Facts of the process's end; None: not recorded."""
        self.generators: tuple[int, ...] | None = None
        """Digests of RNG states at its end, in the order of ``schema.GENERATORS``; None: not known."""
        self.parameters: dict[int, int] = {}
        """Digests of parameters at its end, by the ordinal of their optimizer, where known."""
        self.optimizer_starts: dict[int, OptimizerStart] = {}
        """What the optimizers began with, by their ordinals, where that was recorded."""
        self.sources: dict[str, SourceLines] = {}
        """Source files that it loaded, by their names in call stacks."""
        self.windows: list[tuple[int, int | None]] = []
        """(first step, end step or None) of the recorded ops; empty: all or none were."""
        self.asleep: list[tuple[int, int]] = []
        """(first step, end step) of steps of which nothing was recorded, as the run was not armed for them."""
        self.table_records: list[tuple[int, dict[str, int], list[ChunkFile]]] = []
        """(first chunk, entries of each table so far, files)."""
        self.value_request: ValueRequest | None = None
        """Which values to record; None: none."""
        self.value_parts: list[ValuePart] = []
        """The recorded values, commit by commit."""
        self.activation_request: ActivationRequest | None = None
        self.activation_parts: list[ActivationPart] = []
        """The recorded activation rows, commit by commit."""
        self.launches = RecordedLaunches()
        """Launches that a profiler saw; falsy: no profiler was active."""
        self.shards: list[StepShards] = []
        """Of parameters, gradients and optimizer state, step by step."""
        self.messages: list[MessageEnds] = []
        """What its streams sent and received."""
        self.peers: dict[str, str] = {}
        """By channel the one of the other end of its connection, as far as this process made it."""
        self.checks_links = False
        """Whether memory was compared between its uses (``record --check-links``)."""
        self.link_faults: list[LinkFault] = []
        """What that found, in the order in which it was noticed."""
        self._streams: dict[int, StreamTrace] = {}
        self._end_state: str | None = None
        """How the process ended; None: not recorded."""
        self._provisional = False
        """Whether that end holds only if no more rows follow."""
        self._damage = damage

    @property
    def name(self) -> str:
        return str(self.start_record.get("name") or self.base)

    def _read_journal(self, journal: Journal) -> None:
        for at, record in enumerate(printable(journal.records) if journal.unprintable else journal.records):
            self._read(at, record)

    def _read(self, at: int, record: Record) -> None:
        if self._provisional and record["type"] in ("commit", "steps"):  # it continued; facts may still follow
            self._provisional, self._end_state, self.exit = False, None, None
        try:
            read = getattr(self, f"_read_{record['type']}", None)
            if read is not None:
                read(record)
        except (KeyError, ValueError, TypeError, OverflowError) as error:
            self._damage.append(f"the journal's record {at} ({record['type']}) is inconsistent: {error}")

    def _read_start(self, record: Record) -> None:
        if self.start_record:
            raise ValueError("a process starts only once")
        check_fields(record, name=str, token=str)
        self.start_record = record

    def _read_facts(self, record: Record) -> None:
        check_fields(record, level=str, engine=str, facts=dict)
        check_facts(record["facts"])
        self.level, self.engine = record["level"], record["engine"]
        self.facts.update(record["facts"])

    def _read_link_checks(self, _record: Record) -> None:
        self.checks_links = True

    def _read_link_fault(self, record: Record) -> None:
        self.link_faults.append(parse_link_fault(record))

    def _read_stream(self, record: Record) -> None:
        check_fields(record, name=str)
        index, name = number(record, "stream", MAX_STREAMS), record["name"]
        if any(stream.name == name for stream in self._streams.values()):
            raise ValueError(f"there is already a stream {name}")
        self._stream(index).name = name

    def _read_interleaving(self, record: Record) -> None:
        stream, other = self._stream(number(record, "stream", MAX_STREAMS)), number(record, "other", MAX_STREAMS)
        if stream.torch_stream not in (None, other):
            raise ValueError(f"stream {stream.name} is interleaved with another one already")
        stream.torch_stream = other
        stream.interleaving += parse_runs(record["runs"], last_of(stream.interleaving))

    def _read_messages(self, record: Record) -> None:
        self.messages.append(parse_messages(record))

    def _read_channel(self, record: Record) -> None:
        check_fields(record, channel=str, peer=str)
        self.peers[record["channel"]] = record["peer"]
        self.peers[record["peer"]] = record["channel"]

    def _read_window(self, record: Record) -> None:
        first, end = number(record, "first_step"), record["end_step"]
        window = (first, None if end is None else number(record, "end_step"))
        self._stream(number(record, "stream", MAX_STREAMS)).windows.append((*window, number(record, "row")))
        if window not in self.windows:
            self.windows.append(window)

    def _read_asleep(self, record: Record) -> None:
        first, end = number(record, "first_step"), number(record, "end_step")
        if self.asleep and self.asleep[-1][1] == first:
            first = self.asleep.pop()[0]
        self.asleep.append((first, end))

    def _read_commit(self, record: Record) -> None:
        stream = self._stream(number(record, "stream", MAX_STREAMS))
        segment = parse_segment(record)
        last = stream.segments[-1].chunk if stream.segments else -1
        if segment.first < stream.rows or segment.chunk <= last:
            raise ValueError("its rows exist already")
        if segment.first > stream.rows:
            stream.add_hole(stream.rows, segment.first - stream.rows, LOST_RECORD)
        stream.segments.append(segment)

    def _read_tables(self, record: Record) -> None:
        entries = {str(name): number(record["entries"], name) for name in record["entries"]}
        chunk, files = number(record, "chunk"), chunk_files(record, "tables", TABLES)
        if self.table_records and chunk < self.table_records[-1][0] + len(self.table_records[-1][2]):
            raise ValueError("its chunks exist already")
        self.table_records.append((chunk, entries, files))

    def _read_steps(self, record: Record) -> None:
        self._attempts.add_record(record)

    def _read_series(self, record: Record) -> None:
        self._samples.add_record(record)

    def _read_value_request(self, record: Record) -> None:
        self.value_request = parse_value_request(record)

    def _read_values(self, record: Record) -> None:
        add_values(self.value_parts, parse_values(record))

    def _read_activation_request(self, record: Record) -> None:
        self.activation_request = parse_activation_request(record)

    def _read_activations(self, record: Record) -> None:
        add_activations(self.activation_parts, parse_activations(record))

    def _read_shards(self, record: Record) -> None:
        self.shards.append(parse_shards(record))

    def _read_optimizer(self, record: Record) -> None:
        ordinal, start = parse_optimizer(record)
        self.optimizer_starts.setdefault(ordinal, start)

    def _read_sources(self, record: Record) -> None:
        self.sources |= parse_sources(record)

    def _read_launches(self, record: Record) -> None:
        self.launches.add(record)

    def _read_provisional_end(self, record: Record) -> None:
        self._end_state = self.exit = None
        self._provisional = record["state"] is not None
        if self._provisional:
            self._read_ending(record)

    def _read_ending(self, record: Record) -> None:
        check_fields(record, state=str, exit=dict)
        state = record["state"]
        self._end_state = state if state in (COMPLETE, STOPPED, DAMAGED) else STOPPED
        self.exit = record["exit"]

    def _read_end(self, record: Record) -> None:
        self._read_ending(record)
        self.generators = parse_generators(record)
        self.parameters = parse_parameters(record)

    @abstractmethod
    def _new_stream(self, name: str, index: int) -> StreamTrace:
        """A stream of which the journal describes the rows."""

    def _stream(self, index: int) -> StreamTrace:
        if index not in self._streams:
            self._streams[index] = self._new_stream(f"{self.name}/stream{index}", index)
        return self._streams[index]


# --- process ----------------------------------------------------------------------------------------------------------


MAX_TABLE_BYTES = 1 << 28
"""Of the tables of one process."""


class TraceHole(NamedTuple):
    """A part of a trace that cannot be read."""

    process: str
    stream: str | None
    """None: the damage is not in rows."""
    first: int | None
    rows: int | None
    """None: unknown."""
    why: str


class ProcessTrace(JournalContent):
    """One process with a folder in the trace."""

    def __init__(
        self, folder: TraceStore, base: str, journal: Journal, library_reports: LibraryReports | None = None
    ) -> None:
        self.other_holes: list[str] = list(journal.damage)
        super().__init__(base, self.other_holes)
        self.library_reports = library_reports
        """Kernels that libraries reported; None: they were not queried."""
        self.journal = journal
        self._folder = folder
        self.counter = Counter()
        self._attempts = StoredAttempts(folder, base, self.counter, self.other_holes, self._latest_end)
        self._samples = Samples(folder, base, self.counter, self.other_holes)
        self._read_journal(journal)
        if not self.other_holes:
            self._find_lost_records()
        self._earlier = 0
        """Number of attempts that ``from_step`` left out."""
        self.record_damage = tuple(self.other_holes)
        """Sentences on lost and invalid records."""
        # of rows up to the end of a step that the damaged journal does not describe
        for stream, end in self.steps[:, [Step.STREAM, Step.END_ROW]].tolist() if self.record_damage else ():
            if stream in self._streams and end > self._streams[stream].rows:
                self._streams[stream].add_lost_rows(end, LOST_RECORD)
        for each in self._streams.values():
            each.check_sizes()

    def rename(self, name: str) -> None:
        """Give the process another name, and its streams theirs."""
        for stream in self._streams.values():
            stream.name = name + stream.name.removeprefix(self.name)
        self.start_record["name"] = name

    def renamed(self, name: str) -> ProcessTrace:
        """The same process under another name."""
        self.load()  # shared, not read twice
        other = copy(self)
        other.start_record = dict(self.start_record)
        other._streams = {index: copy(stream) for index, stream in self._streams.items()}
        other.rename(name)
        return other

    @property
    def token(self) -> str | None:
        token = self.start_record.get("token")
        return token if isinstance(token, str) else None

    @property
    def streams(self) -> tuple[StreamTrace, ...]:
        return tuple(self._streams[index] for index in sorted(self._streams))

    @property
    def after_op(self) -> int:
        """Number of rows of all streams."""
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
        if self._end_state is not None:
            return self._end_state
        return RUNNING if self.journal.alive else KILLED

    def mark_failed(self, reason: str) -> None:
        """Set the state after a failure of the recorder that the journal could not record."""
        self._end_state, self.exit = DAMAGED, {"why": reason}

    def as_if_stopped(self) -> ProcessTrace:
        """The same process; where its end is not recorded, as if it had been stopped after its last commit."""
        stopped = copy(self)
        stopped._end_state = self._end_state or STOPPED
        return stopped

    @property
    def has_complete_journal(self) -> bool:
        """Whether its journal is undamaged and records that it ran to its end: then it describes all rows."""
        return self._end_state == COMPLETE and not self.record_damage

    @property
    def why(self) -> str | None:
        """A sentence on a state that is not "complete"."""
        state = self.state
        if state == DAMAGED and self.holes:
            return self.holes[0].why
        if state == RUNNING:
            return f"process {self.start_record.get('pid')} is still recording"
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
        """The interned tables, by name, with the kernels that libraries reported; lost entries are not ``present``."""
        return self._stored if self._kernels is None else {**self._stored, "kernels": self._kernels.table}

    @cached_property
    def words(self) -> Words:
        """What the entries of the tables read."""
        return Words({name: table.payloads for name, table in self.tables.items()})

    @cached_property
    def _kernels(self) -> ReportedKernels | None:
        reports = self.library_reports
        return None if reports is None else ReportedKernels(self._stored["kernels"], reports.calls.values())

    def _with_kernels(self, stream: int, rows: Rows) -> Rows:
        reported = rows if self._kernels is None else self._kernels.apply(rows, self._stored)
        return self.launches.apply(stream, reported, self._stored["kernels"]) if self.launches else reported

    def read_ahead(self) -> None:
        """What explains a difference is read next: tables, and attempts unless there are many."""
        if "_stored" not in self.__dict__:
            self._read_tables_ahead()
        self._attempts.read_few_ahead()

    def _read_tables_ahead(self) -> None:
        read_ahead(self._folder, self.base, TABLES, [file for _, _, files in self.table_records for file in files])

    @cached_property
    def _stored(self) -> Mapping[str, Table]:
        """The tables as written by the process."""
        self._read_tables_ahead()
        parts: list[bytes] = []
        counts: dict[str, int] = {}
        expected = size = 0
        for first, entries, files in self.table_records:
            counts = entries
            parts.extend([b"\n"] if first > expected else [])
            for file in files:
                parts.append(self._table_bytes(file))
                size += len(parts[-1])
            if size > MAX_TABLE_BYTES:
                self.other_holes.append(f"its tables exceed the reader's limit of {MAX_TABLE_BYTES:,} bytes")
                break
            expected = first + len(files)
        return parse_tables(b"".join(parts), counts)

    @cached_property
    def values(self) -> Values:
        """The recorded values; falsy where none were requested. Checks the sizes of their files."""
        layouts, parts = self.tables["layouts"], self.value_parts
        found = Values(self._folder, self.base, self.value_request, parts, layouts, self.other_holes.append)
        found.check_sizes()
        return found

    @cached_property
    def activations(self) -> Activations:
        """The recorded activation rows; falsy where none were requested. Checks the sizes of their files."""
        found = Activations(
            self._folder,
            self.base,
            self.activation_request,
            self.activation_parts,
            lambda: self.tables,
            lambda stream: self._streams[stream].rows if stream in self._streams else 0,
            self.other_holes.append,
        )
        found.check_sizes()
        return found

    @property
    def step_parts(self) -> list[StepPart]:
        """The parts with finished attempts, in the order of their end."""
        return self._attempts.parts

    @property
    def steps(self) -> NDArray[np.uint64]:
        """Finished optimizer attempts that could be read, shape [n, len(Step)], in the order of their end."""
        return self._attempts.all[self._earlier :]

    @property
    def steps_before(self) -> NDArray[np.uint64]:
        """The attempts that ``from_step`` left out; reads nothing where it was not called."""
        return self._attempts.all[: self._earlier] if self._earlier else np.zeros((0, len(Step)), np.uint64)

    def from_step(self, step: int) -> ProcessTrace:
        """The same process, whose ``steps`` begin with this one; its rows and its state are the same."""
        self.load()  # shared, not read twice
        later = copy(self)
        later._earlier = int(np.searchsorted(self._attempts.all[:, Step.STEP], np.uint64(step)))
        return later

    def are_of_optimizer(self, steps: NDArray[np.uint64], ordinal: int) -> NDArray[np.bool_]:
        """Which of these attempts of the process are of the optimizer with this ordinal."""
        payloads: list[Any] = self.tables["optimizers"].payloads
        own = [number for number, payload in enumerate(payloads) if payload and payload["ordinal"] == ordinal]
        return np.isin(steps[:, Step.OPTIMIZER], own)

    def steps_of(self, part: StepPart) -> NDArray[np.uint64]:
        """The attempts of one of ``step_parts``, shape [n, len(Step)]; n is 0 where they cannot be read."""
        return self._attempts.of(part)

    @property
    def step_count(self) -> int:
        """Number of attempts in the journal, readable or not."""
        return sum(part.rows for part in self.step_parts)

    @property
    def has_all_steps(self) -> bool:
        """Whether every attempt in the journal can be read."""
        return len(self._attempts.all) == (self.step_parts[-1].stop if self.step_parts else 0)

    @property
    def sample_parts(self) -> list[StepPart]:
        """The parts with samples of series, in the order of sampling."""
        return self._samples.parts

    @property
    def samples(self) -> NDArray[np.uint64]:
        """Samples of all series that could be read, shape [n, len(Sample)], in the order of sampling."""
        return self._samples.all

    def load(self) -> None:
        """Read tables, steps and samples, so that ``holes`` has their damage."""
        self._attempts.read_ahead()
        self._samples.read_ahead()
        _ = self.tables, self.steps, self.samples

    def _latest_end(self, stream: int) -> int:
        """Upper bound of the rows at which steps of this stream end."""
        known = self._streams.get(stream)
        return known.rows if known is not None and not self.record_damage else MAX_COUNT

    def _find_lost_records(self) -> None:
        """Find records lost at the end of the journal: a writer is at most one segment ahead of it.

        Not while it runs: of a trace that is being uploaded, the journal comes after all chunks.
        """
        if self.journal.alive:
            return
        for stream in self._streams.values():
            later = (stream.segments[-1].chunk if stream.segments else -1) + 2
            key = f"{self.base}/streams/{stream.index}/{ROWS.name}/{ROWS.key(later)}"
            own = f"{self.base}/{JOURNAL}"
            if self._folder.holds(key) and self._folder.size(own) == self.journal.length:
                self.other_holes.append(f"{own} has lost its last records: {key} was written after them")

    def _table_bytes(self, file: ChunkFile) -> bytes:
        try:
            chunk = read_chunk(self._folder, self.base, TABLES, file, self.counter)
        except UnreadableError as error:
            self.other_holes.append(f"{error}; rows that need its table entries cannot be read")
            return b"\n"
        return chunk.tobytes().partition(b"\0")[0]  # lines hold no zero byte, JSON escapes it

    def _new_stream(self, name: str, index: int) -> StreamTrace:
        finish = partial(self._with_kernels, index)
        return StreamTrace(name, index, self._folder, self.base, lambda: self._stored, finish)
