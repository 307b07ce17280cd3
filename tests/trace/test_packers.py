"""Steps are in full chunks, and none of them waits for one to be there."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rltrace.trace.format.arrays import STEPS
from rltrace.trace.format.chunk_codec import CodecError, rows_from_text, rows_to_text
from rltrace.trace.format.journal import JournalWriter, parse_journal
from rltrace.trace.format.root import create_trace
from rltrace.trace.format.rows import StepRecord
from rltrace.trace.format.schema import Step
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import open_trace
from rltrace.trace.write.packers import RowPacker
from rltrace.trace.write.writer import ProcessWriter


def write(path: Path, commits: list[int], *, close: bool = True) -> Path:
    """A trace without ops, whose commits end so many steps each."""
    create_trace(path, {"command": ["train"], "options": {"level": "step"}})
    writer = ProcessWriter.open(path, {"name": "main", "pid": 0})
    writer.stream("main")
    step = 0
    for count in commits:
        steps = [StepRecord(step + k, 0, 0, step + k, 0, 1, 0, 0, False, step + k, 1, None) for k in range(count)]
        writer.commit(0, None, [], steps)
        step += count
    if close:
        writer.close("complete", {})
    return path


def process_of(path: Path) -> ProcessTrace:
    return open_trace(path).processes[0]


@settings(max_examples=25)
@given(st.lists(st.integers(0, 9), max_size=12), st.booleans())
def test_commits_never_matter(tmp_path_factory: pytest.TempPathFactory, commits: list[int], close: bool) -> None:
    """However steps are spread over commits, the same ones are read back, in full chunks but for the last."""
    path = tmp_path_factory.mktemp("trace") / "a.zarr"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowPacker, "chunk_rows", 8)
        write(path, commits, close=close)
        process = process_of(path)
        assert process.steps[:, Step.STEP].tolist() == list(range(sum(commits)))
        chunks = [part.rows for part in process.step_parts if part.chunk is not None]
    assert all(count == 8 for count in chunks[:-1] if close) and all(count == 8 for count in chunks if not close)


def without(path: Path, drop: int) -> list[int]:
    """The steps that are read when the journal has lost one of its records of steps."""
    log = path / "processes/0/journal/log"
    records = parse_journal(log.read_bytes()).records
    lost = [record for record in records if record["type"] == "steps"][drop]
    log.unlink()
    journal = JournalWriter(os.fspath(log))
    journal.append([record for record in records if record is not lost])
    steps: list[int] = process_of(path).steps[:, Step.STEP].tolist()
    return steps


def test_a_lost_record_costs_its_own_steps_only(tmp_path: Path) -> None:
    """A chunk makes up for the records before it, and the records for a chunk's own that is lost."""
    commits = [600, 400, 30, 20]
    whole = list(range(1050))
    assert without(write(tmp_path / "a.zarr", commits, close=False), 0) == whole
    assert without(write(tmp_path / "b.zarr", commits, close=False), 2) == [*range(1000), *range(1024, 1050)]
    assert without(write(tmp_path / "c.zarr", commits, close=False), 4) == whole[:1030]
    assert not process_of(write(tmp_path / "d.zarr", commits, close=False)).holes


def test_a_lost_chunk_costs_what_no_record_holds(tmp_path: Path) -> None:
    """Records from the time before there was a chunk stay in the journal: they replace one that is damaged."""
    path = write(tmp_path / "a.zarr", [600, 400, 30, 20], close=False)
    (path / "processes/0/steps/c.0.0").write_bytes(b"?")
    process = process_of(path)
    assert process.steps[:, Step.STEP].tolist() == [*range(1000), *range(1024, 1050)]
    assert process.steps[:, Step.PARAMETERS].tolist() == [*range(1000), *range(1024, 1050)]
    assert not process.has_all_steps and process.state == "damaged"
    why = "; ".join(hole.why for hole in process.holes)
    assert why.startswith("steps 0 to 1023: processes/0/steps/c.0.0 has 1 bytes")
    assert why.endswith("; 1000 of them are in the journal")


@settings(max_examples=40)
@given(st.integers(1, 40), st.integers(0, 1 << 30))
def test_text_and_back(count: int, seed: int) -> None:
    """Steps come back from a journal record as they went in, and from nothing that was changed."""
    rows = np.random.default_rng(seed).integers(0, 1 << 64, (count, len(Step)), dtype=np.uint64)
    text = rows_to_text(STEPS, rows)
    assert np.array_equal(rows_from_text(STEPS, text, count), rows)
    for other in (text[:-4], text[4:], "!" + text[1:], text * 9):
        with pytest.raises(CodecError):
            rows_from_text(STEPS, other, count)
    with pytest.raises(CodecError):
        rows_from_text(STEPS, text, count + 1)


def test_nothing_to_pack() -> None:
    """An empty commit makes no record, and the end of a process without steps no chunk."""
    nothing = np.zeros((0, len(Step)), np.uint64)
    assert RowPacker(STEPS, "steps").write(nothing, lambda *_: pytest.fail("a chunk"), last=True) == []
