"""An experiment that is ended leaves no run behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from rltrace.experiment.runner import Runner, RunRequest

WAITS = """
import os, time
with open("pid.new", "w") as file:
    file.write(str(os.getpid()))
os.rename("pid.new", "pid")
time.sleep(600)
"""


def test_sigterm_ends_the_run_too(tmp_path: Path) -> None:
    """Whoever sends it (a scheduler, ``timeout``) means the run as well; the status says which signal it was."""
    told = tmp_path / "pid"

    def send() -> None:
        pause = threading.Event()
        while not told.exists():
            pause.wait(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    waiting = RunRequest("1", (sys.executable, "-c", WAITS), tmp_path, None, tmp_path / "a.zarr", tmp_path / "a.out")
    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(SystemExit) as raised, Runner() as runner:
        list(runner.run([waiting]))
    sender.join()
    assert raised.value.code == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
