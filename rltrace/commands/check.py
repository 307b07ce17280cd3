"""``rltrace check``: whether a program is deterministic.

Owns the options, and the folder of traces and output.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rltrace.commands._option_types import (
    BEFORE_COMMAND,
    COUNT,
    annotated_form_option,
    brief_option,
    color_option,
    command_argument,
    is_given,
    option,
    options_of,
    quiet_option,
    recorded,
    share_option,
    strict_option,
    verb,
)
from rltrace.commands.console import ExitCode, emit_result, narrate, run_counter
from rltrace.errors import UsageError
from rltrace.launch.command import CommandLookup, look_up, trace_stem
from rltrace.recorder.base.options import Window, steps_text

if TYPE_CHECKING:
    from rltrace.diff.groups import Grouping
    from rltrace.experiment.check import CheckResult


SEVERAL, LOCK = "Several runs", "One run with a lock"
"""Groups of options."""


@dataclass(frozen=True, kw_only=True)
class CheckArguments:
    output: Path | None = option("-o", "--output", metavar="FOLDER", help="Where traces and output go.")
    until: int | None = recorded("until", help="End each run after this step.")
    share: tuple[str, ...] = share_option()
    in_place: bool = option(help="Run in the current folder, not in copies.")
    form: str = annotated_form_option()
    brief: bool = brief_option()
    quiet: bool = quiet_option()
    color: str = color_option()
    runs: int = option("-n", type=click.IntRange(min=2), default=2, metavar="N", group=SEVERAL, help="How many.")
    jobs: int = option(type=COUNT, default=1, metavar="N", group=SEVERAL, help="At a time.")
    steps: Window | None = recorded("steps", envvar=None, group=SEVERAL)
    no_control: bool = option(group=SEVERAL, help="Leave out the last run, which records no ops.")
    keep: bool = option(group=SEVERAL, help="Keep all traces, not one of equal ones.")
    strict: bool = strict_option(group=SEVERAL)
    against: Path | None = option(metavar="LOCK", group=LOCK, help="Compare one run with this lock.")
    update: bool = option(group=LOCK, help="Write the lock anew, and show what moved.")
    command: tuple[str, ...] = command_argument()


@verb(CheckArguments, context_settings=BEFORE_COMMAND)
def command(arguments: CheckArguments) -> int:
    """Run CMD several times with nothing changed, and group the runs that computed the same.

    Each works in a copy of the current folder. Where groups diverge, the op and the cause are named; a last run, of
    level step, shows whether recording changed anything.

    With --against LOCK one run is compared with what rltrace lock wrote, and the op where a step differs is named.

    Ends with 0 if all runs computed the same, 1 if they diverged, 2 on trouble, 3 if it is undecided.
    """
    command = arguments.command
    if not command:
        raise UsageError("nothing to check: name a command, as in rltrace check -n 5 -- python train.py")
    if arguments.in_place and arguments.jobs > 1:
        raise UsageError("--in-place runs one after another; leave out --jobs, or let each run have a copy")
    require_executable(command[0])
    if arguments.against is not None:
        _refuse_options_of_groups()
        return _check_lock(arguments.against, arguments)
    if arguments.update:
        raise UsageError("--update writes a lock anew: name it with --against LOCK")
    from rltrace.experiment.check import CheckPlan, check

    until = () if arguments.until is None else ("--until", str(arguments.until))
    steps = () if arguments.steps is None else ("--steps", steps_text(arguments.steps))
    plan = CheckPlan(
        command=command,
        runs=arguments.runs,
        jobs=arguments.jobs,
        folder=Path.cwd(),
        output=_output_folder(arguments.output, trace_stem(command)),
        options=(*steps, *until),
        shared=arguments.share,
        in_place=arguments.in_place,
        control=not arguments.no_control,
        control_options=until,
        keep=arguments.keep,
        strict=arguments.strict,
    )
    if not arguments.quiet:
        narrate(f"{arguments.runs} runs, traces in {plan.output}")
    count = run_counter(arguments.runs + plan.control)
    checked = check(plan, (lambda text: None) if arguments.quiet else (lambda text: narrate(f"{text}{count()}")))
    return _emit(checked, arguments)


def _emit(checked: CheckResult, arguments: CheckArguments) -> int:
    from rltrace.report.brief import brief_groups
    from rltrace.report.groups import groups_document, run_groups

    status, found = status_of(checked.grouping), run_groups(checked.grouping, checked.runs, checked.control)
    emit_result(
        arguments.form,
        arguments.brief,
        found,
        lambda: groups_document(found),
        lambda: brief_groups("check", found, status),
        arguments.color,
    )
    return status


def status_of(grouping: Grouping) -> ExitCode:
    """0, 1 or 3."""
    if grouping.agrees is None:
        return ExitCode.UNDECIDED
    return ExitCode.IDENTICAL if grouping.agrees else ExitCode.DIVERGED


def _refuse_options_of_groups() -> None:
    for given in options_of(SEVERAL):
        if is_given(given):
            raise UsageError(f"--against compares one run with a lock, step by step: leave out {given.opts[0]}")


def _check_lock(lock: Path, arguments: CheckArguments) -> int:
    from rltrace.experiment.lock_check import LockPlan, check_lock
    from rltrace.lock import read_lock
    from rltrace.report.brief import brief_lock_check
    from rltrace.report.lock import lock_document

    read_lock(lock)  # raises before anything is made
    command, update, quiet = arguments.command, arguments.update, arguments.quiet
    with work_folder(arguments.output, command) as folder:
        plan = LockPlan(command, lock, Path.cwd(), folder, arguments.until, arguments.share, arguments.in_place)
        checked = check_lock(plan, (lambda text: None) if quiet else narrate, update=update)
        if arguments.output is None and (checked.agrees or checked.updated):
            shutil.rmtree(folder)
    differs = ExitCode.UNDECIDED if checked.agrees is None else ExitCode.DIVERGED
    status = ExitCode.IDENTICAL if checked.agrees or (update and checked.agrees is not None) else differs
    emit_result(
        arguments.form,
        arguments.brief,
        checked,
        lambda: lock_document(checked),
        lambda: brief_lock_check(checked, status),
        arguments.color,
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
