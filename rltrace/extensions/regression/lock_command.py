"""``rltrace lock``: the digests of a program's steps, in a file to commit, and a later run compared with them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.command_lines import line
from rltrace.commands._option_types import (
    BEFORE_COMMAND,
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
    verb,
)
from rltrace.commands.console import ExitCode, check_output, emit_result, narrate, readable_size
from rltrace.errors import UsageError
from rltrace.extensions.regression.check_command import output_folder, require_executable
from rltrace.launch.command import trace_stem
from rltrace.wording import counted

if TYPE_CHECKING:
    from rltrace.extensions.regression.lock_check import LockCheck
    from rltrace.report.brief import Brief

WITH_CHECK = "With --check"
"""The group of options for a run that is compared."""


@dataclass(frozen=True, kw_only=True)
class LockArguments:
    output: Path | None = option("-o", "--output", metavar="LOCK", help="File to write; default: SCRIPT.lock.")
    check: Path | None = option(metavar="LOCK", help="Compare a run with this lock; write none.")
    until: int | None = recorded("until")
    share: tuple[str, ...] = share_option()
    in_place: bool = option(help="Run in the current folder, not in a copy.")
    force: bool = option(help="Replace an existing file.")
    quiet: bool = quiet_option()
    update: bool = option(group=WITH_CHECK, help="Write the lock anew, and show what moved.")
    work: Path | None = option(metavar="FOLDER", group=WITH_CHECK, help="Keeps the runs.")
    form: str = annotated_form_option(group=WITH_CHECK)
    brief: bool = brief_option(group=WITH_CHECK)
    color: str = color_option(group=WITH_CHECK)
    command: tuple[str, ...] = command_argument()


@verb(LockArguments, context_settings=BEFORE_COMMAND)
def command(arguments: LockArguments) -> int:
    """Run CMD once and write its lock: the digests of every optimizer step, some 20 bytes each, and the packages,
    settings and source files that it ran with. The file is text, for version control.

    With --check a later run is compared with a lock: the step that differs is named, and how its op is found.

    A run works in a copy of the current folder, as those of rltrace check do. Ends with 0, or 2 on trouble: a program
    that fails is not locked. With --check: 0 if every step is equal, 1 if one is not, 3 if it is undecided.

    \b
      rltrace lock -o train.lock -- python train.py
      rltrace lock --check train.lock -- python train.py
    """
    command = arguments.command
    if not command:
        raise UsageError("nothing to lock: name a command, as in rltrace lock -o train.lock -- python train.py")
    require_executable(command[0])
    if arguments.check is not None:
        return _check(arguments.check, arguments)
    for given in options_of(WITH_CHECK):
        if is_given(given):
            raise UsageError(f"{given.opts[0]} is of a run that is compared: name its lock with --check LOCK")
    path = arguments.output if arguments.output is not None else Path(f"{trace_stem(command)}.lock")
    check_output(path, force=True)
    if os.path.lexists(path) and not arguments.force:
        check = line("lock", "--check", path, "--update", "--", *command)
        raise UsageError(f"{path} exists: {check} shows what moved, and replaces it; --force replaces it unseen")
    from rltrace.extensions.regression.lock_check import LockPlan, make_lock

    with _work_folder(None, command) as folder:
        share, in_place = arguments.share, arguments.in_place
        locked = make_lock(LockPlan(command, path, Path.cwd(), folder, arguments.until, share, in_place))
        shutil.rmtree(folder)
    if not arguments.quiet:
        size = readable_size(path.stat().st_size)
        check = line("lock", "--check", path, "--", *command)
        narrate(f"locked {counted(locked.steps, 'step')} in {path} ({size})", hint=f"{check} compares another run")
    return 0


def _check(lock: Path, arguments: LockArguments) -> int:
    from rltrace.extensions.regression.lock import read_lock
    from rltrace.extensions.regression.lock_check import LockPlan, check_lock
    from rltrace.extensions.regression.report import lock_document

    if arguments.output is not None:
        raise UsageError("--check writes no lock: leave out -o, or replace the lock with --update")
    read_lock(lock)  # raises before anything is made
    command = arguments.command
    with _work_folder(arguments.work, command) as folder:
        plan = LockPlan(command, lock, Path.cwd(), folder, arguments.until, arguments.share, arguments.in_place)
        checked = check_lock(plan, update=arguments.update)
        if arguments.work is None and (checked.agrees or checked.updated):
            shutil.rmtree(folder)
    differs = ExitCode.UNDECIDED if checked.agrees is None else ExitCode.DIVERGED
    status = ExitCode.IDENTICAL if checked.agrees or (arguments.update and checked.agrees is not None) else differs
    emit_result(arguments, checked, lambda: lock_document(checked), lambda: _brief(checked, status))
    return status


def _brief(checked: LockCheck, status: int) -> Brief:
    from rltrace.report.brief import Brief, fitted, next_commands

    found = checked.comparison
    why = f"{found.why}. {checked.explanation}" if checked.explanation else found.why
    return fitted(Brief("lock", found.verdict, status, why, next=next_commands(checked.advice)))


@contextmanager
def _work_folder(requested: Path | None, command: tuple[str, ...]) -> Iterator[Path]:
    """A folder for the traces and the output of runs; removed if it was not requested and nothing was left in it."""
    folder = output_folder(requested, trace_stem(command))
    try:
        yield folder
    finally:
        if requested is None and folder.is_dir() and not os.listdir(folder):  # noqa: PTH208  names are all
            folder.rmdir()
