"""What the threads of one process share while they are held against A: what was found, and whether to look on.

Owns that state. Any thread may use it.
"""

from __future__ import annotations

import threading
from typing import Protocol

from rltrace.follow.finding import First, Found, Tally
from rltrace.follow.reference import Reference
from rltrace.record.values.keeper import Keeper
from rltrace.trace.reader import ProcessTrace


class Stream(Protocol):
    """One thread that is held against A's."""

    name: str

    def missed(self) -> int:
        """Ops of A that it has not come by, in a step that it did come by."""


class Watch:
    """What the threads of one process share: A's side, what was found, whether there is anything left to look for."""

    def __init__(self, a: ProcessTrace, keeper: Keeper, *, stop: bool) -> None:
        self.a = a
        self.keeper = keeper
        self.stop = stop
        self.over = False
        self.tally = Tally()
        self.lock = threading.Lock()
        self.first: First | None = None
        self._stop_due = False
        self._streams: list[Stream] = []

    def reference(self, stream: Stream) -> Reference | None:
        self._streams.append(stream)
        found = next((s for s in self.a.streams if s.name == stream.name), None)
        return None if found is None else Reference(self.a, found)

    def differs(self, first: First) -> None:
        """Of several threads the first one to say so counts."""
        with self.lock:
            self.over = True
            self._stop_due = self.first is None and self.stop
            self.first = self.first or first

    def take_stop(self) -> bool:
        """Whether the program is to be stopped now; once."""
        due, self._stop_due = self._stop_due, False
        return due

    def found(self, process: str) -> Found:
        if not self.over:
            self.tally.only_a += sum(stream.missed() for stream in self._streams)
        return Found(process, self.tally, self.first)
