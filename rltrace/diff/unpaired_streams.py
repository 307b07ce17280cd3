"""Threads of one name that take tasks from a queue of the program's own, as timing has it.

Owns whether they do. The recorder cannot tell them from actors that each do work of their own: both are threads that
run one function. The rows can: a task that another thread took stands, whole and equal, in another stream of the other
side. Actors stay streams by themselves, so that a difference in one of them is found there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rltrace.diff.base.coverage import THREADS_BESIDE, recorded_throughout
from rltrace.diff.base.findings import Judgement, make_finding, row_at
from rltrace.diff.base.model import Cause, Finding, InputsMatch
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.diff.causes.rng import draws_from, ends_alike
from rltrace.diff.processes import LIMIT, PoolResult, UnorderedRows, compare_heaps, is_pool, pool_of, results
from rltrace.diff.stream.compare import StreamResult
from rltrace.errors import HoleError
from rltrace.trace.format.schema import Generator, RowFlag
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace
from rltrace.trace.read.stream import StreamTrace

_NUMBERS = re.compile(r"#\d+|[-_. ]?\d+")


@dataclass(frozen=True)
class WorkerGroup:
    """Threads of one process that run one kind of task, and what became of them when compared without order."""

    streams: frozenset[str]
    """Their names on both sides."""
    result: PoolResult


def crew_name(stream: str) -> str | None:
    """``rank0/main/thread:actor`` of ``rank0/main/thread:actor-3#2``; None for a stream that is no thread's."""
    process, is_thread, thread = stream.partition("/thread:")
    return f"{process}{is_thread}{_NUMBERS.sub('', thread)}" if is_thread else None


def find_crews(a: ProcessTrace, b: ProcessTrace, compared: Sequence[StreamResult]) -> list[WorkerGroup]:
    """The crews among the threads of two processes, of which those of one name are ``compared`` already."""
    sides = [_by_crew(process) for process in (a, b)]
    found = []
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        threads = [side.get(name, []) for side in sides]
        names = frozenset(view.name for side in threads for view in side)
        own = [result for result in compared if result.a.name in names]
        if len(names) < 2 or not all(threads) or _is_settled(own, names):
            continue
        if any(sum(view.rows for view in side) > LIMIT for side in threads):
            continue
        result = compare_heaps(name, *threads)
        if result.undecided is None or _any_has_moved(own, *threads):
            found.append(WorkerGroup(names, result))
    return found


def _by_crew(process: ProcessTrace) -> dict[str, list[StreamView]]:
    """Threads with ops by the name of their crew; those that train have an order of their own."""
    found: dict[str, list[StreamView]] = {}
    for stream in process.streams:
        name = crew_name(stream.name)
        view = StreamView(process, stream)
        if name is not None and stream.rows and not len(view.steps):
            found.setdefault(name, []).append(view)
    return found


def _is_settled(compared: Sequence[StreamResult], names: frozenset[str]) -> bool:
    """Whether each thread by itself came out equal to the one of its name."""
    if {result.a.name for result in compared} != names:
        return False
    return all(
        result.decisive is None
        and result.undecided is None
        and not result.structure.only_a
        and not result.structure.only_b
        for result in compared
    )


def _any_has_moved(
    compared: Sequence[StreamResult], threads_a: Sequence[StreamView], threads_b: Sequence[StreamView]
) -> bool:
    """Whether what one side ran where two threads of one name part was run by another thread of the other side."""
    try:
        a, b = UnorderedRows.of(threads_a), UnorderedRows.of(threads_b)
        return any(_has_moved(result, a, b) for result in compared)
    except HoleError:
        return False


def _has_moved(result: StreamResult, a: UnorderedRows, b: UnorderedRows) -> bool:
    """``a`` and ``b``: what all threads ran, those of the pair that was compared among them."""
    finding = result.first
    if finding is None:
        return False
    own_a, own_b = UnorderedRows.of([result.a]), UnorderedRows.of([result.b])
    for view, row in ((result.a, finding.a_index), (result.b, finding.b_index)):
        if row is not None:
            ran = int(results(view, row, row + 1)[0])
            others_a, others_b = a.count(ran) - own_a.count(ran), b.count(ran) - own_b.count(ran)
            if (others_b > others_a) if view is result.a else (others_a > others_b):
                return True
    return False


