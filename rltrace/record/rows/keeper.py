"""What calls and ops had of tensors' rows, from the moment they had it to the commit that writes it.

Owns the limit, what of it is used, and the count of what was left out. Knows nothing of torch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from rltrace.record.values.keeper import HASTE, MOST
from rltrace.trace.keptpack import NewCall, NewKept, NewOp
from rltrace.trace.keptrecords import AskedRows
from rltrace.trace.valuerecords import LeftOut, add_up

OVERHEAD: Final = 88
"""Bytes that a call, and each tensor of it or of an op, count for besides their digests."""


class RowKeeper:
    """Rows of tensors on their way; used by all threads of the program and by the committer."""

    def __init__(self, asked: AskedRows) -> None:
        self.asked = asked
        self.hurry: Callable[[], None] = lambda: None
        """Asks for a commit; set by the committer."""
        self.wait: Callable[[], None] = lambda: None
        """Waits for one."""
        self.waiting = 0
        """Bytes that no commit has taken yet."""
        self.stopped = False
        """Nobody comes for anything any more."""
        self._lock = threading.Lock()
        self._streams: dict[int, deque[tuple[NewCall | NewOp, int]]] = {}
        self._left: list[LeftOut] = []
        self._used = 0
        self._full = False

    @property
    def behind(self) -> bool:
        """Whether what waits is still too much to go on."""
        return self.waiting > MOST // 2

    def has_room(self, digests: int) -> bool:
        """Whether a tensor with so many new digests may be kept; from the first one on that may not, none may."""
        if self._used + 8 * digests + OVERHEAD > self.asked.limit:
            self._full = True
        return not self._full

    def use(self, digests: int) -> None:
        """Room is taken, whether or not what it is for will be kept in the end."""
        with self._lock:
            self._used += 8 * digests + OVERHEAD

    def keep(self, entry: NewCall | NewOp, digests: int) -> None:
        """Take a call that has ended in, or an op whose row is finished or about to be; so many digests are new."""
        size = 8 * digests + OVERHEAD * (len(entry.tensors) + 1)
        if self.waiting > MOST and not self.stopped:
            self.wait()
        with self._lock:
            self.waiting += size
            self._streams.setdefault(entry.stream, deque()).append((entry, size))
        if self.waiting > HASTE:
            self.hurry()

    def leave(self, why: str, stream: int, row: int, digests: int) -> None:
        """Rows of a tensor were asked for and are not kept."""
        with self._lock:
            self._left = add_up([*self._left, LeftOut(why, stream, row, row, 1, 8 * digests)])

    def forget(self, stream: int, row: int) -> None:
        """That row will never be: an interrupt came while it was written."""
        with self._lock:
            own = self._streams.get(stream)
            if own and isinstance(own[-1][0], NewOp) and own[-1][0].row >= row:
                self.waiting -= own.pop()[1]

    def take(self, stream: int, end: int) -> NewKept:
        """Entries of the stream that need none but its rows before ``end``, and what was left out since last time."""
        with self._lock:
            own, entries = self._streams.get(stream, deque()), []
            while own and _needs(own[0][0]) <= end:
                entry, size = own.popleft()
                self.waiting -= size
                entries.append(entry)
            left = [entry for entry in self._left if entry.stream == stream]
            self._left = [entry for entry in self._left if entry.stream != stream]
        return NewKept(entries, left)

    def stop(self) -> None:
        """Take nothing more in: nobody will come for it."""
        self.stopped = True
        with self._lock:
            self._streams.clear()
            self.waiting = 0


def _needs(entry: NewCall | NewOp) -> int:
    """How many rows of the stream must be there for it."""
    return entry.end_row if isinstance(entry, NewCall) else entry.row + 1
