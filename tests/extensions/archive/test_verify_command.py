"""``rltrace verify``: what it ends with and what it names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rltrace.commands.main import main
from rltrace.testing import TraceBuilder


def build(path: Path, state: str = "complete") -> Path:
    trace = TraceBuilder(path)
    for number in range(10):
        trace.op("aten.mul.Tensor", outputs=[number])
    trace.end_step()
    return trace.finish(state)


def chunk(path: Path, array: str) -> Path:
    folder = path / "processes" / "0" / "streams" / "0" / array
    return next(p for p in folder.rglob("*") if p.is_file() and p.name != "zarr.json")


def test_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A whole trace: 0, and the rows are counted."""
    assert main(["verify", str(build(tmp_path / "t.zarr"))]) == 0
    out = capsys.readouterr().out
    assert "rank0/main  complete  10 ops\n" in out
    assert out.startswith("SOUND  ")


def test_a_killed_program_leaves_a_sound_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a kill cut short is no damage."""
    assert main(["verify", str(build(tmp_path / "t.zarr", "killed"))]) == 0
    assert "killed  10 ops" in capsys.readouterr().out


@pytest.mark.parametrize("array", ["rows", "cells"])
def test_damage_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], array: str) -> None:
    """A flipped bit: 1, the file and the rows are named, in text and in JSON."""
    path = build(tmp_path / "t.zarr")
    damaged = chunk(path, array)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 4
    damaged.write_bytes(content)
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