# --- lonely -----------------------------------------------------------------------------------------------------------
#
# Streams that one trace alone has: a thread or process that only one of the runs started.
#
# Owns whether that matters: an extra thread that logs does not, nor one that draws from a generator of its own or puts
# back what it drew; one that draws from what others draw from, or that trains, does. A process that only one run
# started has generators that nobody else can draw from.


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
    """The process that ``other`` alone has, where it may be one that left ``trace`` nothing but its start record.

    A pool's is not missed where others of that pool are there: their tasks are compared as one, and some have none.
    """
    names = {pool_of(process.name) for process in trace.processes}
    gone = next((process.name for process in other.processes if pool_of(process.name) not in names), None)
    return gone if len(trace.unrecorded) > len(other.unrecorded) else None


def _finding(side: str, partner: ProcessTrace | None, view: StreamView) -> list[tuple[str, Finding, bool]]:
    try:
        row = row_at(view, 0)
        harm = "it makes optimizer steps" if len(view.steps) else "" if partner is None else _draws(view, partner)
    except HoleError:
        return []
    why = f"only {side} has the stream {view.name} ({view.rows:,} ops)" + (f"; {harm}" if harm else "")
    decided = Judgement(Cause.CONTROL_FLOW, InputsMatch.UNKNOWN, why)
    finding = make_finding(row, None, decided, 0) if side == "A" else make_finding(None, row, decided, 0)
    return [(view.process.name, finding, bool(harm))]


def _draws(view: StreamView, partner: ProcessTrace) -> str:
    """What is harmful about the draws of a thread: a generator that other threads use is not known to be put back."""
    others = [stream for stream in view.process.streams if stream.index != view.stream.index]
    drawn: set[int] = set()
    for segment in view.stream.segments:
        rows = RowRange(view, view.stream.read_segment(segment))
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


# --- beside -----------------------------------------------------------------------------------------------------------
#
# Streams beside which TorchScript ran ops that are no rows: a difference in what follows decides nothing.
#
# ``torch.jit.fork`` runs a function's ops on threads of its own, and what waits for one of them may go on there, too.
# Which ops are rows is then timing's to say, and so is which of two gradients is added first. Owns the fact that tells
# of such streams (``rltrace.recorder.core.torchscript_threads`` writes it), and what of a stream's result is believed
# because of it.


def believed(result: StreamResult) -> StreamResult:
    """``result``, left open where its difference lies behind ops that ran beside the stream."""
    decisive = result.decisive
    if decisive is None or not (_is_behind(result.a, decisive.a_index) or _is_behind(result.b, decisive.b_index)):
        return result
    return replace(result, first=result.first or decisive, value=None, harmful=None, undecided=_why(result, decisive))


def _why(result: StreamResult, decisive: Finding) -> str:
    rows = (first_beside(result.a), first_beside(result.b))
    first = min(row for row in rows if row is not None)
    return (
        f"TorchScript ran ops on separate threads beside {result.a.name} from row {first:,} on (torch.jit.fork): "
        f"which ops are rows depends on timing, so the difference after {decisive.identical_before:,} equal ops may "
        "be due to timing only"
    )


def _is_behind(view: StreamView, row: int | None) -> bool:
    first = first_beside(view)
    return first is not None and row is not None and row >= first


def first_beside(view: StreamView) -> int | None:
    """The row that a stream was at when the first op ran beside it; None: none did."""
    told = str(view.process.facts.get(THREADS_BESIDE) or "")  # STREAM from row N, several with commas between
    parts = (part.rpartition(" from row ") for part in told.split(", "))
    return next((int(row) for name, _, row in parts if name == view.name and row.isdecimal()), None)
