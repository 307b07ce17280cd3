"""``rltrace compare --require``: limits for the difference of two programs, and whether they hold.

Owns the words and the limits. Without a requirement, bitwise equality is required.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from rltrace.errors import UsageError
from rltrace.extensions.parity.impact.logprobs import Gap, NoGap
from rltrace.extensions.parity.model import Parity, ParityVerdict, Required

BITWISE = {ParityVerdict.BITWISE: True, ParityVerdict.DIFFERS: False, ParityVerdict.UNDECIDED: None}


class Measure(StrEnum):
    """What a requirement limits."""

    BITWISE = "bitwise"
    """Nothing: every compared row must be equal."""
    LARGEST = "logprob"
    """The largest absolute difference of log-probabilities."""
    MEAN = "logprob-mean"
    """Their mean absolute difference."""
    DIVERGENCE = "kl"
    """KL(A || B) by the k3 estimator."""


@dataclass(frozen=True)
class Requirement:
    """One requirement."""

    what: Measure
    limit: float | None = None
    """None: of ``BITWISE``."""

    def __str__(self) -> str:
        return self.what.value if self.limit is None else f"{self.what.value}<{self.limit:g}"


def parse_requirement(text: str) -> Requirement:
    """``bitwise``, ``logprob<1e-3``, ``logprob-mean<1e-4``, ``kl<1e-6``. Raises UsageError."""
    if text.strip() == Measure.BITWISE:
        return Requirement(Measure.BITWISE)
    found = re.fullmatch(r"\s*(logprob|logprob-mean|kl)\s*<\s*(\S+)\s*", text)
    try:
        limit = float(found[2]) if found else 0.0
    except ValueError:
        limit = 0.0
    if found is None or not (isfinite(limit) and limit > 0):
        raise UsageError(
            f"--require {text}: give bitwise, or logprob<X, logprob-mean<X, kl<X with a number X above 0 (in "
            "quotes: the shell reads < as a file)"
        )
    return Requirement(Measure(found[1]), limit)


def found(requirement: Requirement, gap: Gap) -> float | None:
    """The number that is compared with the limit; None: the gap has none."""
    return {Measure.LARGEST: gap.largest, Measure.MEAN: gap.mean, Measure.DIVERGENCE: gap.k3}.get(requirement.what)


def holds(requirement: Requirement, gap: Gap | None) -> bool | None:
    """Whether a gap is below the limit; None: too few of B's sampled tokens have log-probabilities on both sides.

    A log-probability that is NaN or infinite on one side only exceeds every limit.
    """
    if gap is None or gap.n == 0 or requirement.limit is None:
        return None
    if gap.unmeasured:
        return False
    number = found(requirement, gap)
    if number is None:
        return None
    return False if number >= requirement.limit else None if gap.only_b > gap.n else True


def judge(requirements: Sequence[Requirement], parity: Parity, gap: Gap | NoGap | None) -> tuple[Required, ...]:
    """``gap``: of the log-probabilities; None: it was not computed."""
    return tuple(
        Required(str(one), BITWISE[parity.verdict], parity.why) if one.limit is None else _about_gap(one, gap)
        for one in requirements
    )


def _about_gap(requirement: Requirement, gap: Gap | NoGap | None) -> Required:
    if not isinstance(gap, Gap):
        return Required(str(requirement), None, gap.why if gap else "log-probabilities were not computed")
    number = found(requirement, gap)
    if number is None:
        why = "no sampled token has a log-probability on both sides"
    else:
        of = f" of {gap.n + gap.only_b:,}" if gap.only_b else ""
        why = f"it is {number:.3g} over {gap.n:,}{of} sampled tokens"
    return Required(str(requirement), holds(requirement, gap), why)


def agrees(required: Sequence[Required], parity: Parity) -> bool | None:
    """Whether all requirements hold; None: undecided."""
    answers = [one.holds for one in required] or [BITWISE[parity.verdict]]
    if False in answers:
        return False
    return None if None in answers else True
