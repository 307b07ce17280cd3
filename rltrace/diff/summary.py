"""A trace, and the parts of a comparison, summed up for the report."""

from __future__ import annotations

from rltrace.diff.model import Marked, ProcessSummary, Side, Structure, Told
from rltrace.trace.reader import Birth, ProcessTrace, Trace

FINISHED = ("complete", "stopped")
"""States of a process whose recording was ended in order."""


def is_finished(process: ProcessTrace, level: str) -> bool:
    """Whether a process's recording came to its end. Digests tell what damaged rows hide."""
    if process.state == "damaged":  # closed in order, unless the recorder itself gave up
        return level == "op" and process.exit is not None and "why" not in process.exit
    return process.state in FINISHED


def side_of(trace: Trace) -> Side:
    processes = (*map(process_of, trace.processes), *map(_failed, (b for b in trace.births if b.failed)))
    steps = sum(p.step_count for p in trace.processes)
    return Side(str(trace.path), trace.level, trace.engine, sum(p.after_op for p in processes), steps, processes)


def _failed(birth: Birth) -> ProcessSummary:
    """A process that computed, maybe, and could not be recorded."""
    return ProcessSummary(birth.name, birth.state, 0, birth.why, (), None)


def process_of(process: ProcessTrace) -> ProcessSummary:
    ending = process.exit
    words = ", ".join(f"{key} {value}" for key, value in ending.items()) if ending else None
    return ProcessSummary(
        process.name, process.state, process.after_op, process.why, tuple(process.windows), words or None
    )


def whole_structure(parts: list[Structure]) -> Structure:
    hunks = tuple(hunk for part in parts for hunk in part.hunks)[:100]
    only_a, only_b = sum(p.only_a for p in parts), sum(p.only_b for p in parts)
    reordered, steps = sum(p.reordered for p in parts), sum(p.reordered_steps for p in parts)
    return Structure(only_a, only_b, reordered, hunks, all(p.whole for p in parts), steps)


def whole_told(parts: list[Told]) -> Told:
    first = next((p.first for p in parts if p.first), None)
    return Told(sum(p.differing for p in parts), first, all(p.whole for p in parts if p.differing))


def whole_marked(parts: list[Marked]) -> Marked:
    first = next((p.first for p in parts if p.first), None)
    whole = all(p.whole for p in parts)
    return Marked(sum(p.rows for p in parts), sum(p.differing for p in parts), first, whole)
