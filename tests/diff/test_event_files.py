"""Scalars of TensorBoard's event files, as its own writer and others write them, whole and damaged."""

from __future__ import annotations

import struct
from base64 import b64decode
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rltrace.commands.main import main
from rltrace.diff.metrics.event_files import event_files, logged_scalars
from rltrace.testing import TraceBuilder

WRITTEN = b64decode(
    "SAAAAAAAAAD+kkidCSEWKJvjwNpBGg1icmFpbi5FdmVudDoyUi4KLHRlbnNvcmJvYXJkLnN1bW1hcnkud3JpdGVyLmV2ZW50X2ZpbGVfd3JpdGVy"
    "ODC0qzQAAAAAAAAAXjMXXAlHGSib48DaQSopCicKDnQvdGV4dF9zdW1tYXJ5QgsIBxIEEgIIAUIBeEoICgYKBHRleHQFox81GgAAAAAAAAASm9gt"
    "CYQZKJvjwNpBEAcqDQoLCgRsb3NzFQAAAD9ubOS6LgAAAAAAAADFy1f6CbwZKJvjwNpBEAgqIQofCgJsckIMCAIyCJqZmZmZmbk/SgsKCQoHc2Nh"
    "bGFycwUJySc="
)
"""By tensorboard, from torch: a text, ``add_scalar("loss", 0.5, 7)``, and ``lr`` 0.1 at step 8 as a double tensor."""


def field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2, len(data)]) + data


def event(step: int, tag: str, value: float) -> bytes:
    """A record with a frame around it."""
    scalar = field(1, tag.encode()) + bytes([2 << 3 | 5]) + struct.pack("<f", value)
    steps = bytes([2 << 3]) + varint(step)
    data = steps + field(5, field(1, scalar))
    head = struct.pack("<Q", len(data))
    return head + masked(head) + data + masked(data)


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    return bytes([number & 0x7F | 0x80]) + varint(number >> 7) if number > 0x7F else bytes([number])


def masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def run(folder: Path, *points: tuple[int, str, float], file: str = "events.out.tfevents.1.host") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(b"".join(event(*point) for point in points))
    return folder


def points(path: Path) -> dict[str, list[tuple[int, float]]]:
    return {s.name: list(zip(s.steps.tolist(), s.values.tolist(), strict=True)) for s in logged_scalars(path).series}


def test_what_tensorboard_wrote(tmp_path: Path) -> None:
    """A float and a double tensor; a text is no scalar. The file itself may be named."""
    file = tmp_path / "events.out.tfevents.7.host"
    file.write_bytes(WRITTEN)
    assert points(tmp_path) == points(file) == {"loss": [(7, 0.5)], "lr": [(8, 0.1)]}
    assert logged_scalars(tmp_path).holes == ()


def test_files_of_a_run(tmp_path: Path) -> None:
    """Folders below belong to it; a later file replaces earlier ones from its first step on."""
    run(tmp_path / "run", (-1, "x", 0.5), (1, "x", 1.0), (2, "x", 2.0), (1, "y", 8.0))
    run(tmp_path / "run", (2, "x", 2.5), (2, "x", 2.75), file="events.out.tfevents.2.host")
    run(tmp_path / "run" / "eval", (5, "x", 3.0))
    assert points(tmp_path / "run") == {
        "x": [(-1, 0.5), (1, 1.0), (2, 2.5), (2, 2.75)],
        "y": [(1, 8.0)],
        "eval/x": [(5, 3.0)],
    }
    assert event_files(tmp_path / "nothing") == []


def test_a_file_that_is_being_written(tmp_path: Path) -> None:
    """Its last record is not whole: what is before it is read, and nothing is wrong."""
    file = run(tmp_path, (1, "x", 1.0), (2, "x", 2.0)) / "events.out.tfevents.1.host"
    whole = file.read_bytes()
    for length in range(len(whole) // 2, len(whole)):
        file.write_bytes(whole[:length])
        assert points(tmp_path) == {"x": [(1, 1.0)]}
        assert logged_scalars(tmp_path).holes == ()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    """Whichever byte it is: what is before it is read, and the hole is reported."""
    file = run(tmp_path, (1, "x", 1.0), (2, "x", 2.0)) / "events.out.tfevents.1.host"
    whole = file.read_bytes()
    for place in range(len(whole) // 2, len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 0x10
        file.write_bytes(damaged)
        found = logged_scalars(tmp_path)
        assert points(tmp_path) == {"x": [(1, 1.0)]} and not found.series[0].whole
        assert len(found.holes) == 1 and ": damaged at byte " in found.holes[0]


@given(st.binary(max_size=60))
def test_any_message_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """A frame that is right around anything raises nothing."""
    file = tmp_path_factory.getbasetemp() / "events.out.tfevents.any"
    head = struct.pack("<Q", len(data))
    file.write_bytes(head + masked(head) + data + masked(data))
    for series in logged_scalars(file).series:
        assert series.values.dtype == np.float64


def test_two_runs_tag_by_tag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first step at which any tag differs comes first, then each tag with both numbers."""
    monkeypatch.chdir(tmp_path)
    common = [(step, "losses/value", float(step)) for step in range(0, 500, 100)]
    run(Path("a"), *common, (500, "losses/value", 4.0), (400, "charts/return", 20.0))
    run(Path("b"), *common, (500, "losses/value", 4.5), (400, "charts/return", 21.0), (0, "extra", 1.0))
    assert main(["series", "a", "b"]) == 0
    shown = capsys.readouterr().out
    assert "2 of 2 series differ, the first from step 400: charts/return\n" in shown
    assert "Differs from step 500 (4.0 | 4.5); the" in shown
    assert "Only in B\n  extra" in shown
    assert main(["series", "a", "--name", "losses*"]) == 0
    assert "Scalars in TensorBoard's event files\n  losses/value " in capsys.readouterr().out


def test_a_trace_is_not_compared_with_event_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They have no series in common; a folder without event files is no trace, as ever."""
    trace = TraceBuilder(tmp_path / "a.zarr")
    trace.sample("loss", 1.0)
    trace.finish()
    assert main(["series", str(tmp_path / "a.zarr"), str(run(tmp_path / "runs", (1, "x", 1.0)))]) == 2
    assert "have no series in common" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["series", str(tmp_path / "empty")]) == 2
