"""A trace is made whole, replaces no other, and its end is written down."""

import errno
import os
import stat
from pathlib import Path

import pytest

from rltrace.errors import RecordError, UsageError
from rltrace.trace.format.journal import first_digest
from rltrace.trace.format.root import JOURNAL, add_to_launch, create_trace, end_launch, fresh_trace
from rltrace.trace.read.reader import open_trace

LAUNCH = {"command": ["python", "train.py"], "cwd": "~", "host": "h", "options": {"level": "op"}}


def test_empty_trace_opens(tmp_path: Path) -> None:
    """A trace is one as soon as it is made; its folder is its owner's alone."""
    path = tmp_path / "a.zarr"
    create_trace(path, LAUNCH)
    trace = open_trace(path)
    assert trace.launch["command"] == ["python", "train.py"]
    assert trace.exit is None
    assert trace.level == "op"
    assert trace.processes == trace.unrecorded == trace.holes == ()
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (path, *path.rglob("*")) if folder.is_dir()} == {0o700}


def test_end_of_the_launch(tmp_path: Path) -> None:
    """The end is a record of the launch's journal."""
    path = tmp_path / "a.zarr"
    create_trace(path, LAUNCH)
    end_launch(path, {"status": 3, "signal": None})
    trace = open_trace(path)
    assert trace.exit["status"] == 3


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """An existing trace stays, unless asked; then it is gone with all its files."""
    path = tmp_path / "a.zarr"
    create_trace(path, LAUNCH)
    (path / "processes" / "0").mkdir()
    with pytest.raises(UsageError, match="--force"):
        create_trace(path, LAUNCH)
    create_trace(path, {**LAUNCH, "host": "other"}, force=True)
    assert open_trace(path).launch["host"] == "other"
    assert not (path / "processes" / "0").exists()


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_force_replaces_traces_only(tmp_path: Path, kind: str) -> None:
    """What is not a trace is not removed, asked or not; a link to a trace is not followed."""
    path = tmp_path / "precious"
    if kind == "file":
        path.write_text("precious")
    elif kind == "folder":
        path.mkdir()
        (path / "model.pt").write_text("precious")
    else:
        create_trace(tmp_path / "real.zarr", LAUNCH)
        path.symlink_to(tmp_path / "real.zarr")
    with pytest.raises(UsageError, match="not a trace"):
        create_trace(path, LAUNCH, force=True)
    assert path.exists()
    assert kind != "link" or open_trace(tmp_path / "real.zarr").launch


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    """No folder to write in is one clear error, with the system's number, for root too."""
    with pytest.raises(RecordError, match=r"cannot be created: there is no folder .*nowhere$") as missing:
        create_trace(tmp_path / "nowhere" / "a.zarr", LAUNCH)
    assert missing.value.errno is not None
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot be created"):
        create_trace(tmp_path / "file" / "a.zarr", LAUNCH)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs a folder that not even root can write")  # noqa: PTH112
def test_a_read_only_folder() -> None:
    """A folder that takes no files refuses root as well."""
    with pytest.raises(RecordError, match="cannot be created") as refused:
        create_trace(Path("/proc/self/a.zarr"), LAUNCH)
    assert refused.value.errno is not None


def test_the_end_of_another_launch(tmp_path: Path) -> None:
    """Where a recording has replaced a trace, the end of the one before is not written to it; its own is."""
    path = tmp_path / "a.zarr"
    create_trace(path, LAUNCH)
    before = first_digest(str(path / JOURNAL))
    create_trace(path, {**LAUNCH, "host": "other"}, force=True)
    with pytest.raises(RecordError, match=r"a\.zarr has become another recording's trace"):
        end_launch(path, {"status": 0}, before)
    assert open_trace(path).exit is None
    end_launch(path, {"status": 0}, first_digest(str(path / JOURNAL)))
    assert open_trace(path).exit is not None


def test_what_cannot_be_added_or_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace that is gone, or whose files the system does not remove, is an error that names it."""
    with pytest.raises(RecordError, match=r"a\.zarr cannot be added to: No such file"):
        add_to_launch(tmp_path / "a.zarr", [{"type": "x"}])
    create_trace(tmp_path / "a.zarr", LAUNCH)

    def busy(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, "is busy")

    monkeypatch.setattr(os, "rmdir", busy)
    with pytest.raises(RecordError, match=r"the old trace \S*a\.zarr cannot be removed: is busy"):
        create_trace(tmp_path / "a.zarr", LAUNCH, force=True)


def test_the_end_of_a_trace_that_is_gone(tmp_path: Path) -> None:
    """A trace removed while it was recorded is an error that names it."""
    with pytest.raises(RecordError, match=r"a\.zarr"):
        end_launch(tmp_path / "a.zarr", {"status": 0})


def test_fresh_trace(tmp_path: Path) -> None:
    """The first free number, where a dangling link is not free."""
    (tmp_path / "a-1.zarr").mkdir()
    (tmp_path / "a-2.zarr").symlink_to(tmp_path / "nowhere")
    assert fresh_trace(tmp_path, "a").name == "a-3.zarr"
