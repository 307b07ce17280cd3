"""Commands to run after an experiment, the most useful first.

Those for another machine end with a comment that says so; their paths are those of this one.
"""

from __future__ import annotations

from pathlib import Path

from rltrace.command_lines import line
from rltrace.experiment.confirm.arms import CONTROLS, NOT_REPRODUCIBLE
from rltrace.experiment.confirm.setup import ConfirmOptions, ExperimentSetup, control_command, control_file
from rltrace.experiment.outcome import ArmName, ArmState, ExperimentResult, Outcome
from rltrace.trace.format.schema import has_iterations
from rltrace.trace.kernels.evidence import LAUNCH_ROWS

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
    options = ("--arms", "a", "--control", control_file(b), "--found", written, *request.options, "-o", "a.json")
    return (
        control_command(b, setup.question),
        f"{line('confirm', request.a, request.b, *options)}  # on A's machine",
        line("confirm", "--join", "a.json", written),
    )
