"""From two traces and what was asked for to an experiment that can be run: recipes, horizon, folder, captures.

Owns what has to be known before anything runs, and refuses where it is not. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rltrace import fingerprint
from rltrace.command_lines import line
from rltrace.diff.compare import compare
from rltrace.errors import UsageError
from rltrace.experiment.confirm.arms import CONTROLS, Question, verdict_of
from rltrace.experiment.confirm.capture import CaptureError, identity_of, read_capture
from rltrace.experiment.confirm.run_cache import Side
from rltrace.experiment.confirm.steps_covered import parting_of
from rltrace.experiment.outcome import Arm, ArmName, ArmState, ExperimentResult, OriginClass, Outcome
from rltrace.experiment.rerun_command import Recipe, other_machine, recipe_of
from rltrace.experiment.workdir_copy import check_extent
from rltrace.trace.read.reader import Trace, open_trace

BOTH: frozenset[Side] = frozenset(("a", "b"))


@dataclass(frozen=True)
class ByHand:
    """What is given for one program in place of what its trace says."""

    command: tuple[str, ...] = ()
    folder: Path | None = None
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ConfirmOptions:
    """An experiment as it is asked for."""

    a: Path
    b: Path
    sides: frozenset[Side] = BOTH
    by_hand: Mapping[Side, ByHand] | None = None
    until: int | None = None
    selectors: tuple[str, ...] = ()
    samples: int = 2
    search: bool = True
    capture: Path | None = None
    """Of the other side's control, where only one side is run here."""
    found: ExperimentResult | None = None
    """What B's arms came to, where only A's are run here."""
    found_file: Path | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """What has to be said on both machines alike."""
        until = () if self.until is None else ("--until", str(self.until))
        return (*until, *(word for text in self.selectors for word in ("--inject", text)))


@dataclass(frozen=True)
class Prepared:
    """All that is needed to run it."""

    question: Question
    recipes: Mapping[Side, Recipe]
    subject: Mapping[str, str]
    captured: Path | None
    """The other side's control, in a file."""
    captured_as: str
    """Name of the run that it stands for."""


def prepare(asked: ConfirmOptions) -> Prepared:
    """Raises UsageError, and what comparing the traces raises."""
    a, b = open_trace(asked.a), open_trace(asked.b)
    traces: dict[Side, Trace] = {"a": a, "b": b}
    parting = parting_of(compare(a, b), asked.until)
    question = Question(
        a=a,
        b=b,
        parting=parting,
        sides=asked.sides,
        selectors=asked.selectors,
        samples=asked.samples,
        search=asked.search,
    )
    subject = {str(side): identity_of(trace) for side, trace in traces.items()}
    if asked.selectors:
        subject["inject"] = " or ".join(asked.selectors)
    given = asked.by_hand or {}
    recipes = {
        side: recipe(traces[side], side, given.get(side), question, asked.options) for side in sorted(asked.sides)
    }
    missing = next(iter(BOTH - asked.sides), None)
    if missing is None:
        return Prepared(question, recipes, subject, None, "")
    _check_capture(asked, missing, traces[missing], question)
    if missing == "b":
        question = replace(question, classes=_classes(asked.found, subject, question))
    return Prepared(question, recipes, subject, asked.capture, CONTROLS[missing].value)


def recipe(trace: Trace, side: Side, by_hand: ByHand | None, question: Question, options: Sequence[str]) -> Recipe:
    """How a trace's program is run again here. Raises UsageError where its machine is another one; ``options``: what
    else was asked for.
    """
    other = other_machine(trace, fingerprint.start())
    if other is not None:
        capture, here = f"{side}.capture", "b" if side == "a" else "a"
        words = [question.a.path, question.b.path, "--arms", here, "--capture", capture, *options]
        raise UsageError(
            f"{other}: {side.upper()}'s program has to be run there; capture there what this machine needs of it, "
            f"then run {here.upper()}'s arms here\n  there: {capture_command(trace, question, capture)}\n  here:  "
            f"{line('confirm', *words)}"
        )
    return _recipe(trace, f"--cmd-{side}", by_hand)


