"""The order of findings in different streams, as far as it is known.

Only shared events order streams: optimizer attempts within one process, messages and collectives between processes.
What a process ran before it sent data precedes what another ran after it had received them. What is within a call or an
iteration of JAX precedes the row of it, and a thread that runs JAX and torch records how their rows follow each other.
Names never order anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import numpy as np

from rltrace.diff.base.model import Cause, Finding, Pair
from rltrace.diff.base.view import StreamView
from rltrace.diff.causes.collectives import CollectiveLog, collectives_between, first_row, own_rank
from rltrace.diff.happened_before import HappenedBefore
from rltrace.diff.senders import Senders
from rltrace.errors import HoleError
from rltrace.trace.format.interleaving import moment_of
from rltrace.trace.format.schema import Column, is_within, parse_within
from rltrace.trace.kernels.evidence import WITHIN
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace
from rltrace.wording import joined

ROWS_AT_ONCE = 1 << 16
"""Rows that are read at a time."""


class _Part(IntEnum):
    """What of a call a finding is about, in this order."""

    GIVEN = 0  # what the call was given
    WITHIN = 1
    RESULTS = 2  # what it returned, of equal arguments


@dataclass(frozen=True)
class OrderedFinding:
    """A finding and the name of its process."""

    process: str
    finding: Finding


class Order:
    """The order of the findings of two traces."""

    def __init__(self, a: Trace, b: Trace) -> None:
        self._traces = a, b
        self._logs: dict[tuple[str, int, int], CollectiveLog | None] = {}
        self._ranks: dict[str, int | None] = {}
        self._around: dict[tuple[str, int], int | None] = {}
        self._happened = HappenedBefore(a), HappenedBefore(b)
        self._senders = Senders(a, b, self._happened)

    def earliest(self, found: Sequence[OrderedFinding]) -> list[Finding]:
        """The findings that none is known to precede: one, or several that cannot be ordered; those last whose data
        came from outside, maybe from another of them."""
        first = [found[k].finding for k in first_of(self._before(found))]
        return sorted(first, key=lambda finding: finding.cause is Cause.OUTSIDE)

    def later(self, found: Sequence[OrderedFinding]) -> tuple[Finding, ...]:
        """The other findings, of processes without an earliest one; received ones name the streams of their origins."""
        before = self._before(found)
        first = first_of(before)
        processes = {found[k].process for k in first}
        return tuple(
            _received_from(y.finding, [found[k].finding.stream for k in first if k in _predecessors(n, before)])
            for n, y in enumerate(found)
            if y.process not in processes
        )

    def _before(self, found: Sequence[OrderedFinding]) -> list[list[int]]:
        """For each finding, the places of those that are known to precede it."""
        several = len({x.process for x in found}) > 1
        step = self._common_step(found) if several else 0  # at or before all, where collectives are counted from
        logs = [self._collectives(x.finding, step) if several else None for x in found]
        ranks = [self._rank(x.process) if several else None for x in found]

        def is_before(k: int, n: int) -> bool:
            x, y = found[k], found[n]
            if self._happened_before(x.finding, y.finding):
                return True
            if x.process == y.process:
                steps = x.finding.step, y.finding.step
                if steps[0] is None or steps[1] is None or steps[0] == steps[1]:
                    return self._is_before_in_thread(x.finding, y.finding)
                return steps[0] < steps[1]
            if tokens[k] == tokens[n] is not None:
                return self._is_before_in_process(x, y)
            return self._was_received(logs[k], ranks[k], logs[n])

        tokens = [self._token(x.process) for x in found]
        return [[k for k, x in enumerate(found) if x is not y and is_before(k, n)] for n, y in enumerate(found)]

    def _happened_before(self, x: Finding, y: Finding) -> bool:
        """Whether ``x`` happened before ``y`` in a run that has both."""
        sender = y.sender
        if sender is not None and sender.stream == x.stream and x.a_index is not None and x.a_index <= sender.a_index:
            return True
        for happened, first, second in zip(self._happened, _rows(x), _rows(y), strict=True):
            if first is None or second is None:
                continue
            if x.stream == y.stream:
                return first < second
            if happened.orders((x.stream, first), (y.stream, second)):
                return True
        return False

    def with_sender(self, finding: Finding) -> Finding:
        """The finding with the row of another process that wrote what it received, where one is known to."""
        is_sent = finding.cause in (Cause.OUTSIDE, Cause.UNTRACKED_WRITE) and finding.received is None
        sender = self._senders.of(finding) if is_sent else None
        if sender is None:
            return finding
        why = f"{finding.explanation}; it is what {sender.text} wrote"
        if finding.cause is Cause.UNTRACKED_WRITE:
            why = f"it reads what {sender.text} wrote, in memory that both processes share or copied past torch"
        return replace(finding, cause=Cause.OUTSIDE, sender=sender, explanation=why)

    def sent_to_one_side(self, finding: Finding) -> str:
        """A clause on the row of another process that wrote what one side alone received; "" where none is known to."""
        text = self._senders.on_one_side(finding) if finding.cause is Cause.CONTROL_FLOW else ""
        return f"; {text}" if text else ""

    def rows_before(self, stream: str, finding: Finding) -> Pair[int] | None:
        """How many rows of another stream happened before a finding, in A and in B; None: none is known to."""
        places = [None if row is None else (finding.stream, row) for row in _rows(finding)]
        if None in places:
            return None
        counts = [h.rows_before(stream, at) for h, at in zip(self._happened, places, strict=True) if at is not None]
        return Pair(*counts) if all(counts) else None

    @staticmethod
    def _was_received(sent: CollectiveLog | None, rank: int | None, received_by: CollectiveLog | None) -> bool:
        """Whether what a rank sent up to one finding was received before another."""
        if sent is None or received_by is None or rank is None:
            return False
        for key, calls in received_by.completed.items():
            count = sent.counts[key]
            if sent.ops.get(key, []) != received_by.ops[key][:count]:  # other collectives: the count means nothing
                continue
            for number, call in reversed(calls):
                if number < count:
                    break
                if rank in call.senders and call.own in call.receivers and rank != call.own:
                    return True
        return False

    def _token(self, process: str) -> str | None:
        """What a process of A, or of B, has in common with another one that is the same to the system."""
        return next((trace[process].token for trace in self._processes if process in trace), None)

    def _is_before_in_process(self, x: OrderedFinding, y: OrderedFinding) -> bool:
        """Whether of what JAX and torch ran on one thread, ``x`` is known to have ended before ``y`` began."""
        (first, (at, _)), (second, (then, _)) = (self._in_thread(each.finding) or ("", (0, 0)) for each in (x, y))
        for views in self._views:
            one, other = views.get(first), views.get(second)
            if one is None or other is None:
                continue
            if one.stream.torch_stream == other.stream.index:
                return moment_of(one.stream.interleaving, at).end <= then
            if other.stream.torch_stream == one.stream.index:
                return at < moment_of(other.stream.interleaving, then).begin
        return False

    def _is_before_in_thread(self, x: Finding, y: Finding) -> bool:
        """Of two findings of one step, of which one is within a call of JAX, whether one thread came to ``x`` first."""
        if not is_within(x.stream) and not is_within(y.stream):
            return False
        first, second = self._in_thread(x), self._in_thread(y)
        return first is not None and second is not None and first[0] == second[0] and first[1] < second[1]

    def _in_thread(self, finding: Finding) -> tuple[str, tuple[int, _Part]] | None:
        """The stream of a thread, the row in it that a finding is about, and of what of it; None: it is not known."""
        within, (view, row) = parse_within(finding.stream), self._place(finding)
        if view is None or row is None:
            return None
        if within is None:
            is_given = finding.cause not in (Cause.KERNEL, Cause.SAME_KERNEL)
            return finding.stream, (row, _Part.GIVEN if is_given else _Part.RESULTS)
        stream, name = within
        known = finding.stream, row
        if known not in self._around:
            outer = next((s for s in view.process.streams if s.name == stream), None)
            self._around[known] = None if outer is None else row_around(StreamView(view.process, outer), name, row)
        around = self._around[known]
        return None if around is None else (stream, (around, _Part.WITHIN))

    def _collectives(self, finding: Finding, step: int) -> CollectiveLog | None:
        """The collectives of the finding's stream from the start of a step up to the finding; None: not known."""
        view, row = self._place(finding)
        if view is None or row is None:
            return None
        known = finding.stream, row, step
        if known not in self._logs:
            start = first_row(view, step)
            self._logs[known] = None if start is None or start > row else collectives_between(view, start, row)
        return self._logs[known]

    def _common_step(self, found: Sequence[OrderedFinding]) -> int:
        """The latest step at or before all findings; 0 where its first row is not known in a stream."""
        step = min(x.finding.step or 0 for x in found)
        views = [self._place(x.finding)[0] for x in found]
        return step if all(view is not None and first_row(view, step) is not None for view in views) else 0

    def _rank(self, process: str) -> int | None:
        """Rank of a process, as its collectives recorded it; None: not known."""
        if process not in self._ranks:
            named = (trace[process] for trace in self._processes if process in trace)
            self._ranks[process] = next((rank for p in named if (rank := own_rank(p)) is not None), None)
        return self._ranks[process]

    @cached_property
    def _processes(self) -> tuple[dict[str, ProcessTrace], dict[str, ProcessTrace]]:
        """The processes of A and of B, by name."""
        a, b = ({process.name: process for process in trace.processes} for trace in self._traces)
        return a, b

    @cached_property
    def _views(self) -> tuple[dict[str, StreamView], dict[str, StreamView]]:
        """The streams of A and of B, by name."""
        a, b = ({s.name: StreamView(p, s) for p in trace.processes for s in p.streams} for trace in self._traces)
        return a, b

    def _place(self, finding: Finding) -> tuple[StreamView | None, int | None]:
        """The stream and row of a finding, on a side that has it."""
        for views, row in zip(self._views, (finding.a_index, finding.b_index), strict=True):
            if row is not None and finding.stream in views:
                return views[finding.stream], row
        return None, None


