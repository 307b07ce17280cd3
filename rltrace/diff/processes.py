"""Pairs of processes of A and B, and processes that share tasks and so are compared together.

Names are usually the same in every run. Two kinds of processes have no such name. Processes of a pool take tasks as
timing permits. Processes that requested the same name were numbered in order of arrival: of these, those with the same
command that computed the same are paired, then those that began alike for the longest, the rest by name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.findings import RowAt, row_at
from rltrace.diff.base.row_diff import arguments_text, difference
from rltrace.diff.base.sequences import grouped
from rltrace.diff.base.view import StreamView
from rltrace.errors import HoleError
from rltrace.trace.format.schema import Step
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace

# --- pools ------------------------------------------------------------------------------------------------------------
#
# Threads or processes of a pool: which of them takes a task depends on timing, so their ops have no order. All rows of
# a pool are compared as a multiset. Unequal multisets leave the verdict open: without an order, rows do not show which
# task differs.


MAX_ROWS = 1 << 23
"""Rows of a side that are compared at most."""
CHUNK_ROWS = 1 << 16


@dataclass(frozen=True)
class PoolResult:
    """The comparison of the pool threads of one process, or of the processes of a pool."""

    name: str
    """``rank0/main/pool``; ``rank0/main/thread:worker`` for threads that take tasks from a queue of the program."""
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
        """A sentence that is needed to read the verdict right."""
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
    """Whether this is the name of a thread or process of a pool."""
    return "/pool:" in name


def pool_of(process: str) -> str:
    """``rank0/pool`` for ``rank0/pool:3``; for other processes their own name."""
    return process.partition("/pool:")[0] + "/pool" if is_pool(process) else process


def compare_pools(a: ProcessTrace, b: ProcessTrace) -> PoolResult | None:
    """Compare the pool threads of two processes; None where neither has any."""
    views = [[StreamView(p, s) for s in p.streams if is_pool(s.name) and s.rows] for p in (a, b)]
    if not any(views):
        return None
    return compare_unordered(f"{a.name}/pool", *views)


def compare_processes(name: str, a: Sequence[ProcessTrace], b: Sequence[ProcessTrace]) -> PoolResult:
    """Compare the processes of a pool; where their ops were not recorded, their steps."""
    views = [[StreamView(p, s) for p in side for s in p.streams if s.rows] for side in (a, b)]
    result = replace(compare_unordered(name, *views), workers="processes", threads=(len(a), len(b)))
    if result.undecided is None and not any(result.rows) and not np.array_equal(_steps(a), _steps(b)):
        open_ = f"the steps of {name} differ, and without an order it is unknown whether that matters"
        result = replace(result, undecided=open_)
    return result


def _steps(processes: Sequence[ProcessTrace]) -> NDArray[np.uint64]:
    """Parameter and gradient digests of all steps of some processes, sorted."""
    parts = [process.steps[:, [Step.PARAMETERS, Step.GRADIENTS]] for process in processes]
    steps: NDArray[np.uint64] = np.concatenate(parts)
    return steps[np.lexsort(steps.T)]


def compare_unordered(name: str, a: Sequence[StreamView], b: Sequence[StreamView]) -> PoolResult:
    """Compare the ops of some threads without their order; ``name`` is their common name."""
    rows = (sum(v.rows for v in a), sum(v.rows for v in b))
    matched, undecided = 0, None
    if max(rows) > MAX_ROWS:
        undecided = f"{name} ran {max(rows):,} ops: too many to compare without their order"
    else:
        try:
            on_a, on_b = UnorderedRows.of(a), UnorderedRows.of(b)
            matched = on_a.common(on_b)
            alone = [on_b.first_missing(a), on_a.first_missing(b)] if matched < max(rows) else []
        except HoleError as hole:
            undecided = f"ops of {name} cannot be read: {hole}"
        else:
            if matched < max(rows):
                undecided = (
                    f"of the ops of {name}, {rows[0] - matched:,} of A and {rows[1] - matched:,} of B have no equal "
                    "one on the other side, and without an order it is unknown whether that matters"
                )
                undecided += _missing_text(*alone)
    return PoolResult(name, matched, rows, (len(a), len(b)), "threads", undecided)


def _missing_text(a: RowAt | None, b: RowAt | None) -> str:
    """``; the first are aten.mul.Tensor at train.py:6 (work) (row 3 of rank0/pool:1) in A, … in B``"""
    named = [f"{row} (row {row.index:,} of {row.view.name}) in {side}" for side, row in (("A", a), ("B", b)) if row]
    text = f"; the first {'is' if len(named) == 1 else 'are'} {', '.join(named)}" if named else ""
    if a is None or b is None or str(a) != str(b):
        return text
    x, y = (side.view.read(side.index, side.index + 1) for side in (a, b))
    found = difference(x, 0, y, 0)
    return f"{text}: {arguments_text(a, b, found)}" if found.arguments else text


@dataclass(frozen=True, eq=False)
class UnorderedRows:
    """Multiset of the rows of some streams, by what they are and computed."""

    results: NDArray[np.uint64]
    """Ascending, each once."""
    counts: NDArray[np.int64]

    @staticmethod
    def of(views: Sequence[StreamView]) -> UnorderedRows:
        """Raises HoleError where rows cannot be read."""
        spans = [(view, at) for view in views for at in range(0, view.rows, CHUNK_ROWS)]
        parts = [results(view, at, min(at + CHUNK_ROWS, view.rows)) for view, at in spans]
        return UnorderedRows(*np.unique(np.concatenate(parts or [np.empty(0, np.uint64)]), return_counts=True))

    def count(self, result: int) -> int:
        """Number of rows with this hash."""
        at = int(np.searchsorted(self.results, np.uint64(result)))
        return int(self.counts[at]) if at < len(self.results) and int(self.results[at]) == result else 0

    def first_missing(self, views: Sequence[StreamView]) -> RowAt | None:
        """Of the rows of some streams that have no equal one here, the one with the fewest before it; None: all do."""
        found: list[RowAt] = []
        for view in views:
            for at in range(0, view.rows, CHUNK_ROWS):
                own = results(view, at, min(at + CHUNK_ROWS, view.rows))
                missing = np.flatnonzero(~np.isin(own, self.results))
                if len(missing):
                    found.append(row_at(view, at + int(missing[0])))
                    break
        return min(found, key=lambda row: row.index, default=None)

    def common(self, other: UnorderedRows) -> int:
        """Size of the intersection of two multisets."""
        _, own, others = np.intersect1d(self.results, other.results, assume_unique=True, return_indices=True)
        return int(np.minimum(self.counts[own], other.counts[others]).sum())


def results(view: StreamView, start: int, stop: int) -> NDArray[np.uint64]:
    """Hashes of what rows ``start`` to ``stop`` are and computed, whatever row read their inputs first."""
    return view.read(start, stop).hashes.results


# --- processes --------------------------------------------------------------------------------------------------------


Pair = tuple[ProcessTrace, ProcessTrace]
Key = Callable[[ProcessTrace], Hashable]


def process_pairs(a: Trace, b: Trace) -> list[Pair]:
    """Pairs of processes, in A's order."""
    sides = [[process for process in trace.processes if not is_pool(process.name)] for trace in (a, b)]
    families = [grouped((_requested_name(process), process) for process in processes) for processes in sides]
    paired: dict[str, ProcessTrace] = {}
    for name in families[0].keys() & families[1].keys():
        of_a, of_b = families[0][name], families[1][name]
        renamed = any(process.name != name for process in (*of_a, *of_b))
        paired |= _pair(of_a, of_b, OF_RENAMED if renamed else (_name,))
    return [(process, paired[process.name]) for process in sides[0] if process.name in paired]


