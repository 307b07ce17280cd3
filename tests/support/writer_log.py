"""What a recording handed to the writer, recorded apart from the trace: what the trace is checked against.

Owns one judgement: everything that can be read is what was written, and whatever lacks is said to. Asks the reader
nothing about what is right; prefix digests are computed again from the rows as written.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rltrace.errors import HoleError
from rltrace.trace.format.row_hashes import chain_digests, row_hashes
from rltrace.trace.format.rows import Rows, StepRecord, TableEntry
from rltrace.trace.format.schema import GENERATORS, TABLES, Step
from rltrace.trace.format.tables import KeyTables
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace
from rltrace.trace.read.stream import StreamTrace
from rltrace.trace.write.writer import ProcessWriter

SECTIONS = ("columns", "links", "integers", "floats", "digests")


@dataclass
class WrittenStream:
    name: str
    parts: list[Rows] = field(default_factory=list)
    rows: Rows | None = None
    """All of them, once everything is written."""
    prefixes: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(row, structure, values, marked) at every row and at the end."""


@dataclass
class WrittenProcess:
    name: str
    facts: dict[str, object] = field(default_factory=dict)
    windows: list[tuple[int, int | None]] = field(default_factory=list)
    streams: list[WrittenStream] = field(default_factory=list)
    entries: list[TableEntry] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    samples: list[list[int]] = field(default_factory=list)
    exit: Mapping[str, object] | None = None
    generators: tuple[int, ...] | None = None
    parameters: Mapping[int, int] = field(default_factory=dict)

    def settle(self) -> None:
        tables = KeyTables()
        tables.extend(self.entries)
        for stream in self.streams:
            stream.rows = Rows.join(stream.parts)
            every = range(len(stream.rows) + 1)
            digests = chain_digests(row_hashes(stream.rows, tables), every)
            stream.prefixes = [(row, *found) for row, found in zip(every, digests, strict=True)]


@contextmanager
def followed() -> Iterator[list[WrittenProcess]]:
    """Everything that any ``ProcessWriter`` is handed inside of the block, by the number of its folder."""
    written: list[WrittenProcess] = []
    by_writer: dict[int, WrittenProcess] = {}
    opens = ProcessWriter.open.__func__  # type: ignore[attr-defined]

    def open_(cls: type[ProcessWriter], *arguments: Any) -> ProcessWriter:
        writer: ProcessWriter = opens(cls, *arguments)
        written.append(WrittenProcess(writer.name))
        by_writer[id(writer)] = written[-1]
        return writer

    def facts(writer: ProcessWriter, level: str, engine: str, given: Mapping[str, object]) -> None:
        by_writer[id(writer)].facts.update(given)

    def window(writer: ProcessWriter, stream: int, first_step: int, end_step: int | None, row: int) -> None:
        by_writer[id(writer)].windows.append((first_step, end_step))

    def stream(writer: ProcessWriter, name: str) -> None:
        by_writer[id(writer)].streams.append(WrittenStream(name))

    def commit(
        writer: ProcessWriter,
        stream: int,
        rows: Rows | None,
        entries: Sequence[TableEntry] = (),
        steps: Sequence[StepRecord] = (),
        values: object = None,
        samples: NDArray[np.uint64] | None = None,
        kept: object = None,
    ) -> None:
        process = by_writer[id(writer)]
        process.samples += [] if samples is None else samples.tolist()
        process.streams[stream].parts += [] if rows is None else [rows]
        process.entries += entries
        process.steps += steps

    def close(
        writer: ProcessWriter,
        state: str,
        ending: Mapping[str, object],
        generators: tuple[int, ...] | None = None,
        parameters: Mapping[int, int] | None = None,
    ) -> None:
        process = by_writer[id(writer)]
        process.exit, process.generators, process.parameters = ending, generators, parameters or {}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProcessWriter, "open", classmethod(open_))
        for note in (facts, window, stream, commit, close):
            patch.setattr(ProcessWriter, note.__name__, _both(note, getattr(ProcessWriter, note.__name__)))
        yield written
    for process in written:
        process.settle()


def _both(note: Any, call: Any) -> Any:
    def noted(*arguments: Any, **options: Any) -> Any:
        note(*arguments, **options)
        return call(*arguments, **options)

    return noted


# --- the judgement ----------------------------------------------------------------------------------------------------


def check(trace: Trace, written: Sequence[WrittenProcess], what: str, hurt: str) -> bool:
    """Whether everything is there; AssertionError where something reads wrong, or lacks and nothing says so.

    ``hurt`` is the damaged file. Processes whose file it is not are whole.
    """
    whole = True
    there = {int(process.base.split("/")[1]): process for process in trace.processes}
    for number, truth in enumerate(written):
        process = there.get(number)
        if process is None:
            assert trace.lost, f"{what}: process {truth.name} is gone, and nothing says so"
            whole = False
            continue
        lacks = _lacks(process, truth, what)
        if lacks:
            assert hurt.startswith(process.base), f"{what}: {process.base} lacks {lacks}"
            assert process.state == "damaged", f"{what}: lacks {lacks}, and nothing says so"
            whole = False
        elif not hurt.startswith(process.base):
            assert process.state == "complete", f"{what}: {process.base} is {process.state}"
    assert not trace.holes or hurt, f"{what}: {trace.holes}"
    return whole


