"""Opening a trace: its states, its limits, its counters, and what is refused."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import tampering

from rltrace.errors import DamagedTraceError, FormatVersionError, HoleError, NotATraceError
from rltrace.testing import TraceBuilder
from rltrace.trace.format.files import FileRequest, Folder
from rltrace.trace.format.journal import Record, parse_journal
from rltrace.trace.format.process_start import note_failure, write_start
from rltrace.trace.format.records import FaultKind, LinkFault, link_checks_record, link_fault_record
from rltrace.trace.format.root import create_trace, end_launch
from rltrace.trace.format.rows import Rows
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import open_trace
from rltrace.trace.read.stream import CACHED_SEGMENTS
from rltrace.trace.write.writer import ProcessWriter


def rewrite(log: Path, change: Callable[[Record], Record | None]) -> None:
    """Write a journal again with a valid chain, each record changed by ``change`` (None drops it)."""
    trace = next(folder for folder in log.parents if folder.suffix == ".zarr")
    base = str(log.relative_to(trace)).removesuffix("journal/log")
    tampering.store(tampering.rewrite(tampering.load(trace), base, change), trace)


def test_nothing_there(tmp_path: Path) -> None:
    """Nothing, a file, another folder and another zarr group are no traces, each said in its own words."""
    with pytest.raises(NotATraceError, match="no such file"):
        open_trace(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotATraceError, match="it is a file"):
        open_trace(tmp_path / "file")
    with pytest.raises(NotATraceError, match="no launch journal"):
        open_trace(tmp_path)
    (tmp_path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    with pytest.raises(NotATraceError, match="no launch journal"):
        open_trace(tmp_path)


@pytest.mark.parametrize("where", ["zarr.json", "journal"])
def test_another_format_is_refused_by_name(sample: Path, where: str) -> None:
    """Another major version is not guessed at, wherever it is named; a newer minor one is read."""
    for version in ([4, 7], [5, 0], [2, 0]):
        if where == "zarr.json":
            document = {"zarr_format": 3, "node_type": "group", "attributes": {"rltrace": {"format": version}}}
            (sample / "zarr.json").write_text(json.dumps(document))
        else:
            rewrite(sample / "journal/log", lambda r, v=version: {**r, "format": v} if r["type"] == "launch" else r)
        if version == [5, 0]:
            with pytest.raises(FormatVersionError, match=r"format 5\.0.*install a newer one"):
                open_trace(sample)
        elif version == [4, 7]:
            assert open_trace(sample).format == (4, 7)
        else:
            rewrite(sample / "journal/log", lambda r: {**r, "format": [2, 0]} if r["type"] == "launch" else r)
            (sample / "zarr.json").unlink(missing_ok=True)
            with pytest.raises(FormatVersionError, match=r"format 2\.0.*record again"):
                open_trace(sample)


def test_nothing_left_to_read(sample: Path) -> None:
    """Without both the root group and the launch's journal there is nothing to go by."""
    (sample / "zarr.json").write_text("{")
    (sample / "journal/log").write_bytes(b"RLJ1 and so on")
    with pytest.raises(DamagedTraceError, match="its trace format is unknown"):
        open_trace(sample)


def test_unknown_records_and_fields_are_passed_over(sample: Path) -> None:
    """What a newer minor version may add is ignored."""
    log = sample / "processes/0/journal/log"
    rewrite(log, lambda r: {**r, "later": 1})
    rewrite(log, lambda r: {"type": "novelty"} if r["type"] == "window" else r)
    process = open_trace(sample).processes[0]
    assert process.state == "complete"
    assert len(process.streams[0].read(0, 12)) == 12


