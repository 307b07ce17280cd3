"""Sets an experiment up from two traces and options: recipes, steps covered, controls; joins two halves of one.

Owns the commands that are suggested before an experiment and after it: those for another machine end with a comment
that says so, and their paths are those of this one. Raises where something that is needed is not known. Runs nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rltrace import fingerprint
from rltrace.command_lines import file_name, line, record
from rltrace.diff.base.model import Cause, Comparison
from rltrace.diff.compare import CompareOptions, compare
from rltrace.errors import UsageError
from rltrace.experiment.confirm.arms import CONTROLS, NOT_REPRODUCIBLE, Question, verdict_of
from rltrace.experiment.confirm.run_cache import CONTROL, Side
from rltrace.experiment.confirm.steps_covered import divergence_of
from rltrace.experiment.outcome import Arm, ArmName, ArmState, ExperimentResult, OriginClass, Outcome, identity_of
from rltrace.experiment.rerun_command import Recipe, machine_difference, options_of, recipe_of
from rltrace.rerun.plan import window_of
from rltrace.trace.format.location import Location
from rltrace.trace.format.schema import has_iterations
from rltrace.trace.kernels.evidence import LAUNCH_ROWS
from rltrace.trace.read.reader import Trace, open_trace

BOTH: frozenset[Side] = frozenset(("a", "b"))


@dataclass(frozen=True)
class CommandOverrides:
    """Command, folder and variables for one program in place of those in its trace."""

    command: tuple[str, ...] = ()
    folder: Path | None = None
    variables: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ConfirmOptions:
    """The options of an experiment."""

    a: Location
    b: Location
    sides: frozenset[Side] = BOTH
    overrides: Mapping[Side, CommandOverrides] | None = None
    until: int | None = None
    selectors: tuple[str, ...] = ()
    samples: int = 2
    search: bool = True
    control: Path | None = None
    """The trace of the other side's control, where only one side is run here."""
    found: ExperimentResult | None = None
    """The outcome of B's arms, where only A's are run here."""
    found_file: Path | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """Command-line options that both machines must share."""
        until = () if self.until is None else ("--until", str(self.until))
        return (*until, *(word for text in self.selectors for word in ("--inject", text)))


@dataclass(frozen=True)
class ExperimentSetup:
    """What is needed to run an experiment."""

    question: Question
    recipes: Mapping[Side, Recipe]
    subject: Mapping[str, str]
    control: Path | None
    """The trace of the other side's control, which was run elsewhere."""
    control_name: str
    """Name of the run that it replaces."""


def prepare(request: ConfirmOptions) -> ExperimentSetup:
    """Set up an experiment. Raises UsageError, and what comparing the traces raises."""
    a, b = open_trace(request.a), open_trace(request.b)
    traces: dict[Side, Trace] = {"a": a, "b": b}
    comparison = compare(a, b, CompareOptions(within=False))  # of JAX, nothing within a call can be injected
    if comparison.shift is not None:
        raise UsageError(
            f"{comparison.shift.explanation}: an experiment runs both programs from their beginnings, so it needs two"
            " runs that begin alike; resume the other one from the same checkpoint"
        )
    _check_cause(comparison, request)
    divergence = divergence_of(comparison, request.until)
    question = Question(
        a=a,
        b=b,
        divergence=divergence,
        sides=request.sides,
        selectors=request.selectors,
        samples=request.samples,
        search=request.search,
    )
    subject = {str(side): identity_of(trace) for side, trace in traces.items()}
    if request.selectors:
        subject["inject"] = " or ".join(request.selectors)
    overrides = request.overrides or {}
    recipes = {
        side: recipe(traces[side], side, overrides.get(side), question, request.options)
        for side in sorted(request.sides)
    }
    missing = next(iter(BOTH - request.sides), None)
    if missing is None:
        return ExperimentSetup(question, recipes, subject, None, "")
    _check_control(request.control, traces[missing], question)
    if missing == "b":
        question = replace(question, classes=_classes(request.found, subject, question))
    return ExperimentSetup(question, recipes, subject, request.control, CONTROLS[missing].value)


def _check_cause(comparison: Comparison, request: ConfirmOptions) -> None:
    """Raise UsageError where the two programs ask for other numbers: that is known, and no value is to be injected."""
    first = comparison.decisive
    differ = comparison.commands or ", ".join(f"{edit.file} was edited" for edit in comparison.edits)
    if first is not None and first.cause is Cause.ARGUMENTS and differ and not request.selectors:
        raise UsageError(
            f"there is nothing to confirm: {first.op} is the first op that differs, {first.explanation}, and the"
            f" programs differ ({differ}); --inject SELECTOR injects values all the same"
        )


