"""``rltrace confirm``: an experiment on whether the first difference of two traces is the cause.

Owns the options, the confirmation before anything runs, and the exit status. ``rltrace.experiment.confirm`` runs the
experiment.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rltrace.commands._option_types import TraceLocation, cluster_options, on_cluster
from rltrace.commands.console import (
    ExitCode,
    color_option,
    emit_result,
    format_options,
    narrate,
    progress_visible,
    run_counter,
)
from rltrace.errors import UsageError
from rltrace.trace.format.location import Location, local_folder

if TYPE_CHECKING:
    from rltrace.experiment.confirm.run_cache import Side
    from rltrace.experiment.confirm.setup import CommandOverrides, ConfirmOptions, ExperimentSetup
    from rltrace.experiment.outcome import ExperimentResult
    from rltrace.experiment.runner import RunMaker


@click.command(name="confirm")
@click.argument("traces", nargs=-1, type=TraceLocation(), metavar="A B")
@click.option("--until", type=click.IntRange(min=0), metavar="STEP", help="Last step; default: the one after the first"
              " that differs.")  # fmt: skip
@click.option(
    "--inject",
    multiple=True,
    metavar="SELECTOR",
    help="Inject these ops of A only, instead of searching for all that give different results; repeatable.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Runs of each control, which all have to give the same.",
)
@click.option("--no-search", is_flag=True, help="Do not search for the fewest kinds of op.")
@click.option("--cmd-a", metavar="CMD", help="A's command, instead of the recorded one.")
@click.option("--cmd-b", metavar="CMD", help="B's.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Variable to set for both; repeatable.")
@click.option("--env-a", multiple=True, metavar="NAME=VALUE", help="Variable to set for A.")
@click.option("--env-b", multiple=True, metavar="NAME=VALUE", help="Variable to set for B.")
@click.option("--folder-a", type=click.Path(path_type=Path), metavar="FOLDER", help="A's program folder.")
@click.option("--folder-b", type=click.Path(path_type=Path), metavar="FOLDER", help="B's program folder.")
@click.option("--share", multiple=True, metavar="NAME", help="Link this entry of the folder instead of copying it.")
@click.option("--in-place", is_flag=True, help="Run in the folders, not in copies.")
@cluster_options
@click.option("--values-limit", type=click.IntRange(min=1), default=1024, show_default=True, metavar="MB",
              help="Limit of values for each process.")  # fmt: skip
@click.option("--arms", type=click.Choice(["a", "b"]), help="Run the arms of this program only, on its machine.")
@click.option(
    "--capture",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="With --arms: the other program's control, from rltrace capture.",
)
@click.option(
    "--found", type=click.Path(path_type=Path), metavar="FILE", help="With --arms a: the outcome of --arms b."
)
@click.option("--join", is_flag=True, help="Combine two outcomes of --arms: A B are these files.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="The outcome as JSON; default:"
              " beside B, where the interface looks for it.")  # fmt: skip
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Keeps the runs; an interrupted experiment resumes there.",
)
@click.option("--yes", is_flag=True, help="Run without asking.")
@format_options
@click.option("--quiet", is_flag=True, help="No narration; errors are still shown.")
@color_option
def command(
    traces: tuple[Location, ...],
    until: int | None,
    inject: tuple[str, ...],
    samples: int,
    no_search: bool,
    cmd_a: str | None,
    cmd_b: str | None,
    env: tuple[str, ...],
    env_a: tuple[str, ...],
    env_b: tuple[str, ...],
    folder_a: Path | None,
    folder_b: Path | None,
    share: tuple[str, ...],
    in_place: bool,
    place: str | None,
    cpus: float,
    gpus: float,
    values_limit: int,
    arms: str | None,
    capture: Path | None,
    found: Path | None,
    join: bool,
    output: Path | None,
    work: Path | None,
    yes: bool,
    form: str,
    brief: bool,
    quiet: bool,
    color: str,
) -> int:
    """Run A and B again and inject A's values into B: is the first difference the cause?

    A and B are run again unchanged and have to equal their traces. Then A's values are injected into B at every op that
    gives a different result, and at fewer and fewer kinds of them; then B's values into A at the remaining ones. If
    that turns B into A and A into B, bit for bit, it is the cause.

    The commands, folders and variables are the recorded ones. Each run works in a copy of its folder.

    Ends with 0 if the cause is confirmed, 1 if the suspicion is refuted or explains only some of the difference, 2 on
    trouble, 3 if the experiment proves nothing (UNRESOLVED) or half of it (REPAIRED).
    """
    if len(traces) != 2:
        what = "outcomes, as in rltrace confirm --join a.json b.json" if join else "traces, as in rltrace confirm A B"
        raise UsageError(f"name two {what}")
    a, b = traces
    if in_place and place is not None:
        raise UsageError("--in-place runs in this machine's folders: leave it out, or leave out --on")
    if join:
        outcome = _join(local_folder(a, "rltrace confirm --join"), local_folder(b, "rltrace confirm --join"), output)
    else:
        from rltrace.experiment.confirm.setup import BOTH, ConfirmOptions
        from rltrace.experiment.outcome import outcome_path, read_outcome
        from rltrace.selectors import parse_selectors

        parse_selectors(inject)
        sides: dict[Side, CommandOverrides] = {
            "a": parse_overrides(cmd_a, folder_a, (*env, *env_a)),
            "b": parse_overrides(cmd_b, folder_b, (*env, *env_b)),
        }
        options = ConfirmOptions(
            a=a,
            b=b,
            sides=BOTH if arms is None else frozenset([_side(arms)]),
            overrides=sides,
            until=until,
            selectors=inject,
            samples=samples,
            search=not no_search,
            capture=capture,
            found=None if found is None else read_outcome(found),
            found_file=found,
            elsewhere=place is not None,
        )
        target = output if output is not None else outcome_path(a, b)
        folder = work if work is not None else target.with_name(target.name.removesuffix(".json"))
        if folder == target:
            folder = target.with_name(f"{target.name}.runs")
        with on_cluster(place, cpus, gpus, None, narrate) as cluster:
            there = None if cluster is None else cluster.runner()
            outcome = _run(options, target, folder, share, values_limit, there, in_place=in_place, yes=yes, quiet=quiet)
    status = status_of(outcome)
    from rltrace.report.brief import brief_outcome
    from rltrace.report.confirm import render_outcome

    emit_result(
        form,
        brief,
        outcome,
        lambda colored: render_outcome(outcome, color=colored),
        lambda: brief_outcome(outcome, status),
        color,
    )
    return status


def status_of(outcome: ExperimentResult) -> ExitCode:
    """0, 1 or 3."""
    from rltrace.experiment.outcome import Outcome

    if outcome.word is Outcome.CONFIRMED:
        return ExitCode.IDENTICAL
    return ExitCode.DIVERGED if outcome.word in (Outcome.REFUTED, Outcome.PARTIAL) else ExitCode.UNDECIDED


def _run(
    options: ConfirmOptions,
    target: Path,
    folder: Path,
    share: tuple[str, ...],
    values_limit: int,
    there: RunMaker | None,
    *,
    in_place: bool,
    yes: bool,
    quiet: bool,
) -> ExperimentResult:
    from rltrace.experiment.confirm.arms import Experiment, initial_outcome, interrupted_outcome
    from rltrace.experiment.confirm.run_cache import RunCache, RunSetting
    from rltrace.experiment.confirm.setup import check_folders, prepare
    from rltrace.experiment.confirm.suggested_commands import advice_of
    from rltrace.experiment.outcome import write_outcome
    from rltrace.experiment.runner import Runner
    from rltrace.report.confirm import plan_lines

    prepared = prepare(options)
    covered = prepared.question.divergence.covered
    if not in_place:
        check_folders(prepared.recipes, share, folder)
    lines = plan_lines(
        {str(side): recipe for side, recipe in prepared.recipes.items()},
        str(covered),
        options.samples,
        in_place=in_place,
        work=str(folder),
    )
    require_approval("\n".join(lines), yes=yes, quiet=quiet)
    setting = RunSetting(
        folder=folder,
        recipes=prepared.recipes,
        covered=covered,
        shared=share,
        in_place=in_place,
        values_limit=values_limit * 1_000_000,
    )
    show = _Narration(quiet=quiet)

    def save(outcome: ExperimentResult) -> None:
        write_outcome(target, outcome)
        show(outcome)

    with nullcontext(there) if there is not None else Runner() as runner:
        sides = len(prepared.recipes)
        count = run_counter(sides * (options.samples + 1), at_least=True)
        silent = quiet or not progress_visible()
        on_run = _ignore if silent else lambda name: narrate(f"run {name} ended{count()}")
        cache = RunCache(setting, _subject(prepared, options), runner, on_run)
        captured = {}
        if prepared.captured is not None:
            captured[prepared.capture_name] = cache.add_capture(prepared.capture_name, prepared.captured)
        start = initial_outcome(prepared.question, (str(options.a), str(options.b)), dict(prepared.subject), captured)
        experiment = Experiment(prepared.question, cache, start, save)
        try:
            outcome = experiment.run()
        except BaseException:
            write_outcome(target, interrupted_outcome(experiment.outcome))
            narrate(f"interrupted; the same command resumes it, with the runs in {folder}")
            raise
    advice = advice_of(outcome, options, prepared, target, folder)
    outcome = replace(outcome, advice=advice, notes=tuple(cache.notes))
    write_outcome(target, outcome)
    if not quiet:
        narrate(f"the outcome is in {target}, the runs are in {folder}")
    return outcome


def _ignore(name: str) -> None:
    """Narrate nothing."""


def _subject(prepared: ExperimentSetup, options: ConfirmOptions) -> Mapping[str, object]:
    """What must be equal for existing runs to be reused."""
    return {
        **prepared.subject,
        "steps": [prepared.question.divergence.covered.first, prepared.question.divergence.covered.end],
        "commands": {str(side): recipe.shown for side, recipe in prepared.recipes.items()},
        "inject": list(options.selectors),
    }


class _Narration:
    """Narrates the result of each arm once."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._narrated: set[str] = set()

    def __call__(self, outcome: ExperimentResult) -> None:
        from rltrace.experiment.outcome import ArmState
        from rltrace.report.confirm import arm_line

        if self._quiet:
            return
        for arm in outcome.arms:
            line = arm_line(arm)
            if arm.state is not ArmState.NOT_RUN and line not in self._narrated:
                self._narrated.add(line)
                narrate(line)


