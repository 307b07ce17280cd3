"""``rltrace capture``: run a trace's program again and write its values to one file for another machine.

Owns the options, and the confirmation before anything runs or is written; ``rltrace.experiment.confirm`` runs and
writes.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rltrace.command_lines import line
from rltrace.commands.confirm import parse_overrides, require_approval
from rltrace.commands.console import narrate, readable_size
from rltrace.errors import UsageError
from rltrace.wording import counted

if TYPE_CHECKING:
    from rltrace.experiment.confirm.steps_covered import StepsCovered
    from rltrace.experiment.rerun_command import Recipe
    from rltrace.trace.read.reader import Trace


@click.command(name="capture")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--steps", metavar="A:B", help="Steps of the experiment (B left out), as rltrace confirm prints them.")
@click.option(
    "--for",
    "other",
    type=click.Path(path_type=Path),
    metavar="TRACE",
    help="The other trace, or a slice of it: the steps follow from where the two diverge.",
)
@click.option("--until", type=click.IntRange(min=0), metavar="STEP", help="With --for: the last step, as in confirm.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Capture to write; default: TRACE with .capture for .zarr.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Number of runs, which all have to give the same.",
)
@click.option("--cmd", metavar="CMD", help="The command, instead of the recorded one.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="Variable to set for it; repeatable.")
@click.option("--folder", type=click.Path(path_type=Path), metavar="FOLDER", help="The program's folder.")
@click.option("--share", multiple=True, metavar="NAME", help="Link this entry of the folder instead of copying it.")
@click.option("--in-place", is_flag=True, help="Run in the folder, not in a copy.")
@click.option("--values-limit", type=click.IntRange(min=1), default=1024, show_default=True, metavar="MB",
              help="Limit of values for each process.")  # fmt: skip
@click.option(
    "--work",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Keeps the runs; an interrupted one resumes there.  [default: beside FILE, removed when FILE is written]",
)
@click.option("--force", is_flag=True, help="Replace FILE if it is a capture.")
@click.option("--yes", is_flag=True, help="Run and write without asking.")
@click.option("--quiet", is_flag=True, help="No narration; errors are still shown.")
def command(
    trace: Path,
    steps: str | None,
    other: Path | None,
    until: int | None,
    output: Path | None,
    samples: int,
    cmd: str | None,
    env: tuple[str, ...],
    folder: Path | None,
    share: tuple[str, ...],
    in_place: bool,
    values_limit: int,
    work: Path | None,
    force: bool,
    yes: bool,
    quiet: bool,
) -> int:
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

    opened = open_trace(trace)
    covered = _covered(opened, trace, steps, other, until)
    target = output if output is not None else trace.with_name(f"{trace.name.removesuffix('.zarr')}.capture")
    _check_target(target, force=force)
    recipe: Recipe = captured_recipe(opened, parse_overrides(cmd, folder, env))
    runs = work if work is not None else target.with_name(f"{target.name}.runs")
    if not in_place:
        check_folders({"a": recipe}, share, runs)
    lines = capture_plan_lines(recipe, str(covered), samples, in_place=in_place, work=str(runs))
    require_approval("\n".join(lines), yes=yes, quiet=quiet)
    subject = {"capture": identity_of(opened), "steps": [covered.first, covered.end], "command": recipe.shown}
    setting = RunSetting(runs, {"a": recipe}, covered, share, in_place, values_limit * 1_000_000)
    with Runner() as runner:
        control = run_control(RunCache(setting, subject, runner), "control", "a", opened, str(trace), samples)
    if control.trouble is not None:
        raise CaptureError(f"nothing was captured: {control.trouble}")
    require_approval(_size(target, control.ran.trace), yes=yes, quiet=quiet, question="write it?")
    about = CaptureInfo(identity_of(opened), str(trace), covered.first, covered.end, samples)
    write_capture(target, about, control.ran.trace)
    if work is None:
        shutil.rmtree(runs, ignore_errors=True)
    if not quiet:
        narrate(f"{target} holds {covered} of {trace}")
    return 0


def _covered(opened: Trace, trace: Path, steps: str | None, other: Path | None, until: int | None) -> StepsCovered:
    """The steps of the experiment. Raises UsageError if they are not given, or the trace has none of them."""
    from rltrace.commands._option_types import parse_steps
    from rltrace.diff.compare import compare
    from rltrace.experiment.confirm.steps_covered import StepsCovered, divergence_of
    from rltrace.trace.read.reader import open_trace

    if (steps is None) == (other is None):
        raise UsageError(
            "give the steps: --for OTHER.zarr (the other trace, or a slice of it), or --steps A:B as rltrace "
            f"confirm prints them; one of the two, as in {line('capture', trace, '--steps', '0:2')}"
        )
    if until is not None and other is None:
        raise UsageError("--until goes with --for; --steps A:B sets the end")
    if other is not None:
        return divergence_of(compare(opened, open_trace(other)), until).covered
    first, end = parse_steps(steps or "")
    if end is None:
        raise UsageError(
            f"--steps {steps}: an experiment has an end; give the last step, too, as in {first}:{first + 2}"
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
