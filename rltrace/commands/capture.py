"""``rltrace capture``: run a trace's program again and write its values to one file for another machine.

Owns the options, and the confirmation before anything runs or is written; ``rltrace.experiment.confirm`` runs and
writes.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.command_lines import line
from rltrace.commands._option_types import COUNT, argument, option, quiet_option, recorded, share_option, verb
from rltrace.commands.confirm import parse_overrides, require_approval
from rltrace.commands.console import narrate, readable_size
from rltrace.errors import UsageError
from rltrace.recorder.base.options import Window, steps_text
from rltrace.trace.format.location import Location, folder_beside
from rltrace.wording import counted

if TYPE_CHECKING:
    from rltrace.experiment.confirm.steps_covered import StepsCovered
    from rltrace.experiment.rerun_command import Recipe
    from rltrace.trace.read.reader import Trace


@dataclass(frozen=True, kw_only=True)
class CaptureArguments:
    trace: Location = argument()
    steps: Window | None = recorded("steps", envvar=None, help="Steps of the experiment, as confirm prints them.")
    other: Location | None = option("--for", metavar="TRACE", help="The other trace, or a slice, whence the steps.")
    until: int | None = recorded("until", help="With --for: the last step, as in confirm.")
    output: Path | None = option("-o", "--output", metavar="FILE", help="To write; default: TRACE, with .capture.")
    samples: int = option(type=COUNT, default=2, metavar="N", help="Runs, which all have to give the same.")
    cmd: str | None = option(metavar="CMD", help="The command, instead of the recorded one.")
    env: tuple[str, ...] = option(metavar="NAME=VALUE", help="Variable to set for it; repeatable.")
    folder: Path | None = option(metavar="FOLDER", help="The program's folder.")
    share: tuple[str, ...] = share_option()
    in_place: bool = option(help="Run in the folder, not in a copy.")
    values_limit: int = recorded("values_limit")
    work: Path | None = option(metavar="FOLDER", help="Keeps the runs; default: beside FILE, removed then.")
    force: bool = option(help="Replace FILE if it is a capture.")
    yes: bool = option(help="Run and write without asking.")
    quiet: bool = quiet_option()


@verb(CaptureArguments)
def command(arguments: CaptureArguments) -> int:
    """Run TRACE's program again with all values of some steps, and write that run to one file.

    On the machine that TRACE was recorded on. Copy the file to the other machine and run its program there with
    these values injected: rltrace confirm --arms … --capture FILE. The file holds tensors of the program.

    Every run has to equal its trace, or nothing is written. The command is shown before it is run, and the size of the
    file before it is written.

    \b
      rltrace capture a.zarr --for b-slice.zarr -o a.capture
      rltrace capture a.zarr --steps 100:102 -o a.capture
    """
    from rltrace.experiment.confirm.arms import run_control
    from rltrace.experiment.confirm.capture import CaptureError, CaptureInfo, identity_of, write_capture
    from rltrace.experiment.confirm.run_cache import RunCache, RunSetting
    from rltrace.experiment.confirm.setup import captured_recipe, check_folders
    from rltrace.experiment.runner import Runner
    from rltrace.report.confirm import capture_plan_lines
    from rltrace.trace.read.reader import open_trace

    trace, output, share, in_place = arguments.trace, arguments.output, arguments.share, arguments.in_place
    yes, quiet, samples = arguments.yes, arguments.quiet, arguments.samples
    opened = open_trace(trace)
    covered = _covered(opened, arguments)
    target = output if output is not None else folder_beside(trace) / f"{trace.name.removesuffix('.zarr')}.capture"
    _check_target(target, force=arguments.force)
    recipe: Recipe = captured_recipe(opened, parse_overrides(arguments.cmd, arguments.folder, arguments.env))
    runs = arguments.work if arguments.work is not None else target.with_name(f"{target.name}.runs")
    if not in_place:
        check_folders({"a": recipe}, share, runs)
    lines = capture_plan_lines(recipe, str(covered), samples, in_place=in_place, work=str(runs))
    require_approval("\n".join(lines), yes=yes, quiet=quiet)
    subject = {"capture": identity_of(opened), "steps": [covered.first, covered.end], "command": recipe.shown}
    setting = RunSetting(runs, {"a": recipe}, covered, share, in_place, arguments.values_limit)
    with Runner() as runner:
        control = run_control(RunCache(setting, subject, runner), "control", "a", opened, str(trace), samples)
    if control.trouble is not None:
        raise CaptureError(f"nothing was captured: {control.trouble}")
    require_approval(_size(target, control.ran.trace), yes=yes, quiet=quiet, question="write it?")
    about = CaptureInfo(identity_of(opened), str(trace), covered.first, covered.end, samples)
    write_capture(target, about, control.ran.trace)
    if arguments.work is None:
        shutil.rmtree(runs, ignore_errors=True)
    if not quiet:
        narrate(f"{target} holds {covered} of {trace}")
    return 0


def _covered(opened: Trace, arguments: CaptureArguments) -> StepsCovered:
    """The steps of the experiment. Raises UsageError if they are not given, or the trace has none of them."""
    from rltrace.diff.compare import compare
    from rltrace.experiment.confirm.steps_covered import StepsCovered, divergence_of
    from rltrace.trace.read.reader import open_trace

    trace, steps, other, until = arguments.trace, arguments.steps, arguments.other, arguments.until
    if (steps is None) == (other is None):
        raise UsageError(
            "give the steps: --for OTHER.zarr (the other trace, or a slice of it), or --steps A:B as rltrace "
            f"confirm prints them; one of the two, as in {line('capture', trace, '--steps', '0:2')}"
        )
    if until is not None and other is None:
        raise UsageError("--until goes with --for; --steps A:B sets the end")
    if other is not None:
        return divergence_of(compare(opened, open_trace(other)), until).covered
    assert steps is not None
    first, end = steps
    if end is None:
        raise UsageError(
            f"--steps {steps_text(steps)}: an experiment has an end; give the last step, too, as in {first}:{first + 2}"
        )
    finished = max((len(process.steps) for process in opened.processes), default=0)
    if first > finished:
        raise UsageError(f"{trace} has no step {first}: it has {finished:,}")
    return StepsCovered(first, end)


def _check_target(target: Path, *, force: bool) -> None:
    """Refuse a file that could not be written, before anything runs. Raises UsageError, CaptureError."""
    from rltrace.experiment.confirm.capture import read_capture

    if target.is_symlink() or target.exists():
        if not force:
            raise UsageError(f"{target} exists already; choose another name, or replace it with --force")
        read_capture(target)
    if not target.absolute().parent.is_dir():
        raise UsageError(f"{target} cannot be written: there is no folder {target.parent}")


def _size(target: Path, trace: Path) -> str:
    """``the capture takes 12.3 MB (1,234 values): a.capture``."""
    from rltrace.experiment.confirm.capture import size_of
    from rltrace.trace.read.reader import open_trace

    values = sum(len(process.values) for process in open_trace(trace).processes)
    return f"the capture takes {readable_size(size_of(trace))} ({counted(values, 'value')}): {target}"
