"""Threads of one name that take tasks from a queue of the program's own, as timing has it.

Owns whether they do. The recorder cannot tell them from actors that each do work of their own: both are threads that
run one function. The rows can: a task that another thread took stands, whole and equal, in another stream of the other
side. Actors stay streams by themselves, so that a difference in one of them is found there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rltrace.diff.pools import LIMIT, Heap, PoolResult, compare_heaps, results
from rltrace.diff.streams import StreamResult
from rltrace.diff.view import StreamView
from rltrace.errors import HoleError
from rltrace.trace.reader import ProcessTrace

_NUMBERS = re.compile(r"#\d+|[-_. ]?\d+")


@dataclass(frozen=True)
class Crew:
    """Threads of one process that run one kind of task, and what became of them when compared without order."""

    streams: frozenset[str]
    """Their names on both sides."""
    result: PoolResult


def crew_name(stream: str) -> str | None:
    """``rank0/main/thread:actor`` of ``rank0/main/thread:actor-3#2``; None for a stream that is no thread's."""
    process, is_thread, thread = stream.partition("/thread:")
    return f"{process}{is_thread}{_NUMBERS.sub('', thread)}" if is_thread else None


def find_crews(a: ProcessTrace, b: ProcessTrace, compared: Sequence[StreamResult]) -> list[Crew]:
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
            found.append(Crew(names, result))
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
        a, b = Heap.of(threads_a), Heap.of(threads_b)
        return any(_has_moved(result, a, b) for result in compared)
    except HoleError:
        return False


def _has_moved(result: StreamResult, a: Heap, b: Heap) -> bool:
    """``a`` and ``b``: what all threads ran, those of the pair that was compared among them."""
    finding = result.first
    if finding is None:
        return False
    own_a, own_b = Heap.of([result.a]), Heap.of([result.b])
    for view, row in ((result.a, finding.a_index), (result.b, finding.b_index)):
        if row is not None:
            ran = int(results(view, row, row + 1)[0])
            others_a, others_b = a.count(ran) - own_a.count(ran), b.count(ran) - own_b.count(ran)
            if (others_b > others_a) if view is result.a else (others_a > others_b):
                return True
    return False
