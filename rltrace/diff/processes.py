"""Which process of B is which process of A, and which processes of both have no partner, for they share tasks out.

Owns the pairing. A name tells, as a rule: it is the same in every run. Two kinds of process are not known by it. Those
of a pool take tasks as timing has it. And those that were told apart by who came first (``wanted`` one name, got
another): of these, one that was started alike and computed the same is the partner; what is left stands in the order of
the names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.view import StreamView
from rltrace.errors import HoleError
from rltrace.trace.format.schema import Step
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace

# --- pools ------------------------------------------------------------------------------------------------------------
#
# A pool's threads, or processes: which of them takes a task is a matter of timing, so their ops have no order.
#
# Owns the comparison of all pool threads of one process, and of all processes of a pool, as a heap of rows. Equal heaps
# are no difference; unequal ones are not explained, and leave the verdict open: whose task differs cannot be told from
# rows without an order.


LIMIT = 1 << 23
"""Rows of a side that are compared at most."""
_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class PoolResult:
    """What became of the pool threads of one process, or of the processes of a pool."""

    name: str
    """``rank0/main/pool``; ``rank0/main/thread:worker`` of threads that a program shares tasks out to by itself."""
    matched: int
    """Ops of A that have an equal one in B."""
    rows: tuple[int, int]
    threads: tuple[int, int]
    workers: str
    """"threads" or "processes"."""
    undecided: str | None
    """Why it cannot be said whether they are equal; None: they are."""

    @property
    def note(self) -> str:
        """What has to be known of them to read a verdict right."""
        a, b = self.threads
        workers = f"{a:,}" if a == b else f"{a:,} and {b:,}"
        if a == b == 1:
            return (
                f"the order in which {self.name} runs its tasks depends on timing, so its {max(self.rows):,} ops "
                "were compared without their order"
            )
        return (
            f"which of the {workers} {self.workers} of {self.name} runs a task depends on timing, so their "
            f"{max(self.rows):,} ops were compared without their order"
        )


def is_pool(name: str) -> bool:
    """Whether a stream is that of a pool's thread, or a process one of a pool's."""
    return "/pool:" in name


def pool_of(process: str) -> str:
    """``rank0/pool`` of ``rank0/pool:3``; of a process that is no pool's its own name."""
    return process.partition("/pool:")[0] + "/pool" if is_pool(process) else process


def compare_pools(a: ProcessTrace, b: ProcessTrace) -> PoolResult | None:
    """Compare the pool threads of two processes; None where neither has any."""
    views = [[StreamView(p, s) for s in p.streams if is_pool(s.name) and s.rows] for p in (a, b)]
    if not any(views):
        return None
    return compare_heaps(f"{a.name}/pool", *views)


def compare_processes(name: str, a: Sequence[ProcessTrace], b: Sequence[ProcessTrace]) -> PoolResult:
    """Compare the processes of a pool; where their ops are no rows, the steps that they made."""
    views = [[StreamView(p, s) for p in side for s in p.streams if s.rows] for side in (a, b)]
    result = replace(compare_heaps(name, *views), workers="processes", threads=(len(a), len(b)))
    if result.undecided is None and not any(result.rows) and not np.array_equal(_steps(a), _steps(b)):
        open_ = f"the steps of {name} differ, and without an order it is unknown whether that matters"
        result = replace(result, undecided=open_)
    return result


def _steps(processes: Sequence[ProcessTrace]) -> NDArray[np.uint64]:
    """What each step of some processes came to, sorted."""
    parts = [process.steps[:, [Step.PARAMETERS, Step.GRADIENTS]] for process in processes]
    steps: NDArray[np.uint64] = np.concatenate(parts)
    return steps[np.lexsort(steps.T)]


def compare_heaps(name: str, a: Sequence[StreamView], b: Sequence[StreamView]) -> PoolResult:
    """Compare the ops of some threads without their order; ``name`` is what they are called together."""
    rows = (sum(v.rows for v in a), sum(v.rows for v in b))
    matched, undecided = 0, None
    if max(rows) > LIMIT:
        undecided = f"{name} ran {max(rows):,} ops: too many to compare without their order"
    else:
        try:
            matched = UnorderedRows.of(a).common(UnorderedRows.of(b))
        except HoleError as hole:
            undecided = f"ops of {name} cannot be read: {hole}"
        else:
            if matched < max(rows):
                undecided = (
                    f"of the ops of {name}, {rows[0] - matched:,} of A and {rows[1] - matched:,} of B have no equal "
                    "one on the other side, and without an order it is unknown whether that matters"
                )
    return PoolResult(name, matched, rows, (len(a), len(b)), "threads", undecided)


