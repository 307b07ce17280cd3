"""What happened before what, in one run of several processes (Lamport, 1978).

A row happened before those that follow it in its stream, and before those that follow the receipt of what was sent
after it: by a message between any two processes, whose channels and digests are the recorder's, or by a collective. The
rows of a step happened before those of the next, in every thread of a process. What is within a call or an iteration of
JAX is between what the call was given and what it returned, and a thread that runs JAX and torch records how their rows
follow each other. What no chain of these orders has no order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from enum import IntEnum
from functools import cache
from itertools import zip_longest
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.findings import row_at
from rltrace.diff.base.view import StreamView
from rltrace.diff.causes.collectives import CollectiveCall, Key, collectives_between, own_rank
from rltrace.errors import HoleError
from rltrace.trace.format.interleaving import moment_of
from rltrace.trace.format.messages import END, RAY
from rltrace.trace.format.schema import Column, parse_within
from rltrace.trace.kernels.evidence import WITHIN
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace

ROWS_AT_ONCE = 1 << 16
"""Rows that are read at a time."""


class During(IntEnum):
    """What is before a row and in it, in this order."""

    MESSAGE = 0
    READ = 1  # what a collective in flight brought
    GIVEN = 2
    WITHIN = 3
    RESULTS = 4
    SENT = 5  # by a collective
    ARRIVED = 6  # with a collective that waits


class Instant(NamedTuple):
    """A moment of a stream."""

    stream: str
    row: int
    during: During = During.GIVEN
    number: int = 0
    """Messages of one row follow each other by it."""


Edge = tuple[Instant, Instant]
"""What happened before the first one happened before the second."""

Edges = Mapping[str, Mapping[str, tuple[Sequence[Instant], Sequence[Instant]]]]
"""By the streams of the second places and of the first: second places, ascending, and the latest first one so far."""


class HappenedBefore:
    """The relation over all rows of one trace."""

    def __init__(self, trace: Trace) -> None:
        self.views = {stream.name: StreamView(p, stream) for p in trace.processes for stream in p.streams}
        self._has_rows = trace.has_rows
        together: dict[object, list[StreamView]] = defaultdict(list)
        for view in self.views.values():
            together[view.process.token or view.process.name].append(view)
        self._others = {view.name: [o for o in own if o is not view] for own in together.values() for view in own}
        """By stream, the other ones of what is one process to the system."""
        self._edges = [_by_streams(_messages(trace))]
        self._known: dict[tuple[Instant, bool], dict[str, Instant]] = {}
        self._first_row, self._calls = cache(_first_row), cache(calls_with)

    def with_edges(self, edges: Sequence[Edge]) -> HappenedBefore:
        """The relation with these edges as well."""
        found = copy(self)
        found._edges, found._known = [*self._edges, _by_streams(edges)], {}
        return found if edges else self

    def orders(self, first: Instant, second: Instant) -> bool:
        """Whether one place happened before another."""
        bound = self._before(second).get(first.stream)
        return bound is not None and first < bound

    def rows_before(self, stream: str, place: Instant) -> int | None:
        """How many rows of a stream happened before a place; None: no message says."""
        bound = self._before(place, by_messages=True).get(stream)
        return None if bound is None else bound.row

    def senders_to(self, streams: Iterable[str]) -> set[str]:
        """The streams that sent a message which one of these received."""
        return {sender for name in streams for sender in self._edges[0].get(name, ())}

    def first_row(self, stream: str, step: int) -> int | None:
        """The first row of a stream in a step, or after it; None: it is not known. In a trace of steps, the step."""
        view = self.views.get(stream)
        return step if not self._has_rows else None if view is None else self._first_row(view, step)

    def _before(self, place: Instant, *, by_messages: bool = False) -> dict[str, Instant]:
        """By stream, the place that all that happened before a place is before."""
        found = self._known.get((place, by_messages))
        if found is None:
            found = self._known[place, by_messages] = {}
            left = [place]
            while left:
                end = left.pop()
                last = found.get(end.stream)
                if last is None or end > last:
                    found[end.stream] = end
                    left += self._sent_to(end)
                    left += () if by_messages else self._beside(end)
        return found

    def _sent_to(self, end: Instant) -> Iterator[Instant]:
        """Of each stream that sent something to one before a place, where that was at last."""
        for edges in self._edges:
            for receipts, latest in edges.get(end.stream, {}).values():
                count = bisect_left(receipts, end)
                if count:
                    yield latest[count - 1]

    def _beside(self, end: Instant) -> Iterator[Instant]:
        """Where the other streams of a process were at least, before a place in one of them."""
        begun = end.row if end.during >= During.GIVEN else end.row - 1  # the last row that had
        ended = end.row if end.during <= During.WITHIN else end.row + 1  # rows that had
        view, others = self.views.get(end.stream), self._others.get(end.stream)
        if view is None or not others or begun < 0:
            return
        step = _step_at(view, begun) if self._has_rows else begun
        for other in others:
            if other.process is not view.process:
                yield from _in_thread(view, begun, ended, other)
                continue
            row = None if step is None else self.first_row(other.name, step)
            yield from () if row is None else [Instant(other.name, row, During.MESSAGE)]
            inner, outer = parse_within(view.name), parse_within(other.name)
            if inner is not None and inner[0] == other.name:
                call = self._calls(other, inner[1]).around(begun)
                yield from () if call is None else [Instant(other.name, call, During.WITHIN)]
            elif outer is not None and outer[0] == view.name:
                yield Instant(other.name, self._calls(view, outer[1]).within(ended), During.MESSAGE)


def _first_row(view: StreamView, step: int) -> int | None:
    try:
        return view.row_after_step(step - 1) if step else 0
    except HoleError:
        return None


def _step_at(view: StreamView, row: int) -> int | None:
    try:
        return row_at(view, row).step
    except HoleError:
        return None


def _by_streams(edges: Iterable[Edge]) -> Edges:
    found: dict[str, dict[str, tuple[list[Instant], list[Instant]]]] = defaultdict(
        lambda: defaultdict(lambda: ([], []))
    )
    for sent, received in sorted(edges, key=lambda edge: edge[1]):
        receipts, latest = found[received.stream][sent.stream]
        receipts.append(received)
        latest.append(max(latest[-1], sent) if latest else sent)
    return found


# --- messages ---------------------------------------------------------------------------------------------------------


def _messages(trace: Trace) -> Iterator[Edge]:
    sent: dict[tuple[str, str, int], list[Instant]] = defaultdict(list)
    received: dict[tuple[str, str, int], list[Instant]] = defaultdict(list)
    peers = {(_machine(p, channel), channel): peer for p in trace.processes for channel, peer in p.peers.items()}
    for process in trace.processes:
        names = {stream.index: stream.name for stream in process.streams}
        for ends in process.messages:
            machine = _machine(process, ends.channel)
            channel = ends.channel if ends.sent else peers.get((machine, ends.channel), ends.channel)
            for row, number, digest in zip(ends.rows, ends.numbers, ends.digests, strict=True):
                if ends.stream in names:
                    place = Instant(names[ends.stream], row, During.MESSAGE, number)
                    (sent if ends.sent else received)[machine, channel, digest].append(place)
    for key, receipts in received.items():
        yield from _matched(key[1], sent.get(key, ()), receipts)


def _matched(channel: str, sent: Sequence[Instant], receipts: Sequence[Instant]) -> Iterator[Edge]:
    """What was sent before each receipt, of equal messages of one channel: where it is not certain which of them was
    received, the first."""
    senders, receivers = ({place.stream for place in ends} for ends in (sent, receipts))
    if channel == END:  # of every stream of the process
        yield from ((end, receipt) for receipt in receipts for end in sent)
    elif len(senders) == 1 and (channel == RAY or len(receipts) <= len(sent) or len(receivers) > 1):
        in_order = sorted(sent, key=attrgetter("number"))
        one_by_one = channel != RAY and len(receivers) == 1
        for at, receipt in enumerate(sorted(receipts, key=attrgetter("number"))):
            yield in_order[at if one_by_one else 0], receipt


def _machine(process: ProcessTrace, channel: str) -> str:
    """Where the name of a channel has its meaning."""
    return "" if channel == RAY else f"{process.start_record.get('host')} {process.start_record.get('boot')}"


# --- collectives ------------------------------------------------------------------------------------------------------


def collective_edges(happened: HappenedBefore, step: int, last: Mapping[str, int]) -> Iterator[Edge]:
    """Of the collectives of some streams, from a step on, up to the last row of interest of each."""
    calls: dict[str, dict[Key, list[CollectiveCall]]] = {}
    ranks: dict[int, list[str]] = defaultdict(list)
    for name, row in last.items():
        rank, start = own_rank(happened.views[name].process), happened.first_row(name, step)
        found = None if rank is None or start is None else collectives_between(happened.views[name], start, row)
        if rank is not None and found is not None:
            calls[name] = found
            ranks[rank].append(name)
    for name, by_key in calls.items():
        for key, own in by_key.items():
            for rank in frozenset[int]().union(*(call.senders for call in own)) - {own[0].own}:
                streams = [other for other in ranks[rank] if key in calls[other]] or ranks[rank]
                sender = _counterpart(name, streams, happened.views)
                if sender is not None:
                    yield from _brought(name, own, rank, Instant(sender, last[sender]), calls[sender].get(key, []))


def _counterpart(name: str, others: Sequence[str], views: Mapping[str, StreamView]) -> str | None:
    """Of streams of other processes the one of this name, or the only one."""
    thread = {each: each.removeprefix(views[each].process.name) for each in (name, *others)}
    same = [other for other in others if thread[other] == thread[name]]
    return next((found[0] for found in (same, others) if len(found) == 1), None)


def _brought(
    stream: str, own: Sequence[CollectiveCall], rank: int, last: Instant, others: Sequence[CollectiveCall]
) -> Iterator[Edge]:
    """What collectives of one group brought from a rank; those that it ran after its last row of interest, too."""
    for call, sent in zip_longest(own, others[: len(own)]):
        if sent is not None and sent.op != call.op:
            break  # other collectives: counting them means nothing
        if rank in call.senders and call.own in call.receivers and (call.synchronous or call.read_by is not None):
            arrived = (call.row, During.ARRIVED) if call.read_by is None else (call.read_by, During.READ)
            yield (
                last._replace(row=last.row if sent is None else sent.row, during=During.SENT),
                Instant(stream, *arrived),
            )


# --- JAX --------------------------------------------------------------------------------------------------------------


class OuterCalls(NamedTuple):
    """The calls of JAX with rows within, in one stream of these."""

    rows: NDArray[np.int64]
    """Of the calls."""
    ends: NDArray[np.int64]
    """How many rows within have ended with each."""

    def around(self, within: int) -> int | None:
        """The row of the call around a row within; None: it is not known."""
        at = int(np.searchsorted(self.ends, within, "right"))
        return int(self.rows[at]) if at < len(self.rows) else None

    def within(self, rows: int) -> int:
        """How many rows within the calls among the first ``rows`` rows had."""
        count = int(np.searchsorted(self.rows, rows))
        return int(self.ends[count - 1]) if count else 0


def calls_with(view: StreamView, name: str) -> OuterCalls:
    """The calls whose rows within are in the stream ``VIEW/NAME``, in the order of the calls, up to a hole.

    The evidence of the row of a call says how many it has."""
    kernels = [str(view.words.evidence(kernel).get(WITHIN, "")).split() for kernel in range(view.words.size("kernels"))]
    counts = np.array([*(int(own[1]) if own[:1] == [name] else 0 for own in kernels), 0], np.int64)
    parts = [np.empty(0, np.int64)]
    try:
        for start in range(0, view.rows, ROWS_AT_ONCE):
            rows = view.stream.read(start, min(start + ROWS_AT_ONCE, view.rows))
            parts.append(counts.take(rows.column(Column.KERNEL), mode="clip"))
    except HoleError:
        pass
    own = np.concatenate(parts)
    called = np.flatnonzero(own)
    return OuterCalls(called, np.cumsum(own[called]))


def _in_thread(view: StreamView, begun: int, ended: int, other: StreamView) -> Iterator[Instant]:
    """Where JAX, or torch, was at least on a thread of both, when the other one was at its rows."""
    if view.stream.torch_stream == other.stream.index:
        moment = moment_of(view.stream.interleaving, begun)
        yield Instant(other.name, moment.end if ended > begun else moment.begin, During.MESSAGE)
    elif other.stream.torch_stream == view.stream.index:
        runs = other.stream.interleaving
        calls = bisect_right(range(other.rows), begun, key=lambda call: moment_of(runs, call).end)
        yield Instant(other.name, calls, During.MESSAGE)