def captured_recipe(trace: Trace, by_hand: ByHand) -> Recipe:
    """The same for a capture, which is of one trace alone."""
    other = other_machine(trace, fingerprint.start())
    if other is not None:
        raise UsageError(f"{other}: its program has to be run there; capture it there, and copy the file here")
    return _recipe(trace, "--cmd", by_hand)


def _recipe(trace: Trace, option: str, by_hand: ByHand | None) -> Recipe:
    given = by_hand or ByHand()
    variables = dict(given.variables)
    return recipe_of(trace, command=given.command, folder=given.folder, variables=variables, option=option)


def capture_command(trace: Trace, question: Question, output: str) -> str:
    """What captures a trace for an experiment, ready to paste on its machine."""
    horizon = question.parting.horizon
    return line("capture", trace.path, "--steps", f"{horizon.first}:{horizon.end}", "-o", output)


def check_folders(recipes: Mapping[Side, Recipe], shared: tuple[str, ...], work: Path) -> None:
    """Refuse folders too large to be copied for every run. Raises UsageError."""
    for found in recipes.values():
        check_extent(found.folder, shared, work)


def _check_capture(asked: ConfirmOptions, side: Side, trace: Trace, question: Question) -> None:
    letter = side.upper()
    if asked.capture is None:
        raise UsageError(
            "the arms of one machine need the values of the other one's control: give them with --capture\n  there: "
            f"{capture_command(trace, question, f'{side}.capture')}"
        )
    about, horizon = read_capture(asked.capture), question.parting.horizon
    if about.subject != identity_of(trace):
        raise CaptureError(f"{asked.capture} is a capture of {about.path}, not of {letter} ({trace.path})")
    if about.horizon != horizon:
        raise CaptureError(
            f"{asked.capture} covers {about.horizon}, and the experiment covers {horizon}: capture it again\n  "
            f"there: {capture_command(trace, question, f'{side}.capture')}"
        )


def _classes(found: ExperimentResult | None, subject: Mapping[str, str], question: Question) -> tuple[OriginClass, ...]:
    if question.selectors:
        return ()
    if found is None:
        raise UsageError(
            "A's arms inject B's values at the ops that B's arms found: run those first (--arms b -o b.json on B's "
            "machine), and give their outcome with --found b.json"
        )
    if dict(found.subject) != dict(subject):
        raise UsageError("--found is of other traces, or of another suspicion (--inject)")
    arm = found.arm(ArmName.B_FROM_A)
    if arm is None or arm.state is not ArmState.AS_EXPECTED:
        raise UsageError("--found names no ops whose values turn B into A; there is nothing to mirror")
    return found.classes


# --- join -------------------------------------------------------------------------------------------------------------
#
# Two outcomes of one experiment, of the arms that each machine could run, put together.
#
# Owns what has to be the same on both sides, and which arm counts where both tell of it.


def join(one: ExperimentResult, other: ExperimentResult) -> ExperimentResult:
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
        return replace(both, word=Outcome.UNRESOLVED, explanation=failed.result)
    settled = next((o for o in (one, other) if o.word in (Outcome.REFUTED, Outcome.UNRESOLVED, Outcome.PARTIAL)), None)
    if settled is not None:
        return replace(both, word=settled.word, explanation=settled.explanation)
    if ArmState.RUNNING in states:
        raise UsageError("one of these experiments is not finished; finish it first")
    word, because = verdict_of(both)
    return replace(both, word=word, explanation=because)


def _kinds(outcome: ExperimentResult) -> set[tuple[str, bool | None]]:
    """The kinds of op, and whether each is needed."""
    return {(found.kind, found.matters) for found in outcome.classes}


def _arm(a: Arm, b: Arm) -> Arm:
    """The one that was run; where both were, the one that did not come out as expected."""
    if a.name is not b.name:
        raise UsageError("these outcomes list arms that this version does not know")
    run = [arm for arm in (a, b) if arm.state is not ArmState.NOT_RUN]
    return next((arm for arm in run if arm.state is not ArmState.AS_EXPECTED), run[0] if run else a)
