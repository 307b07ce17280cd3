"""What to run after an experiment, the most useful first.

What is to be run on another machine says so in a comment at its end, and its paths are those of this one.
"""

from __future__ import annotations

from pathlib import Path

from rltrace.command_lines import line
from rltrace.experiment.confirm.arms import CONTROLS, NOT_REPRODUCIBLE
from rltrace.experiment.confirm.setup import ConfirmOptions, Prepared, capture_command
from rltrace.experiment.outcome import ArmName, ArmState, ExperimentResult, Outcome

RUNS = 5


def advice_of(
    outcome: ExperimentResult, asked: ConfirmOptions, prepared: Prepared, written: Path, runs: Path
) -> tuple[str, ...]:
    """``written``: where the outcome is; ``runs``: where the traces of its runs are."""
    match outcome.word:
        case Outcome.UNRESOLVED:
            return _repeats(outcome, prepared)
        case Outcome.CONFIRMED:
            return _one_op(outcome, runs)
        case Outcome.REPAIRED:
            there = _on_a_machine(asked, prepared, written) if asked.sides == {"b"} else ()
            return (*there, *_one_op(outcome, runs))
        case Outcome.REFUTED | Outcome.PARTIAL:
            return (line("confirm", asked.a, asked.b),) if asked.selectors else _where_it_parts(outcome, runs)
    if asked.sides == {"a"} and asked.found_file is not None:
        return (line("confirm", "--join", written, asked.found_file),)
    return ()


def _repeats(outcome: ExperimentResult, prepared: Prepared) -> tuple[str, ...]:
    """See how often a program that does not repeat itself does."""
    if NOT_REPRODUCIBLE not in outcome.explanation or outcome.end_step is None:
        return ()
    failed = {arm.name for arm in outcome.arms if arm.state is ArmState.FAILED}
    options = ("check", "-n", str(RUNS), "--until", str(outcome.end_step - 1), "--")
    found = [recipe for side, recipe in prepared.recipes.items() if CONTROLS[side] in failed]
    return tuple(recipe.told("rltrace", *options) for recipe in found)


def _one_op(outcome: ExperimentResult, runs: Path) -> tuple[str, ...]:
    """The first op that is to blame, as a script of its own."""
    needed = [found for found in outcome.classes if found.matters is not False and found.first_row is not None]
    if not needed:
        return ()
    first = min(needed, key=lambda found: (found.first_step or 0, found.first_row or 0))
    return (line("repro", runs / "A0.zarr", "--at", f"{first.stream}:{first.first_row}"),)


def _where_it_parts(outcome: ExperimentResult, runs: Path) -> tuple[str, ...]:
    """An arm that did not come out as expected, against the control that it should have become."""
    for name, control in ((ArmName.B_FROM_A, "A0"), (ArmName.A_FROM_B, "B0")):
        arm = outcome.arm(name)
        if arm is not None and arm.state is ArmState.OTHERWISE and arm.trace is not None:
            return (line("diff", runs / f"{control}.zarr", arm.trace),)
    return ()


def _on_a_machine(asked: ConfirmOptions, prepared: Prepared, written: Path) -> tuple[str, ...]:
    """A's own arms, where B's came out well."""
    options = ("--arms", "a", "--capture", "b.capture", "--found", written, *asked.options, "-o", "a.json")
    return (
        capture_command(prepared.question.b, prepared.question, "b.capture"),
        f"{line('confirm', asked.a, asked.b, *options)}  # on A's machine",
        line("confirm", "--join", "a.json", written),
    )
