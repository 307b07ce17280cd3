"""How far an experiment on two traces goes, and what its runs have to show: where the two part.

Owns the steps that are run again and the question whether two runs part at the same place. Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.diff.base.model import Cause, Comparison, Finding, Verdict
from rltrace.errors import UsageError

STEPS = 2
"""The step of the first difference and the next, unless asked otherwise."""


@dataclass(frozen=True)
class StepsCovered:
    """The steps that the runs of an experiment record op by op; they end with the last of them."""

    first: int
    end: int
    """Not among them."""

    @property
    def options(self) -> tuple[str, ...]:
        """Of ``rltrace record``."""
        return "--steps", f"{self.first}:{self.end}", *self.until

    @property
    def until(self) -> tuple[str, ...]:
        """Of any verb that runs the program."""
        return "--until", str(self.end - 1)

    def __str__(self) -> str:
        last = self.end - 1
        return f"step {self.first:,}" if last == self.first else f"steps {self.first:,} to {last:,}"


@dataclass(frozen=True)
class DivergencePoint:
    """Where two traces part, and the horizon that follows."""

    finding: Finding
    horizon: StepsCovered


def parting_of(comparison: Comparison, until: int | None = None) -> DivergencePoint:
    """Where the two traces of a comparison part; ``until``: last step of the horizon.

    Raises UsageError where they do not part, or at nothing that a run could show again.
    """
    a, b = comparison.a.path, comparison.b.path
    if comparison.verdict is not Verdict.DIVERGED:
        raise UsageError(f"there is nothing to confirm: {a} and {b} are {comparison.verdict.value} ({comparison.why})")
    found = [comparison.first_value, comparison.decisive, comparison.first, *comparison.unordered]
    finding = next((f.at_op for f in found if f is not None), None)
    if finding is None or finding.cause is Cause.ENDED:
        told = finding.explanation if finding is not None else comparison.why
        raise UsageError(f"there is nothing to confirm: {a} and {b} diverge at no op ({told})")
    if finding.cause is Cause.BEFORE_WINDOW:
        raise UsageError(
            f"{a} and {b} already differ where their recording of ops begins (step {finding.step}): record both "
            "again from an earlier step on"
        )
    first = finding.step or 0
    end = first + STEPS if until is None else until + 1
    if end <= first:
        raise UsageError(f"--until {until} ends before the first difference, which is in step {first}")
    return DivergencePoint(finding, StepsCovered(first, end))


def same_place(a: Finding, b: Finding) -> bool:
    """Whether two findings are of one place in the program and in the run. Row numbers may differ: windows do."""
    a, b = a.at_op, b.at_op  # a window may begin after what came in
    if a.op is None or b.op is None:  # of the digests of a step
        return a.step == b.step
    places = [(f.stream, f.step, f.op, _line(f)) for f in (a, b)]
    return places[0] == places[1]


def agrees(comparison: Comparison, horizon: StepsCovered | None = None) -> bool | None:
    """Whether two runs computed the same as far as both were recorded, or to the end of the horizon: a program that
    takes no notice of Ctrl-C goes on after it. None: it cannot be said.
    """
    if comparison.verdict is Verdict.DIVERGED:
        return horizon is not None and _all_after(comparison, horizon)
    if comparison.holes or comparison.so_far not in (Verdict.IDENTICAL, Verdict.SAME_VALUES):
        return None
    return True


def has_own_arguments(comparison: Comparison) -> bool:
    """Whether the first difference of two runs is what an op was told, and not what it gave: another learning rate
    stays another one when what came of it is replaced.
    """
    found = comparison.first_value or comparison.decisive
    if found is None or found.at_op.cause is not Cause.ARGUMENTS:
        return False
    return all(pair.a == pair.b for pair in found.at_op.outputs)


def _all_after(comparison: Comparison, horizon: StepsCovered) -> bool:
    """Whether all that was found lies beyond the horizon."""
    found = [comparison.first_value, comparison.decisive, comparison.first, *comparison.unordered]
    steps = [finding.at_op.step for finding in found if finding is not None]
    return bool(steps) and all(step is not None and step >= horizon.end for step in steps)


def _line(finding: Finding) -> tuple[str, str, str] | None:
    site = finding.site
    return None if site is None else (site.file, site.function, site.source)
