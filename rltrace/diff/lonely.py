"""Streams that one trace alone has: a thread or process that only one of the runs started.

Owns whether that matters: an extra thread that logs does not, nor one that draws from a generator of its own or puts
back what it drew; one that draws from what others draw from, or that trains, does. A process that only one run started
has generators that nobody else can draw from.
"""

from __future__ import annotations

from rltrace.diff.findings import Decided, make_finding, row_at
from rltrace.diff.judging.putback import draws_from, ends_alike
from rltrace.diff.model import Cause, Finding, InputsMatch
from rltrace.diff.pools import is_pool, pool_of
from rltrace.diff.view import StreamView, Stretch
from rltrace.errors import HoleError
from rltrace.trace.reader import ProcessTrace, StreamTrace, Trace
from rltrace.trace.schema import Generator, RowFlag


def lonely_streams(a: Trace, b: Trace) -> list[tuple[str, Finding, bool]]:
    """(process, finding, whether the rest of the program may depend on it) of every stream that one side alone has.

    None where a journal has lost records: the other side's stream may be there under no name, or its process gone.
    """
    found: list[tuple[str, Finding, bool]] = []
    if a.lost or b.lost:
        return found
    for side, trace, other in (("A", a, b), ("B", b, a)):
        names = {stream.name for process in other.processes for stream in process.streams if stream.rows}
        finished = all(p.state == "complete" for p in other.processes) and never_recorded(other, trace) is None
        for process in trace.processes:
            for stream in process.streams:
                if is_pool(stream.name) or stream.name in names or not stream.rows:
                    continue
                if finished and recorded_throughout(process):
                    partner = next((p for p in other.processes if p.name == process.name), None)
                    found += _finding(side, partner, StreamView(process, stream))
    return found


def never_recorded(trace: Trace, other: Trace) -> str | None:
    """The process that ``other`` alone has, where it may be one that left ``trace`` nothing but its birth.

    A pool's is not missed where others of that pool are there: their tasks are compared as one, and some have none.
    """
    names = {pool_of(process.name) for process in trace.processes}
    gone = next((process.name for process in other.processes if pool_of(process.name) not in names), None)
    return gone if len(trace.births) > len(other.births) else None


def recorded_throughout(process: ProcessTrace) -> bool:
    """Whether ops were recorded from beginning to end; in a window a stream may be missing for no other reason."""
    return process.windows in ([], [(0, None)])


def _finding(side: str, partner: ProcessTrace | None, view: StreamView) -> list[tuple[str, Finding, bool]]:
    try:
        row = row_at(view, 0)
        harm = "it makes optimizer steps" if len(view.steps) else "" if partner is None else _draws(view, partner)
    except HoleError:
        return []
    why = f"only {side} has the stream {view.name} ({view.rows:,} ops)" + (f"; {harm}" if harm else "")
    decided = Decided(Cause.CONTROL_FLOW, InputsMatch.UNKNOWN, why)
    finding = make_finding(row, None, decided, 0) if side == "A" else make_finding(None, row, decided, 0)
    return [(view.process.name, finding, bool(harm))]


def _draws(view: StreamView, partner: ProcessTrace) -> str:
    """What is harmful about the draws of a thread: a generator that other threads use is not known to be put back."""
    others = [stream for stream in view.process.streams if stream.index != view.stream.index]
    drawn: set[int] = set()
    for segment in view.stream.segments:
        rows = Stretch(view, view.stream.read_segment(segment))
        drawn.update(rows.rows.generators[rows.flags(RowFlag.RNG)].tolist())
    for number in drawn:
        own = number >= Generator.OWN and not any(_draws_too(s, number) for s in others)
        if not own and not ends_alike(view.process, partner, number):
            return "it draws from a generator"
    return ""


def _draws_too(stream: StreamTrace, number: int) -> bool:
    """Whether a stream draws from that generator, as far as is known."""
    rows = draws_from(stream, number)
    return rows is None or bool(len(rows))
