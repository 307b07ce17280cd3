"""``rltrace confirm``: an experiment on whether the first difference of two traces is the cause.

Owns the options, the confirmation before anything runs, and the exit status. ``rltrace.experiment.confirm`` runs the
experiment.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rltrace.command_lines import runnable
from rltrace.commands._option_types import (
    COUNT,
    argument,
    brief_option,
    color_option,
    form_option,
    option,
    quiet_option,
    recorded,
    share_option,
    verb,
)
from rltrace.commands.console import ExitCode, check_output, emit_result, narrate, progress_visible, run_counter
from rltrace.errors import UsageError
from rltrace.trace.format.location import Location, local_folder

if TYPE_CHECKING:
    from rltrace.experiment.confirm.run_cache import Side
    from rltrace.experiment.confirm.setup import CommandOverrides, ConfirmOptions, ExperimentSetup
    from rltrace.experiment.outcome import ExperimentResult


SIDES, MACHINES = "The programs", "Each on its machine"
"""Groups of options."""


@dataclass(frozen=True, kw_only=True)
class ConfirmArguments:
    traces: tuple[Location, ...] = argument(nargs=-1, metavar="A B")
    until: int | None = recorded("until", help="Last step; default: that after the first to differ.")
    inject: tuple[str, ...] = option(metavar="SELECTOR", help="These ops of A only, without a search; repeatable.")
    samples: int = option(type=COUNT, default=2, metavar="N", help="Runs of each control.")
    no_search: bool = option(help="Do not search for the fewest kinds of op.")
    values_limit: int = recorded("values_limit")
    output: Path | None = option("-o", "--output", metavar="FILE", help="The outcome as JSON; default: beside B.")
    work: Path | None = option(metavar="FOLDER", help="Keeps the runs; default: named after the outcome.")
    yes: bool = option(help="Run without asking.")
    form: str = form_option()
    brief: bool = brief_option()
    quiet: bool = quiet_option()
    color: str = color_option()
    cmd_a: str | None = option(metavar="CMD", group=SIDES, help="A's command, instead of the recorded one.")
    cmd_b: str | None = option(metavar="CMD", group=SIDES, help="B's.")
    env: tuple[str, ...] = option(metavar="NAME=VALUE", group=SIDES, help="Variable for both; repeatable.")
    env_a: tuple[str, ...] = option(metavar="NAME=VALUE", group=SIDES, help="For A.")
    env_b: tuple[str, ...] = option(metavar="NAME=VALUE", group=SIDES, help="For B.")
    folder_a: Path | None = option(metavar="FOLDER", group=SIDES, help="A's program folder.")
    folder_b: Path | None = option(metavar="FOLDER", group=SIDES, help="B's.")
    share: tuple[str, ...] = share_option(group=SIDES)
    in_place: bool = option(group=SIDES, help="Run in the folders, not in copies.")
    arms: str | None = option(type=click.Choice(["a", "b"]), group=MACHINES, help="Of one program, on its machine.")
    control: Path | None = option(metavar="TRACE", group=MACHINES, help="The other's control, with its values.")
    found: Path | None = option(metavar="FILE", group=MACHINES, help="With --arms a: the outcome of --arms b.")
    join: bool = option(group=MACHINES, help="Combine two outcomes of --arms: A B are these files.")

    @property
    def target(self) -> Path:
        """The file of the outcome."""
        from rltrace.experiment.outcome import outcome_path

        return self.output if self.output is not None else outcome_path(*self.traces)

    @property
    def runs(self) -> Path:
        """The folder of the runs."""
        if self.work is not None:
            return self.work
        folder = self.target.with_name(self.target.name.removesuffix(".json"))
        return folder if folder != self.target else folder.with_name(f"{folder.name}.runs")


@verb(ConfirmArguments)
def command(arguments: ConfirmArguments) -> int:
    """Run A and B again and inject A's values into B: is the first difference the cause?

    Ends with 0 if the cause is confirmed, 1 if it is refuted or explains only some of the difference, 2 on trouble, 3
    if the experiment proves nothing (UNRESOLVED) or half of it (REPAIRED).
    """
    traces, join = arguments.traces, arguments.join
    if len(traces) != 2:
        what = "outcomes, as in rltrace confirm --join a.json b.json" if join else "traces, as in rltrace confirm A B"
        raise UsageError(f"name two {what}")
    a, b = traces
    if join:
        one, other = (local_folder(trace, "rltrace confirm --join") for trace in traces)
        outcome = _join(one, other, arguments.output)
    else:
        from rltrace.experiment.confirm.setup import BOTH, ConfirmOptions
        from rltrace.experiment.outcome import read_outcome
        from rltrace.selectors import parse_selectors

        parse_selectors(arguments.inject)
        sides: dict[Side, CommandOverrides] = {
            "a": parse_overrides(arguments.cmd_a, arguments.folder_a, (*arguments.env, *arguments.env_a)),
            "b": parse_overrides(arguments.cmd_b, arguments.folder_b, (*arguments.env, *arguments.env_b)),
        }
        options = ConfirmOptions(
            a=a,
            b=b,
            sides=BOTH if arguments.arms is None else frozenset(["a" if arguments.arms == "a" else "b"]),
            overrides=sides,
            until=arguments.until,
            selectors=arguments.inject,
            samples=arguments.samples,
            search=not arguments.no_search,
            control=arguments.control,
            found=None if arguments.found is None else read_outcome(arguments.found),
            found_file=arguments.found,
        )
        outcome = _run(options, arguments)
    status = status_of(outcome)
    from rltrace.report.brief import brief_outcome
    from rltrace.report.confirm import outcome_document

    emit_result(arguments, outcome, lambda: outcome_document(outcome), lambda: brief_outcome(outcome, status))
    return status


def status_of(outcome: ExperimentResult) -> ExitCode:
    """0, 1 or 3."""
    from rltrace.experiment.outcome import Outcome

    if outcome.word is Outcome.CONFIRMED:
        return ExitCode.IDENTICAL
    return ExitCode.DIVERGED if outcome.word in (Outcome.REFUTED, Outcome.PARTIAL) else ExitCode.UNDECIDED


def _run(options: ConfirmOptions, arguments: ConfirmArguments) -> ExperimentResult:
    from rltrace.experiment.confirm.arms import Experiment, initial_outcome, interrupted_outcome
    from rltrace.experiment.confirm.run_cache import RunCache, RunSetting
    from rltrace.experiment.confirm.setup import advice_of, prepare
    from rltrace.experiment.outcome import write_outcome
    from rltrace.experiment.runner import Runner
    from rltrace.experiment.workdir_copy import check_extent
    from rltrace.report.confirm import plan_lines

    target, folder, share, quiet = arguments.target, arguments.runs, arguments.share, arguments.quiet
    check_output(target, force=True)
    prepared = prepare(options)
    covered = prepared.question.divergence.covered
    if not arguments.in_place:
        for recipe in prepared.recipes.values():
            check_extent(recipe.folder, share, folder)
    lines = plan_lines(
        {str(side): recipe for side, recipe in prepared.recipes.items()},
        str(covered),
        options.samples,
        in_place=arguments.in_place,
        work=str(folder),
    )
    require_approval("\n".join(lines), yes=arguments.yes, quiet=quiet)
    setting = RunSetting(
        folder=folder,
        recipes=prepared.recipes,
        covered=covered,
        shared=share,
        in_place=arguments.in_place,
        values_limit=arguments.values_limit,
    )
    show = _Narration(quiet=quiet)

    def save(outcome: ExperimentResult) -> None:
        write_outcome(target, outcome)
        show(outcome)

    with Runner() as runner:
        sides = len(prepared.recipes)
        count = run_counter(sides * (options.samples + 1), at_least=True)
        silent = quiet or not progress_visible()
        on_run = _ignore if silent else lambda name: narrate(f"run {name} ended{count()}")
        cache = RunCache(setting, _subject(prepared, options), runner, on_run)
        elsewhere = {}
        if prepared.control is not None:
            elsewhere[prepared.control_name] = cache.add_control(prepared.control_name, prepared.control)
        start = initial_outcome(prepared.question, (str(options.a), str(options.b)), dict(prepared.subject), elsewhere)
        experiment = Experiment(prepared.question, cache, start, save)
        try:
            outcome = experiment.run()
        except BaseException:
            write_outcome(target, interrupted_outcome(experiment.outcome))
            narrate(f"interrupted; the same command resumes it, with the runs in {folder}")
            raise
    advice = advice_of(outcome, options, prepared, target, folder)
    outcome = replace(outcome, advice=runnable(advice))
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


def require_approval(text: str, *, yes: bool, quiet: bool) -> None:
    """Show what is about to be done and ask for approval. Raises UsageError without a terminal to ask at."""
    if not quiet or not yes:
        narrate(text)
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError("these commands come from traces, and without a terminal they cannot be approved: give --yes")
    if not click.confirm("run them?", default=True, err=True):
        raise KeyboardInterrupt


def _join(one: Path, other: Path, output: Path | None) -> ExperimentResult:
    from rltrace.experiment.confirm.setup import join
    from rltrace.experiment.outcome import read_outcome, write_outcome

    if output is not None:
        check_output(output, force=True)
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
