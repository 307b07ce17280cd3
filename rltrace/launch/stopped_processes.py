"""Processes that the recorder has stopped: the launcher ends those that do not end themselves, with their descendants.

A program that is interrupted may wait forever at its exit, for workers that it has not closed, or for a thread. Where a
worker has been stopped, the others may wait forever for what it would have sent.
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
IDLE_SHARE: Final = 0.01
"""Processor time of processes that wait, of the time that passes."""
TICKS: Final = os.sysconf("SC_CLK_TCK")
"""Clock ticks in a second."""

Ticks = int | None
"""Start time of a process, as ``start_ticks`` returns it: with its pid it names one process."""


class StoppedProcesses:
    """Ends the stopped processes of a trace that still run after GRACE_SECONDS, and those that wait for them."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace
        self.ended = 0
        """Stopped processes that were ended."""
        self.descendants = 0
        """Processes that these had started, and that were ended with them."""
        self.waited = 0
        """Processes that were ended as they waited, after another one had been stopped."""
        self._idle_since = 0.0
        self._ticks = 0
        """Of the processes of the trace that still ran, then."""

    def watch(self, has_ended: threading.Event) -> None:
        """Until the command has ended: end what is due."""
        since: dict[Path, float] = {}
        while not has_ended.wait(LOOK_SECONDS):
            for note in self._trace.glob(f"{STARTS}/*.{STOPPED_ENDING}"):
                if monotonic() - since.setdefault(note, monotonic()) >= GRACE_SECONDS:
                    since[note] = float("inf")
                    with suppress(OSError):
                        self._end(parse_start(note.read_bytes()) or {})
            if since:
                with suppress(OSError):
                    self._end_idle()

    def said(self) -> str:
        """``the program still ran 10 s after it was stopped: it and 2 processes that it had started were ended``."""
        if not self.ended:
            waited = counted(self.waited, "process was", "processes were")
            idle = f"a process was stopped, and the others did nothing for {GRACE_SECONDS:g} s: {waited} ended"
            return idle * bool(self.waited)
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
        self._end_all(tree)

    def _end_idle(self) -> None:
        """End all processes that have done nothing for GRACE_SECONDS, as one that was stopped no longer answers."""
        starts = (parse_start(path.read_bytes()) or {} for path in self._trace.glob(f"{STARTS}/*.json"))
        known = [int(str(start["pid"])) for start in starts if is_alive(start)]
        found = {pid: start_ticks(pid) for pid in known} | {k: v for pid in known for k, v in descendants(pid).items()}
        tree = {pid: started for pid, started in found.items() if started is not None}
        ticks, now = sum(map(processor_ticks, tree)), monotonic()
        if not self._idle_since or abs(ticks - self._ticks) > IDLE_SHARE * GRACE_SECONDS * TICKS:
            self._ticks, self._idle_since = ticks, now
        elif tree and now - self._idle_since >= GRACE_SECONDS:
            self.waited += len(tree)
            self._end_all(tree)

    def _end_all(self, tree: Mapping[int, Ticks]) -> None:
        for each in tree:
            request_commit(str(self._trace), str(each))
        _send(signal.SIGTERM, tree)
        until = monotonic() + SIGNAL_SECONDS
        while monotonic() < until and any(_runs(each, ticks) for each, ticks in tree.items()):
            sleep(0.02)
        _send(signal.SIGKILL, {**tree, **{child: t for each in tree for child, t in descendants(each).items()}})
        self._idle_since = 0.0  # the others have time to notice


def descendants(pid: int) -> dict[int, Ticks]:
    """The processes that this one has started, those they have started, and so on."""
    found: dict[int, Ticks] = {}
    for child in _children(pid):
        found |= {child: start_ticks(child), **descendants(child)}
    return found


def processor_ticks(pid: int) -> int:
    """The processor time of a process so far, in clock ticks; 0: it no longer runs."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0


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
