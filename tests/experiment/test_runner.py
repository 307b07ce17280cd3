"""An experiment that is ended leaves no run behind."""

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from rltrace.experiment.runner import Runner, RunRequest, clock_text

WAITS = """
import os, time
with open("pid.new", "w") as file:
    file.write(str(os.getpid()))
os.rename("pid.new", "pid")
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("done", "runs", "seconds", "at_least", "text"),
    [
        (1, 3, 5.0, False, "1 of 3 runs, 5 s, about 10 s more"),
        (2, 6, 240.0, True, "2 of at least 6 runs, 4 min, about 8 min more"),
        (3, 3, 15.0, False, "3 of 3 runs, 15 s"),
        (8, 6, 9000.0, True, "8 of 8 runs, 2.5 h"),
    ],
)
def test_runs_are_counted(done: int, runs: int, seconds: float, at_least: bool, text: str) -> None:
    """With the time so far and, by what one took, that of the others; of a search only the least number is known."""
    assert clock_text(done, runs, seconds, at_least=at_least) == text


def test_sigterm_ends_the_run_too(tmp_path: Path) -> None:
    """A scheduler, or ``timeout``, means the run as well; the status says which signal it was."""
    started = tmp_path / "pid"

    def send() -> None:
        pause = threading.Event()
        while not started.exists():
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
        os.kill(int(started.read_text()), 0)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
