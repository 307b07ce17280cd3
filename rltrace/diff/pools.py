"""A pool's threads, or processes: which of them takes a task is a matter of timing, so their ops have no order.

Owns the comparison of all pool threads of one process, and of all processes of a pool, as a heap of rows. Equal heaps
are no difference; unequal ones are not explained, and leave the verdict open: whose task differs cannot be told from
rows without an order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.view import StreamView
from rltrace.errors import HoleError
from rltrace.trace.reader import ProcessTrace
from rltrace.trace.schema import Step

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
            matched = Heap.of(a).common(Heap.of(b))
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
class Heap:
    """What the rows of some streams are and computed, without an order."""

    results: NDArray[np.uint64]
    """Ascending, each once."""
    counts: NDArray[np.int64]

    @staticmethod
    def of(views: Sequence[StreamView]) -> Heap:
        """Raises HoleError where rows cannot be read."""
        spans = [(view, at) for view in views for at in range(0, view.rows, _AT_ONCE)]
        parts = [results(view, at, min(at + _AT_ONCE, view.rows)) for view, at in spans]
        return Heap(*np.unique(np.concatenate(parts or [np.empty(0, np.uint64)]), return_counts=True))

    def count(self, result: int) -> int:
        """How many rows are and computed this, of ``results``."""
        at = int(np.searchsorted(self.results, np.uint64(result)))
        return int(self.counts[at]) if at < len(self.results) and int(self.results[at]) == result else 0

    def common(self, other: Heap) -> int:
        """Size of what two heaps share, repeated entries counted as often as both have them."""
        _, own, others = np.intersect1d(self.results, other.results, assume_unique=True, return_indices=True)
        return int(np.minimum(self.counts[own], other.counts[others]).sum())


def results(view: StreamView, start: int, stop: int) -> NDArray[np.uint64]:
    """What rows ``start`` to ``stop`` are and computed, whoever was the first to read their inputs."""
    return view.read(start, stop).hashes.results