def require_approval(text: str, *, yes: bool, quiet: bool, question: str = "run them?") -> None:
    """Show what is about to be done and ask for approval. Raises UsageError without a terminal to ask at."""
    if not quiet or not yes:
        narrate(text)
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("these commands come from traces, and without a terminal they cannot be approved: give --yes")
    if not click.confirm(question, default=True, err=True):
        raise KeyboardInterrupt


def _join(one: Path, other: Path, output: Path | None) -> ExperimentResult:
    from rltrace.experiment.confirm.setup import join
    from rltrace.experiment.outcome import read_outcome, write_outcome

    outcome = join(read_outcome(one), read_outcome(other))
    if output is not None:
        write_outcome(output, outcome)
    return outcome


def parse_overrides(cmd: str | None, folder: Path | None, variables: Sequence[str]) -> CommandOverrides:
    """Options that replace the recorded command, folder and variables. Raises UsageError."""
    from rltrace.experiment.confirm.setup import CommandOverrides

    pairs = []
    for text in variables:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{text!r} is not NAME=VALUE")
        pairs.append((name, value))
    try:
        words = tuple(shlex.split(cmd)) if cmd is not None else ()
    except ValueError as error:
        raise UsageError(f"{cmd!r} cannot be read as a command: {error}") from None
    if cmd is not None and not words:
        raise UsageError("an empty command cannot be run")
    if folder is not None and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder")
    return CommandOverrides(words, None if folder is None else folder.absolute(), tuple(pairs))


def _side(text: str) -> Side:
    return "a" if text == "a" else "b"
