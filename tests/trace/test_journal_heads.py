"""Journals of a trace vouch for each other: an older one, a shorter one or another launch's does not pass."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tampering
from samples import small_trace

from rltrace.extensions.archive.verify import verify
from rltrace.testing import TraceBuilder, plain_entries, random_rows
from rltrace.trace.format.journal import Head, frame, heads_record, is_another, lost_records, parse_heads, parse_journal
from rltrace.trace.format.process_start import write_start
from rltrace.trace.format.root import PROCESSES, end_launch
from rltrace.trace.read.reader import open_trace
from rltrace.trace.write.writer import ProcessWriter

LOG = "processes/0/journal/log"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return small_trace(tmp_path / "small.zarr")


def without_end(path: Path) -> Path:
    """The trace as a launcher leaves it that is killed itself."""
    files = tampering.load(path)
    return tampering.store(tampering.rewrite(files, "", lambda r: r if r["type"] == "launch" else None), path)


def test_every_journal_is_in_the_record(small: Path) -> None:
    """The last frame of each process's journal, and nothing for a folder that has none."""
    (small / PROCESSES / "2").mkdir()
    heads = parse_heads(heads_record(small / PROCESSES, "journal/log"))
    for number in (0, 1):
        found = parse_journal((small / f"processes/{number}/journal/log").read_bytes())
        assert heads[number] == Head(number, found.size, found.digest)
    assert heads[2].size == 0
    assert open_trace(small).holes == ()


@pytest.mark.parametrize("heads", [5, [[0]], [["0", 1, "00"]], [[0, -1, "00"]], [[0, 1, 2]], [[True, 1, "00"]]])
def test_heads_that_make_no_sense(heads: object) -> None:
    """Anything but numbers and a digest is refused."""
    with pytest.raises((ValueError, TypeError)):
        parse_heads({"type": "journals", "heads": heads})


def test_a_journal_may_have_grown() -> None:
    """What came after the end of the launch is no damage; what has gone, or is other, is."""
    first, digest = frame(0, {"type": "start"})
    second, _ = frame(digest, {"type": "end"})
    head = Head(0, len(first), digest)
    assert lost_records(head, parse_journal(first)) is None
    assert lost_records(head, parse_journal(first + second)) is None
    assert "ends at byte 0" in str(lost_records(head, parse_journal(first[:-1])))
    assert not is_another(head, parse_journal(first + second))
    assert is_another(head, parse_journal(frame(0, {"type": "a longer one"})[0]))


def test_a_journal_rolled_back_to_any_record(small: Path) -> None:
    """Cut exactly between two records, a journal is as valid as a killed program's; the launch's knows better."""
    log = small / LOG
    data = log.read_bytes()
    ends = list(parse_journal(data).ends)
    assert len(ends) > 8
    for end in (0, *ends[:-1]):
        log.write_bytes(data[:end])
        process = open_trace(small).processes[0]
        assert process.state == "damaged"
        assert LOG in str(process.why)
        assert [text for text in verify(small).damage if LOG in text]
        assert open_trace(small).processes[1].state == "complete"


def test_rolled_back_where_the_launcher_was_killed_too(tmp_path: Path) -> None:
    """Two segments that no record describes cannot be: the journal has lost records. One may be a kill's doing."""
    builder = TraceBuilder(tmp_path / "killed.zarr")
    for number in range(4):
        builder.op("aten.mm.default", outputs=[number])
        builder.commit()
    path = builder.finish("killed")
    data = (path / LOG).read_bytes()
    ends = list(parse_journal(data).ends)
    states = []
    for end in ends[-4:]:
        (path / LOG).write_bytes(data[:end])
        states.append(open_trace(path).processes[0].state)
    assert states == ["damaged", "damaged", "killed", "killed"]


def test_a_trace_that_grows_while_it_is_read(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments written after the journal was read are no sign of lost records."""
    from rltrace.trace.read import reader

    writer = ProcessWriter.open(trace, {"name": "main"})
    writer.stream("main")
    writer.commit(0, random_rows(np.random.default_rng(0), 0, 5), plain_entries())
    parse = reader.parse_journal

    def grow_after(data: bytes) -> object:
        found = parse(data)
        if any(record["type"] == "commit" for record in found.records):
            for number in range(1, 4):
                writer.commit(0, random_rows(np.random.default_rng(0), 5 * number, 5))
        return found

    monkeypatch.setattr(reader, "parse_journal", grow_after)
    process = open_trace(trace).processes[0]
    assert (process.after_op, process.holes) == (5, ())


@pytest.mark.parametrize("ended", [True, False])
def test_a_process_of_another_launch(tmp_path: Path, ended: bool) -> None:
    """The folder of the same process of the same program, launched another time, is not this one's: nothing is read."""
    path, other = small_trace(tmp_path / "a.zarr"), small_trace(tmp_path / "b.zarr", noise="x")
    if not ended:
        without_end(path)
    shutil.rmtree(path / "processes/1")
    shutil.copytree(other / "processes/1", path / "processes/1")
    own, foreign = open_trace(path).processes
    assert (own.state, own.after_op) == ("complete", 9)
    assert (foreign.state, foreign.after_op, foreign.facts) == ("damaged", 0, {})


def test_the_journal_of_another_launch(tmp_path: Path) -> None:
    """Nor is the launch's own journal: it is ignored, and the processes that left start records here are read."""
    path, other = small_trace(tmp_path / "a.zarr"), small_trace(tmp_path / "b.zarr")
    shutil.copy(other / "journal/log", path / "journal/log")
    found = open_trace(path)
    assert (found.launch, found.exit) == ({}, None)
    assert [hole.why for hole in found.holes] == ["journal/log belongs to another launch"]
    assert [process.state for process in found.processes] == ["complete", "complete"]


def test_a_copy_never_hides_the_process(small: Path) -> None:
    """Another process's journal in the place of one does not pass for that process, which is still there."""
    shutil.copy(small / "processes/1/journal/log", small / LOG)
    trace = open_trace(small)
    found = {process.name: process for process in trace.processes}
    assert found["rank1/main"].base == "processes/1"
    assert found["rank1/main"].state == "complete"
    assert [hole.why for hole in trace.holes if "processes/0" in hole.why]


def test_a_process_that_is_there_twice(small: Path) -> None:
    """A copied folder is named, and its rows are not read a second time."""
    shutil.copytree(small / "processes/1", small / "processes/2")
    found = open_trace(small)
    assert [process.name for process in found.processes] == ["rank0/main", "rank1/main"]
    assert [hole.why for hole in found.holes] == ["processes/2 and processes/1 both have the name rank1/main"]


def test_a_name_taken_by_a_process_about_to_begin(trace: Path) -> None:
    """Between its name and its first record a process is no damage; once it is dead and has left nothing, it is."""
    from rltrace.trace.write.writer import claim_name

    alive = write_start(trace, {"argv": ["train.py"]})
    claim_name(trace, "rank0/main")
    assert open_trace(trace).holes == ()
    (trace / "starts" / f"{alive}.json").unlink()
    assert [hole.why for hole in open_trace(trace).holes] == ["process rank0/main took its name and is missing"]
    end_launch(trace, {"status": 0})
    assert open_trace(trace).holes == ()


def test_a_folder_with_an_absurd_number(small: Path) -> None:
    """Missing numbers are named up to a few, however many there seem to be."""
    (small / "processes/99999999999999999").mkdir()
    (small / "processes/007").mkdir()
    assert 0 < len(open_trace(small).holes) < 20
