"""Captured values and activation rows of one process, from their op to the commit that writes them.

Owns the limit and the count of what was left out. Knows nothing of torch.
"""

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from rltrace.trace.format.records import ActivationRequest, LeftOut, ValueRequest, add_up
from rltrace.trace.format.schema import WITHOUT_BYTES, ValueKind
from rltrace.trace.write.packers import NewActivations, NewValue, NewValues

NO_DTYPE: Final = "its dtype has no separate bytes"
"""Why a value was left out."""

OVERHEAD: Final = 64
"""Bytes that a value uses of the limit besides its own: its row in the index."""

FLUSH_BYTES: Final = 1 << 25
"""Pending bytes at which a commit is requested."""

MAX_PENDING_BYTES: Final = 1 << 28
"""Pending bytes at which the program waits for a commit."""

MAX_KNOWN: Final = 1 << 19
"""Digests of captured values that are remembered, at least; at most twice as many. Others are captured again."""


BESIDE_ROWS: Final = (ValueKind.WITH_ROWS, ValueKind.SHARD)
"""Kinds of values that need no finished row."""

Request = TypeVar("Request", bound=ValueRequest | ActivationRequest)
Entry = TypeVar("Entry")


class CaptureQueue(Generic[Request, Entry]):
    """Captured entries that no commit has written yet; used by all threads of the program and by the committer."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.request_commit: Callable[[], None] = lambda: None
        """Set by the committer, as the next one is."""
        self.wait_for_commit: Callable[[], None] = lambda: None
        self.pending_bytes = 0
        self._lock = threading.Lock()
        self._streams: dict[int, deque[Entry]] = {}
        self._left: list[LeftOut] = []
        self._used = 0
        self.is_full = False
        """The limit is reached: nothing more is captured."""

    @property
    def is_behind(self) -> bool:
        """Whether too much is pending for the program to go on."""
        return self.pending_bytes > MAX_PENDING_BYTES // 2

    def leave_out(self, why: str, stream: int, row: int, size: int) -> None:
        """``size`` bytes of what was requested are not captured."""
        with self._lock:
            self._left = add_up([*self._left, LeftOut(why, stream, row, row, 1, size)])

    def _fits(self, size: int) -> bool:
        """Whether ``size`` bytes are within the limit; after the first ones that are not, none are."""
        self.is_full = self.is_full or self._used + size > self.request.limit
        return not self.is_full

    def _pop_left_out(self, stream: int) -> list[LeftOut]:
        """What was left out since the last call. Called with the lock."""
        left = [entry for entry in self._left if entry.stream == stream]
        self._left = [entry for entry in self._left if entry.stream != stream]
        return left


class RowQueue(CaptureQueue[ActivationRequest, Any], ABC):
    """Captured activation rows, of an extension that captures them."""

    stopped = False
    """No commit follows."""

    @abstractmethod
    def take(self, stream: int, end: int) -> NewActivations:
        """Entries that need only the stream's rows before ``end``, and what was left out since the last call."""

    def stop(self) -> None:
        """Take nothing more: no commit follows."""
        self.stopped = True
        with self._lock:
            self._streams.clear()
            self.pending_bytes = 0


class ValueQueue(CaptureQueue[ValueRequest, NewValue]):
    """Captured values."""

    def __init__(self, request: ValueRequest) -> None:
        super().__init__(request)
        self._known: set[int] = set()
        self._older: set[int] = set()

    def knows(self, digest: int) -> bool:
        """Whether a value with this digest has been captured; may be False for one captured long ago."""
        return digest in self._known or digest in self._older

    def has_room(self, size: int) -> bool:
        """Whether a value of ``size`` bytes is within the limit; after the first one that is not, none is. One that
        would take more than half of it, such as the cache of an engine, is left out alone."""
        return size <= self.request.limit // 2 and self._fits(size + OVERHEAD)

    def add(self, value: NewValue) -> None:
        """Add a value, after ``has_room`` has returned True. Its row must be the next to be finished."""
        size = len(value.data) + OVERHEAD
        own = self._streams.setdefault(value.stream, deque())
        within_row = value.kind is not ValueKind.SHARD and bool(own) and own[-1].row == value.row
        if self.pending_bytes > MAX_PENDING_BYTES and not within_row:
            self.wait_for_commit()  # no commit takes values of unfinished rows
        with self._lock:
            self._used += size
            self.pending_bytes += size
            own.append(value)
            if value.kind not in WITHOUT_BYTES:
                self._known.add(value.digest)
                if len(self._known) >= MAX_KNOWN:
                    self._older, self._known = self._known, set()
        if self.pending_bytes > FLUSH_BYTES:
            self.request_commit()

    def forget(self, stream: int, row: int) -> None:
        """Drop the values of a row whose writing was interrupted."""
        with self._lock:
            own = self._streams.get(stream, deque())
            while own and own[-1].row >= row and own[-1].kind not in BESIDE_ROWS:
                value = own.pop()
                self._known.discard(value.digest)
                self._used -= len(value.data) + OVERHEAD
                self.pending_bytes -= len(value.data) + OVERHEAD

    def take(self, stream: int, end: int) -> NewValues:
        """Values of the stream's rows before ``end``, and what was left out since the last call."""
        with self._lock:
            own, values = self._streams.get(stream, deque()), []
            while own and own[0].row < end + (own[0].kind in BESIDE_ROWS):
                values.append(own.popleft())
            self.pending_bytes -= sum(len(value.data) + OVERHEAD for value in values)
            return NewValues(values, self._pop_left_out(stream))
