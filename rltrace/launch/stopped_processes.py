"""Processes that the recorder has stopped: the launcher ends those that do not end themselves, with their descendants.

A program that is interrupted may wait forever at its exit, for workers that it has not closed, or for a thread.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from rltrace.recorder.processes.exits import request_commit
from rltrace.trace.format.process_start import STARTS, STOPPED_ENDING, is_alive, parse_start, start_ticks
from rltrace.wording import counted

GRACE_SECONDS = 10.0
"""That a stopped process has to end itself."""
SIGNAL_SECONDS = 3.0
"""Between SIGTERM and SIGKILL."""
LOOK_SECONDS: Final = 0.25

Ticks = int | None
"""Start time of a process, as ``start_ticks`` returns it: with its pid it names one process."""


class StoppedProcesses:
    """Ends the stopped processes of a trace that still run after GRACE_SECONDS."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace
        self.ended = 0
        """Stopped processes that were ended."""
        self.descendants = 0
        """Processes that these had started, and that were ended with them."""

    def watch(self, has_ended: threading.Event) -> None:
        """Until the command has ended: end what is due."""
        since: dict[Path, float] = {}
        while not has_ended.wait(LOOK_SECONDS):
            for note in self._trace.glob(f"{STARTS}/*.{STOPPED_ENDING}"):
                if monotonic() - since.setdefault(note, monotonic()) >= GRACE_SECONDS:
                    since[note] = float("inf")
                    with suppress(OSError):
                        self._end(parse_start(note.read_bytes()) or {})

    def said(self) -> str:
        """``the program still ran 10 s after it was stopped: it and 2 processes that it had started were ended``."""
        if not self.ended:
            return ""
        started = f" and {counted(self.descendants, 'process', 'processes')} that it had started" * bool(
            self.descendants
        )
        verb = "were" if started else "was"
        return f"the program still ran {GRACE_SECONDS:g} s after it was stopped: it{started} {verb} ended"

    def _end(self, process: Mapping[str, object]) -> None:
        pid = process.get("pid")
        if not isinstance(pid, int) or not is_alive(process):
            return
        tree = {pid: start_ticks(pid), **descendants(pid)}
        self.ended += 1
        self.descendants += len(tree) - 1
        for each in tree:
            request_commit(str(self._trace), str(each))
        _send(signal.SIGTERM, tree)
        until = monotonic() + SIGNAL_SECONDS
        while monotonic() < until and any(_runs(each, ticks) for each, ticks in tree.items()):
            sleep(0.02)
        _send(signal.SIGKILL, {**tree, **{child: t for each in tree for child, t in descendants(each).items()}})


def descendants(pid: int) -> dict[int, Ticks]:
    """The processes that this one has started, those they have started, and so on."""
    found: dict[int, Ticks] = {}
    for child in _children(pid):
        found |= {child: start_ticks(child), **descendants(child)}
    return found


def _children(pid: int) -> Iterator[int]:
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            yield from map(int, file.read_text().split())


def _runs(pid: int, ticks: Ticks) -> bool:
    return ticks is not None and start_ticks(pid) == ticks


def _send(number: signal.Signals, processes: Mapping[int, Ticks]) -> None:
    """Send a signal to those that still run."""
    for pid, ticks in processes.items():
        with suppress(OSError):
            if _runs(pid, ticks):
                os.kill(pid, number)