def _lacks(process: ProcessTrace, truth: WrittenProcess, what: str) -> list[str]:
    """What of a process cannot be read."""
    process.load()
    lacks = []
    if process.name != truth.name:
        assert process.name == process.base, f"{what}: another name"
        lacks.append("its name")
    for name, value in process.facts.items():
        assert truth.facts[name] == value, f"{what}: fact {name} reads wrong"
    assert set(process.windows) <= set(truth.windows), f"{what}: windows read wrong"
    assert process.exit in (truth.exit, None), f"{what}: the ending reads wrong"
    assert process.generators in (truth.generators, None), f"{what}: the generators' last states read wrong"
    assert process.parameters in (truth.parameters, {}), f"{what}: the optimizers' last parameters read wrong"
    if len(process.facts) < len(truth.facts) or len(process.windows) < len(truth.windows):
        lacks.append("facts or windows")
    if process.exit is None:
        lacks.append("its ending")
    lacks += _lacking_entries(process, truth, what) + _lacking_steps(process, truth, what)
    samples = process.samples.tolist()
    assert all(sample in truth.samples for sample in samples), f"{what}: a sample reads wrong"
    lacks += [] if len(samples) == len(truth.samples) else ["samples"]
    streams = {stream.index: stream for stream in process.streams}
    assert set(streams) <= set(range(len(truth.streams))), f"{what}: another stream"
    for number, stream_truth in enumerate(truth.streams):
        stream = streams.get(number)
        lacks += [f"stream {number}"] if stream is None else _lacking_rows(stream, stream_truth, what)
    return lacks


def _lacking_entries(process: ProcessTrace, truth: WrittenProcess, what: str) -> list[str]:
    read = 0
    wanted = {(entry.table, entry.id): entry for entry in truth.entries}
    for name in TABLES:
        table = process.tables[name]
        for number in np.flatnonzero(table.present).tolist():
            entry = wanted[name, number]
            found = int(table.keys[number]), table.payloads[number]
            assert found == (entry.key, _as_json(entry.payload)), f"{what}: {name} {number} reads wrong"
            read += 1
    return [] if read == len(wanted) else ["table entries"]


def _as_json(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as_json(part) for part in value]
    return {key: _as_json(part) for key, part in value.items()} if isinstance(value, dict) else value


def _lacking_steps(process: ProcessTrace, truth: WrittenProcess, what: str) -> list[str]:
    steps = {step.step: step for step in truth.steps}
    for row in process.steps.tolist():
        step = steps[row[Step.STEP]]
        prefix = truth.streams[step.stream].prefixes[step.end_row]
        wanted = [step.stream, step.optimizer, step.own_count, step.skipped, step.backwards, step.environment_steps]
        wanted += [step.end_row, prefix[1], prefix[2], step.parameters, step.gradients, *(step.generators or (0,) * 4)]
        columns = [Step.STREAM, Step.OPTIMIZER, Step.COUNT, Step.SKIPPED, Step.BACKWARDS, Step.ENVIRONMENT_STEPS]
        columns += [Step.END_ROW, Step.PREFIX_STRUCTURE, Step.PREFIX_VALUES, Step.PARAMETERS, Step.GRADIENTS]
        found = [row[column] for column in (*columns, *GENERATORS)]
        assert found == wanted, f"{what}: step {step.step} reads wrong"
    return [] if len(process.steps) == len(steps) else ["steps"]


def _lacking_rows(stream: StreamTrace, truth: WrittenStream, what: str) -> list[str]:
    assert stream.rows <= len(truth.rows), f"{what}: rows that were never written"
    for mark in stream.marks.tolist():
        assert tuple(mark) == truth.prefixes[mark[0]], f"{what}: the mark at row {mark[0]} reads wrong"
    lacks = [] if stream.name == truth.name else ["the name of a stream"]
    assert stream.name in (truth.name, f"{stream.name.rsplit('/', 1)[0]}/stream{stream.index}"), f"{what}: other name"
    read = 0
    for segment in stream.segments:
        try:
            rows = stream.read(segment.first, segment.stop)
        except HoleError as error:
            first, last = segment.first, segment.stop - 1
            assert f"rows {first} to {last}" in str(error)
            assert any(hole[0] <= first and last < hole[0] + hole[1] for hole in stream.holes), f"{what}: no hole"
            continue
        whole = truth.rows.cut(segment.first, segment.stop)
        same = all(getattr(rows, section).tobytes() == getattr(whole, section).tobytes() for section in SECTIONS)
        assert same, f"{what}: rows {segment.first} to {segment.stop} read wrong"
        read += len(rows)
    return lacks if read == len(truth.rows) else [*lacks, "rows"]


# --- everything of a trace --------------------------------------------------------------------------------------------


Content = dict[str, Any]


def content(trace: Trace) -> Content:
    """Everything that can be read of a trace; what cannot is missing."""
    found: Content = {"launch": trace.launch, "exit": trace.exit}
    for process in trace.processes:
        base = process.base
        process.load()
        found[f"{base} start_record"] = process.start_record
        found.update({f"{base} fact {name}": value for name, value in process.facts.items()})
        found[f"{base} exit"] = process.exit
        found[f"{base} windows"] = process.windows
        for row in process.steps.tolist():
            found[f"{base} step {row[0]}"] = row
        for name, table in process.tables.items():
            for i in range(len(table)):
                if table.present[i]:
                    found[f"{base} {name} {i}"] = (int(table.keys[i]), table.payloads[i])
        for stream in process.streams:
            for mark in stream.marks.tolist():
                found[f"{base} {stream.index} mark {mark[0]}"] = mark
            for segment in stream.segments:
                try:
                    rows = stream.read(segment.first, segment.stop)
                except HoleError:
                    continue
                found[f"{base} {stream.index} rows {segment.first}"] = [getattr(rows, s).tobytes() for s in SECTIONS]
    return found
