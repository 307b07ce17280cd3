"""What of a program is not in its trace though it may have computed, as far as the trace tells.

Owns these sentences. What is there and damaged, or was there and ended early, is told elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

from rltrace.trace.reader import Trace

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