def test_states(tmp_path: Path) -> None:
    """Complete, stopped, running and killed are distinguished, and a process that never recorded is named."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.op("aten.mm.default")
    builder.process("rank1/main", alive=True).stream().op("aten.mm.default")
    builder.process("rank1/main").stream().commit()
    builder.process("rank2/main").finish("stopped", {"why": "--until"})
    builder.process("rank3/main").finish("complete", {"status": 0})
    write_start(builder.path, {"argv": ["ls"], "pid": 0})
    write_start(builder.path, {"argv": ["train.py"]})
    builder.commit()
    trace = open_trace(builder.path)
    assert {p.name: p.state for p in trace.processes} == {
        "rank0/main": "killed",
        "rank1/main": "running",
        "rank2/main": "stopped",
        "rank3/main": "complete",
    }
    assert [p.after_op for p in trace.processes] == [1, 1, 0, 0]
    assert sorted((start_record.record["argv"][0], start_record.state) for start_record in trace.unrecorded) == [
        ("ls", "never-recorded"),
        ("train.py", "running"),
    ]
    assert [bool(p.why) for p in trace.processes] == [True, True, True, False]


@pytest.mark.parametrize("state", ["killed", "complete"])
def test_a_recorder_that_could_not_say_so_in_the_journal(tmp_path: Path, state: str) -> None:
    """Its note is why the process has no end; where it has one, that counts."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.op("aten.mm.default")
    path = builder.finish(state)
    token = open_trace(path).processes[0].token
    assert token is not None
    note_failure(path, token, "the disk is full")
    process = open_trace(path).processes[0]
    expected = ("damaged", "the disk is full") if state == "killed" else ("complete", None)
    assert (process.state, process.why) == expected
    assert len(process.streams[0].read(0, 1)) == 1


def test_a_process_before_its_first_record(trace: Path) -> None:
    """A folder without a journal, or with an empty one, is a process that never got further."""
    (trace / "processes/0/journal").mkdir(parents=True)
    assert open_trace(trace).processes[0].state == "never-recorded"
    (trace / "processes/0/journal/log").touch()
    assert open_trace(trace).processes[0].state == "never-recorded"
    (trace / "processes/0/streams/0").mkdir(parents=True)
    assert open_trace(trace).processes[0].state == "damaged"


def test_facts_keep_the_later_one(trace: Path) -> None:
    """Facts may be written in parts; of one name the later counts."""
    writer = ProcessWriter.open(trace, {"name": "main", "argv": ["train.py", "--lr", "1"]})
    writer.facts("op", "dispatch", {"torch.threads": 2, "cpu": "x"})
    writer.facts("op", "dispatch", {"torch.threads": 4})
    found = open_trace(trace)
    assert found.processes[0].facts == {"torch.threads": 4, "cpu": "x"}
    assert found.processes[0].start_record["argv"] == ["train.py", "--lr", "1"]
    assert (found.level, found.engine) == ("op", "dispatch")


def test_reads_are_counted(written: tuple[Path, Rows]) -> None:
    """Chunks and bytes read are counted; a segment read again soon costs nothing."""
    stream = open_trace(written[0]).processes[0].streams[0]
    assert (stream.counter.chunks, stream.counter.bytes) == (0, 0)
    stream.read(0, 1)
    assert stream.counter.chunks == 2
    assert stream.counter.bytes == sum(file.length for file in stream.segments[0].files)
    stream.read(1, 3)
    assert stream.counter.chunks == 2


def test_ranges_out_of_bounds_are_refused(written: tuple[Path, Rows]) -> None:
    """Rows that no journal describes are no rows; an empty range is empty."""
    stream = open_trace(written[0]).processes[0].streams[0]
    for start, stop in ((-1, 2), (2, 1), (0, stream.rows + 1)):
        with pytest.raises(ValueError, match="has rows 0 to"):
            stream.read(start, stop)
    assert len(stream.read(5, 5)) == 0


