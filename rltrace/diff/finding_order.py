"""Which of several findings came first, where anything says so.

Only shared events order streams: within one process the number of optimizer attempts that it had finished, between two
the collectives in which both took part. What one of them ran before it gave its part precedes what the other ran after
it had received it. Names never order anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rltrace.diff.base.model import Finding
from rltrace.diff.base.view import StreamView
from rltrace.diff.causes.collectives import CollectiveLog, collectives_between, first_row, own_rank
from rltrace.trace.read.reader import Trace


@dataclass(frozen=True)
class OrderedFinding:
    """A finding and the process it is of."""

    process: str
    finding: Finding


class Order:
    """What precedes what, of the findings of two traces."""

    def __init__(self, a: Trace, b: Trace) -> None:
        self._traces = a, b
        self._logs: dict[tuple[str, int, int], CollectiveLog | None] = {}
        self._ranks: dict[str, int | None] = {}

    def earliest(self, found: Sequence[OrderedFinding]) -> list[Finding]:
        """The findings that no other one is known to precede: one, or several that cannot be ordered."""
        return [x.finding for x, before in zip(found, self._before(found), strict=True) if not before]

    def later(self, found: Sequence[OrderedFinding]) -> tuple[Finding, ...]:
        """The others, of processes that have none of the earliest; what is received says from which streams."""
        before = self._before(found)
        first = [k for k, earlier in enumerate(before) if not earlier]
        processes = {found[k].process for k in first}
        return tuple(
            _received_from(y.finding, [found[k].finding.stream for k in first if k in _reached(n, before)])
            for n, y in enumerate(found)
            if y.process not in processes
        )

    def _before(self, found: Sequence[OrderedFinding]) -> list[list[int]]:
        """Of each finding the places of those that are known to precede it."""
        several = len({x.process for x in found}) > 1
        step = self._common_step(found) if several else 0
        return [[k for k, x in enumerate(found) if x is not y and self._is_before(x, y, step)] for y in found]

    def _is_before(self, x: OrderedFinding, y: OrderedFinding, step: int) -> bool:
        """``step``: one that is no later than either; collectives are counted from its start."""
        if x.process == y.process:
            steps = x.finding.step, y.finding.step
            return steps[0] is not None and steps[1] is not None and steps[0] < steps[1]
        sent, received_by = self._collectives(x.finding, step), self._collectives(y.finding, step)
        rank = self._rank(x.process)
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

    def _collectives(self, finding: Finding, step: int) -> CollectiveLog | None:
        """Those of the finding's stream from a step's start up to the finding."""
        view, row = self._place(finding)
        if view is None or row is None:
            return None
        known = finding.stream, row, step
        if known not in self._logs:
            start = first_row(view, step)
            self._logs[known] = None if start is None or start > row else collectives_between(view, start, row)
        return self._logs[known]

    def _common_step(self, found: Sequence[OrderedFinding]) -> int:
        """The latest step in which, or after whose start, all of them are; 0 where a stream does not tell."""
        step = min(x.finding.step or 0 for x in found)
        views = [self._place(x.finding)[0] for x in found]
        return step if all(view is not None and first_row(view, step) is not None for view in views) else 0

    def _rank(self, process: str) -> int | None:
        """A process's own, as it was told to a collective."""
        if process not in self._ranks:
            found = (own_rank(p) for trace in self._traces for p in trace.processes if p.name == process)
            self._ranks[process] = next((rank for rank in found if rank is not None), None)
        return self._ranks[process]

    @cached_property
    def _views(self) -> tuple[dict[str, StreamView], dict[str, StreamView]]:
        """The streams of both sides by their names."""
        a, b = ({s.name: StreamView(p, s) for p in trace.processes for s in p.streams} for trace in self._traces)
        return a, b

    def _place(self, finding: Finding) -> tuple[StreamView | None, int | None]:
        """The stream of a finding and its row, on a side that has it."""
        for views, row in zip(self._views, (finding.a_index, finding.b_index), strict=True):
            if row is not None and finding.stream in views:
                return views[finding.stream], row
        return None, None


def _reached(n: int, before: Sequence[Sequence[int]]) -> set[int]:
    """All that precede ``n``, directly or by way of others."""
    found, left = set[int](), [n]
    while left:
        more = set(before[left.pop()]) - found
        found |= more
        left += more
    return found


def _received_from(finding: Finding, origins: list[str]) -> Finding:
    """A finding after others, with where it comes from."""
    received = finding.received
    if received is None or not origins:
        return finding
    names = origins[0] if len(origins) == 1 else f"{', '.join(origins[:-1])} and {origins[-1]}"
    because = f"{finding.because}, as {names} {'does' if len(origins) == 1 else 'do'} before it"
    return replace(finding, received=replace(received, origins=tuple(origins)), because=because)
