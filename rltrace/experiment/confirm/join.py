"""Two outcomes of one experiment, of the arms that each machine could run, put together.

Owns what has to be the same on both sides, and which arm counts where both tell of it.
"""

from __future__ import annotations

from dataclasses import replace

from rltrace.errors import UsageError
from rltrace.experiment.confirm.experiment import verdict_of
from rltrace.experiment.outcome import Arm, ArmState, Outcome, Word


def join(one: Outcome, other: Outcome) -> Outcome:
    """The whole experiment. Raises UsageError where the two are not halves of one."""
    for name, what in (("subject", "traces, or what --inject says,"), ("first_step", "steps"), ("end_step", "steps")):
        if getattr(one, name) != getattr(other, name):
            raise UsageError(f"these are outcomes of two experiments: their {what} are not the same")
    if not one.subject:
        raise UsageError("these outcomes do not say which traces they are of; run confirm --arms again")
    if one.classes and other.classes and _kinds(one) != _kinds(other):
        raise UsageError(
            "A's arms injected B's values at other kinds of op than B's arms found: run A's again, with --found"
        )
    arms = tuple(_arm(a, b) for a, b in zip(one.arms, other.arms, strict=True))
    states = {arm.state for arm in arms}
    whole = one if any(found.matters is not None for found in one.classes) else other
    classes = whole.classes or one.classes or other.classes
    trials, flaky = one.trials + other.trials, one.flaky + other.flaky
    both = replace(whole, arms=arms, classes=classes, advice=(), trials=trials, flaky=flaky)
    failed = next((arm for arm in arms if arm.state is ArmState.FAILED), None)
    if failed is not None:
        return replace(both, word=Word.UNRESOLVED, because=failed.result)
    settled = next((o for o in (one, other) if o.word in (Word.REFUTED, Word.UNRESOLVED, Word.PARTIAL)), None)
    if settled is not None:
        return replace(both, word=settled.word, because=settled.because)
    if ArmState.RUNNING in states:
        raise UsageError("one of these experiments is not finished; finish it first")
    word, because = verdict_of(both)
    return replace(both, word=word, because=because)


def _kinds(outcome: Outcome) -> set[tuple[str, bool | None]]:
    """The kinds of op, and whether each is needed."""
    return {(found.kind, found.matters) for found in outcome.classes}


def _arm(a: Arm, b: Arm) -> Arm:
    """The one that was run; where both were, the one that did not come out as expected."""
    if a.name is not b.name:
        raise UsageError("these outcomes list arms that this version does not know")
    run = [arm for arm in (a, b) if arm.state is not ArmState.NOT_RUN]
    return next((arm for arm in run if arm.state is not ArmState.AS_EXPECTED), run[0] if run else a)
