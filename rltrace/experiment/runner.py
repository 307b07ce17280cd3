"""Runs a command under the recorder, in a copy of its folder, with its output in a file.

Owns the processes of an experiment. They run ``rltrace record`` itself, so runs of an experiment are recorded like any
other; the ``Runner`` that starts them ends them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import NoReturn

from rltrace.errors import RecordError
from rltrace.experiment.workdir_copy import copy_folder
from rltrace.launch.command import ORIGIN
from rltrace.launch.run import signal_name
from rltrace.recorder.base.options import OPTIONS
from rltrace.trace.format.root import is_trace

RUN = "RLTRACE_RUN"
"""Variable with the name of the run for the program: ``1``, ``2``, … under ``rltrace check``."""
OUTPUT_LINES = 12
"""Lines of a run's output that are shown when nothing could be recorded."""


@dataclass(frozen=True)
class RunRequest:
    """A run to make."""

    name: str
    command: tuple[str, ...]
    origin: Path
    """The program's folder; the trace names it."""
    copy: Path | None
    """Path for a temporary copy of it to run in; None: runs in the folder itself."""
    trace: Path
    output: Path
    """File for what the command prints, on both streams."""
    options: tuple[str, ...] = ()
    """Options of ``verb``."""
    shared: tuple[str, ...] = ()
    without: Path | None = None
    """Entries that ``copy_folder`` shares, and the folder that it leaves out."""
    verb: tuple[str, ...] = ("record",)
    """``("replay", trace)`` where values are injected."""
    environment: Mapping[str, str] | None = None
    """All its variables; None: those of this process."""


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    job: RunRequest
    status: int
    """Of the process; negative: the number of the signal that ended it."""

    @property
    def how(self) -> str:
        """``ended with status 1``, ``was ended by SIGKILL``."""
        return f"ended with status {self.status}" if self.status >= 0 else f"was ended by {signal_name(-self.status)}"


def clock_text(done: int, runs: int, seconds: float, *, at_least: bool = False) -> str:
    """``2 of 6 runs, 14 s, about 28 s more``."""
    total = f"{'at least ' if at_least and done <= runs else ''}{max(done, runs):,}"
    left = seconds / done * (runs - done)
    more = f", about {_duration(left)} more" if done < runs else ""
    return f"{done:,} of {total} runs, {_duration(seconds)}{more}"


def _duration(seconds: float) -> str:
    """``14 s``, ``3 min``, ``2.5 h``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class Runner:
    """Runs up to ``jobs`` runs at a time; as a context manager it leaves no process behind."""

    def __init__(self, jobs: int = 1) -> None:
        self._threads = ThreadPoolExecutor(jobs)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._closed = False

    def __enter__(self) -> Runner:
        """Make SIGTERM raise SystemExit, so that no run is left behind."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, _terminated)
        return self

    def __exit__(self, *_: object) -> None:
        if signal.getsignal(signal.SIGTERM) is _terminated:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with self._lock:
            self._closed = True
            running = list(self._running)
        for process in running:
            with suppress(ProcessLookupError):
                process.terminate()
        self._threads.shutdown(wait=True, cancel_futures=True)

    def run(self, jobs: Iterable[RunRequest]) -> Iterator[RunResult]:
        """Run all, and yield each as it ends. Raises RecordError where one could not be recorded."""
        futures = [self._threads.submit(self._run, job) for job in jobs]
        for future in as_completed(futures):
            yield future.result()

    def _run(self, job: RunRequest) -> RunResult:
        if job.copy is None:
            return self._record(job, job.origin)
        try:
            copy_folder(job.origin, job.copy, job.shared, job.without)
            return self._record(job, job.copy)
        finally:
            shutil.rmtree(job.copy, ignore_errors=True)

    def _record(self, job: RunRequest, folder: Path) -> RunResult:
        run = [sys.executable, "-P", "-m", "rltrace", *job.verb]
        line = [*run, "--quiet", "-o", os.fspath(job.trace), *job.options]
        base = os.environ if job.environment is None else job.environment
        environment = {**base, RUN: job.name, ORIGIN: os.fspath(job.origin)}
        for name in ("steps", "processes"):  # what an experiment records is its own choice
            environment.pop(OPTIONS[name].variable, None)
        with job.output.open("wb") as output:
            with self._lock:
                if self._closed:
                    raise RecordError(f"run {job.name} was not started: the experiment had ended")
                process = subprocess.Popen(
                    [*line, "--", *job.command],
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
                self._running.add(process)
            status = process.wait()
            with self._lock:
                self._running.discard(process)
        if not is_trace(job.trace):
            raise RecordError(f"run {job.name} was not recorded: {_last_lines(job.output)}")
        return RunResult(job, status)


def _terminated(number: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + number)


def _last_lines(output: Path) -> str:
    lines = output.read_text(errors="backslashreplace").splitlines()[-OUTPUT_LINES:]
    return "\n  ".join(["it printed", *lines]) if lines else "it printed nothing"
