"""What all reports share: headlines, the word for a step, and which finding they show."""

from __future__ import annotations

from rltrace.diff.base.model import Comparison, Finding, Verdict
from rltrace.trace.format.schema import has_iterations

HEADLINES = {
    Verdict.IDENTICAL: "IDENTICAL",
    Verdict.SAME_VALUES: "SAME VALUES",
    Verdict.DIVERGED: "DIVERGED",
    Verdict.UNKNOWN: "UNKNOWN",
}


def shown_finding(comparison: Comparison) -> Finding | None:
    """The finding that the verdict rests on, or else the most informative one."""
    return comparison.decisive or comparison.first_value or comparison.first


def step_word(engine: str) -> str:
    """What a step is in recordings of this engine."""
    return "iteration" if has_iterations(engine) else "optimizer step"
