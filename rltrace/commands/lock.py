"""``rltrace lock``: the digests of a program's steps, in a file to commit."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from rltrace.command_lines import line
from rltrace.commands._option_types import (
    BEFORE_COMMAND,
    command_argument,
    option,
    quiet_option,
    recorded,
    share_option,
    verb,
)
from rltrace.commands.check import require_executable, work_folder
from rltrace.commands.console import narrate, readable_size
from rltrace.errors import UsageError
from rltrace.launch.command import trace_stem
from rltrace.wording import counted


@dataclass(frozen=True, kw_only=True)
class LockArguments:
    output: Path | None = option("-o", "--output", metavar="LOCK", help="File to write; default: SCRIPT.lock.")
    until: int | None = recorded("until")
    share: tuple[str, ...] = share_option()
    in_place: bool = option(help="Run in the current folder, not in a copy.")
    force: bool = option(help="Replace an existing file.")
    quiet: bool = quiet_option()
    command: tuple[str, ...] = command_argument()


@verb(LockArguments, context_settings=BEFORE_COMMAND)
def command(arguments: LockArguments) -> int:
    """Run CMD once and write its lock: the digests of every optimizer step, some 20 bytes each, and the packages,
    settings and source files that it ran with. The file is text, for version control.

    rltrace check --against LOCK -- CMD compares a later run with it, and names what moved.

    The run works in a copy of the current folder, as those of rltrace check do. Ends with 0, or 2 on trouble: a
    program that fails is not locked.
    """
    command = arguments.command
    if not command:
        raise UsageError("nothing to lock: name a command, as in rltrace lock -o train.lock -- python train.py")
    require_executable(command[0])
    path = arguments.output if arguments.output is not None else Path(f"{trace_stem(command)}.lock")
    if os.path.lexists(path) and not arguments.force:
        check = line("check", "--against", path, "--update", "--", *command)
        raise UsageError(f"{path} exists: {check} shows what moved, and replaces it; --force replaces it unseen")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.absolute().parent}")
    from rltrace.experiment.lock_check import LockPlan, make_lock

    with work_folder(None, command) as folder:
        share, in_place = arguments.share, arguments.in_place
        locked = make_lock(LockPlan(command, path, Path.cwd(), folder, arguments.until, share, in_place))
        shutil.rmtree(folder)
    if not arguments.quiet:
        size = readable_size(path.stat().st_size)
        check = line("check", "--against", path, "--", *command)
        narrate(f"locked {counted(locked.steps, 'step')} in {path} ({size})", hint=f"{check} compares another run")
    return 0
