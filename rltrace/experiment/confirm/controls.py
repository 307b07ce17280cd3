"""A control: a program run again, unchanged, has to come out as its trace does, every time.

Owns how often it is run, what is kept of it, and what is wrong where it does not come out so. What follows from that
is for whoever asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.diff.compare import compare
from rltrace.experiment.confirm.bench import Bench, Ran, Side
from rltrace.experiment.confirm.horizon import agrees
from rltrace.experiment.confirm.words import parts_from
from rltrace.trace.reader import Trace, open_trace
from rltrace.trace.schema import LIMIT

NOT_REPRODUCIBLE = "is not reproducible"
WELL = "ended with status 0"


@dataclass(frozen=True)
class Control:
    """What came of a control."""

    ran: Ran
    """The first run, which holds all values."""
    trouble: str | None
    """Why nothing can rest on it, in a sentence; None: it came out as the trace each time."""


def run_control(bench: Bench, name: str, side: Side, trace: Trace, called: str, samples: int) -> Control:
    """Run the program of a side ``samples`` times; ``called``: what the trace goes by in a sentence.

    Raises RecordError where a run could not be recorded at all.
    """
    first = None
    for number in range(1, samples + 1):
        ran = bench.record(name if number == 1 else f"{name}-{number}", side, values=number == 1)
        first = first or ran
        found = compare(trace, open_trace(ran.trace))
        same = agrees(found)
        if same is None:
            return Control(first, f"unknown whether {called} again equals {called}: {found.why}")
        if not same:
            return Control(
                first,
                f"{called} {NOT_REPRODUCIBLE}: run {number} of {samples} of the same command{_ending(ran)} "
                f"{parts_from(found, called)}; rltrace check shows how often it does",
            )
    assert first is not None
    return Control(first, _missing_values(open_trace(first.trace)))


def _ending(ran: Ran) -> str:
    """How a run ended, where that is not how one ends that goes well."""
    return "" if ran.how == WELL else f", which {ran.how} (what it printed is in {ran.trace.with_suffix('.out')}),"


def _missing_values(trace: Trace) -> str | None:
    """The values of a control have to be there, all that can be."""
    if any(entry.why == LIMIT for process in trace.processes for entry in process.values.left_out):
        return "not all values of these steps could be recorded: the limit was reached; raise --values-limit"
    return None
