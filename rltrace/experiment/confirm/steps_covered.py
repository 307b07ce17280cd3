"""The steps that an experiment on two traces covers, and where the traces diverge.

Owns whether two runs diverge at the same place. Pure functions.
"""

from dataclasses import dataclass

from rltrace.diff.base.model import Cause, Comparison, Finding, Verdict
from rltrace.errors import UsageError
from rltrace.experiment.confirm.phrases import place_text

STEPS = 2
"""Steps covered by default, from that of the first difference on."""


@dataclass(frozen=True)
class StepsCovered:
    """The steps that the runs of an experiment record op by op; they end with the last of them."""

    first: int
    end: int
    """Step after the last one."""

    @property
    def options(self) -> tuple[str, ...]:
        """Options of ``rltrace record``."""
        return "--steps", f"{self.first}:{self.end}", *self.until

    @property
    def until(self) -> tuple[str, ...]:
        """Options of any verb that runs the program."""
        return "--until", str(self.end - 1)

    def __str__(self) -> str:
        last = self.end - 1
        return f"step {self.first:,}" if last == self.first else f"steps {self.first:,} to {last:,}"


@dataclass(frozen=True)
class DivergencePoint:
    """Where two traces diverge, and the steps covered that follow from it."""

    finding: Finding
    covered: StepsCovered
    named: str = ""
    """What ``diff`` says of it."""


def divergence_of(comparison: Comparison, until: int | None = None) -> DivergencePoint:
    """Where the two traces of a comparison diverge; ``until``: last step covered; None: any.

    Raises UsageError where they do not diverge, or not at an op that a run could reproduce.
    """
    a, b = comparison.a.path, comparison.b.path
    if comparison.verdict is not Verdict.DIVERGED:
        raise UsageError(f"there is nothing to confirm: {a} and {b} are {comparison.verdict.value} ({comparison.why})")
    found = [comparison.first_value, comparison.decisive, comparison.first, *comparison.unordered]
    finding = next((f.at_op for f in found if f is not None), None)
    if finding is None or finding.cause is Cause.ENDED:
        reason = finding.explanation if finding is not None else comparison.why
        raise UsageError(f"there is nothing to confirm: {a} and {b} diverge at no op ({reason})")
    if finding.cause is Cause.BEFORE_WINDOW:
        raise UsageError(
            f"{a} and {b} already differ where their recording of ops begins (step {finding.step}): record both "
            "again from an earlier step on"
        )
    first = finding.step or 0
    end = first + STEPS if until is None else until + 1
    if end <= first:
        raise UsageError(f"--until {until} ends before the first difference, which is in step {first}")
    named = comparison.shown or finding
    text = f"{place_text(named)}: {named.explanation.partition('; ')[0]}"
    return DivergencePoint(finding, StepsCovered(first, end), text)


def same_place(a: Finding, b: Finding) -> bool:
    """Whether two findings are at the same op of the run. Row numbers may differ, as windows do."""
    a, b = a.at_op, b.at_op  # a window may begin after the event
    if a.op is None or b.op is None:  # findings of step digests
        return a.step == b.step
    places = [(f.stream, f.step, f.op, _line(f)) for f in (a, b)]
    return places[0] == places[1]


def agrees(comparison: Comparison, covered: StepsCovered | None = None) -> bool | None:
    """Whether two runs computed the same as far as both were recorded, or to the end of the steps covered, as a program
    that ignores Ctrl-C continues after them. None: not known.
    """
    if comparison.verdict is Verdict.DIVERGED:
        return covered is not None and _all_after(comparison, covered)
    if comparison.holes or comparison.so_far not in (Verdict.IDENTICAL, Verdict.SAME_VALUES):
        return None
    return True


def has_own_arguments(comparison: Comparison) -> bool:
    """Whether the first difference of two runs is only in the arguments of an op: another learning rate stays different
    when the results of the op are replaced.
    """
    found = comparison.first_value or comparison.decisive
    if found is None or found.at_op.cause is not Cause.ARGUMENTS:
        return False
    return all(pair.a == pair.b for pair in found.at_op.outputs)


def _all_after(comparison: Comparison, covered: StepsCovered) -> bool:
    """Whether all findings are after the steps covered."""
    found = [comparison.first_value, comparison.decisive, comparison.first, *comparison.unordered]
    steps = [finding.at_op.step for finding in found if finding is not None]
    return bool(steps) and all(step is not None and step >= covered.end for step in steps)


def _line(finding: Finding) -> tuple[str, str, str] | None:
    site = finding.site
    return None if site is None else (site.file, site.function, site.source)
