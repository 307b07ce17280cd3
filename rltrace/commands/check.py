"""``rltrace check``: whether a program is deterministic.

Owns the options, and the folder of traces and output.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from rltrace.command_lines import line
from rltrace.commands._option_types import cluster_options, on_cluster, parse_steps
from rltrace.commands.console import (
    ExitCode,
    annotated_format_options,
    color_option,
    emit,
    emit_result,
    narrate,
    run_counter,
)
from rltrace.errors import UsageError
from rltrace.launch.command import CommandLookup, look_up, trace_stem

if TYPE_CHECKING:
    from rltrace.diff.groups import Grouping
    from rltrace.experiment.check import CheckPlan, CheckResult


@click.command(name="check", context_settings={"allow_interspersed_args": False})
@click.option("-n", "runs", type=click.IntRange(min=2), default=2, show_default=True, help="How many runs.")
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at a time.  [default: 1; on a cluster all]")
@cluster_options
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Where traces and output go.")
@click.option("--steps", metavar="A:B", help="Record the ops of steps A to B only (B left out).")
@click.option("--until", type=click.IntRange(min=0), metavar="STEP", help="End each run after this step.")
@click.option("--share", multiple=True, metavar="NAME", help="Link this entry of the folder instead of copying it.")
@click.option("--in-place", is_flag=True, help="Run in the current folder, one run after another, not in copies.")
@click.option("--no-control", is_flag=True, help="Leave out the last run, which records no ops.")
@click.option("--keep", is_flag=True, help="Keep all traces; default: one of several identical ones.")
@click.option("--strict", is_flag=True, help="Added, removed or reordered ops count as a difference too.")
@click.option("--against", type=click.Path(path_type=Path), metavar="LOCK", help="Compare one run with this lock.")
@click.option("--join", type=click.Path(path_type=Path), metavar="FOLDER", help="Group the runs that an array job of"
              " --on slurm has made.")  # fmt: skip
@click.option("--update", is_flag=True, help="Write the lock anew, and show what moved.")
@annotated_format_options
@click.option("--quiet", is_flag=True, help="No narration; errors are still shown.")
@color_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] CMD …")
@click.pass_context
def command(
    ctx: click.Context,
    runs: int,
    jobs: int | None,
    place: str | None,
    cpus: float,
    gpus: float,
    output: Path | None,
    steps: str | None,
    until: int | None,
    share: tuple[str, ...],
    in_place: bool,
    no_control: bool,
    keep: bool,
    strict: bool,
    against: Path | None,
    join: Path | None,
    update: bool,
    form: str,
    brief: bool,
    quiet: bool,
    color: str,
    command: tuple[str, ...],
) -> int:
    """Run CMD several times with nothing changed, and group the runs that computed the same.

    Each run works in a copy of the current folder, with its number in RLTRACE_RUN and its output in a file. Runs that
    computed the same form a group; where groups diverge, the op and the cause are named. One more run, recorded at
    level step, shows whether recording every op changed anything.

    --against LOCK makes one run, recorded at level step, and compares it with what rltrace lock wrote. If a step
    differs, that step is recorded op by op, and once more with what differs put back, to name the op.

    --on ray makes the runs on a Ray cluster, from the same copy of the folder, and brings their traces here. --on slurm
    writes a batch script, whose tasks make them into a folder that all nodes share, and --join FOLDER groups them.

    Ends with 0 if all runs computed the same, 1 if they diverged, 2 on trouble, 3 if it is undecided.
    """
    if join is not None:
        if command:
            raise UsageError("--join groups runs that were made: leave out the command")
        return _join(join, form, brief, quiet, color)
    if not command:
        raise UsageError("nothing to check: name a command, as in rltrace check -n 5 -- python train.py")
    if in_place and place is not None:
        raise UsageError("--in-place runs in this machine's folder: leave it out, or leave out --on")
    if in_place and jobs is not None and jobs > 1:
        raise UsageError("--in-place runs one after another; leave out --jobs, or let each run have a copy")
    if place is None:
        require_executable(command[0])
    if against is not None:
        _refuse_options_of_groups(ctx)
        return _check_lock(against, command, output, until, share, in_place, update, form, brief, quiet, color)
    if update:
        raise UsageError("--update writes a lock anew: name it with --against LOCK")
    if steps is not None:
        parse_steps(steps)
    from rltrace.experiment.check import CheckPlan, check

    until_options = () if until is None else ("--until", str(until))
    with on_cluster(None if place == SLURM else place, cpus, gpus, jobs, narrate) as cluster:
        plan = CheckPlan(
            command=command,
            runs=runs,
            jobs=jobs or 1,
            folder=Path.cwd(),
            output=_output_folder(output, trace_stem(command)),
            options=(*(() if steps is None else ("--steps", steps)), *until_options),
            shared=share,
            in_place=in_place,
            control=not no_control,
            control_options=until_options,
            keep=keep,
            strict=strict,
        )
        if place == SLURM:
            return _write_array(plan, cpus, gpus)
        if not quiet:
            narrate(f"{runs} runs, traces in {plan.output}")
        count = run_counter(runs + plan.control)
        there = None if cluster is None else cluster.runner()
        checked = check(plan, (lambda text: None) if quiet else (lambda text: narrate(f"{text}{count()}")), there)
    return _emit(checked, form, brief, color)


def _emit(checked: CheckResult, form: str, brief: bool, color: str) -> int:
    from rltrace.report.brief import brief_grouping
    from rltrace.report.groups import check_json, render_check

    status, traces = status_of(checked.grouping), [str(run.trace or "") for run in checked.runs]
    emit_result(
        form,
        brief,
        check_json(checked),
        lambda colored: render_check(checked, color=colored),
        lambda: brief_grouping("check", checked.grouping, traces, status),
        color,
    )
    return status


def _write_array(plan: CheckPlan, cpus: float, gpus: float) -> int:
    from rltrace.experiment.slurm_array import write_array
    from rltrace.experiment.workdir_copy import check_extent

    check_extent(plan.folder, plan.shared, plan.output)
    script = write_array(plan, cpus, gpus)
    narrate(f"{script} makes {plan.runs + plan.control} runs, into {plan.output}; when they have ended, join them")
    emit(f"sbatch --wait {shlex.quote(str(script))}\n{line('check', '--join', plan.output)}")
    return ExitCode.IDENTICAL


def _join(folder: Path, form: str, brief: bool, quiet: bool, color: str) -> int:
    from rltrace.experiment.check import check
    from rltrace.experiment.slurm_array import EndedRuns, read_plan

    plan = replace(read_plan(folder), keep=True, in_place=True)  # nothing is copied, and it may be joined again
    checked = check(plan, (lambda text: None) if quiet else narrate, EndedRuns())
    return _emit(checked, form, brief, color)


def status_of(grouping: Grouping) -> ExitCode:
    """0, 1 or 3."""
    if grouping.agrees is None:
        return ExitCode.UNDECIDED
    return ExitCode.IDENTICAL if grouping.agrees else ExitCode.DIVERGED


SLURM = "slurm"
"""Value of ``--on`` for an array job."""
OF_GROUPS = {
    "runs": "-n",
    "jobs": "--jobs",
    "place": "--on",
    "steps": "--steps",
    "no_control": "--no-control",
    "keep": "--keep",
}
"""Options of several runs, by their parameters."""


def _refuse_options_of_groups(ctx: click.Context) -> None:
    for name, option in {**OF_GROUPS, "strict": "--strict"}.items():
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--against compares one run with a lock, step by step: leave out {option}")


def _check_lock(
    lock: Path,
    command: tuple[str, ...],
    requested: Path | None,
    until: int | None,
    share: tuple[str, ...],
    in_place: bool,
    update: bool,
    form: str,
    brief: bool,
    quiet: bool,
    color: str,
) -> int:
    from rltrace.experiment.lock_check import LockPlan, check_lock
    from rltrace.lock import read_lock
    from rltrace.report.brief import brief_lock_check
    from rltrace.report.lock import render_lock_check

    read_lock(lock)  # raises before anything is made
    with work_folder(requested, command) as folder:
        plan = LockPlan(command, lock, Path.cwd(), folder, until, share, in_place)
        checked = check_lock(plan, (lambda text: None) if quiet else narrate, update=update)
        if requested is None and (checked.agrees or checked.updated):
            shutil.rmtree(folder)
    differs = ExitCode.UNDECIDED if checked.agrees is None else ExitCode.DIVERGED
    status = ExitCode.IDENTICAL if checked.agrees or (update and checked.agrees is not None) else differs
    emit_result(
        form,
        brief,
        checked,
        lambda colored: render_lock_check(checked, color=colored),
        lambda: brief_lock_check(checked, status),
        color,
    )
    return status


def require_executable(program: str) -> None:
    """Raise UsageError for a program that cannot be started."""
    found = look_up(program)
    if found is not CommandLookup.EXECUTABLE:
        raise UsageError(f"{program} cannot be run: {found.value}")


@contextmanager
def work_folder(requested: Path | None, command: tuple[str, ...]) -> Iterator[Path]:
    """A folder for the traces and the output of runs; removed if it was not requested and nothing was left in it."""
    folder = _output_folder(requested, trace_stem(command))
    try:
        yield folder
    finally:
        if requested is None and folder.is_dir() and not os.listdir(folder):  # noqa: PTH208  names are all
            folder.rmdir()


def _output_folder(requested: Path | None, stem: str) -> Path:
    """Make the folder, which must be empty: traces of an earlier check are no runs of this one."""
    folder = requested if requested is not None else _fresh_folder(stem)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        has_entries = bool(os.listdir(folder))  # noqa: PTH208  names are all that is needed
    except OSError as error:
        raise UsageError(f"{folder} cannot be used for traces: {error.strerror}") from error
    if has_entries:
        raise UsageError(f"{folder} is not empty; choose another name")
    return folder


def _fresh_folder(stem: str) -> Path:
    number = 1
    while os.path.lexists(f"{stem}-check-{number}"):
        number += 1
    return Path(f"{stem}-check-{number}")