def test_hole_is_named_and_the_rest_reads(written: tuple[Path, Rows]) -> None:
    """A missing chunk takes its rows, by name; rows before and after it read right."""
    path, rows = written
    (path / "processes/0/streams/0/cells/c.2").unlink()
    process = open_trace(path).processes[0]
    stream = process.streams[0]
    first, count, why = stream.holes[0]
    assert (process.state, why) == ("damaged", "processes/0/streams/0/cells/c.2 is missing")
    with pytest.raises(
        HoleError, match=rf"rows {first} to {first + count - 1} of rank0/main cannot be read: .*c\.2 is"
    ):
        stream.read(0, stream.rows)
    assert np.array_equal(stream.read(0, first).columns, rows.columns[:first])
    assert np.array_equal(stream.read(first + count, stream.rows).columns, rows.columns[first + count :])


def test_a_lost_commit_record_is_a_hole(written: tuple[Path, Rows]) -> None:
    """Damage to one record of the journal takes that commit's rows alone."""
    path, rows = written
    tampering.spoil(path / "processes/0/journal/log", b'"segment":2', 3)
    stream = open_trace(path).processes[0].streams[0]
    first, count, _ = stream.holes[0]
    assert [segment.chunk for segment in stream.segments] == [0, 1, 3, 4]
    for stop in (first + 1, stream.rows):
        with pytest.raises(HoleError, match="the journal's record of them is damaged"):
            stream.read(first, stop)
    assert np.array_equal(stream.read(first + count, stream.rows).columns, rows.columns[first + count :])


def test_a_lost_commit_record_at_the_end(sample: Path) -> None:
    """The end of the last step covers rows that the damaged journal does not describe."""
    tampering.spoil(sample / "processes/0/journal/log", b'"segment":2', 3)
    stream = open_trace(sample).processes[0].streams[0]
    (hole,) = stream.holes
    assert open_trace(sample).processes[0].has_all_steps
    assert stream.rows == 12 and hole[:2] == (8, 4)
    with pytest.raises(HoleError, match="rows 8 to 11 of rank0/main cannot be read: the journal's record of them is"):
        stream.read(8, 12)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 1 << 40},
        {"rows": 0},
        {"rows": -5},
        {"rows": True},
        {"first": 10**30},
        {"sections": [1 << 62, 0, 0, 0]},
        {"sections": [0, 0]},
        {"stream": 1 << 40},
        {"segment": "0"},
        {"end": ["zz", "", ""]},
        {"marks": [[1, "0" * 16, "0" * 16, "0" * 16]]},
        {"files": []},
        {"files": [["../../../../etc/passwd", 10, "0" * 16], ["streams/0/cells/c.0", 10, "0" * 16]]},
        {"files": [["streams/0/rows/c.0.0", 1 << 50, "0" * 16], ["streams/0/cells/c.0", 10, "0" * 16]]},
        {"files": None},
    ],
)
def test_absurd_commit_records_are_refused(written: tuple[Path, Rows], change: Record) -> None:
    """A record with a valid checksum and absurd content is damage that is named; nothing is allocated for it."""
    path, _ = written
    log = path / "processes/0/journal/log"
    rewrite(log, lambda r: {**r, **change} if r["type"] == "commit" and r["segment"] == 2 else r)
    process = open_trace(path).processes[0]
    assert process.state == "damaged"
    assert any("is inconsistent" in hole.why for hole in process.holes)
    assert len(process.streams[0].read(0, 1)) == 1


@pytest.mark.parametrize("change", [{"entries": {"ops": 1 << 40}}, {"entries": 5}, {"chunk": -1}, {"files": [[]]}])
def test_absurd_table_records_are_refused(written: tuple[Path, Rows], change: Record) -> None:
    """Tables of absurd size are not made; the rows that need them are named."""
    path, _ = written
    rewrite(path / "processes/0/journal/log", lambda r: {**r, **change} if r["type"] == "tables" else r)
    process = open_trace(path).processes[0]
    with pytest.raises(HoleError, match="of table"):
        process.streams[0].read(0, 1)
    assert process.state == "damaged"


def test_long_records_are_refused(written: tuple[Path, Rows]) -> None:
    """A chunk grown far past what a chunk can be is not read at all."""
    path, _ = written
    with (path / "processes/0/streams/0/rows/c.0.0").open("r+b") as file:
        file.truncate(1 << 34)
    stream = open_trace(path).processes[0].streams[0]
    with pytest.raises(HoleError, match="bytes"):
        stream.read(0, 1)
    assert stream.counter.bytes == 0


