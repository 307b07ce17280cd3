"""The file of a captured control: there and back, and what is none, which writes nothing anywhere."""

from __future__ import annotations

import json
import stat
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from rltrace.experiment.confirm.capture import (
    ABOUT,
    TRACE,
    CaptureError,
    CaptureInfo,
    identity_of,
    read_capture,
    size_of,
    unpack,
    write_capture,
)
from rltrace.extensions.archive.slice import slice_trace
from rltrace.json import to_json
from rltrace.testing import TraceBuilder
from rltrace.trace.read.reader import open_trace

CAPTURED = CaptureInfo("0123456789abcdef", "a.zarr", 3, 5, 2)
ENTRY = f"{TRACE}/journal/log"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of two steps."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    for step in range(2):
        builder.op("aten.mm.default", outputs=[f"x{step}"])
        builder.end_step()
    return builder.finish()


def archive(file: Path, *entries: tuple[str | zipfile.ZipInfo, bytes], **about: object) -> Path:
    """A ZIP archive that describes a capture, with these entries."""
    described = {**to_json(CAPTURED), **about}
    with zipfile.ZipFile(file, "w") as made, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
        made.writestr(ABOUT, json.dumps(described))
        for name, content in entries:
            made.writestr(name, content)
    return file


def test_there_and_back(trace: Path, tmp_path: Path) -> None:
    """What is unpacked is the trace, byte by byte, and the file is as large as was said, headers aside."""
    file = tmp_path / "a.capture"
    write_capture(file, CAPTURED, trace)
    assert read_capture(file) == unpack(file, tmp_path / "b.zarr") == CAPTURED
    files = {path.relative_to(trace): path.read_bytes() for path in trace.rglob("*") if path.is_file()}
    again = {path.relative_to(tmp_path / "b.zarr"): path.read_bytes() for path in (tmp_path / "b.zarr").rglob("*.*")}
    assert again.items() <= files.items()
    assert len(open_trace(tmp_path / "b.zarr").processes[0].steps) == 2
    assert size_of(trace) == sum(map(len, files.values())) < file.stat().st_size


def test_it_is_its_owners(trace: Path, tmp_path: Path) -> None:
    """It holds tensors. Where it cannot be written, nothing is left behind."""
    file = tmp_path / "a.capture"
    write_capture(file, CAPTURED, trace)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for gone in (tmp_path / "gone" / "a.capture", file / "a.capture"):
        with pytest.raises(CaptureError, match="cannot be written"):
            write_capture(gone, CAPTURED, trace)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.capture", "a.zarr"]


def test_a_slice_goes_by_the_name_of_its_trace(trace: Path, tmp_path: Path) -> None:
    """The other machine may have a window only; another launch, of the same command, is another trace."""
    slice_trace(trace, 0, 1, tmp_path / "slice.zarr")
    assert identity_of(open_trace(tmp_path / "slice.zarr")) == identity_of(open_trace(trace))
    other = TraceBuilder(tmp_path / "other.zarr")
    other.op("aten.mm.default", outputs=["x0"])
    assert identity_of(open_trace(other.finish())) != identity_of(open_trace(trace))


def compressed(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "/etc/outside",
        f"{TRACE}/../../outside",
        f"{TRACE}//outside",
        f"{TRACE}/./outside",
        f"{TRACE}/a\\..\\outside",
        "elsewhere/outside",
        TRACE,
        f"{TRACE}/folder/",
    ],
)
def test_nothing_is_written_outside_of_the_folder(name: str, tmp_path: Path) -> None:
    """A member that would lie elsewhere than below the trace is refused before anything is written."""
    file = archive(tmp_path / "a.capture", (ENTRY, b"x"), (name, b"bad"))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CaptureError, match="is no capture: it holds"):
        unpack(file, tmp_path / "deep" / "b.zarr")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda file: file.write_bytes(b"no archive"), "is no capture"),
        (lambda file: file.write_bytes(b""), "is no capture"),
        (lambda file: file.mkdir(), "cannot be read"),
        (lambda file: zipfile.ZipFile(file, "w").close(), "is no capture"),
        (lambda file: archive(file, schema="rltrace.capture/2"), "this rltrace reads rltrace.capture/1"),
        (lambda file: archive(file, first="three"), "no complete capture"),
        (lambda file: archive(file, first=5, end=5), "no complete capture"),
        (lambda file: archive(file, end=1e400), "no complete capture"),
        (lambda file: archive(file, runs=0), "no complete capture"),
        (lambda file: archive(file, (compressed(ENTRY), b"x" * 1000)), "is compressed"),
        (lambda file: archive(file, (ENTRY, b"x"), (ENTRY, b"y")), "cannot be unpacked"),
    ],
)
def test_what_is_no_capture(make: Callable[[Path], object], words: str, tmp_path: Path) -> None:
    """Each is refused in words, and leaves nothing behind."""
    make(tmp_path / "a.capture")
    with pytest.raises(CaptureError, match=words):
        unpack(tmp_path / "a.capture", tmp_path / "b.zarr")
    assert not (tmp_path / "b.zarr").exists()


def test_damage_anywhere_is_refused_or_without_effect(trace: Path, tmp_path: Path) -> None:
    """One byte changed: refused, or what is unpacked is the trace (a date in a header counts for nothing)."""
    file = tmp_path / "a.capture"
    write_capture(file, CAPTURED, trace)
    content = file.read_bytes()
    files = {path.relative_to(trace): path.read_bytes() for path in trace.rglob("*") if path.is_file()}
    damaged, target = tmp_path / "damaged.capture", tmp_path / "b.zarr"
    refused = 0
    for at in range(0, len(content), 397):
        damaged.write_bytes(content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :])
        try:
            about = unpack(damaged, target)
        except CaptureError:
            refused += 1
            assert not target.exists()
            continue
        found = {path.relative_to(target): path.read_bytes() for path in target.rglob("*") if path.is_file()}
        same = found == files and about == CAPTURED
        assert same or set(found) != set(files)  # a name in the directory: the trace then lacks a file, and says so
        for path in sorted(target.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        target.rmdir()
    assert refused > 5
    for end in (10, len(content) // 2, len(content) - 1):
        damaged.write_bytes(content[:end])
        with pytest.raises(CaptureError):
            unpack(damaged, target)