def recipe(
    trace: Trace, side: Side, overrides: CommandOverrides | None, question: Question, options: Sequence[str]
) -> Recipe:
    """How to run a trace's program again here. Raises UsageError where it was recorded on another machine; ``options``:
    the command-line options that both machines share.
    """
    other = machine_difference(trace, fingerprint.start())
    if other is not None:
        here = "b" if side == "a" else "a"
        words = [question.a.path, question.b.path, "--arms", here, "--control", file_name(trace, "control"), *options]
        raise UsageError(
            f"{other}: {side.upper()}'s program has to be run there; record there what this machine needs of it, "
            f"then run {here.upper()}'s arms here\n  there: {control_command(trace, question)}\n  here:  "
            f"{line('confirm', *words)}"
        )
    overrides = overrides or CommandOverrides()
    variables, option = dict(overrides.variables), f"--cmd-{side}"
    return recipe_of(trace, command=overrides.command, folder=overrides.folder, variables=variables, option=option)


def control_command(trace: Trace, question: Question) -> str:
    """The command that records a control of a trace with its values, to run on its machine."""
    options = (*question.divergence.covered.options, *CONTROL, *options_of(trace))
    return record(trace, file_name(trace, "control"), *options)


def _check_control(file: Path | None, trace: Trace, question: Question) -> None:
    """Raise UsageError where the trace of a control was not recorded as the experiment needs it."""
    there = f"\n  there: {control_command(trace, question)}"
    if file is None:
        raise UsageError(
            f"the arms of one machine need a run of the other one with its values: give its trace with --control{there}"
        )
    control, covered = open_trace(file), question.divergence.covered
    first, end = window_of(control)[1]
    if first > covered.first or (end is not None and end < covered.end):
        raise UsageError(f"{file} does not hold the ops of {covered}, which the experiment covers{there}")
    if not any(process.values for process in control.processes):
        raise UsageError(f"{file} holds no values{there}")


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
# Joins two outcomes of one experiment, each with the arms that one machine could run.


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
    """The arm that was run; if both were, the one that is not as expected."""
    if a.name is not b.name:
        raise UsageError("these outcomes list arms that this version does not know")
    run = [arm for arm in (a, b) if arm.state is not ArmState.NOT_RUN]
    return next((arm for arm in run if arm.state is not ArmState.AS_EXPECTED), run[0] if run else a)


RUNS = 5


def advice_of(
    outcome: ExperimentResult, request: ConfirmOptions, setup: ExperimentSetup, written: Path, runs: Path
) -> tuple[str, ...]:
    """Commands for an outcome. ``written``: its file; ``runs``: folder with the traces of its runs."""
    match outcome.word:
        case Outcome.UNRESOLVED:
            return _repeats(outcome, setup)
        case Outcome.CONFIRMED:
            return _one_op(outcome, setup, runs)
        case Outcome.REPAIRED:
            there = _on_a_machine(request, setup, written) if request.sides == {"b"} else ()
            return (*there, *_one_op(outcome, setup, runs))
        case Outcome.REFUTED | Outcome.PARTIAL:
            return (line("confirm", request.a, request.b),) if request.selectors else _where_it_parts(outcome, runs)
    if request.sides == {"a"} and request.found_file is not None:
        return (line("confirm", "--join", written, request.found_file),)
    return ()


def _repeats(outcome: ExperimentResult, setup: ExperimentSetup) -> tuple[str, ...]:
    """Check how often a program that is not reproducible repeats."""
    if NOT_REPRODUCIBLE not in outcome.explanation or outcome.end_step is None:
        return ()
    failed = {arm.name for arm in outcome.arms if arm.state is ArmState.FAILED}
    options = ("check", "-n", str(RUNS), "--until", str(outcome.end_step - 1), "--")
    found = [recipe for side, recipe in setup.recipes.items() if CONTROLS[side] in failed]
    return tuple(recipe.line_with("rltrace", *options) for recipe in found)


def _one_op(outcome: ExperimentResult, setup: ExperimentSetup, runs: Path) -> tuple[str, ...]:
    """Write a script of the first op that matters, where it is one of torch."""
    needed = [found for found in outcome.classes if found.matters is not False and found.first_row is not None]
    if not needed:
        return ()
    first = min(needed, key=lambda found: (found.first_step or 0, found.first_row or 0))
    if first.op.startswith(LAUNCH_ROWS) or has_iterations(setup.question.a.engine_of(first.stream)):
        return ()
    return (line("repro", runs / "A0.zarr", "--at", f"{first.stream}:{first.first_row}"),)


def _where_it_parts(outcome: ExperimentResult, runs: Path) -> tuple[str, ...]:
    """Compare an arm that is not as expected with the control that it should equal."""
    for name, control in ((ArmName.B_FROM_A, "A0"), (ArmName.A_FROM_B, "B0")):
        arm = outcome.arm(name)
        if arm is not None and arm.state is ArmState.OTHERWISE and arm.trace is not None:
            return (line("diff", runs / f"{control}.zarr", arm.trace),)
    return ()


def _on_a_machine(request: ConfirmOptions, setup: ExperimentSetup, written: Path) -> tuple[str, ...]:
    """Run A's arms, after B's were as expected."""
    b = setup.question.b
    control = file_name(b, "control")
    options = ("--arms", "a", "--control", control, "--found", written, *request.options, "-o", "a.json")
    return (
        control_command(b, setup.question),
        f"{line('confirm', request.a, request.b, *options)}  # on A's machine",
        line("confirm", "--join", "a.json", written),
    )
