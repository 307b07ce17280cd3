"""The result of a live comparison with A: the first difference, how many ops it rests on, and the outcome. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from rltrace.diff.base.model import Cause, InputsMatch, Pair
from rltrace.trace.read.names import Site


class LiveOutcome(StrEnum):
    """The outcome of a whole run."""

    DIFFERS = "differs"
    EQUAL = "equal"
    ONE_SIDED = "one-sided"  # all matched ops are equal; some ops are on one side only
    NOTHING = "nothing-compared"


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


@dataclass
class LiveCounts:
    """Counts of the ops of one process."""

    steps: int = 0
    """Steps of which all digests are equal, where no ops were compared."""
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
        if not self.counts.matched and not self.counts.steps:
            return LiveOutcome.NOTHING
        return LiveOutcome.ONE_SIDED if self.counts.only_b or self.counts.only_a else LiveOutcome.EQUAL


def word_of(found: list[LiveResult]) -> LiveOutcome:
    """The outcome of all processes together."""
    words = {one.word for one in found}
    return next(
        (word for word in (LiveOutcome.DIFFERS, LiveOutcome.ONE_SIDED, LiveOutcome.EQUAL) if word in words),
        LiveOutcome.NOTHING,
    )
