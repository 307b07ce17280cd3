"""What the journal of one process tells, record by record; and where a record makes no sense.

Owns the rule that the journal's records decide what is there. Which chunks hold it is noted here, none is read.
"""

from __future__ import annotations

from collections.abc import Callable

from rltrace.trace.arrays import TABLES
from rltrace.trace.attempts import Attempts, Samples
from rltrace.trace.journal import Journal, Record
from rltrace.trace.keptrecords import AskedRows, KeptPart, add_kept, parse_asked_rows, parse_kept
from rltrace.trace.launched import Launched
from rltrace.trace.plain import printable
from rltrace.trace.records import (
    MOST_STREAMS,
    check_facts,
    check_fields,
    chunk_files,
    number,
    parse_generators,
    parse_parameters,
    parse_segment,
)
from rltrace.trace.segment import ChunkFile
from rltrace.trace.states import COMPLETE, DAMAGED, STOPPED
from rltrace.trace.stream import StreamTrace
from rltrace.trace.valuerecords import Asked, ValuePart, parse_asked, parse_values
from rltrace.trace.valuerecords import add_part as add_values

LOST_RECORD = "the journal's record of them is damaged"


class Told:
    """Everything that the records of one journal say, those of them that make sense."""

    def __init__(
        self,
        base: str,
        damage: list[str],
        stream: Callable[[str, int], StreamTrace],
        attempts: Attempts,
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
        self.asked: Asked | None = None
        self.value_parts: list[ValuePart] = []
        self.asked_rows: AskedRows | None = None
        self.kept_parts: list[KeptPart] = []
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

    def _take_keeps(self, record: Record) -> None:
        self.asked = parse_asked(record)

    def _take_values(self, record: Record) -> None:
        add_values(self.value_parts, parse_values(record, sliced=self._sliced))

    def _take_keeps_rows(self, record: Record) -> None:
        self.asked_rows = parse_asked_rows(record)

    def _take_kept(self, record: Record) -> None:
        add_kept(self.kept_parts, parse_kept(record, sliced=self._sliced))

    def _take_launched(self, record: Record) -> None:
        self.launched.take(record)

    def _take_last(self, record: Record) -> None:
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