@dataclass(frozen=True, eq=False)
class UnorderedRows:
    """What the rows of some streams are and computed, without an order."""

    results: NDArray[np.uint64]
    """Ascending, each once."""
    counts: NDArray[np.int64]

    @staticmethod
    def of(views: Sequence[StreamView]) -> UnorderedRows:
        """Raises HoleError where rows cannot be read."""
        spans = [(view, at) for view in views for at in range(0, view.rows, _AT_ONCE)]
        parts = [results(view, at, min(at + _AT_ONCE, view.rows)) for view, at in spans]
        return UnorderedRows(*np.unique(np.concatenate(parts or [np.empty(0, np.uint64)]), return_counts=True))

    def count(self, result: int) -> int:
        """How many rows are and computed this, of ``results``."""
        at = int(np.searchsorted(self.results, np.uint64(result)))
        return int(self.counts[at]) if at < len(self.results) and int(self.results[at]) == result else 0

    def common(self, other: UnorderedRows) -> int:
        """Size of what two heaps share, repeated entries counted as often as both have them."""
        _, own, others = np.intersect1d(self.results, other.results, assume_unique=True, return_indices=True)
        return int(np.minimum(self.counts[own], other.counts[others]).sum())


def results(view: StreamView, start: int, stop: int) -> NDArray[np.uint64]:
    """What rows ``start`` to ``stop`` are and computed, whoever was the first to read their inputs."""
    return view.read(start, stop).hashes.results


# --- processes --------------------------------------------------------------------------------------------------------


Pair = tuple[ProcessTrace, ProcessTrace]
Key = Callable[[ProcessTrace], Hashable]


def process_pairs(a: Trace, b: Trace) -> list[Pair]:
    """Pairs of processes, in A's order."""
    sides = [[process for process in trace.processes if not is_pool(process.name)] for trace in (a, b)]
    families = [_families(processes) for processes in sides]
    paired: dict[str, ProcessTrace] = {}
    for wanted in families[0].keys() & families[1].keys():
        of_a, of_b = families[0][wanted], families[1][wanted]
        by_arrival = any(_came_later(process) for process in (*of_a, *of_b))
        paired |= _pair(of_a, of_b, (_started_and_computed, _computed, _started, _name) if by_arrival else (_name,))
    return [(process, paired[process.name]) for process in sides[0] if process.name in paired]


def pooled(trace: Trace) -> dict[str, list[ProcessTrace]]:
    """The processes of each pool, by the pool's name: ``rank0/pool`` of ``rank0/pool:3``."""
    found: dict[str, list[ProcessTrace]] = {}
    for process in trace.processes:
        if is_pool(process.name):
            found.setdefault(pool_of(process.name), []).append(process)
    return found


def _families(processes: Sequence[ProcessTrace]) -> dict[str, list[ProcessTrace]]:
    """Processes by the name that they wanted."""
    found: dict[str, list[ProcessTrace]] = {}
    for process in processes:
        found.setdefault(_wanted(process), []).append(process)
    return found


def _pair(a: Sequence[ProcessTrace], b: Sequence[ProcessTrace], keys: Sequence[Key]) -> dict[str, ProcessTrace]:
    """Partners by the first key under which both sides have one that is free, in the order of their names."""
    paired: dict[str, ProcessTrace] = {}
    free_a, free_b = sorted(a, key=_order), sorted(b, key=_order)
    for key in keys:
        for process in list(free_a):
            partner = next((other for other in free_b if key(other) == key(process)), None)
            if partner is not None:
                paired[process.name] = partner
                free_a.remove(process)
                free_b.remove(partner)
    return paired


def _wanted(process: ProcessTrace) -> str:
    return str(process.start_record.get("requested") or process.name)


def _came_later(process: ProcessTrace) -> bool:
    return process.name != _wanted(process)


def _order(process: ProcessTrace) -> tuple[int, str]:
    return len(process.name), process.name  # #2 before #10


def _name(process: ProcessTrace) -> Hashable:
    return process.name


def _started(process: ProcessTrace) -> Hashable:
    """How it was started, as far as that is recorded."""
    argv = process.start_record.get("argv")
    return tuple(map(str, argv)) if isinstance(argv, list) else None


def _computed(process: ProcessTrace) -> Hashable:
    """What its rows and steps came to."""
    rows = tuple(
        (stream.rows, *(stream.marks[-1, 1:3].tolist() if len(stream.marks) else ())) for stream in process.streams
    )
    steps = process.steps[:, [Step.PARAMETERS, Step.GRADIENTS]]
    return rows, np.ascontiguousarray(steps).tobytes()


def _started_and_computed(process: ProcessTrace) -> Hashable:
    return _started(process), _computed(process)
