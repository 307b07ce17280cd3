"""``rltrace check``: whether a program is deterministic.

Owns the options, and the folder of traces and output.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from pathlib import Path

import click

from rltrace.commands._option_types import (
    BEFORE_COMMAND,
    COUNT,
    annotated_form_option,
    brief_option,
    color_option,
    command_argument,
    option,
    quiet_option,
    recorded,
    share_option,
    strict_option,
    verb,
)
from rltrace.commands.console import emit_result, narrate, run_counter
from rltrace.commands.diff import status_of
from rltrace.errors import UsageError
from rltrace.launch.command import CommandLookup, look_up, trace_stem
from rltrace.recorder.base.options import Window, steps_text


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
    runs: int = option("-n", type=click.IntRange(min=2), default=2, metavar="N", help="How many.")
    jobs: int = option(type=COUNT, default=1, metavar="N", help="At a time.")
    steps: Window | None = recorded("steps", envvar=None)
    no_control: bool = option(help="Leave out the last run, which records no ops.")
    keep: bool = option(help="Keep all traces, not one of equal ones.")
    strict: bool = strict_option()
    command: tuple[str, ...] = command_argument()


@verb(CheckArguments, context_settings=BEFORE_COMMAND)
def command(arguments: CheckArguments) -> int:
    """Run CMD several times with nothing changed, and group the runs that computed the same.

    Each works in a copy of the current folder. Where groups diverge, the op and the cause are named; a last run, of
    level step, shows whether recording changed anything.

    Ends with 0 if all runs computed the same, 1 if they diverged, 2 on trouble, 3 if it is undecided.
    """
    command = arguments.command
    if not command:
        raise UsageError("nothing to check: name a command, as in rltrace check -n 5 -- python train.py")
    if arguments.in_place and arguments.jobs > 1:
        raise UsageError("--in-place runs one after another; leave out --jobs, or let each run have a copy")
    require_executable(command[0])
    from rltrace.extensions.regression.check import CheckPlan, check
    from rltrace.report.brief import brief_groups
    from rltrace.report.groups import groups_document, run_groups

    until = () if arguments.until is None else ("--until", str(arguments.until))
    steps = () if arguments.steps is None else ("--steps", steps_text(arguments.steps))
    plan = CheckPlan(
        command=command,
        runs=arguments.runs,
        jobs=arguments.jobs,
        folder=Path.cwd(),
        output=output_folder(arguments.output, trace_stem(command)),
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
    status, found = status_of(checked.grouping), run_groups(checked.grouping, checked.runs, checked.control)
    emit_result(arguments, found, lambda: groups_document(found), lambda: brief_groups("check", found, status))
    return status


def require_executable(program: str) -> None:
    """Raise UsageError for a program that cannot be started."""
    found = look_up(program)
    if found is not CommandLookup.EXECUTABLE:
        raise UsageError(f"{program} cannot be run: {found.value}")


def output_folder(requested: Path | None, stem: str) -> Path:
    """Make the folder, which must be empty: traces of an earlier check are no runs of this one."""
    fresh = (Path(f"{stem}-check-{number}") for number in itertools.count(1))
    folder = requested or next(path for path in fresh if not os.path.lexists(path))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        has_entries = bool(os.listdir(folder))  # noqa: PTH208  names are all that is needed
    except OSError as error:
        raise UsageError(f"{folder} cannot be used for traces: {error.strerror}") from error
    if has_entries:
        raise UsageError(f"{folder} is not empty; choose another name")
    return folder
