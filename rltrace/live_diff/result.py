"""What a recording against A has found, as its journal holds it and as everyone else reads it.

Owns the record ``against`` that each process leaves, and what those of all processes say together. No torch.
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
    """What is to be said of a whole run."""

    DIFFERS = "differs"
    EQUAL = "equal"
    ONE_SIDED = "one-sided"  # every op that both ran gave the same; some were run by one side alone
    NOTHING = "nothing-compared"


@dataclass(frozen=True)
class RepeatedResult:
    """What some of the calls gave."""

    digests: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class Repetition:
    """The op that differs, called again on the spot, on the inputs it had."""

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
    """The first op that gave something else than in A."""

    stream: str
    b_index: int
    """Row of this run."""
    a_index: int | None
    """None: it is of an event that A does not have."""
    step: int
    op: str
    module: str
    site: Site | None
    cause: Cause
    inputs_match: InputsMatch
    explanation: str
    kernel: Pair[str]
    outputs: tuple[Pair[str], ...]
    again: Repetition | None = None
    """None: it was not called again; ``why_not`` says why."""
    why_not: str = ""


@dataclass
class LiveCounts:
    """How one process compares with A so far."""

    matched: int = 0
    """Ops that A has, and that gave the same."""
    only_b: int = 0
    """Ops of this run that A does not have."""
    only_a: int = 0
    """Ops of A that the program did not come by in the steps that have ended."""
    marked: int = 0
    """Ops that may have read memory that nobody wrote, and differ."""
    unchecked: int = 0
    """Ops of steps that A does not have."""


@dataclass(frozen=True)
class LiveResult:
    """Of one process."""

    process: str
    counts: LiveCounts = field(default_factory=LiveCounts)
    first: LiveFinding | None = None

    @property
    def word(self) -> LiveOutcome:
        if self.first is not None:
            return LiveOutcome.DIFFERS
        if not self.counts.matched:
            return LiveOutcome.NOTHING
        return LiveOutcome.ONE_SIDED if self.counts.only_b or self.counts.only_a else LiveOutcome.EQUAL


def record_of(found: LiveResult) -> Record:
    return {"type": TYPE, **to_json(found)}


def found_in(trace: Trace) -> list[LiveResult]:
    """Of every process that left its record, in the order of the trace's processes."""
    found = []
    for process in trace.processes:
        for record in process.journal.records:
            if record["type"] == TYPE:
                with suppress(JsonError):
                    found.append(from_json(LiveResult, {**record, "process": process.name}))
    return found


def word_of(found: list[LiveResult]) -> LiveOutcome:
    """Of all processes together."""
    words = {one.word for one in found}
    return next(
        (word for word in (LiveOutcome.DIFFERS, LiveOutcome.ONE_SIDED, LiveOutcome.EQUAL) if word in words),
        LiveOutcome.NOTHING,
    )
