"""``rltrace lock``: the digests of a program's steps, in a file to commit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import click

from rltrace.command_lines import line
from rltrace.commands.check import require_executable, work_folder
from rltrace.commands.console import narrate, readable_size
from rltrace.errors import UsageError
from rltrace.launch.command import trace_stem
from rltrace.wording import counted


@click.command(name="lock", context_settings={"allow_interspersed_args": False})
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="LOCK", help="File to write; default: SCRIPT.lock."
)
@click.option("--until", type=click.IntRange(min=0), metavar="STEP", help="End the run after this step.")
@click.option("--share", multiple=True, metavar="NAME", help="Link this entry of the folder instead of copying it.")
@click.option("--in-place", is_flag=True, help="Run in the current folder, not in a copy.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--quiet", is_flag=True, help="No narration; errors are still shown.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[--] CMD …")
def command(
    output: Path | None,
    until: int | None,
    share: tuple[str, ...],
    in_place: bool,
    force: bool,
    quiet: bool,
    command: tuple[str, ...],
) -> int:
    """Run CMD once and write its lock: the digests of every optimizer step, some 20 bytes each, and the packages,
    settings and source files that it ran with. The file is text, for version control.

    rltrace check --against LOCK -- CMD compares a later run with it, and names what moved.

    The run works in a copy of the current folder, as those of rltrace check do. Ends with 0, or 2 on trouble: a
    program that fails is not locked.
    """
    if not command:
        raise UsageError("nothing to lock: name a command, as in rltrace lock -o train.lock -- python train.py")
    require_executable(command[0])
    path = output if output is not None else Path(f"{trace_stem(command)}.lock")
    if os.path.lexists(path) and not force:
        check = line("check", "--against", path, "--update", "--", *command)
        raise UsageError(f"{path} exists: {check} shows what moved, and replaces it; --force replaces it unseen")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.absolute().parent}")
    from rltrace.experiment.lock_check import LockPlan, make_lock

    with work_folder(None, command) as folder:
        locked = make_lock(LockPlan(command, path, Path.cwd(), folder, until, share, in_place))
        shutil.rmtree(folder)
    if not quiet:
        size = readable_size(path.stat().st_size)
        check = line("check", "--against", path, "--", *command)
        narrate(f"locked {counted(locked.steps, 'step')} in {path} ({size})", hint=f"{check} compares another run")
    return 0
