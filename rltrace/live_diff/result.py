"""The result of a live comparison with A, in the journal and in memory.

Owns the record ``against`` that each process writes, and the outcome of all processes. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from rltrace.diff.base.model import Cause, InputsMatch, Pair
from rltrace.trace.format.journal import Record
from rltrace.trace.read.names import Site, parse_site
from rltrace.trace.read.reader import Trace

TYPE = "against"


class LiveOutcome(StrEnum):
    """The outcome of a whole run."""

    DIFFERS = "differs"
    EQUAL = "equal"
    ONE_SIDED = "one-sided"  # all matched ops are equal; some ops are on one side only
    NOTHING = "nothing-compared"


@dataclass(frozen=True)
class Repetition:
    """The results of calling the op that differs again, on its inputs."""

    times: int
    repeats: bool
    """Every call gave the same result."""
    gave: tuple[tuple[tuple[str, ...], int], ...]
    """(results, how often), in the order in which they were first seen."""
    of_a: int
    """How many calls gave A's results,"""
    of_here: int
    """and how many those that the program went on with."""


@dataclass(frozen=True)
class LiveFinding:
    """The first difference from A."""

    stream: str
    row: int
    """In the recording."""
    row_a: int | None
    """None: it is an event that A does not have."""
    step: int
    op: str
    module: str
    site: Site | None
    cause: Cause
    inputs: InputsMatch
    because: str
    kernel: Pair[str]
    outputs: tuple[Pair[str], ...]
    again: Repetition | None = None
    """None: it was not called again, for the reason ``why_not``."""
    why_not: str = ""


@dataclass
class LiveCounts:
    """Counts of the ops of one process."""

    matched: int = 0
    """Ops that A has, with equal results."""
    only_here: int = 0
    only_a: int = 0
    """Ops of A that the program did not run, in steps that have ended."""
    marked: int = 0
    """Ops that differ and may have read uninitialised memory."""
    unchecked: int = 0
    """Ops of steps that A does not have."""


@dataclass(frozen=True)
class LiveResult:
    """The result of one process."""

    process: str
    tally: LiveCounts = field(default_factory=LiveCounts)
    first: LiveFinding | None = None

    @property
    def word(self) -> LiveOutcome:
        if self.first is not None:
            return LiveOutcome.DIFFERS
        if not self.tally.matched:
            return LiveOutcome.NOTHING
        return LiveOutcome.ONE_SIDED if self.tally.only_here or self.tally.only_a else LiveOutcome.EQUAL


def to_record(found: LiveResult) -> Record:
    return {"type": TYPE, **asdict(found)}


def read_results(trace: Trace) -> list[LiveResult]:
    """The results of all processes with a record, in the order of the trace's processes."""
    records = ((p.name, r) for p in trace.processes for r in p.journal.records if r["type"] == TYPE)
    return [found for found in (_parse(name, record) for name, record in records) if found is not None]


def word_of(found: list[LiveResult]) -> LiveOutcome:
    """The outcome of all processes together."""
    words = {one.word for one in found}
    return next(
        (word for word in (LiveOutcome.DIFFERS, LiveOutcome.ONE_SIDED, LiveOutcome.EQUAL) if word in words),
        LiveOutcome.NOTHING,
    )


def _parse(name: str, record: Mapping[str, Any]) -> LiveResult | None:
    try:
        tally = LiveCounts(**{key: int(value) for key, value in record["tally"].items()})
        return LiveResult(name, tally, None if record["first"] is None else _first(record["first"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _first(found: Mapping[str, Any]) -> LiveFinding:
    site = found["site"]
    return LiveFinding(
        str(found["stream"]),
        int(found["row"]),
        None if found["row_a"] is None else int(found["row_a"]),
        int(found["step"]),
        str(found["op"]),
        str(found["module"]),
        None if site is None else parse_site(site),
        Cause(found["cause"]),
        InputsMatch(found["inputs"]),
        str(found["because"]),
        _pair(found["kernel"]),
        tuple(map(_pair, found["outputs"])),
        None if found["again"] is None else _again(found["again"]),
        str(found["why_not"]),
    )


def _again(found: Mapping[str, Any]) -> Repetition:
    gave = tuple((tuple(map(str, results)), int(count)) for results, count in found["gave"])
    return Repetition(int(found["times"]), bool(found["repeats"]), gave, int(found["of_a"]), int(found["of_here"]))


def _pair(found: Mapping[str, Any]) -> Pair[str]:
    a, b = found["a"], found["b"]
    return Pair(None if a is None else str(a), None if b is None else str(b))
