"""Text of ``rltrace confirm``: its outcome, and the runs that it is about to make. Never prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rltrace.diff.base.model import Verdict
from rltrace.experiment.confirm.saved_outcome import SavedOutcome
from rltrace.experiment.outcome import Arm, ArmState, ExperimentResult, OriginClass, Outcome
from rltrace.experiment.rerun_command import Recipe
from rltrace.report.diff_text import TextLayout, styled_lines, wrapped
from rltrace.report.document import Code, Fact, Section
from rltrace.report.style import Style
from rltrace.wording import counted, sentence

STATES = {
    ArmState.NOT_RUN: "not run",
    ArmState.RUNNING: "running",
    ArmState.AS_EXPECTED: "as expected",
    ArmState.OTHERWISE: "unexpected",
    ArmState.FAILED: "failed",
}
COLORS = {
    Outcome.CONFIRMED: Verdict.IDENTICAL,
    Outcome.REPAIRED: Verdict.IDENTICAL,
    Outcome.PARTIAL: Verdict.UNKNOWN,
    Outcome.REFUTED: Verdict.DIVERGED,
    Outcome.UNRESOLVED: Verdict.UNKNOWN,
}
RELEVANCE = {True: "needed", False: "makes no difference", None: "not tried"}
"""By whether a kind of op is needed for the outcome."""
MAX_KINDS = 40
"""Kinds of op in the text; the JSON has all of them."""


def render_outcome(outcome: ExperimentResult, *, color: bool) -> str:
    """The outcome as text, without a newline at the end."""
    style = Style(color)
    sections = (_head(outcome, style), _arms(outcome), _classes(outcome), _notes(outcome), _next(outcome))
    return "\n\n".join(text for section in sections if (text := "\n".join(section)))


def plan_lines(recipes: Mapping[str, Recipe], steps: str, samples: int, *, in_place: bool, work: str) -> Iterator[str]:
    """The runs that are about to be made, before they are confirmed."""
    control = "once" if samples == 1 else f"{samples} times"
    yield f"this runs, up to the end of {steps} and several times each ({control} per control):"
    for side, recipe in recipes.items():
        yield f"  {side.upper()}  {recipe.shown}"
    yield from _folder_lines(in_place, work)


def capture_plan_lines(recipe: Recipe, steps: str, samples: int, *, in_place: bool, work: str) -> Iterator[str]:
    """The runs of ``rltrace capture``, before they are confirmed."""
    times = "once" if samples == 1 else f"{samples} times"
    yield f"this runs {times}, up to the end of {steps}:"
    yield f"  {recipe.shown}"
    yield from _folder_lines(in_place, work)


def _folder_lines(in_place: bool, work: str) -> Iterator[str]:
    yield "  in its folder" if in_place else "  each run in a copy of its folder"
    yield f"  traces and output go to {work}"


def saved_outcome_lines(saved: SavedOutcome, *, color: bool) -> Iterator[str]:
    """A saved outcome in a few lines, after a comparison of the same traces."""
    yield "Experiment"
    if saved.outcome is None:
        yield from wrapped(saved.trouble, "  ")
        return
    yield f"  {styled_headline(saved.outcome, Style(color))}"
    if saved.outcome.explanation:
        yield from wrapped(sentence(saved.outcome.explanation), "  ")
    yield f"  (rltrace confirm; all of it is in {saved.path})"


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


def outcome_section(outcome: ExperimentResult) -> Section:
    """The facts that the outcome rests on, for every form of report."""
    facts = [Fact("A", Code(outcome.a)), Fact("B", Code(outcome.b))]
    if steps := steps_text(outcome):
        facts.append(Fact("covers", steps))
    if outcome.by_state is False:
        same = "A and B end with the same parameters, buffers and generator states"
        facts.append(Fact("compared", f"op by op: {same}"))
    if outcome.trials:
        runs = "one run" if outcome.trials == 1 else f"{outcome.trials:,} runs"
        flaky = f", {outcome.flaky:,} of them not the same each time" if outcome.flaky else ""
        searched = any(kind.matters is not None for kind in outcome.classes)
        facts.append(Fact("search", f"{runs}{flaky}, {'for the fewest' if searched else 'with all'} kinds of op"))
    lead = (sentence(outcome.explanation),) if outcome.explanation else ()
    return Section("experiment", "", lead, tuple(facts))


def arm_name(arm: Arm) -> str:
    return arm.name.value.replace("<-", "←")


def _head(outcome: ExperimentResult, style: Style) -> Iterator[str]:
    yield styled_headline(outcome, style)
    yield from styled_lines(TextLayout().section(outcome_section(outcome)), style)


def styled_headline(outcome: ExperimentResult, style: Style) -> str:
    headline = outcome_headline(outcome)
    return style.bold(headline) if outcome.word is None else style.verdict(headline, COLORS[outcome.word])


def _arms(outcome: ExperimentResult) -> Iterator[str]:
    yield "Arms"
    for arm in outcome.arms:
        yield f"  {arm_name(arm):<4} {STATES[arm.state]:<12} {arm.what}"
        if arm.result:
            yield from wrapped(arm.result, " " * 20)


def _notes(outcome: ExperimentResult) -> Iterator[str]:
    if outcome.notes:
        yield "Notes"
    for note in outcome.notes:
        yield from wrapped(sentence(note))


def _classes(outcome: ExperimentResult) -> Iterator[str]:
    if not outcome.classes:
        return
    tried = any(kind.matters is not None for kind in outcome.classes)
    yield f"Kinds of op that give different results ({len(outcome.classes):,})"
    for matters, title in RELEVANCE.items():
        kinds = [kind for kind in outcome.classes if kind.matters is matters]
        if not kinds:
            continue
        if tried:
            yield f"  {title}"
        for kind in kinds[:MAX_KINDS]:
            yield from _kind(kind)
        if len(kinds) > MAX_KINDS:
            yield f"    and {len(kinds) - MAX_KINDS:,} more"


def _kind(kind: OriginClass) -> Iterator[str]:
    where = "" if kind.site is None else f" at {kind.site.file}:{kind.site.line} ({kind.site.function})"
    yield f"    {kind.op}{where}"
    if kind.site is not None and kind.site.source:
        yield f"        {kind.site.source}"
    yield from wrapped("; ".join(_facts(kind)), " " * 6)


def _facts(kind: OriginClass) -> Iterator[str]:
    yield counted(kind.count, "op")
    if kind.kernel.a != kind.kernel.b:
        yield f"A {kind.kernel.a or 'kernel unknown'}, B {kind.kernel.b or 'kernel unknown'}"
    others = [PARTS[part] for part in kind.parts if part in PARTS]
    if others:
        yield f"{' and '.join(others)} differ"
    if kind.max_ulp is not None:
        relative = "" if kind.max_relative is None else f" ({kind.max_relative:.2g} relative)"
        yield f"up to {kind.max_ulp:,} ULP{relative}"
    if kind.first_row is not None:
        yield f"first at op {kind.first_row:,} of {kind.stream} in A0, step {kind.first_step or 0:,}"


PARTS = {"outside": "outside data", "generator": "RNG states", "number": "logged scalars"}


def _next(outcome: ExperimentResult) -> Iterator[str]:
    if outcome.advice:
        yield "Next"
        for command in outcome.advice:
            yield f"  {command}"
