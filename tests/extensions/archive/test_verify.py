"""``verify`` reads everything, proves the digests, and names what does not belong."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tampering import flip_in_chunk

from rltrace.commands.main import main
from rltrace.extensions.archive.verify import verify
from rltrace.testing import TraceBuilder, plain_entries, random_rows
from rltrace.trace.format.journal import JournalWriter, parse_journal
from rltrace.trace.format.rows import Rows, StepRecord
from rltrace.trace.format.schema import Step
from rltrace.trace.write import packers
from rltrace.trace.write.writer import ProcessWriter


def test_a_whole_trace(sample: Path) -> None:
    """Nothing to say about a trace as it was written; every row is read and proved."""
    progress: list[tuple[int, int]] = []
    found = verify(sample, lambda done, total: progress.append((done, total)))
    assert found.sound
    assert (found.damage, found.notes) == ((), ())
    checked = found.processes[0]
    assert (checked.state, checked.rows, checked.rows_read, checked.rows_proved) == ("complete", 13, 13, 13)
    assert progress == [(i, 5) for i in (1, 2, 3, 4, 5)]
    assert found.chunks > 8 and found.bytes > 0


def test_a_trace_still_being_written(trace: Path) -> None:
    """What is there so far is proved; that more may come is no damage."""
    writer = ProcessWriter.open(trace, {"name": "main"})
    writer.stream("main")
    writer.commit(0, random_rows(np.random.default_rng(0), 0, 50), plain_entries())
    found = verify(trace)
    assert found.sound
    assert found.processes[0].state == "running"
    assert any("the end of the launch was not recorded" in note for note in found.notes)


def test_rows_after_a_hole_are_read_but_not_proved(written: tuple[Path, Rows]) -> None:
    """A chained digest proves nothing past a hole, and ``verify`` says how far it got."""
    path, rows = written
    (path / "processes/0/streams/0/rows/c.2.0").unlink()
    found = verify(path)
    assert not found.sound
    checked = found.processes[0]
    assert checked.state == "damaged"
    assert 0 < checked.rows_proved < checked.rows_read < checked.rows == len(rows)


def test_a_chain_that_lies(written: tuple[Path, Rows]) -> None:
    """A journal that is valid in itself and has other digests than the rows is found out."""
    path, _ = written
    log = path / "processes/0/journal/log"
    records = parse_journal(log.read_bytes()).records
    log.unlink()
    journal = JournalWriter(os.fspath(log))
    commits = [record for record in records if record["type"] == "commit"]
    commits[1]["end"], commits[3]["end"] = commits[3]["end"], commits[1]["end"]
    journal.append(records)
    assert [text for text in verify(path).damage if "prefix digests" in text]


def test_steps_that_lie(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A steps array that is valid in itself and has other digests than the rows is found out."""
    whole = packers._fill
    monkeypatch.setattr(
        packers, "_fill", lambda *a, **k: whole(a[0]._replace(end_row=0), *a[1:], **k)[:9] + [7] * (len(Step) - 9)
    )
    writer = ProcessWriter.open(trace, {"name": "main"})
    writer.stream("main")
    step = StepRecord(0, 0, 0, 0, 0, 1, 0, 20, True, 1, 2, (3, 0, 0, 0))
    writer.commit(0, random_rows(np.random.default_rng(0), 0, 50), plain_entries(), [step])
    writer.close("complete", {})
    assert any("digests of step 0" in text for text in verify(trace).damage)


def test_lost_rows_are_reported_as_steps(sample: Path) -> None:
    """The steps to record again are those that a hole reaches into, and no others."""
    for chunk, steps in (("0/rows/c.1.0", (1, 2)), ("0/cells/c.2", (1, 3)), ("1/rows/c.0.0", (1, 3))):
        (sample / "processes/0/streams" / chunk).unlink()
        assert verify(sample).lost_steps == steps


# --- verb -------------------------------------------------------------------------------------------------------------


def build(path: Path, state: str = "complete") -> Path:
    trace = TraceBuilder(path)
    for number in range(10):
        trace.op("aten.mul.Tensor", outputs=[number])
    trace.end_step()
    return trace.finish(state)


@pytest.mark.parametrize("state", ["complete", "killed"])
def test_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str], state: str) -> None:
    """A whole trace, or one that a kill cut short: 0, and the rows are counted."""
    assert main(["verify", str(build(tmp_path / "t.zarr", state))]) == 0
    out = capsys.readouterr().out
    assert f"rank0/main  {state}  10 ops" in out
    assert out.startswith("SOUND  ")


@pytest.mark.parametrize("array", ["rows", "cells"])
def test_damage_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], array: str) -> None:
    """A flipped bit: 1, the file and the rows are named, in text and in JSON."""
    path = build(tmp_path / "t.zarr")
    damaged = flip_in_chunk(path, array)
    assert main(["verify", str(path)]) == 1
    out = capsys.readouterr().out
    assert str(damaged.relative_to(path)) in out
    assert "rows 0 to 9" in out
    assert "DAMAGED in 1 part" in out
    assert "record --steps 0:1" in out
    assert main(["verify", str(path), "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["sound"], len(found["damage"])) == ("rltrace.verify/1", False, 1)
    assert found["lost_steps"] == [0, 1]


def test_nothing_left_to_read_is_damage_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trace that can't even be opened is damaged (1), what never was a trace is trouble (2)."""
    path = build(tmp_path / "t.zarr")
    (path / "zarr.json").write_text("{")
    journal = path / "journal"
    for file in [journal] if journal.is_file() else [p for p in journal.iterdir() if p.name != "zarr.json"]:
        file.write_bytes(b"RLJ1 and then nothing of use")
    assert main(["verify", str(path)]) == 1
    assert "damaged  " in capsys.readouterr().out
    assert main(["verify", str(tmp_path)]) == 2