def test_links_out_of_the_trace_are_not_followed(written: tuple[Path, Rows], tmp_path: Path) -> None:
    """Not a file, not a folder, not a process: whatever is a link reads as a hole."""
    path, _ = written
    for key in ("processes/0/streams/0/rows/c.1.0", "processes/0/streams/0/rows", "processes/0"):
        aside = tmp_path / "aside"
        (path / key).rename(aside)
        (path / key).symlink_to(aside)
        trace = open_trace(path)
        assert any("link" in hole.why or "not here" in hole.why for hole in trace.holes)
        for stream in (s for process in trace.processes for s in process.streams):
            with pytest.raises(HoleError):
                stream.read(0, stream.rows)
        (path / key).unlink()
        aside.rename(path / key)
    assert open_trace(path).holes == ()


def test_a_link_to_a_trace_opens(written: tuple[Path, Rows], tmp_path: Path) -> None:
    """The trace itself may be reached by a link: that is the user's own doing."""
    (tmp_path / "link.zarr").symlink_to(written[0])
    assert open_trace(tmp_path / "link.zarr").processes[0].state == "complete"


def test_reading_imports_neither_zarr_nor_torch(written: tuple[Path, Rows]) -> None:
    """Opening and reading a trace takes NumPy and the codecs alone."""
    code = (
        "import sys; from rltrace.trace.read.reader import open_trace;"
        "from rltrace.extensions.archive import verify;"
        "p = open_trace(sys.argv[1]).processes[0]; p.streams[0].read(0, 5); verify.verify(sys.argv[1]);"
        "print(sorted({'zarr', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(written[0])], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_process_is_named(tmp_path: Path) -> None:
    """A whole process taken out of a trace is missed, the last one too."""
    import shutil

    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.process("rank1/main")
    builder.process("rank2/main")
    path = builder.finish()
    shutil.rmtree(path / "processes/2")
    assert [hole.why for hole in open_trace(path).holes] == [
        "processes/2 is missing",
        "process rank2/main took its name and is missing",
    ]
    shutil.rmtree(path / "processes/0")
    assert "processes/0 is missing" in [hole.why for hole in open_trace(path).holes]


def test_the_level_of_a_run_that_was_armed(tmp_path: Path) -> None:
    """It is that of its processes that recorded ops, wherever they are in the trace; the same of the engine."""
    builder = TraceBuilder(tmp_path / "a.zarr", level="step", engine="none", process="launcher:torchrun")
    builder.level, builder.engine = "op", "testing"
    builder.process("rank0/main")
    found = open_trace(builder.finish())
    assert [process.level for process in found.processes] == ["step", "op"]
    assert (found.level, found.engine) == ("op", "testing")


def test_the_engine_of_a_stream(tmp_path: Path) -> None:
    """It is that of its process; one trace may have JAX's and torch's."""
    builder = TraceBuilder(tmp_path / "a.zarr", engine="jax")
    builder.op("jit.update")
    builder.engine = "dispatch"
    builder.process("rank0/torch").stream().op("aten.mm.default")
    found = open_trace(builder.finish())
    assert [found.engine_of(name) for name in ("rank0/main", "rank0/torch", "rank1/main")] == ["jax", "dispatch", ""]


def test_levels_and_windows(tmp_path: Path) -> None:
    """The level is the recorder's; windows are listed with the rows at which they began."""
    create_trace(tmp_path / "b.zarr", {"options": {"level": "step"}})
    assert open_trace(tmp_path / "b.zarr").level == "step"
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.op("aten.mm.default")
    builder.window(3, 5)
    builder.op("aten.mm.default")
    process = open_trace(builder.finish()).processes[0]
    assert process.windows == [(3, 5)]
    assert process.has_all_steps
    assert process.streams[0].windows == [(3, 5, 1)]


def test_few_segments_are_kept(written: tuple[Path, Rows]) -> None:
    """However many are read, memory holds the last ones only: one that was read just now is not decoded again."""
    stream = open_trace(written[0]).processes[0].streams[0]
    stream.read(0, stream.rows)
    chunks = stream.counter.chunks
    assert chunks == 2 * len(stream.segments) > 2 * CACHED_SEGMENTS
    stream.read_segment(stream.segments[-1])
    assert stream.counter.chunks == chunks
    stream.read_segment(stream.segments[0])
    assert stream.counter.chunks == chunks + 2
    stream.read_segment(stream.segments[-1])
    assert stream.counter.chunks == chunks + 2
    stream.read_segment(stream.segments[1])  # in the place of the first, which was read before the last
    stream.read_segment(stream.segments[-1])
    assert stream.counter.chunks == chunks + 4
    stream.read_segment(stream.segments[0])
    assert stream.counter.chunks == chunks + 6


def test_tables_have_a_limit(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of more bytes than a reader takes are cut there, and that is a hole which names the limit."""
    monkeypatch.setattr("rltrace.trace.read.process.MAX_TABLE_BYTES", 100)
    (process, *_) = open_trace(sample).processes
    assert len(process.tables["ops"]) >= 0
    assert any("exceed the reader's limit of 100 bytes" in hole.why for hole in process.holes)


def test_a_damaged_record_hides_no_row_that_is_there(sample: Path) -> None:
    """Where the rows end with the last step, a record that is lost elsewhere makes no hole after them."""
    tampering.spoil(sample / "processes/0/journal/log", b'"type":"facts"', 9)
    (process, *_) = open_trace(sample).processes
    assert process.record_damage
    assert process.streams[0].holes == []


def test_a_journal_that_has_lost_all_commits(written: tuple[Path, Rows]) -> None:
    """Chunks that were written one after the other were in it."""
    path, _ = written
    rewrite(path / "processes/0/journal/log", lambda r: {**r, "pid": 0} if r["type"] in ("start", "stream") else None)
    for chunk in range(2, 5):
        (path / f"processes/0/streams/0/rows/c.{chunk}.0").unlink()
    key = "processes/0/streams/0/rows/c.1.0"
    [hole] = open_trace(path).holes
    assert hole.why == f"processes/0/journal/log has lost its last records: {key} was written after them"


def test_a_damaged_launch_record(sample: Path) -> None:
    """A damaged launch record is named and all else is read: the journal is not taken for another launch's."""
    tampering.spoil(sample / "journal/log", b'"type":"launch"', 3)
    trace = open_trace(sample)
    [hole] = trace.holes
    assert re.fullmatch(r"the journal is damaged from byte 0 to byte \d+ \(journal/log\)", hole.why)
    assert trace.exit is not None and trace.processes[0].state == "complete"


def test_a_missing_start_record_is_named(sample: Path) -> None:
    """A process began, and what it began with is gone."""
    process = open_trace(sample).processes[0]
    (sample / f"starts/{process.token}.json").unlink()
    assert [hole.why for hole in open_trace(sample).holes] == [
        f"starts/{process.token}.json of {process.name} is missing"
    ]


def test_checked_links(tmp_path: Path) -> None:
    """A process has its links checked only where it says so, and has the faults that were found."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    fault = LinkFault(FaultKind.WRITE, (0, 1), 0, 3, (0, 0), None, None, handed_out=True, bytes=8, digest=7)
    builder.process("rank1/main").writer.append(link_checks_record())
    builder.process("rank1/main").writer.append(link_fault_record(fault))
    processes = open_trace(builder.finish()).processes
    assert [(process.checks_links, process.link_faults) for process in processes] == [(False, []), (True, [fault])]


def test_steps_of_which_nothing_is_recorded(tmp_path: Path) -> None:
    """Adjacent ones are one range, in however many records they are."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    for first, end in ((0, 3), (3, 5), (7, 8)):
        builder.main.writer.append({"type": "asleep", "first_step": first, "end_step": end})
    assert open_trace(builder.finish()).processes[0].asleep == [(0, 5), (7, 8)]


def test_a_process_that_starts_twice(tmp_path: Path) -> None:
    """Is damaged; the first start counts, and so does the first record of what an optimizer began with."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    for state in (("exp_avg",), ()):
        builder.optimizer("p", state=state)
    builder.main.writer.append({"type": "start", "name": "rank1/main", "token": "t"})
    [process] = open_trace(builder.finish()).processes
    assert (process.name, process.optimizer_starts[0].state) == ("rank0/main", ("exp_avg",))
    assert "a process starts only once" in process.record_damage[0]


def test_a_process_from_a_later_step(sample: Path) -> None:
    """Shares what was read: its steps are read once."""
    process = open_trace(sample).processes[0]
    later = process.from_step(1)
    assert (len(process.steps), len(later.steps), len(later.steps_before)) == (3, 2, 1)
    assert len(process.steps_before) == 0
    assert later.steps_before.tolist() == process.steps[:1].tolist() and later.counter.chunks == process.counter.chunks


def test_parts_of_a_trace(tmp_path: Path) -> None:
    """From a step on, or as if all had been stopped: each beside the whole one."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    for name in ("rank0/main", "rank1/main"):
        stream = builder.process(name).stream()
        for step in range(3):
            stream.op("aten.mm.default", outputs=[step])
            stream.end_step(parameters=step)
    builder.process("rank1/main").finish(generators="g", parameters={0: "p"})
    builder.process("rank0/main").finish("killed")
    end_launch(builder.path, {"status": 1})
    trace = open_trace(builder.path)
    shown = lambda part: [(found.name, found.state, len(found.steps)) for found in part.processes]  # noqa: E731
    assert shown(trace) == [("rank0/main", "killed", 3), ("rank1/main", "complete", 3)]
    assert shown(trace.from_step(1)) == [("rank0/main", "killed", 2), ("rank1/main", "complete", 2)]
    assert shown(trace.as_if_stopped()) == [("rank0/main", "stopped", 3), ("rank1/main", "complete", 3)]


def test_cells_that_other_rows_have(sample: Path) -> None:
    """Counts of a commit that are not those of its rows: none of them is read."""
    change = lambda r: {**r, "sections": r["sections"][::-1]} if r["type"] == "commit" else r  # noqa: E731
    rewrite(sample / "processes/0/journal/log", change)
    with pytest.raises(HoleError, match="its rows and its cells do not match"):
        open_trace(sample).processes[0].streams[0].read(0, 1)


def test_a_note_that_cannot_be_read(tmp_path: Path) -> None:
    """That the recorder failed is known by its name alone."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    token = write_start(builder.path, {"argv": ["ls"], "pid": 0})
    (builder.path / f"starts/{token}.failed").mkdir()
    [found] = open_trace(builder.finish()).unrecorded
    assert found.why == "the recorder could not start: the recorder failed, and could not write why"


class Noted(Folder):
    """Notes which files are to be read next."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.ahead: list[str] = []

    def read_ahead(self, requests: Iterable[FileRequest]) -> None:
        self.ahead.extend(request.key for request in requests)


def test_what_is_read_ahead(sample: Path) -> None:
    """What explains a difference is asked for at once, and nothing that was read is asked for again."""
    folder = Noted(sample)
    process = ProcessTrace(folder, "processes/0", parse_journal((sample / "processes/0/journal/log").read_bytes()))
    process.read_ahead()
    assert {key.split("/")[2] for key in folder.ahead} == {"tables", "steps"}
    process.load()
    folder.ahead.clear()
    process.read_ahead()
    assert folder.ahead == []


# --- several machines -------------------------------------------------------------------------------------------------


def node(tmp_path: Path, place: int, rank: int, state: str = "complete", nodes: int = 2) -> None:
    """What machine ``place`` of a run has recorded, as it lies beside the others."""
    folder = tmp_path / "all.zarr" / "nodes"
    folder.mkdir(parents=True, exist_ok=True)
    trace = TraceBuilder(folder / str(place), process=f"rank{rank}/main", nodes=nodes)
    trace.op("aten.mm.default")
    trace.finish(state)


def test_machines_are_joined_by_rank(tmp_path: Path) -> None:
    """Processes are in the order of their ranks, whatever their machine's number is; all have ended, so the run has."""
    node(tmp_path, 0, 1)
    node(tmp_path, 1, 0)
    trace = open_trace(tmp_path / "all.zarr")
    assert [process.name for process in trace.processes] == ["rank0/main", "rank1/main"]
    assert trace.exit is not None and trace.exit["status"] == 0
    assert (trace.lost, len(trace.nodes)) == ((), 2)


def test_processes_of_one_name_on_two_machines(tmp_path: Path) -> None:
    """Each has a name of its own."""
    node(tmp_path, 0, 0)
    node(tmp_path, 1, 0)
    names = [process.name for process in open_trace(tmp_path / "all.zarr").processes]
    assert names == ["rank0/main", "rank0/main#2"]


def test_more_machines_than_were_named(tmp_path: Path) -> None:
    """All that are there are read, and those between them are missing; programs that recorded nothing are seen."""
    for place in (0, 2):
        node(tmp_path, place, place)
        write_start(tmp_path / f"all.zarr/nodes/{place}", {"argv": [f"ls{place}"], "pid": 0})
    trace = open_trace(tmp_path / "all.zarr")
    assert ([process.name for process in trace.processes], trace.lost) == (
        ["rank0/main", "rank2/main"],
        ("nodes/1 of 3 is missing",),
    )
    assert [process.name for process in trace.unrecorded] == ["ls0", "ls2"]


@pytest.mark.parametrize("place", [0, 1])
def test_a_machine_that_is_missing(tmp_path: Path, place: int) -> None:
    """It is named, and the run has not ended, as far as can be known."""
    node(tmp_path, place, 0)
    trace = open_trace(tmp_path / "all.zarr")
    assert (trace.exit, trace.lost) == (None, (f"nodes/{1 - place} of 2 is missing",))


def test_machines_that_a_launch_makes_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bounded number is looked for."""
    monkeypatch.setattr("rltrace.trace.read.reader.MAX_NODES", 4)
    node(tmp_path, 0, 0, nodes=1 << 40)
    assert len(open_trace(tmp_path / "all.zarr").lost) == 3


def test_a_machine_that_has_not_ended(tmp_path: Path) -> None:
    """A run has not ended while one of its machines has not."""
    node(tmp_path, 0, 0)
    node(tmp_path, 1, 1, "killed")
    assert open_trace(tmp_path / "all.zarr").exit is None


# --- names ------------------------------------------------------------------------------------------------------------


def test_a_name_that_is_nearly_that_of_a_trace(sample: Path) -> None:
    """The trace beside it with that name and an ending comes first, then the most similar one."""
    shutil.copytree(sample, sample.with_name("run.zarr"))
    shutil.copytree(sample, sample.with_name("run1.zarr"))
    for name, meant in (("run", "run.zarr"), ("run11.zarr", "run1.zarr")):
        with pytest.raises(NotATraceError, match=rf"did you mean \S*/{re.escape(meant)}\?"):
            open_trace(sample.with_name(name))


def test_programs_that_were_not_recorded_have_names(tmp_path: Path) -> None:
    """The program and its script without their folders; where neither is known, the file's name."""
    trace = TraceBuilder(tmp_path / "a.zarr")
    for argv in (["/usr/bin/python", "src/train.py", "--seed", "1"], ["ls"], None):
        write_start(trace.path, {"argv": argv, "pid": 0})
    trace.finish()
    found = {process.name: process.token for process in open_trace(trace.path).unrecorded}
    assert {"python train.py", "ls"} <= found.keys()
    [(name, token)] = [(name, token) for name, token in found.items() if name not in ("python train.py", "ls")]
    assert name == token
