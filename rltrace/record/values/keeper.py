"""The values of one process that are to be kept, from the op that had them to the commit that writes them.

Owns the limit, what of it is used, and the count of what was left out. Knows nothing of torch: it is handed bytes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Final

from rltrace.trace.schema import ValueKind
from rltrace.trace.valuepack import NewValue, NewValues
from rltrace.trace.valuerecords import Asked, LeftOut, add_up

OVERHEAD: Final = 64
"""Bytes that a value counts for besides its own: its row in the index."""

HASTE: Final = 1 << 25
"""Bytes waiting for a commit at which one is asked for,"""

MOST: Final = 1 << 28
"""and at which the program waits until it has been made."""

KNOWN: Final = 1 << 19
"""Digests that are known to have been kept: at least so many, at most twice. A value forgotten is kept once more."""


class Keeper:
    """Values on their way; used by all threads of the program and by the committer."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.hurry: Callable[[], None] = lambda: None
        """Asks for a commit; set by the committer."""
        self.wait: Callable[[], None] = lambda: None
        """Waits for one."""
        self.waiting = 0
        """Bytes that no commit has taken yet."""
        self._lock = threading.Lock()
        self._streams: dict[int, deque[NewValue]] = {}
        self._left: list[LeftOut] = []
        self._used = 0
        self._full = False
        self._known: set[int] = set()
        self._older: set[int] = set()

    @property
    def behind(self) -> bool:
        """Whether what waits is still too much to go on."""
        return self.waiting > MOST // 2

    def knows(self, digest: int) -> bool:
        """Whether a value with this digest has been kept before. False is possible for one kept long ago."""
        return digest in self._known or digest in self._older

    def has_room(self, size: int) -> bool:
        """Whether a value of so many bytes may be kept; from the first one on that may not, none may."""
        if self._used + size + OVERHEAD > self.asked.limit:
            self._full = True
        return not self._full

    def keep(self, value: NewValue) -> None:
        """Take a value in. Its row must be finished next; ``has_room`` has just said yes."""
        size = len(value.data) + OVERHEAD
        own = self._streams.setdefault(value.stream, deque())
        if self.waiting > MOST and not (own and own[-1].row == value.row):  # no commit takes an unfinished row's
            self.wait()
        with self._lock:
            self._used += size
            self.waiting += size
            own.append(value)
            if value.kind not in (ValueKind.SAME_INPUT, ValueKind.LYING):
                self._known.add(value.digest)
                if len(self._known) >= KNOWN:
                    self._older, self._known = self._known, set()
        if self.waiting > HASTE:
            self.hurry()

    def leave(self, why: str, stream: int, row: int, size: int) -> None:
        """A value was asked for and is not kept."""
        with self._lock:
            self._left = add_up([*self._left, LeftOut(why, stream, row, row, 1, size)])

    def forget(self, stream: int, row: int) -> None:
        """That row will never be: an interrupt came while it was written."""
        with self._lock:
            own = self._streams.get(stream, deque())
            while own and own[-1].row >= row and own[-1].kind is not ValueKind.WITH_ROWS:
                value = own.pop()
                self._known.discard(value.digest)
                self._used -= len(value.data) + OVERHEAD
                self.waiting -= len(value.data) + OVERHEAD

    def take(self, stream: int, end: int) -> NewValues:
        """Values of the stream's rows before ``end``, and what has been left out since the last time."""
        with self._lock:
            own, values = self._streams.get(stream, deque()), []
            while own and own[0].row < end + (own[0].kind is ValueKind.WITH_ROWS):  # that one needs no row of its own
                values.append(own.popleft())
            self.waiting -= sum(len(value.data) + OVERHEAD for value in values)
            left = [entry for entry in self._left if entry.stream == stream]
            self._left = [entry for entry in self._left if entry.stream != stream]
        return NewValues(values, left)
