"""Threads of the recorder's own: the program does not meet them, and they are waited for all the same."""

import subprocess
import sys
import threading
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from recorded import Recorded

import rltrace
from rltrace.recorder.base import background_thread
from rltrace.recorder.base.background_thread import SPARE, BackgroundThread, CommitThread
from rltrace.trace.read.reader import open_trace


@pytest.fixture(autouse=True)
def threads_as_before() -> Any:
    """Whatever a test does, no thread is left where ``threading`` shows it."""
    before = threading.enumerate()
    yield
    assert threading.enumerate() == before


def test_it_is_waited_for() -> None:
    """Not longer than was said, and never by itself."""
    go, ended = threading.Lock(), list[bool]()
    go.acquire()

    def work() -> None:
        go.acquire()
        ended.append(thread.join(60))

    thread = BackgroundThread(work)
    assert thread.join(0)  # it has not been started
    thread.start()
    assert not thread.join(0.01)
    go.release()
    assert thread.join(60) and thread.join(0)
    assert ended == [False]


def test_an_error_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """``threading.excepthook``, which may be the program's own, is not called."""
    seen: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)

    def work() -> None:
        raise LookupError

    thread = BackgroundThread(work)
    thread.start()
    assert thread.join(60)
    assert seen == []


def test_all_that_is_finished_is_committed_however_busy_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where something is full again and again, the rest is not left behind."""
    seconds, commits = count(), list[bool]()
    clock = SimpleNamespace(monotonic=lambda: next(seconds), sleep=time.sleep)
    monkeypatch.setattr(background_thread, "time", clock)

    def commit(full_only: bool) -> None:
        commits.append(full_only)
        thread.wake()
        if not full_only or len(commits) == 50:
            thread.give_up()

    thread = CommitThread(commit, lambda _: None)
    thread.wake()
    thread.start()
    assert thread.thread is not None and thread.thread.join(60)
    assert commits[0] and not commits[-1]


def test_the_system_does_not_count_what_has_ended() -> None:
    """As Python itself counts threads before a fork: it warns where there are any."""
    threads = lambda: {path.name for path in Path("/proc/self/task").iterdir()}  # noqa: E731
    before = threads()
    for _ in range(200):
        thread = CommitThread(lambda _: None, lambda _: None)
        thread.start()
        thread.end()
        assert threads() <= before


@pytest.mark.parametrize(("grows", "commits"), [("never", 1), ("always", 0), ("at commits", SPARE)])
def test_what_an_idle_process_wrote_is_committed_soon(
    monkeypatch: pytest.MonkeyPatch, grows: str, commits: int
) -> None:
    """Once, long before the next commit is due; not while more is written, and not without end where it is idle again
    and again.
    """
    monkeypatch.setattr("rltrace.recorder.base.background_thread.COMMIT_SECONDS", 600)
    monkeypatch.setattr("rltrace.recorder.base.background_thread.IDLE_SECONDS", 0.001)
    looks, made = count(), list[bool]()

    def written() -> int:
        look = next(looks)
        if look == 100:
            thread.give_up()
        return {"never": 1, "always": look + 1, "at commits": len(made) + 1}[grows]

    thread = CommitThread(made.append, lambda error: None, written=written)
    thread.start()
    assert thread.thread is not None and thread.thread.join(60)
    assert made == [False] * commits


def test_a_program_meets_no_thread_but_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one traced or profiled by what the program sets for its threads; rows are committed meanwhile."""
    monkeypatch.setattr("rltrace.recorder.base.background_thread.COMMIT_SECONDS", 0.01)
    own, traced = threading.enumerate(), list[str]()

    def look(frame: Any, event: str, _argument: Any) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            traced.append(frame.f_code.co_qualname)

    threading.settrace(look)
    threading.setprofile(look)
    try:
        with rltrace.record(tmp_path / "a.zarr"):
            torch.ones(3).sin()
            while not any(process.after_op for process in open_trace(tmp_path / "a.zarr").processes):
                pass  # committed soon
            [process] = open_trace(tmp_path / "a.zarr").processes
            assert process.streams[0].rows > 0
            assert threading.enumerate() == own
            assert threading.active_count() == len(own)
            assert len(threading._active) == len(own)
    finally:
        threading.settrace(None)
        threading.setprofile(None)
    assert traced == []


WAITING = """
import sys, threading, torch

class Own(threading.Thread):
    def run(self):
        torch.ones(2).sum()

Own().start()
while threading.active_count() > 1:
    pass
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join()
parameter = torch.ones(2, requires_grad=True)
parameter.sum().backward()
torch.optim.SGD([parameter]).step()
for _ in range(20):
    torch.ones(2).sin()
print([thread.name for thread in threading.enumerate()])
"""


@pytest.mark.parametrize("level", ["op", "step"])
def test_a_program_waits_for_all_other_threads(tmp_path: Path, level: str) -> None:
    """It goes on, and what was recorded last is there."""
    (tmp_path / "wait.py").write_text(WAITING)
    line = [sys.executable, "-m", "rltrace", "record", "--quiet", "--level", level, "-o", "a.zarr"]
    result = subprocess.run(
        [*line, "--", sys.executable, "wait.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "['MainThread']\n", "")
    [process] = open_trace(tmp_path / "a.zarr").processes
    assert process.state == "complete"
    assert len(process.steps) == 1
    if level == "op":
        assert Recorded(tmp_path / "a.zarr").ops[-1] == "sin"
        assert [stream.rows for stream in process.streams][1:] == [2]
