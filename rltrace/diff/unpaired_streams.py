"""Streams that cannot be paired by name: worker threads that share tasks, and streams that only one side has.

The recorder cannot distinguish worker threads from actors with separate work: both are threads that run one function.
The rows can: a task that another worker took is, unchanged, in another stream of the other side. Actors stay separate
streams, so that a difference in one of them is found there.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rltrace.diff.base.coverage import THREADS_BESIDE, recorded_throughout, slept_through
from rltrace.diff.base.findings import Judgement, one_sided_finding, row_at
from rltrace.diff.base.model import Cause, Finding, InputsMatch
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.diff.causes.rng import draws_from, rng_ends_equal
from rltrace.diff.processes import MAX_ROWS, PoolResult, UnorderedRows, compare_unordered, is_pool, pool_of, results
from rltrace.diff.stream.compare import StreamResult, failed_at_once
from rltrace.errors import HoleError
from rltrace.trace.format.root import LEFT_OUT
from rltrace.trace.format.schema import Generator, RowFlag, is_within
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace
from rltrace.trace.read.stream import StreamTrace

_NUMBERS = re.compile(r"#\d+|[-_. ]?\d+")


@dataclass(frozen=True)
class WorkerGroup:
    """Threads of one process that share tasks, compared without their order."""

    streams: frozenset[str]
    """Their names on both sides."""
    result: PoolResult


def worker_group_name(stream: str) -> str | None:
    """``rank0/main/thread:actor`` for ``rank0/main/thread:actor-3#2``; None for a stream that is not a thread."""
    process, is_thread, thread = stream.partition("/thread:")
    return f"{process}{is_thread}{_NUMBERS.sub('', thread)}" if is_thread else None


def find_worker_groups(a: ProcessTrace, b: ProcessTrace, compared: Sequence[StreamResult]) -> list[WorkerGroup]:
    """Worker groups among the threads of two processes; ``compared``: results for the pairs of equal names."""
    sides = [_by_group(process) for process in (a, b)]
    found = []
    for name in dict.fromkeys([*sides[0], *sides[1]]):
        threads = [side.get(name, []) for side in sides]
        names = frozenset(view.name for side in threads for view in side)
        own = [result for result in compared if result.a.name in names]
        if len(names) < 2 or not all(threads) or _is_settled(own, names):
            continue
        if any(sum(view.rows for view in side) > MAX_ROWS for side in threads):
            continue
        result = compare_unordered(name, *threads)
        if result.undecided is None or _any_has_moved(own, *threads):
            found.append(WorkerGroup(names, result))
    return found


def _by_group(process: ProcessTrace) -> dict[str, list[StreamView]]:
    """Threads with ops by the name of their group, except for threads that make optimizer steps."""
    found: dict[str, list[StreamView]] = {}
    for stream in process.streams:
        name = worker_group_name(stream.name)
        view = StreamView(process, stream)
        if name is not None and stream.rows and not len(view.steps):
            found.setdefault(name, []).append(view)
    return found


def _is_settled(compared: Sequence[StreamResult], names: frozenset[str]) -> bool:
    """Whether each thread is equal to the one of the same name."""
    if {result.a.name for result in compared} != names:
        return False
    return all(
        r.decisive is None and r.undecided is None and not r.structure.only_a and not r.structure.only_b
        for r in compared
    )


def _any_has_moved(
    compared: Sequence[StreamResult], threads_a: Sequence[StreamView], threads_b: Sequence[StreamView]
) -> bool:
    """Whether another thread of the other side ran the op at which two threads of one name diverge."""
    try:
        a, b = UnorderedRows.of(threads_a), UnorderedRows.of(threads_b)
        return any(_has_moved(result, a, b) for result in compared)
    except HoleError:
        return False


def _has_moved(result: StreamResult, a: UnorderedRows, b: UnorderedRows) -> bool:
    """The same for one pair of threads; ``a`` and ``b``: rows of all threads, those of the pair included."""
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


# --- one-sided streams ------------------------------------------------------------------------------------------------
#
# Threads or processes that only one run started. An extra thread is harmless if it only logs, draws from a separate
# generator, or restores the RNG state; it matters if it draws from a shared generator, or trains. The generators of an
# extra process are its own.


def find_one_sided_streams(a: Trace, b: Trace) -> list[tuple[str, Finding, bool]]:
    """(process, finding, whether the rest of the program may depend on it) for every stream that only one side has.

    Empty where a journal has lost records, which may have named the stream or process of the other side.
    """
    found: list[tuple[str, Finding, bool]] = []
    if a.lost or b.lost:
        return found
    for side, trace, other in (("A", a, b), ("B", b, a)):
        names = {s.name for p in other.processes for s in p.streams if s.rows or failed_at_once(p, s)}
        finished = all(p.state == "complete" for p in other.processes) and missing_process(other, trace) is None
        for process in trace.processes:
            for stream in process.streams:
                if is_pool(stream.name) or is_within(stream.name) or stream.name in names or not stream.rows:
                    continue
                if finished and recorded_throughout(process):
                    partner = next((p for p in other.processes if p.name == process.name), None)
                    if partner is not None and (partner.asleep or slept_through(other, partner)):
                        continue
                    found += _finding(side, partner, StreamView(process, stream))
    return found


