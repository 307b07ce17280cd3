"""The order of findings in different streams: that in which they happened in a run that has both, where it is known."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rltrace.diff.base.model import Cause, Finding, Pair
from rltrace.diff.happened_before import During, Edge, HappenedBefore, Instant, collective_edges
from rltrace.diff.senders import Senders
from rltrace.trace.read.reader import Trace
from rltrace.wording import joined

_Span = tuple[Instant, Instant]
"""The first and the last place where a finding may be."""


@dataclass(frozen=True)
class OrderedFinding:
    """A finding and the name of its process."""

    process: str
    finding: Finding


class Order:
    """The order of the findings of two traces."""

    def __init__(self, a: Trace, b: Trace) -> None:
        self._happened = HappenedBefore(a), HappenedBefore(b)
        self._senders = Senders(*self._happened)

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
        """For each finding, the places of those that happened before it in a run that has both."""
        findings = [each.finding for each in found]
        sides = [self._on_side(side, findings) for side in (0, 1)]

        def is_before(k: int, n: int) -> bool:
            if findings[n].is_independent_of(findings[k]):
                return False
            spans = ((happened, places[k], places[n]) for happened, places in sides)
            return any(x and y and happened.orders(x[1], y[0]) for happened, x, y in spans)

        return [[k for k in range(len(found)) if k != n and is_before(k, n)] for n in range(len(found))]

    def _on_side(self, side: int, findings: Sequence[Finding]) -> tuple[HappenedBefore, list[_Span | None]]:
        """The relation of one run, with what the findings say, and where they are in it."""
        happened = self._happened[side]
        spans = [_span(finding, side, happened) for finding in findings]
        last: dict[str, int] = {}
        for _, end in filter(None, spans):
            if end.stream in happened.views and end.row < happened.views[end.stream].rows:
                last[end.stream] = max(last.get(end.stream, 0), end.row)
        edges = [edge for finding in findings if (edge := _sent(finding, side)) is not None]
        if len({happened.views[name].process.name for name in last}) > 1:
            step = min(finding.step or 0 for finding in findings)  # at or before all: collectives are counted from it
            edges += collective_edges(happened, step, last)
        return happened.with_edges(edges), spans

    def with_sender(self, finding: Finding) -> Finding:
        """The finding with the row of another process that wrote what it received, where one is known to."""
        is_sent = finding.cause in (Cause.OUTSIDE, Cause.UNTRACKED_WRITE) and finding.received is None
        sender = self._senders.of(finding) if is_sent else None
        if sender is None:
            text = self._senders.by_side(finding) if is_sent and finding.cause is Cause.OUTSIDE else ""
            what, *more = finding.explanation.split("; ")
            return replace(finding, explanation="; ".join([f"{what}: {text}", *more])) if text else finding
        why = f"{finding.explanation}; it is what {sender.text} wrote"
        if finding.cause is Cause.UNTRACKED_WRITE:
            why = f"it reads what {sender.text} wrote, in memory that both processes share or copied past torch"
        return replace(finding, cause=Cause.OUTSIDE, sender=sender, explanation=why)

    def sent_to_one_side(self, finding: Finding) -> str:
        """A clause on the row of another process that wrote what one side alone received; "" where none is known to."""
        text = self._senders.by_side(finding) if finding.cause is Cause.CONTROL_FLOW else ""
        return f"; {text}" if text else ""

    def rows_before(self, stream: str, finding: Finding) -> Pair[int] | None:
        """How many rows of another stream happened before a finding, in A and in B; None: none is known to."""
        if finding.a_index is None or finding.b_index is None:
            return None
        places = (Instant(finding.stream, row) for row in (finding.a_index, finding.b_index))
        counts = [happened.rows_before(stream, at) for happened, at in zip(self._happened, places, strict=True)]
        return Pair(*counts) if all(counts) else None


def _span(finding: Finding, side: int, happened: HappenedBefore) -> _Span | None:
    """Where a finding is in one run; None: it is not known. What the other run alone has is where as many equal rows
    are before it, or else somewhere in its step."""
    row, other = (finding.b_index, finding.a_index) if side else (finding.a_index, finding.b_index)
    if row is None and other == finding.identical_before:
        row = other
    if row is not None:
        is_given = finding.cause not in (Cause.KERNEL, Cause.SAME_KERNEL)
        place = Instant(finding.stream, row, During.GIVEN if is_given else During.RESULTS)
        return place, place
    step = finding.b_step if side and finding.b_step is not None else finding.step
    begin, end = (None if step is None else happened.first_row(finding.stream, step + more) for more in (0, 1))
    return None if begin is None or not end else (Instant(finding.stream, begin), Instant(finding.stream, end - 1))


def _sent(finding: Finding, side: int) -> Edge | None:
    """From the row that wrote what a finding's op received, which may be long after its event."""
    sender, row = finding.sender, finding.at_op.b_index if side else finding.at_op.a_index
    if sender is None or row is None:
        return None
    sent = Instant(sender.stream, sender.b_index if side else sender.a_index, During.SENT)
    return sent, Instant(finding.stream, row, During.READ)


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
    earlier = [_predecessors(n, before) for n in range(len(before))]
    return [n for n, own in enumerate(earlier) if all(n in earlier[k] for k in own)]


def _received_from(finding: Finding, origins: list[str]) -> Finding:
    """A finding with the streams that its difference comes from."""
    received = finding.received
    if received is None or not origins:
        return finding
    because = f"{finding.explanation}, as {joined(origins)} {'does' if len(origins) == 1 else 'do'} before it"
    return replace(finding, received=replace(received, origins=tuple(origins)), explanation=because)
