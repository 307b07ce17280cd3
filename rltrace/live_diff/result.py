"""The result of a live comparison with A, in the journal and in memory.

Owns the record ``against`` that each process writes, and the outcome of all processes. No torch.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

from rltrace.diff.base.model import Cause, InputsMatch, Pair
from rltrace.json import JsonError, from_json, to_json
from rltrace.trace.format.journal import Record
from rltrace.trace.read.names import Site
from rltrace.trace.read.reader import Trace

TYPE = "against"


class LiveOutcome(StrEnum):
    """The outcome of a whole run."""

    DIFFERS = "differs"
    EQUAL = "equal"
    ONE_SIDED = "one-sided"  # all matched ops are equal; some ops are on one side only
    NOTHING = "nothing-compared"


@dataclass(frozen=True)
class RepeatedResult:
    """What some of the calls gave."""

    digests: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class Repetition:
    """The results of calling the op that differs again, on its inputs."""

    times: int
    repeats: bool
    """Every call gave the same."""
    results: tuple[RepeatedResult, ...]
    """In the order in which they were first seen."""
    of_a: int
    """Calls that gave A's results."""
    of_b: int
    """Calls that gave those that this run went on with."""


@dataclass(frozen=True)
class LiveFinding:
    """The first difference from A."""

    stream: str
    b_index: int | None
    """Row of this run; None: A alone has the op, or no op is known."""
    a_index: int | None
    """None: this run alone has the op or event, or no op is known."""
    step: int | None
    op: str
    """Empty: only steps were recorded."""
    module: str
    site: Site | None
    cause: Cause
    inputs_match: InputsMatch
    explanation: str
    kernel: Pair[str]
    outputs: tuple[Pair[str], ...]
    again: Repetition | None = None
    """None: it was not called again, for the reason ``why_not``."""
    why_not: str = ""


@dataclass
class LiveCounts:
    """Counts of the ops of one process."""

    matched: int = 0
    """Ops that A has, and that gave the same."""
    only_b: int = 0
    """Ops of this run that A does not have."""
    only_a: int = 0
    """Ops of A that the program did not run, in steps that have ended."""
    marked: int = 0
    """Ops that differ and may have read uninitialised memory."""
    unused: int = 0
    """Ops that differ as they compute with what those returned, which the step of an optimizer after them did not
    use."""
    unchecked: int = 0
    """Ops of steps that A does not have."""


@dataclass(frozen=True)
class LiveResult:
    """The result of one process."""

    process: str
    """Empty: several processes, counted together."""
    counts: LiveCounts = field(default_factory=LiveCounts)
    first: LiveFinding | None = None

    @property
    def word(self) -> LiveOutcome:
        if self.first is not None:
            return LiveOutcome.DIFFERS
        if not self.counts.matched:
            return LiveOutcome.NOTHING
        return LiveOutcome.ONE_SIDED if self.counts.only_b or self.counts.only_a else LiveOutcome.EQUAL


def to_record(found: LiveResult) -> Record:
    return {"type": TYPE, **to_json(found)}


def read_results(trace: Trace) -> list[LiveResult]:
    """Of every process that left its record, in the order of the trace's processes."""
    found = []
    for process in trace.processes:
        for record in process.journal.records:
            if record["type"] == TYPE:
                with suppress(JsonError):
                    found.append(from_json(LiveResult, {**record, "process": process.name}))
    return found


def word_of(found: list[LiveResult]) -> LiveOutcome:
    """The outcome of all processes together."""
    words = {one.word for one in found}
    return next(
        (word for word in (LiveOutcome.DIFFERS, LiveOutcome.ONE_SIDED, LiveOutcome.EQUAL) if word in words),
        LiveOutcome.NOTHING,
    )
