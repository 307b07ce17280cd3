"""A slice keeps every digest and the rows of its steps, and says of the others that it does not carry them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tampering import load, rewrite, store

from rltrace.errors import DamagedTraceError, HoleError, LeftOutError, UsageError
from rltrace.extensions.archive.slice import slice_trace
from rltrace.extensions.archive.verify import verify
from rltrace.testing import TraceBuilder
from rltrace.trace.format.schema import Step
from rltrace.trace.read.reader import open_trace


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Twelve steps, one segment each; another thread; a process without steps; a start_record that came to nothing."""
    builder = TraceBuilder(tmp_path / "source.zarr")
    builder.window(0)
    loader = builder.stream("rank0/main/thread:loader")
    for step in range(12):
        for i in range(20):
            builder.op("aten.mm.default", outputs=[f"{step}.{i}"], floats=[i])
        loader.op("aten.stack.default", outputs=[f"batch{step}"])
        builder.end_step(parameters=f"p{step}", gradients="g", generators="r")
        builder.commit()
        loader.commit()
    builder.process("rank1/main").stream().op("aten.add.Tensor")
    return builder.finish()


def test_what_a_slice_keeps(source: Path, tmp_path: Path) -> None:
    """Marks, steps, tables, facts and endings are the source's; rows of the window read the same."""
    done = slice_trace(source, 4, 6, tmp_path / "slice.zarr")
    whole, part = open_trace(source), open_trace(tmp_path / "slice.zarr")
    assert (done.rows, done.of) == (42, 12 * 21 + 1)
    assert (part.slice["first_step"], part.slice["end_step"]) == (4, 6)
    assert (part.launch, part.exit) == (whole.launch, whole.exit)
    for a, b in zip(whole.processes, part.processes, strict=True):
        assert (a.name, a.state, a.after_op, a.facts, a.exit) == (b.name, b.state, b.after_op, b.facts, b.exit)
        assert np.array_equal(a.steps, b.steps)
        assert a.windows == b.windows
        for name, table in a.tables.items():
            assert table.payloads == b.tables[name].payloads
        for x, y in zip(a.streams, b.streams, strict=True):
            assert np.array_equal(x.marks, y.marks)
    main, other = part.processes[0].streams[0], whole.processes[0].streams[0]
    ends = whole.processes[0].steps[:, Step.END_ROW]
    start, stop = int(ends[3]), int(ends[5])
    assert np.array_equal(main.read(start, stop).digests, other.read(start, stop).digests)
    assert part.holes == ()


def test_rows_left_out_are_no_damage(source: Path, tmp_path: Path) -> None:
    """Asked for, they are named as left out; the trace is as complete as it was, and verifies."""
    slice_trace(source, 4, 6, tmp_path / "slice.zarr")
    part = open_trace(tmp_path / "slice.zarr")
    stream = part.processes[0].streams[0]
    with pytest.raises(
        LeftOutError, match=r"rows 0 to 19 of rank0/main are not in this slice, which carries steps 4:6"
    ):
        stream.read(0, 1)
    assert stream.left_out == [(20 * i, 20) for i in range(12) if i not in (4, 5)]
    assert part.processes[0].state == "complete"
    found = verify(part.path)
    assert found.sound
    assert any("not in this slice" in note for note in found.notes)


def test_a_slice_is_small(source: Path, tmp_path: Path) -> None:
    """It has the files of its window and none of the others."""
    slice_trace(source, 0, 1, tmp_path / "slice.zarr")
    rows = tmp_path / "slice.zarr/processes/0/streams/0/rows"
    assert sorted(file.name for file in rows.iterdir()) == ["c.0.0", "zarr.json"]


def test_slice_of_a_slice(source: Path, tmp_path: Path) -> None:
    """A slice can be sliced further, and not beyond what it carries."""
    slice_trace(source, 3, 8, tmp_path / "wide.zarr")
    slice_trace(tmp_path / "wide.zarr", 4, 5, tmp_path / "narrow.zarr")
    assert open_trace(tmp_path / "narrow.zarr").slice["first_step"] == 4  # type: ignore[index]
    with pytest.raises(UsageError, match="holds steps 3:8 only"):
        slice_trace(tmp_path / "wide.zarr", 0, 5, tmp_path / "more.zarr")


@pytest.mark.parametrize(("first", "end"), [(5, 5), (6, 5), (-1, 3), (40, 50)])
def test_steps_that_are_not_there(source: Path, tmp_path: Path, first: int, end: int) -> None:
    """An empty window, or one past the end, is refused and leaves nothing behind."""
    with pytest.raises(UsageError, match="step"):
        slice_trace(source, first, end, tmp_path / "slice.zarr")
    assert not (tmp_path / "slice.zarr").exists()


def test_nothing_is_overwritten(source: Path, tmp_path: Path) -> None:
    """An existing trace is replaced only when asked, another thing never; the source cannot be its own slice."""
    slice_trace(source, 4, 6, tmp_path / "slice.zarr")
    with pytest.raises(UsageError, match="--force"):
        slice_trace(source, 1, 2, tmp_path / "slice.zarr")
    slice_trace(source, 1, 2, tmp_path / "slice.zarr", force=True)
    assert open_trace(tmp_path / "slice.zarr").slice["first_step"] == 1  # type: ignore[index]
    with pytest.raises(UsageError, match="itself"):
        slice_trace(source, 1, 2, source, force=True)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="not a trace"):
        slice_trace(source, 1, 2, tmp_path / "file", force=True)


def test_damage_outside_of_the_window_is_left_behind(source: Path, tmp_path: Path) -> None:
    """Damage in the window stops the slice, elsewhere it does not; nothing half made stays."""
    (source / "processes/0/streams/0/rows/c.9.0").unlink()
    slice_trace(source, 4, 6, tmp_path / "slice.zarr")
    assert verify(tmp_path / "slice.zarr").sound
    with pytest.raises(HoleError, match=r"c\.9\.0"):
        slice_trace(source, 9, 10, tmp_path / "damaged.zarr")
    (source / "processes/0/tables/c.0").unlink()
    with pytest.raises(HoleError):
        slice_trace(source, 4, 6, tmp_path / "damaged.zarr")
    assert sorted(path.name for path in tmp_path.glob("damaged*")) == []


def test_a_damaged_journal_is_not_sliced(source: Path, tmp_path: Path) -> None:
    """What a journal lost cannot be copied."""
    log = source / "processes/0/journal/log"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    with pytest.raises(DamagedTraceError, match="journal is damaged"):
        slice_trace(source, 4, 6, tmp_path / "slice.zarr")


def test_a_killed_recording_is_sliced_as_killed(source: Path, tmp_path: Path) -> None:
    """A torn tail is left behind; the state stays what it was."""
    log = source / "processes/0/journal/log"
    log.write_bytes(log.read_bytes()[:-20])
    files = load(source)
    store(rewrite(files, "", lambda record: record if record["type"] == "launch" else None), source)
    slice_trace(source, 4, 6, tmp_path / "slice.zarr")
    assert open_trace(tmp_path / "slice.zarr").processes[0].state == "killed"
