"""The document of an experiment's outcome, and the runs that ``rltrace confirm`` is about to make."""

from collections.abc import Iterator, Mapping

from rltrace.diff.base.model import Verdict
from rltrace.diff.metrics.distances import MOST_ULP
from rltrace.experiment.outcome import Arm, ArmState, ExperimentResult, OriginClass, Outcome, SavedOutcome
from rltrace.experiment.rerun_command import Recipe
from rltrace.report.document import Code, Document, Fact, Section
from rltrace.wording import counted, sentence, sentences

STATES = {
    ArmState.NOT_RUN: "not run",
    ArmState.RUNNING: "running",
    ArmState.AS_EXPECTED: "as expected",
    ArmState.OTHERWISE: "unexpected",
    ArmState.FAILED: "failed",
}
VERDICTS = {
    Outcome.CONFIRMED: Verdict.IDENTICAL,
    Outcome.REPAIRED: Verdict.IDENTICAL,
    Outcome.PARTIAL: Verdict.UNKNOWN,
    Outcome.REFUTED: Verdict.DIVERGED,
    Outcome.UNRESOLVED: Verdict.UNKNOWN,
}
"""Verdicts with the colours of outcomes."""

RELEVANCE = {True: "needed", False: "makes no difference", None: "not tried"}
"""By whether a kind of op is needed for the outcome."""


def outcome_document(outcome: ExperimentResult) -> Document:
    """Of an experiment, finished or not."""
    sections = (
        Section("arms", "Runs", columns=("run", "program", "result"), rows=tuple(map(_arm_row, outcome.arms))),
        _kinds(outcome),
        Section("next", "Next", commands=outcome.advice),
    )
    return Document(
        outcome_headline(outcome),
        None if outcome.word is None else VERDICTS[outcome.word],
        lead=sentences(outcome.explanation),
        facts=tuple(_facts(outcome)),
        sections=tuple(filter(None, sections)),
    )


def plan_lines(recipes: Mapping[str, Recipe], steps: str, samples: int, *, in_place: bool, work: str) -> Iterator[str]:
    """The runs that are about to be made, before they are confirmed."""
    control = "once" if samples == 1 else f"{samples} times"
    yield f"this runs, up to the end of {steps} and several times each ({control} per control):"
    for side, recipe in recipes.items():
        yield f"  {side.upper()}  {recipe.shown}"
    yield "  in its folder" if in_place else "  each run in a copy of its folder"
    yield f"  traces and output go to {work}"


def saved_section(saved: SavedOutcome) -> Section:
    """A saved outcome in a few lines, after a comparison of the same traces."""
    if saved.outcome is None:
        return Section("experiment", "Experiment", sentences(saved.trouble))
    found = (outcome_headline(saved.outcome), *sentences(saved.outcome.explanation))
    return Section("experiment", "Experiment", (*found, f"(rltrace confirm; all of it is in {saved.path})"))


def outcome_headline(outcome: ExperimentResult) -> str:
    """``CONFIRMED``; without an outcome, whether the experiment runs or ended."""
    if outcome.word is not None:
        return outcome.word.value.upper()
    return "NOT FINISHED" if outcome.explanation else "RUNNING"


def steps_text(outcome: ExperimentResult) -> str:
    """The steps covered: ``steps 37 to 38``; "" if unknown."""
    first, end = outcome.first_step, outcome.end_step
    if first is None or end is None:
        return ""
    return f"step {first:,}" if end - 1 == first else f"steps {first:,} to {end - 1:,}"


def arm_line(arm: Arm) -> str:
    """The state of one arm: ``A0: A again, unchanged: is A in 2 runs of 2``."""
    return f"{arm_name(arm)}: {arm.what}: {arm.result or STATES[arm.state]}"


def _facts(outcome: ExperimentResult) -> Iterator[Fact]:
    """What the outcome rests on."""
    yield from (Fact("A", Code(outcome.a)), Fact("B", Code(outcome.b)))
    if outcome.found:
        yield Fact("differs", f"at {outcome.found}")
    if steps := steps_text(outcome):
        yield Fact("covers", steps)
    if outcome.by_state is False:
        yield Fact("compared", "op by op: A and B end with the same parameters, buffers and generator states")
    if outcome.trials:
        runs = "one run" if outcome.trials == 1 else f"{outcome.trials:,} runs"
        flaky = f", {outcome.flaky:,} of them not the same each time" if outcome.flaky else ""
        searched = any(kind.matters is not None for kind in outcome.classes)
        yield Fact("search", f"{runs}{flaky}, {'for the fewest' if searched else 'with all'} kinds of op")


def arm_name(arm: Arm) -> str:
    return arm.name.value.replace("<-", "←")


def _arm_row(arm: Arm) -> tuple[str, ...]:
    return arm_name(arm), arm.what, f"{STATES[arm.state]}: {arm.result}" if arm.result else STATES[arm.state]


def _kinds(outcome: ExperimentResult) -> Section:
    """Kinds of op, by whether they matter where that was tried."""
    by_relevance = (
        Section("", title, parts=tuple(_kind(kind) for kind in outcome.classes if kind.matters is matters), limit=40)
        for matters, title in RELEVANCE.items()
    )
    parts = tuple(filter(None, by_relevance))
    if all(kind.matters is None for kind in outcome.classes):
        parts = tuple(map(_kind, outcome.classes))
    title = f"Kinds of op (operator, kernel and line) that give different results: {len(outcome.classes):,}"
    return Section("kinds", title, parts=parts, limit=40)


def _kind(kind: OriginClass) -> Section:
    facts = () if kind.site is None else (Fact("site", kind.site),)
    return Section("", kind.op, (sentence("; ".join(_clauses(kind))),), facts)


def _clauses(kind: OriginClass) -> Iterator[str]:
    yield counted(kind.count, "op")
    if kind.kernel.a != kind.kernel.b:
        yield f"A {kind.kernel.a or 'kernel unknown'}, B {kind.kernel.b or 'kernel unknown'}"
    elif kind.kernel.a is not None:
        yield f"{kind.kernel.a} on both sides"
    others = [PARTS[part] for part in kind.parts if part in PARTS]
    if others:
        yield f"{' and '.join(others)} differ"
    relative = "" if kind.max_relative is None else f"{kind.max_relative:.2g} relative"
    if kind.max_ulp is not None and kind.max_ulp <= MOST_ULP:
        yield f"up to {kind.max_ulp:,} ULP" + (f" ({relative})" if relative else "")
    elif kind.max_ulp is not None and relative:
        yield f"up to {relative}"
    if kind.first_row is not None:
        yield f"first at op {kind.first_row:,} of {kind.stream} in A0, step {kind.first_step or 0:,}"


PARTS = {"outside": "outside data", "generator": "RNG states", "number": "logged scalars"}
