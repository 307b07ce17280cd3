"""``--until`` ends the program where Ctrl-C would not: jobs that a script puts into the background ignore it."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rltrace.diff import compare
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.session.api import recording
from rltrace.report.diff import verdict_document
from rltrace.report.text import document_text
from rltrace.trace.read.reader import open_trace


@pytest.fixture
def ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


def train() -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(4):
        (weight * 2).sum().backward()
        optimizer.step()


@pytest.mark.usefixtures("ignored")
def test_where_the_signal_is_ignored(tmp_path: Path) -> None:
    """The trace says what ended the run, and a report says it where it names the run, and nowhere else."""
    with pytest.raises(KeyboardInterrupt), recording(RecordOptions(str(tmp_path / "a.zarr"), until=1), force=False):
        train()
    (process,) = open_trace(tmp_path / "a.zarr").processes
    assert (len(process.steps), process.state, process.why) == (2, "stopped", "--until 1 ended it")
    shutil.copytree(tmp_path / "a.zarr", tmp_path / "b.zarr")
    report = document_text(verdict_document(compare(tmp_path / "a.zarr", tmp_path / "b.zarr")))
    words = " ".join(report.split())
    assert words.count("2 optimizer steps, stopped (--until 1 ended it)") == words.count("stopped") == 2


@pytest.mark.usefixtures("ignored")
def test_on_another_thread(tmp_path: Path) -> None:
    """Handlers cannot be set there: the thread that made the step ends."""
    ended = []

    def work() -> None:
        try:
            train()
        except KeyboardInterrupt:
            ended.append(True)

    with recording(RecordOptions(str(tmp_path / "a.zarr"), until=1), force=False):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert ended == [True]
    assert len(open_trace(tmp_path / "a.zarr").processes[0].steps) == 2