def row_around(view: StreamView, name: str, row: int) -> int | None:
    """Of a row within calls of JAX, in the stream ``VIEW/NAME``, the row of its call; None: it is not known.

    Each call has as many rows within, in the order of the calls; the evidence of its row says how many.
    """
    kernels = [str(view.words.evidence(kernel).get(WITHIN, "")).split() for kernel in range(view.words.size("kernels"))]
    counts = np.array([*(int(own[1]) if own[:1] == [name] else 0 for own in kernels), 0], np.int64)
    ended = 0
    try:
        for start in range(0, view.rows, ROWS_AT_ONCE):
            rows = view.stream.read(start, min(start + ROWS_AT_ONCE, view.rows))
            ends = ended + np.cumsum(counts.take(rows.column(Column.KERNEL), mode="clip"))
            if ends[-1] > row:
                return start + int(np.searchsorted(ends, row, "right"))
            ended = int(ends[-1])
    except HoleError:
        pass
    return None


def _rows(finding: Finding) -> tuple[int | None, int | None]:
    """A finding's row in A and in B; of step digests, the step."""
    if finding.a_index is None and finding.b_index is None:
        return finding.step, finding.b_step or finding.step
    return finding.a_index, finding.b_index


def _predecessors(n: int, before: Sequence[Sequence[int]]) -> set[int]:
    """All findings that precede ``n``, transitively."""
    found, left = set[int](), [n]
    while left:
        more = set(before[left.pop()]) - found
        found |= more
        left += more
    return found


def first_of(before: Sequence[Sequence[int]]) -> list[int]:
    """The findings that none precedes. Those that precede each other have no order, and are first together."""
    first = {n for n, earlier in enumerate(before) if not earlier}
    after, more = set(first), set(first)
    while more:
        more = {n for n, earlier in enumerate(before) if n not in after and not after.isdisjoint(earlier)}
        after |= more
    circles = {n: _predecessors(n, before) for n in range(len(before)) if n not in after}
    first |= {n for n, earlier in circles.items() if all(n in circles[k] for k in earlier)}
    return sorted(first)


def _received_from(finding: Finding, origins: list[str]) -> Finding:
    """A finding with the streams that its difference comes from."""
    received = finding.received
    if received is None or not origins:
        return finding
    because = f"{finding.explanation}, as {joined(origins)} {'does' if len(origins) == 1 else 'do'} before it"
    return replace(finding, received=replace(received, origins=tuple(origins)), explanation=because)
