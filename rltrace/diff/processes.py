"""Which process of B is which process of A, and which processes of both have no partner, for they share tasks out.

Owns the pairing. A name tells, as a rule: it is the same in every run. Two kinds of process are not known by it. Those
of a pool take tasks as timing has it. And those that were told apart by who came first (``wanted`` one name, got
another): of these, one that was started alike and computed the same is the partner; what is left stands in the order of
the names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from rltrace.diff.pools import is_pool, pool_of
from rltrace.trace.reader import ProcessTrace, Trace
from rltrace.trace.schema import Step

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
    return str(process.birth.get("wanted") or process.name)


def _came_later(process: ProcessTrace) -> bool:
    return process.name != _wanted(process)


def _order(process: ProcessTrace) -> tuple[int, str]:
    return len(process.name), process.name  # #2 before #10


def _name(process: ProcessTrace) -> Hashable:
    return process.name


def _started(process: ProcessTrace) -> Hashable:
    """How it was started, as far as that is recorded."""
    argv = process.birth.get("argv")
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
