"""``rltrace compare --require``: what two programs must agree in, and whether a gap does.

Owns the words and the limits. Whether rows are bitwise equal is known to whoever compared them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from rltrace.errors import UsageError
from rltrace.parity.effects.gap import Gap


class Required(StrEnum):
    """What can be asked for."""

    BITWISE = "bitwise"
    """Every row that was compared is equal."""
    LARGEST = "logprob"
    """The largest absolute difference of log-probabilities stays below the limit."""
    MEAN = "logprob-mean"
    """Their mean absolute difference does."""
    DIVERGENCE = "kl"
    """KL(A || B) by the k3 estimator does."""


@dataclass(frozen=True)
class Requirement:
    """One thing that is asked for."""

    what: Required
    limit: float | None = None
    """None: it has none (bitwise)."""

    def __str__(self) -> str:
        return self.what.value if self.limit is None else f"{self.what.value}<{self.limit:g}"

    @property
    def about_gap(self) -> bool:
        return self.what is not Required.BITWISE


def parse_requirement(text: str) -> Requirement:
    """``bitwise``, ``logprob<1e-3``, ``logprob-mean<1e-4``, ``kl<1e-6``. Raises UsageError."""
    if text.strip() == Required.BITWISE:
        return Requirement(Required.BITWISE)
    found = re.fullmatch(r"\s*(logprob|logprob-mean|kl)\s*<\s*(\S+)\s*", text)
    try:
        limit = float(found[2]) if found else 0.0
    except ValueError:
        limit = 0.0
    if found is None or not (isfinite(limit) and limit > 0):
        raise UsageError(
            f"--require {text}: write bitwise, or logprob<X, logprob-mean<X, kl<X with a number X above 0"
            " (in quotes: the shell reads < as a file)"
        )
    return Requirement(Required(found[1]), limit)


def found(requirement: Requirement, gap: Gap) -> float | None:
    """The number that the limit is held against; None: the gap has none."""
    return {Required.LARGEST: gap.largest, Required.MEAN: gap.mean, Required.DIVERGENCE: gap.k3}.get(requirement.what)


def holds(requirement: Requirement, gap: Gap | None) -> bool | None:
    """Whether a gap stays below the limit; None: of less than half of B's taken tokens both sides' are known.

    One that is NaN or infinite on one side alone breaks every limit.
    """
    if gap is None or gap.n == 0 or requirement.limit is None:
        return None
    if gap.unmeasured:
        return False
    number = found(requirement, gap)
    if number is None:
        return None
    return False if number >= requirement.limit else None if gap.only_b > gap.n else True
