"""The life of a recording: the order of its parts, and errors in them, which end it and never reach the program."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.processes.recording import ProcessRecording, RecordingPart
from rltrace.trace.format.root import create_trace
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import open_trace

Make = Callable[[], ProcessRecording]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes the recording of this process in a new trace."""
    create_trace(tmp_path / "a.zarr", {}, force=False)
    return lambda: ProcessRecording(RecordOptions(str(tmp_path / "a.zarr")), "1-a-b", "rank0/main", "none", {})


def recorded(tmp_path: Path) -> ProcessTrace:
    (process,) = open_trace(tmp_path / "a.zarr").processes
    return process


def noting_part(calls: list[str], name: str) -> RecordingPart:
    """A part that notes when it is called."""
    turns = ("install", "wake", "sleep", "uninstall", "stop", "close")
    return RecordingPart(**{turn: partial(calls.append, f"{turn} {name}") for turn in turns})  # type: ignore[arg-type]


def refuse() -> None:
    raise LookupError("mine")


def test_parts_end_in_the_opposite_order(make: Make, tmp_path: Path) -> None:
    """Each falls asleep before it is undone; a second end does nothing."""
    recording, calls = make(), list[str]()
    recording.start([noting_part(calls, "a"), noting_part(calls, "b")], {"mine": 1})
    assert calls == ["install a", "install b", "wake a", "wake b"]
    calls.clear()
    recording.finish()
    recording.finish()
    assert calls == ["sleep b", "uninstall b", "sleep a", "uninstall a", "close b", "close a"]
    process = recorded(tmp_path)
    assert (process.state, process.facts["mine"]) == ("complete", 1)


def test_a_recording_that_is_asleep_commits_what_it_has(make: Make) -> None:
    """Parts fall asleep in the opposite order, then everything is committed in theirs."""
    recording, calls = make(), list[str]()
    commits = [RecordingPart(commit=partial(calls.append, f"commit {name}")) for name in "cd"]
    recording.start([noting_part(calls, "a"), noting_part(calls, "b"), *commits])
    calls.clear()
    recording.sleep()
    assert calls == ["sleep b", "sleep a", "commit c", "commit d"]
    recording.finish()


def test_a_part_that_cannot_begin_undoes_the_others(make: Make, tmp_path: Path) -> None:
    """The recording has failed, and says why; what the part has left is undone, too."""
    recording, calls = make(), list[str]()
    recording.start([noting_part(calls, "a"), RecordingPart(install=refuse), noting_part(calls, "b")])
    assert recording.is_over and recording.failure == "LookupError: mine"
    assert calls[:3] == ["install a", "stop a", "stop b"] and "uninstall a" in calls
    process = recorded(tmp_path)
    assert process.state == "damaged" and "LookupError: mine" in str(process.why)


def test_a_part_that_fails_as_it_ends_keeps_no_other_from_it(make: Make, tmp_path: Path) -> None:
    """Nothing is raised, and the trace is not complete."""
    recording, calls = make(), list[str]()
    recording.start([noting_part(calls, "a"), RecordingPart(uninstall=refuse)])
    recording.finish()
    assert "uninstall a" in calls and calls[-1] == "close a"
    assert recorded(tmp_path).state == "damaged"


def test_what_is_noted_is_a_list(make: Make, tmp_path: Path) -> None:
    """Each text once; nothing after the end."""
    recording = make()
    recording.start([])
    for text in ("x", "y", "x"):
        recording.note("of.mine", text)
    recording.finish()
    recording.note("of.mine", "z")
    assert recorded(tmp_path).facts["of.mine"] == "x; y"
