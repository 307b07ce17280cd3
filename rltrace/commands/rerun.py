"""``rltrace rerun``: the ops of a recorded step, run again by themselves."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rltrace.commands._option_types import parse_steps
from rltrace.commands.console import ExitCode, color_option, emit, emit_json, readable_size, use_color
from rltrace.errors import UsageError

if TYPE_CHECKING:
    from rltrace.rerun_op.op_sequence import SequenceOp
    from rltrace.trace.read.process import ProcessTrace
    from rltrace.trace.read.reader import Trace


@click.command(name="rerun")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--size", "sized", metavar="A:B", help="How much recording these steps to run them again would take.")
@click.option("--process", "name", metavar="NAME", help="The process, as in rank1/main; default: the only one.")
@click.option(
    "--import", "imports", multiple=True, metavar="MODULE", help="Module that registers an op, if torch does not."
)
@click.option(
    "--checkpoint", type=click.Path(path_type=Path), metavar="PATH", help="Where the checkpoint of record is now."
)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@color_option
def command(
    trace: Path,
    sized: str | None,
    name: str | None,
    imports: tuple[str, ...],
    checkpoint: Path | None,
    form: str,
    color: str,
) -> int:
    """Run the ops of TRACE again, one after the other, in one process.

    TRACE holds what these ops read and did not make: parameters, optimizer state, the batch, what other processes sent
    (rltrace record --rerunnable SELECTOR). Neither the program nor other processes are needed, and another machine or
    other settings show which ops compute something else there. What the program decided stays as it was recorded.

    Ends with 0 if every op gives the recorded bits, with 1 if not.

    --size A:B runs nothing: from a TRACE of all ops it computes what --rerunnable would record of these steps.

    \b
      rltrace rerun --size 40:41 run.zarr
      rltrace record --rerunnable all --steps 40:41 --until 40 -o step.zarr -- python train.py
      rltrace rerun step.zarr
    """
    from rltrace.report.rerun import rerun_lines
    from rltrace.report.style import Style
    from rltrace.rerun_op.op_sequence import RecordedMemory, SequenceRun, ops_not_run
    from rltrace.rerun_op.recorded_op import import_modules
    from rltrace.rerun_op.rerun_result import rerun_result
    from rltrace.selectors import parse_selectors
    from rltrace.trace.format.schema import Column
    from rltrace.trace.read.reader import open_trace

    opened = open_trace(trace)
    if sized is not None:
        return _print_size(opened, parse_steps(sized, "--size"), name, form, color)
    process, ops, selectors = find_sequence(opened, name)
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  as Python does
    import_modules(imports)
    not_run = ops_not_run(process, ops, parse_selectors(selectors))
    memory = RecordedMemory(opened, process, checkpoint)
    result = rerun_result(process, SequenceRun(process, memory).run(ops), not_run)
    if form == "json":
        emit_json(result)
    else:
        steps = sorted({int(op.stream.read(op.row, op.row + 1).columns[0, Column.STEP]) for op in (ops[0], ops[-1])})
        colored = use_color(color)
        emit("\n".join(rerun_lines(result, steps, Style(colored))), color=colored)
    return ExitCode.IDENTICAL if result.bitwise else ExitCode.DIVERGED


def _print_size(trace: Trace, steps: tuple[int, int | None], name: str | None, form: str, color: str) -> int:
    """Raises UsageError."""
    from rltrace.command_lines import record_step
    from rltrace.query.rerun_size import rerun_size
    from rltrace.report.rerun import size_lines
    from rltrace.report.style import Style
    from rltrace.selectors import Range

    within = Range(*steps)
    chosen = (process for process in trace.processes if name in (None, process.name))
    found = [memory for process in chosen if (memory := rerun_size(process, within)) is not None]
    if not found:
        raise UsageError(f"{trace.path} has no ops of these steps{f' in process {name}' if name else ''}")
    if form == "json":
        emit_json(found)
        return ExitCode.IDENTICAL
    colored = use_color(color)
    emit("\n".join(size_lines(found, within, readable_size, Style(colored))), color=colored)
    if within.stop == within.start + 1:
        emit("\n" + record_step(trace, within.start, "step.zarr", "--rerunnable", "all"))
    return ExitCode.IDENTICAL


def find_sequence(trace: Trace, name: str | None) -> tuple[ProcessTrace, list[SequenceOp], list[str]]:
    """The process, its ops and the selectors that they were recorded by. Raises UsageError."""
    from rltrace.command_lines import record
    from rltrace.rerun_op.op_sequence import op_sequence

    options = trace.launch.get("options")
    selectors = options.get("rerunnable") if isinstance(options, dict) else None
    if not isinstance(selectors, list):
        example = record(trace, "step.zarr", "--rerunnable", "all", "--steps", "0:1", "--until", "0")
        raise UsageError(
            f"{trace.path} was recorded without --rerunnable: it does not hold what its ops read\n  hint: {example}"
        )
    found = {process.name: op_sequence(process) for process in trace.processes if name in (None, process.name)}
    found = {own: ops for own, ops in found.items() if ops}
    if not found:
        names = ", ".join(process.name for process in trace.processes)
        which = f"process {name}" if name else "process"
        raise UsageError(f"{trace.path} has no {which} with ops that can be run again; its processes: {names}")
    if len(found) > 1:
        raise UsageError(f"several processes have such ops: name one with --process, of {', '.join(found)}")
    [(own, ops)] = found.items()
    return next(process for process in trace.processes if process.name == own), ops, selectors
