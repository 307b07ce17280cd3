"""What of a program is not in its trace though it may have computed, as far as the trace tells.

Owns these sentences. What is there and damaged, or was there and ended early, is told elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.diff.base.model import EventSummary, ProcessSummary, Side, Structure, UninitialisedCount
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace, UnrecordedProcess

RAY_ROLE, THREADS_BEFORE, THREADS_BESIDE = "ray.role", "threads.before", "threads.beside"
MODULES_UNKNOWN, STACK_FULL = "modules.unknown", "stack.full"
"""Facts of a process."""


def unrecorded(trace: Trace) -> Iterator[str]:
    """A sentence on each part of the program that could not be recorded."""
    for process in trace.processes:
        threads = process.facts.get(THREADS_BEFORE)
        if threads:
            yield (
                f"threads of {process.name} that ran when its recording began are not recorded ({threads}): start"
                " recording before they start"
            )
        beside = process.facts.get(THREADS_BESIDE)
        if beside:
            yield (
                f"ops that TorchScript ran on separate threads (torch.jit.fork) are not recorded: beside {beside} on;"
                " which of a function's ops run there depends on timing"
            )
        unknown = process.facts.get(MODULES_UNKNOWN)
        if unknown:
            yield (
                f"modules of {process.name} that could not be followed: {unknown}; their ops stand in the module around"
                " them, and their parameters may be missing from what a window begins with"
            )
        full = process.facts.get(STACK_FULL)
        if full:
            yield (
                f"the stack of {process.name} had no room left for the recorder (RecursionError): {full}; the ops there"
                " are not recorded, and what they wrote counts as written by nobody known"
            )
    drivers = [process.name for process in trace.processes if process.facts.get(RAY_ROLE) == "driver"]
    if drivers and not any(process.facts.get(RAY_ROLE) == "worker" for process in trace.processes):
        yield (
            f"{drivers[0]} uses Ray, and none of Ray's workers is recorded: those of a running cluster do not"
            ' inherit the recorder; give them ray.init(runtime_env={"env_vars": rltrace.environment()})'
        )


def still_open(side: str, process: ProcessTrace) -> str:
    """Why nothing more can be said of a side that is not finished."""
    why = process.why
    return f"equal so far, but {side} is {process.state}" + (f" ({why})" if why else "")


def recorded_throughout(process: ProcessTrace) -> bool:
    """Whether ops were recorded from beginning to end; in a window a stream may be missing for no other reason."""
    return process.windows in ([], [(0, None)])


# --- summary ----------------------------------------------------------------------------------------------------------
#
# A trace, and the parts of a comparison, summed up for the report.


FINISHED = ("complete", "stopped")
"""States of a process whose recording was ended in order."""


def is_finished(process: ProcessTrace, level: str) -> bool:
    """Whether a process's recording came to its end. Digests tell what damaged rows hide."""
    if process.state == "damaged":  # closed in order, unless the recorder itself gave up
        return level == "op" and process.exit is not None and "why" not in process.exit
    return process.state in FINISHED


def side_of(trace: Trace) -> Side:
    processes = (*map(process_of, trace.processes), *map(_failed, (b for b in trace.unrecorded if b.failed)))
    steps = sum(p.step_count for p in trace.processes)
    return Side(str(trace.path), trace.level, trace.engine, sum(p.after_op for p in processes), steps, processes)


def _failed(start_record: UnrecordedProcess) -> ProcessSummary:
    """A process that computed, maybe, and could not be recorded."""
    return ProcessSummary(start_record.name, start_record.state, 0, start_record.why, (), None)


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


def whole_told(parts: list[EventSummary]) -> EventSummary:
    first = next((p.first for p in parts if p.first), None)
    return EventSummary(sum(p.differing for p in parts), first, all(p.whole for p in parts if p.differing))


def whole_marked(parts: list[UninitialisedCount]) -> UninitialisedCount:
    first = next((p.first for p in parts if p.first), None)
    whole = all(p.whole for p in parts)
    return UninitialisedCount(sum(p.rows for p in parts), sum(p.differing for p in parts), first, whole)
