"""What happened before what, in one run of several processes (Lamport, 1978).

A row happened before those that follow it in its stream, and before those that follow the receipt of a message that was
sent after it. Messages pass between any two processes; their channels and digests are the recorder's, of
``rltrace.recorder.processes.messages``. What no chain of messages orders has no order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

from rltrace.trace.format.messages import END, RAY
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace


class _Passing(NamedTuple):
    """One end of a message."""

    stream: str
    row: int
    """Rows of the stream before it."""
    number: int
    """Those of one stream follow each other by it."""


class _Bound(NamedTuple):
    """What of a stream happened before something."""

    row: int
    """Rows before this one."""
    number: int
    """Messages before this one."""


class HappenedBefore:
    """The relation over all rows of one trace."""

    def __init__(self, trace: Trace) -> None:
        sent: dict[tuple[str, str, int], list[_Passing]] = defaultdict(list)
        received: dict[tuple[str, str, int], list[_Passing]] = defaultdict(list)
        peers = {(_machine(p, channel), channel): peer for p in trace.processes for channel, peer in p.peers.items()}
        self._passings: dict[str, list[_Passing]] = defaultdict(list)
        """By stream, all that it sent or received."""
        for process in trace.processes:
            names = {stream.index: stream.name for stream in process.streams}
            for ends in process.messages:
                machine = _machine(process, ends.channel)
                channel = ends.channel if ends.sent else peers.get((machine, ends.channel), ends.channel)
                if ends.stream not in names:
                    continue
                for row, number, digest in zip(ends.rows, ends.numbers, ends.digests, strict=True):
                    passing = _Passing(names[ends.stream], row, number)
                    self._passings[passing.stream].append(passing)
                    (sent if ends.sent else received)[machine, channel, digest].append(passing)
        for passings in self._passings.values():
            passings.sort(key=attrgetter("number"))
        self._senders: dict[_Passing, list[_Passing]] = defaultdict(list)
        """By receipt, what was sent before it."""
        for key, receipts in received.items():
            self._match(key[1], sent.get(key, ()), receipts)
        self._known: dict[tuple[str, int], dict[str, _Bound]] = {}

    def orders(self, first: tuple[str, int], second: tuple[str, int]) -> bool:
        """Whether the row ``first`` (stream, row) happened before the row ``second``."""
        bound = self._before(second).get(first[0])
        return bound is not None and first[1] < bound.row

    def rows_before(self, stream: str, row: tuple[str, int]) -> int | None:
        """How many rows of a stream happened before the row ``row`` (stream, row); None: no message says."""
        bound = self._before(row).get(stream)
        return None if bound is None else bound.row

    def senders_to(self, streams: Iterable[str]) -> set[str]:
        """The streams that sent a message which one of these received."""
        receipts = (passing for name in streams for passing in self._passings.get(name, ()))
        return {sent.stream for receipt in receipts for sent in self._senders.get(receipt, ())}

    def _match(self, channel: str, sent: Sequence[_Passing], receipts: Sequence[_Passing]) -> None:
        """Find what was sent before each receipt, of equal messages of one channel: where it is not certain which of
        them was received, the first."""
        senders, receivers = ({passing.stream for passing in ends} for ends in (sent, receipts))
        if channel == END:  # of every stream of the process
            for receipt in receipts:
                self._senders[receipt] += sent
        elif len(senders) == 1 and (channel == RAY or len(receipts) <= len(sent) or len(receivers) > 1):
            in_order = sorted(sent, key=attrgetter("number"))
            one_by_one = channel != RAY and len(receivers) == 1
            for at, receipt in enumerate(sorted(receipts, key=attrgetter("number"))):
                self._senders[receipt].append(in_order[at if one_by_one else 0])

    def _before(self, row: tuple[str, int]) -> dict[str, _Bound]:
        """By stream, what of it happened before a row."""
        found = self._known.get(row)
        if found is None:
            found = self._known[row] = {}
            stream, at = row
            own = self._passings.get(stream, [])
            number = next((passing.number for passing in own if passing.row > at), own[-1].number + 1 if own else 0)
            left = [(stream, _Bound(at, number))]
            while left:
                name, bound = left.pop()
                last = found.get(name, _Bound(0, 0))
                found[name] = _Bound(max(last.row, bound.row), max(last.number, bound.number))
                passings = self._passings.get(name, [])
                begin, end = (bisect_left(passings, n, key=attrgetter("number")) for n in (last.number, bound.number))
                for passing in passings[begin:end]:
                    left += [(one.stream, _Bound(one.row, one.number)) for one in self._senders.get(passing, ())]
        return found


def _machine(process: ProcessTrace, channel: str) -> str:
    """Where the name of a channel has its meaning."""
    return "" if channel == RAY else f"{process.start_record.get('host')} {process.start_record.get('boot')}"