def under_names_of(a: Trace, b: Trace, pairs: Sequence[Pair]) -> Trace:
    """B with the names of A's processes; those without a partner whose name one has then get another."""
    names = {of_b.name: of_a.name for of_a, of_b in pairs}
    if all(own == name for own, name in names.items()):
        return b
    taken = {process.name for process in a.processes}
    names |= {p.name: f"{p.name} of B" for p in b.processes if p.name not in names and p.name in taken}
    renamed = copy(b)
    renamed.processes = tuple(p.renamed(names.get(p.name, p.name)) for p in b.processes)
    return renamed


def pooled(trace: Trace) -> dict[str, list[ProcessTrace]]:
    """The processes of each pool, by the pool's name: ``rank0/pool`` for ``rank0/pool:3``."""
    return grouped((pool_of(process.name), process) for process in trace.processes if is_pool(process.name))


def _pair(a: Sequence[ProcessTrace], b: Sequence[ProcessTrace], keys: Sequence[Key]) -> dict[str, ProcessTrace]:
    """Partners by the first key under which both sides have an unpaired process, in the order of their names."""
    paired: dict[str, ProcessTrace] = {}
    free_a, free_b = sorted(a, key=_order), sorted(b, key=_order)
    for key in keys if free_a and free_b else ():
        left = grouped((key(other), other) for other in free_b)
        for process in list(free_a):
            partners = left.get(key(process))
            if partners:
                paired[process.name] = partners.pop(0)
                free_a.remove(process)
                free_b.remove(paired[process.name])
    return paired


def _requested_name(process: ProcessTrace) -> str:
    return str(process.start_record.get("requested") or process.name)


def _order(process: ProcessTrace) -> tuple[int, str]:
    return len(process.name), process.name  # #2 before #10


def _name(process: ProcessTrace) -> Hashable:
    return process.name


def _started(process: ProcessTrace) -> Hashable:
    """Its command line; None: not recorded."""
    argv = process.start_record.get("argv")
    return tuple(map(str, argv)) if isinstance(argv, list) else None


def _computed(process: ProcessTrace) -> Hashable:
    """Digests of its rows and steps."""
    rows = tuple(
        (stream.rows, *(stream.marks[-1, 1:3].tolist() if len(stream.marks) else ())) for stream in process.streams
    )
    steps = process.steps[:, [Step.PARAMETERS, Step.GRADIENTS]]
    return rows, np.ascontiguousarray(steps).tobytes()


BEGINNINGS = (4_096, 512, 64, 8, 2)
"""Rows of which processes that differ later are compared, the longest beginning first."""


def _began(rows: int, *, alone: bool) -> Key:
    """Digests of its first rows, and its command line unless ``alone``; its name where no row can be read."""

    def key(process: ProcessTrace) -> Hashable:
        stream = next((stream for stream in process.streams if stream.rows), None)
        try:
            tokens = None if stream is None else StreamView(process, stream).read(0, min(rows, stream.rows)).tokens
        except HoleError:
            tokens = None
        began = process.name if tokens is None else (tokens.operator.tobytes(), tokens.values.tobytes())
        return began, None if alone else _started(process)

    return key


def _started_and_computed(process: ProcessTrace) -> Hashable:
    return _started(process), _computed(process)


OF_RENAMED = (
    *(_started_and_computed, _computed, *(_began(rows, alone=False) for rows in BEGINNINGS), _started),
    *(*(_began(rows, alone=True) for rows in BEGINNINGS), _name),  # each worker of Ray has a command line of its own
)
