"""A damaged trace is reported or read right; it is never read wrong.

Files on a disk, and what can be in a file's place there; a sample of bytes, with ``verify``. Every byte and every
length are ``test_every_byte``'s; with RLTRACE_EVERY_BYTE=1 they are tried here too (minutes).
"""

import os
import random
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from writer_log import Content, content

from rltrace.errors import HoleError, RltraceError
from rltrace.extensions.archive.verify import verify
from rltrace.testing import TraceBuilder
from rltrace.trace.read.reader import open_trace


def check(path: Path, whole: Content, what: str) -> None:
    """The trace reads as before, or says what it lacks; what it does give is what was written."""
    try:
        trace = open_trace(path)
        found = content(trace)
    except RltraceError:
        return
    for key, value in found.items():
        if value in ({}, None, []) and whole[key]:
            continue
        assert value == whole[key], f"{what}: {key} reads wrong"
    if len(found) < len(whole) or found != whole:
        states = {process.state for process in trace.processes}
        said = trace.holes or trace.exit is None or "killed" in states or "never-recorded" in states
        assert said, f"{what}: not reported"


@pytest.fixture
def whole(sample: Path) -> Content:
    """What the sample holds; most of it, so that no check passes for want of content."""
    found = content(open_trace(sample))
    assert len(found) > 40
    return found


def files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


def places(path: Path, count: int) -> Iterable[tuple[Path, int]]:
    """Files and bytes in them: a sample, spread evenly over the files; or all of them."""
    generator = random.Random(1)
    for file in files(path):
        size = file.stat().st_size
        wanted = (
            range(size) if os.environ.get("RLTRACE_EVERY_BYTE") else generator.sample(range(size), min(count, size))
        )
        for at in wanted:
            yield file, at


def test_flipped_bytes(sample: Path, whole: Content) -> None:
    """Any flipped byte of any file is reported or harmless, and ``verify`` reports it."""
    for file, at in places(sample, 1):
        data = file.read_bytes()
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at % 8)
        file.write_bytes(flipped)
        what = f"{file.relative_to(sample)}, byte {at}"
        check(sample, whole, what)
        assert is_reported(sample), f"{what}: verify is silent"
        file.write_bytes(data)
    assert verify(sample).sound


def is_reported(path: Path) -> bool:
    try:
        found = verify(path)
    except RltraceError:
        return True
    return bool(found.damage or found.notes) or any(process.state != "complete" for process in found.processes)


def test_missing_and_odd_files(sample: Path, whole: Content, tmp_path: Path) -> None:
    """Any file that is gone, is a folder, a pipe or a link elsewhere is reported or harmless."""
    for file in files(sample):
        aside = tmp_path / "aside"
        file.rename(aside)
        what = str(file.relative_to(sample))
        check(sample, whole, f"{what} gone")
        file.mkdir()
        check(sample, whole, f"{what} a folder")
        file.rmdir()
        os.mkfifo(file)
        check(sample, whole, f"{what} a pipe")
        file.unlink()
        file.symlink_to(aside)
        check(sample, whole, f"{what} a link")
        file.unlink()
        aside.rename(file)
    check(sample, whole, "after all")
    assert verify(sample).sound


def test_missing_folders(sample: Path, whole: Content, tmp_path: Path) -> None:
    """Any folder that is gone, or is a link out of the trace, is reported or harmless."""
    for folder in sorted(f for f in sample.rglob("*") if f.is_dir()):
        aside = tmp_path / "aside"
        folder.rename(aside)
        check(sample, whole, f"{folder.relative_to(sample)} gone")
        folder.symlink_to(aside)
        check(sample, whole, f"{folder.relative_to(sample)} a link")
        folder.unlink()
        aside.rename(folder)


def test_swapped_chunks(sample: Path, whole: Content) -> None:
    """A valid chunk in another one's place is reported: each of the others of its array."""
    chunks = [file for file in files(sample) if file.name.startswith("c.")]
    for file in chunks:
        data = file.read_bytes()
        for other in chunks:
            if other.parent != file.parent or other == file:
                continue
            file.write_bytes(other.read_bytes())
            check(sample, whole, f"{other.name} over {file.relative_to(sample)}")
            assert verify(sample).damage
        file.write_bytes(data)


def test_journal_of_another_trace(sample: Path, whole: Content, tmp_path: Path) -> None:
    """A journal that belongs to another launch is not believed, and nothing is read by it."""
    other = tmp_path / "other.zarr"
    builder = TraceBuilder(other)
    for i in range(12):
        builder.op("aten.mul.Tensor", outputs=[f"x{i}"])
    builder.finish()
    shutil.copy(other / "processes/0/journal/log", sample / "processes/0/journal/log")
    process = open_trace(sample).processes[0]
    assert (process.state, process.streams) == ("damaged", ())
    assert "is not the journal that was written there" in str(process.why)


def replace_in(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("processes/0/streams/0/rows/zarr.json", b"196608", b"131072"),
        ("processes/0/streams/0/rows/zarr.json", b"uint32", b"uint64"),
        ("processes/0/streams/0/cells/zarr.json", b'"zstd"', b'"gzip"'),
        ("processes/0/tables/zarr.json", b'"fill_value": 0', b'"fill_value": 9'),
    ],
)
def test_edited_array_metadata(sample: Path, whole: Content, key: str, old: bytes, new: bytes) -> None:
    """What zarr would read wrong reads right here, and verify reports it."""
    replace_in(sample / key, old, new)
    assert content(open_trace(sample)) == whole
    assert [text for text in verify(sample).damage if key in text]


def test_damaged_table_takes_only_rows_that_need_it(sample: Path, whole: Content) -> None:
    """Entries that a hole took make rows that name them unreadable, by name, and no others."""
    (sample / "processes/0/tables/c.2").unlink()
    trace = open_trace(sample)
    process = trace.processes[0]
    stream = process.streams[0]
    readable, lost = [], []
    for segment in stream.segments:
        try:
            stream.read_segment(segment)
            readable.append(segment.chunk)
        except HoleError as error:
            assert "of table" in str(error)
            lost.append(segment.chunk)
    assert process.state == "damaged"
    assert len(process.streams[1].read(0, 1)) == 1
    assert (readable, lost) == ([0, 2], [1])


def test_leftovers_are_named_and_harmless(sample: Path, whole: Content) -> None:
    """Files of writes that never finished or were never committed change nothing and are reported."""
    rows = sample / "processes/0/streams/0/rows"
    shutil.copy(rows / "c.2.0", rows / "c.3.0")
    shutil.copy(rows / "c.2.0", rows / "c.4.0.partial")
    (sample / "notes.txt").write_text("mine")
    assert content(open_trace(sample)) == whole
    found = verify(sample)
    assert found.sound
    assert sorted(note.split("/")[-1].split(" does ")[0].split(" was ")[0] for note in found.notes) == [
        "c.3.0",
        "c.4.0.partial",
        "notes.txt",
    ]


def test_every_damage_helper_can_fail(sample: Path, whole: Content) -> None:
    """The check itself notices content that reads wrong, and content that silently lacks."""
    with pytest.raises(AssertionError, match="reads wrong"):
        check(sample, {**whole, "processes/0 exit": {"status": 1}}, "edited")
    with pytest.raises(AssertionError, match="not reported"):
        check(sample, {**whole, "processes/0 step 99": [99]}, "edited")
