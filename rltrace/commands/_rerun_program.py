"""``rltrace rerun TRACE -- CMD``: a program run as one recorded process, and the comparison of its steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rltrace.commands._recording import distinct_paths, record_command
from rltrace.commands.console import ExitCode, complain, emit, emit_json, use_color
from rltrace.diff.compare import compare
from rltrace.errors import UsageError
from rltrace.launch.command import fresh_trace, trace_stem
from rltrace.query.locate import locate
from rltrace.recorder.base.options import RecordOptions
from rltrace.replay.plan import compile_of, window_of
from rltrace.replay.rerun import (
    ProgramRerun,
    account_of,
    default_warm_up,
    last_step,
    rank_variables,
    recorded_variables,
)
from rltrace.report.rerun import program_lines
from rltrace.report.style import Style
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace, open_trace


@dataclass(frozen=True)
class ProgramArguments:
    """Arguments of the verb."""

    output: Path | None
    warm_up: int | None
    """None: chosen by the recorded steps."""
    values: tuple[str, ...]
    values_inputs: bool
    pause: str | None
    form: str
    color: str
    force: bool
    quiet: bool


def rerun_program(
    trace: Trace, location: Path, process: ProcessTrace, command: Sequence[str], arguments: ProgramArguments
) -> int:
    """Run the program as this process of a trace; returns the exit status. Raises UsageError."""
    _, first, end = window_of(trace.of_process(process.name))
    warm_up = default_warm_up(process, first) if arguments.warm_up is None else arguments.warm_up
    if first and not warm_up:
        raise UsageError(f"--warm-up 0: the first recorded step is step {first:,}, and a program begins with another")
    written = arguments.output if arguments.output is not None else fresh_trace(Path(), trace_stem(command))
    path, source = distinct_paths(written, location)
    options = RecordOptions(
        path,
        "op",
        first,
        end,
        None if end is None else last_step(process, end),
        values=arguments.values,
        values_inputs=arguments.values_inputs,
        compile=compile_of(trace),
        asleep=first > 0,
        rerun=source,
        process=process.name,
        warm_up=warm_up if first else 0,
        pause="" if arguments.pause is None else str(locate(trace.of_process(process.name), arguments.pause)),
    )
    for name, value in recorded_variables(process).items():
        os.environ.setdefault(name, value)
    os.environ.update(rank_variables(process))
    found: list[ProgramRerun] = []

    def judge() -> bool:
        result = _judge(trace, process, written)
        if result is not None:
            found.append(result)
        return result is not None

    force = arguments.force and arguments.output is not None
    status = record_command(command, written, options, force=force, quiet=arguments.quiet, on_recorded=judge)
    if not found:
        return status
    [result] = found
    if arguments.form == "json":
        emit_json(result)
    else:
        colored = use_color(arguments.color)
        emit("\n".join(program_lines(result, Style(colored))), color=colored)
    if result.memory.refused is not None or not result.memory.reached:
        return ExitCode.DIVERGED
    return status or (ExitCode.IDENTICAL if result.bitwise else ExitCode.DIVERGED)


def _judge(trace: Trace, process: ProcessTrace, written: Path) -> ProgramRerun | None:
    """What the run gave; None, after an error message, where it was not this process, or not recorded to its end."""
    rerun = open_trace(written)
    own = next((p for p in rerun.processes if p.name == process.name), None)
    if own is None:
        names = ", ".join(p.name for p in rerun.processes)
        complain(
            f"no process of this run was {process.name}, but {names or 'none'}",
            hint="start the program itself, without torchrun: its rank and world size are set as recorded",
        )
        return None
    account = account_of(own)
    if account is None:
        return None  # its recording failed, which has been said
    comparison = compare(trace, rerun) if account.reached else None
    bitwise = comparison is not None and comparison.agrees is True and account.refused is None
    return ProgramRerun(process.name, str(trace.path), str(written), bitwise, own.why or "", account, comparison)
