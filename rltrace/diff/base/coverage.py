"""Coverage of a trace: sentences on what the program may have run without it being recorded, and summaries.

Damaged rows and runs that ended early are reported elsewhere.
"""

from collections.abc import Iterator
from dataclasses import replace

from rltrace.diff.base.model import EventSummary, ProcessSummary, Side, Structure, UninitialisedCount
from rltrace.trace.format.root import LEFT_OUT
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace

RAY_ROLE, THREADS_BEFORE, THREADS_BESIDE, THREADS_OF_RPC = "ray.role", "threads.before", "threads.beside", "threads.rpc"
MODULES_UNKNOWN, STACK_FULL, LAUNCHES_UNSEEN = "modules.unknown", "stack.full", "launches.unseen"
"""Facts of a process."""


SHOWN_SPANS = 4
"""Spans of steps that were not recorded, named one by one."""


NOTES_OF_FACTS = {
    THREADS_BEFORE: "threads of {process} that ran when its recording began are not recorded ({fact}): start recording"
    " before they start",
    THREADS_BESIDE: "ops that TorchScript ran on separate threads (torch.jit.fork) are not recorded: beside {fact} on;"
    " which of a function's ops run there depends on timing",
    THREADS_OF_RPC: "what other processes call in {process} by torch.distributed.rpc runs on threads that are not"
    " recorded: its results come from outside",
    MODULES_UNKNOWN: "modules of {process} that could not be followed: {fact}; their ops count as ops of the module"
    " around them, and their parameters may be missing from what a window begins with",
    STACK_FULL: "the stack of {process} had no room left for the recorder (RecursionError): {fact}; the ops there are"
    " not recorded, and what they wrote counts as written by an unknown op",
    LAUNCHES_UNSEEN: "calls of code outside torch in {process} without rows, as their arguments could not be read:"
    " {fact}; what they wrote counts as written by the op before",
}
"""Sentences on what a fact of a process says is not recorded."""


def coverage_notes(trace: Trace) -> Iterator[str]:
    """Sentences on parts of the program that could not be recorded, or for which a run asleep was not armed."""
    for process in trace.processes:
        if process.asleep:
            spans = ", ".join(f"{first}:{end}" for first, end in process.asleep[:SHOWN_SPANS])
            more = f" and {len(process.asleep) - SHOWN_SPANS} more" if len(process.asleep) > SHOWN_SPANS else ""
            yield f"asleep: steps {spans}{more} of {process.name} are not recorded, as the run was not armed for them"
        for fact, note in NOTES_OF_FACTS.items():
            if process.facts.get(fact):
                yield note.format(fact=process.facts[fact], process=process.name)
    unrecorded = [process.name for process in trace.processes if slept_through(trace, process) and not process.asleep]
    if unrecorded:
        more = f" and {len(unrecorded) - 1} more" if unrecorded[1:] else ""
        first = _first_step(trace)
        if first:
            yield (
                f"no op of {unrecorded[0]}{more} is recorded or compared, as ops are recorded from step {first:,} on,"
                " which a process reaches when optimizer steps of it end"
            )
        else:
            yield (
                f"asleep: no op of {unrecorded[0]}{more} is recorded, as a process wakes when an optimizer step of it"
                " ends"
            )
    left_out = [process for process in trace.unrecorded if process.state == LEFT_OUT]
    if left_out:
        names = ", ".join(sorted(process.name for process in left_out))
        yield f"{names} and their forks are not recorded: {left_out[0].why}"
    drivers = [process.name for process in trace.processes if process.facts.get(RAY_ROLE) == "driver"]
    if drivers and not any("/ray:" in process.name or "/pool:ray" in process.name for process in trace.processes):
        yield (
            f"{drivers[0]} uses Ray, and none of Ray's workers is recorded: those of a running cluster do not"
            ' inherit the recorder; give them ray.init(runtime_env={"env_vars": rltrace.environment()})'
        )


def slept_through(trace: Trace, process: ProcessTrace) -> bool:
    """Whether a process has no ops because its run was asleep all the time, or it made fewer steps than those before
    the window: a worker, say, that makes none."""
    if process.windows or process.after_op:
        return False
    return bool(trace.options.get("asleep")) or _first_step(trace) > 0


def _first_step(trace: Trace) -> int:
    """The step at which the ops of a trace begin."""
    first = trace.options.get("first_step")
    return first if trace.has_rows and isinstance(first, int) else 0


def unfinished_text(side: str, process: ProcessTrace) -> str:
    """Why the comparison with an unfinished side ends here."""
    why = process.why
    return f"equal so far, but {side} is {process.state}" + (f" ({why})" if why else "")


def recorded_throughout(process: ProcessTrace) -> bool:
    """Whether ops were recorded from beginning to end; otherwise a stream may be missing for its window alone."""
    return process.windows in ([], [(0, None)]) and not process.asleep


# --- summary ----------------------------------------------------------------------------------------------------------
#
# Summaries of traces and of the parts of a comparison, for the report.


FINISHED = ("complete", "stopped")
"""States of a process whose recording ended in order."""


def is_finished(process: ProcessTrace, level: str) -> bool:
    """Whether a process's recording came to its end. Digests still compare damaged rows."""
    if process.state == "damaged":  # closed in order, unless the recorder itself gave up
        return level == "op" and process.exit is not None and "why" not in process.exit
    return process.state in FINISHED


def side_of(trace: Trace) -> Side:
    failed = (ProcessSummary(p.name, p.state, 0, p.why, (), None) for p in trace.unrecorded if p.failed)
    processes = (*map(process_of, trace.processes), *failed)
    steps = sum(p.step_count for p in trace.processes)
    return Side(str(trace.path), trace.level, trace.engine, sum(p.after_op for p in processes), steps, processes)


def process_of(process: ProcessTrace) -> ProcessSummary:
    ending = process.exit
    words = ", ".join(f"{key} {value}" for key, value in ending.items()) if ending else None
    return ProcessSummary(
        process.name, process.state, process.after_op, process.why, tuple(process.windows), words or None
    )


def merge_structures(parts: list[Structure]) -> Structure:
    hunks = tuple(hunk for part in parts for hunk in part.hunks)[:100]
    only_a, only_b = sum(p.only_a for p in parts), sum(p.only_b for p in parts)
    reordered, steps = sum(p.reordered for p in parts), sum(p.reordered_steps for p in parts)
    return Structure(only_a, only_b, reordered, hunks, all(p.whole for p in parts), steps)


def merge_events(parts: list[EventSummary]) -> EventSummary:
    first = next((p for p in parts if p.first), EventSummary())
    whole = all(p.whole for p in parts if p.differing)
    return replace(first, differing=sum(p.differing for p in parts), whole=whole)


def merge_marked(parts: list[UninitialisedCount]) -> UninitialisedCount:
    first = next((p.first for p in parts if p.first), None)
    whole = all(p.whole for p in parts)
    rows, differing, unused = (sum(getattr(p, name) for p in parts) for name in ("rows", "differing", "unused"))
    return UninitialisedCount(rows, differing, first, whole, unused)