def within_note(a: ProcessTrace, b: ProcessTrace) -> str | None:
    """A note where one side alone has these rows within calls and iterations of JAX; None: there are none.

    Not of functions that the other side's window has none of: they may have been called before or after it.
    """
    sides = [{s.name.removeprefix(p.name) for s in p.streams if is_within(s.name)} for p in (a, b)]
    functions = [{name.partition("@")[0] for name in side} for side in sides]
    if not recorded_throughout(a):
        sides[1] = {name for name in sides[1] if name.partition("@")[0] in functions[0]}
    if not recorded_throughout(b):
        sides[0] = {name for name in sides[0] if name.partition("@")[0] in functions[1]}
    if sides[0] == sides[1]:
        return None
    if not all(sides):
        return "what is within calls of JAX was recorded on one side only, and is not compared; the calls are"
    return (
        "some JAX programs have other values in memory on the two sides, and what is within them is not compared; their"
        " calls are: record both with --fusions-of A --fusions-of B, and what both had in memory is compared"
    )


def missing_process(trace: Trace, other: Trace) -> str | None:
    """The process that only ``other`` has, where it was left out of ``trace`` or may have left only that it started.

    A process of a pool is not missing while others of that pool were recorded, as their tasks are compared together.
    """
    names = {pool_of(process.name) for process in trace.processes}
    missing = [process.name for process in other.processes if pool_of(process.name) not in names]
    by_choice = {process.name for process in trace.unrecorded if process.state == LEFT_OUT}
    chosen = next((name for name in missing if name in by_choice), None)
    if chosen is not None or not missing:
        return chosen
    started, there = (sum(process.state != LEFT_OUT for process in side.unrecorded) for side in (trace, other))
    return missing[0] if started > there else None


def _finding(side: str, partner: ProcessTrace | None, view: StreamView) -> list[tuple[str, Finding, bool]]:
    try:
        row = row_at(view, 0)
        harm = "it makes optimizer steps" if len(view.steps) else "" if partner is None else _draws(view, partner)
    except HoleError:
        return []
    why = f"only {side} has the stream {view.name} ({view.rows:,} ops)" + (f"; {harm}" if harm else "")
    decided = Judgement(Cause.CONTROL_FLOW, InputsMatch.UNKNOWN, why)
    finding = one_sided_finding(row, side == "A", decided, 0)
    return [(view.process.name, finding, bool(harm))]


def _draws(view: StreamView, partner: ProcessTrace) -> str:
    """Why the draws of a thread are harmful, or "": whether it leaves a shared generator in another state."""
    others = [stream for stream in view.process.streams if stream.index != view.stream.index]
    generators: set[int] = set()
    for segment in view.stream.segments:
        rows = RowRange(view, view.stream.read_segment(segment))
        generators.update(rows.rows.generators[rows.flags(RowFlag.RNG)].tolist())
    for number in generators:
        own = number >= Generator.OWN and not any(_draws_too(s, number) for s in others)
        if not own and not rng_ends_equal(view.process, partner, number):
            return "it draws from a generator"
    return ""


def _draws_too(stream: StreamTrace, number: int) -> bool:
    """Whether a stream draws from that generator, or that is not known."""
    found = draws_from(stream, number)
    return found is None or bool(len(found.rows))


# --- TorchScript threads ----------------------------------------------------------------------------------------------
#
# ``torch.jit.fork`` runs ops on separate threads that cannot be recorded, and code that waits for one may continue
# there. Which ops are recorded then depends on timing, and so does the order of gradient sums: a later difference
# decides nothing. ``rltrace.recorder.core.ops_without_rows`` writes the fact that names such streams.


def downgrade_for_torchscript(result: StreamResult) -> StreamResult:
    """``result``, undecided where its difference is after ops that TorchScript ran on separate threads."""
    decisive = result.decisive
    if decisive is None:
        return result
    sides = (result.a, decisive.a_index), (result.b, decisive.b_index)
    forks = [(first, row) for view, row in sides if (first := first_torchscript_row(view)) is not None]
    if not any(row is not None and row >= first for first, row in forks):
        return result
    why = (
        f"TorchScript ran ops on separate threads beside {result.a.name} from row {min(forks)[0]:,} on (torch.jit.fork)"
        f": which ops are rows depends on timing, so the difference after {decisive.identical_before:,} equal ops may "
        "be due to timing only"
    )
    return replace(result, first=result.first or decisive, value=None, harmful=None, undecided=why)


def first_torchscript_row(view: StreamView) -> int | None:
    """Row of a stream at which TorchScript first ran an op on a separate thread; None: it never did."""
    fact = str(view.process.facts.get(THREADS_BESIDE) or "")  # STREAM from row N, several with commas between
    parts = (part.rpartition(" from row ") for part in fact.split(", "))
    return next((int(row) for name, _, row in parts if name == view.name and row.isdecimal()), None)
