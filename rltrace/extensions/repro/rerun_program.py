"""``rltrace rerun TRACE -- CMD``: a program run as one recorded process, and the comparison of its steps."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rltrace.commands._recording import Destination, distinct_paths, record_command
from rltrace.commands.console import ExitCode, complain, emit_report
from rltrace.diff.compare import compare
from rltrace.errors import UsageError
from rltrace.extensions.repro.commands._rerun_arguments import RerunArguments
from rltrace.extensions.repro.program import (
    ProgramRerun,
    default_warm_up,
    last_step,
    rank_variables,
    recorded_variables,
)
from rltrace.extensions.repro.rerun_report import program_document
from rltrace.query.locate import locate
from rltrace.recorder.base.options import RecordOptions
from rltrace.rerun.account import Account, account_in
from rltrace.rerun.plan import compile_of, window_of
from rltrace.trace.format.location import local_folder
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace, open_trace


@dataclass(frozen=True)
class ProgramSteps:
    """The recorded steps that a program runs again."""

    trace: Trace
    process: ProcessTrace
    warm_up: int | None
    """Steps before them; None: chosen by the recorded steps."""
    until: int | None
    """The last of them; None: that of the record."""

    def options(self, written: Path) -> RecordOptions:
        """The options of the run; ``written``: its trace. Raises UsageError."""
        process = self.process
        _, (first, end) = window_of(self.trace.of_process(process.name))
        warm_up = default_warm_up(process, first) if self.warm_up is None else self.warm_up
        if first and not warm_up:
            raise UsageError(
                f"--warm-up 0: the first recorded step is step {first:,}, and a program begins with another"
            )
        if self.until is not None:
            if self.until < first:
                raise UsageError(f"--until {self.until}: the first recorded step is step {first:,}")
            end = self.until + 1 if end is None else min(end, self.until + 1)
        path, source = distinct_paths(written, local_folder(self.trace.path, "a rerun"))
        return RecordOptions(
            path,
            steps=(first, end),
            until=None if end is None else last_step(process, end),
            compile=compile_of(self.trace),
            asleep=first > 0,
            rerun=source,
            process=process.name,
            warm_up=warm_up if first else 0,
        )

    def set_variables(self) -> None:
        """Set the variables that a program needs to be this process."""
        for name, value in recorded_variables(self.process).items():
            os.environ.setdefault(name, value)
        os.environ.update(rank_variables(self.process))

    def have_run(self, written: Path) -> bool:
        """Whether a run came to the recorded steps and called their collectives; False after an error message."""
        ran = _run_of(self.process, open_trace(written))
        if ran is None:
            return False
        own, account = ran
        if not account.reached:
            complain(f"the program ended before the recorded steps began{own.why and f': {own.why}'}")
        elif account.refused is not None:
            complain(account.refused, hint="the record has no answer to it, so the program was ended there")
        return account.reached and account.refused is None


def rerun_program(steps: ProgramSteps, command: Sequence[str], arguments: RerunArguments) -> int:
    """Run the program as this process of a trace; returns the exit status. Raises UsageError."""
    trace, process = steps.trace, steps.process
    to = Destination.here(arguments.output, command, force=arguments.force)
    written = to.trace
    options = replace(
        steps.options(to.trace),
        verify_inputs=arguments.verify_inputs,
        values=arguments.values,
        values_inputs=arguments.values_inputs,
        values_limit=arguments.values_limit,
        pause="" if arguments.pause is None else str(locate(trace.of_process(process.name), arguments.pause)),
    )
    steps.set_variables()
    found: list[ProgramRerun] = []

    def judge() -> bool:
        result = _judge(trace, process, written)
        if result is not None:
            found.append(result)
        return result is not None

    on_recorded = (lambda: steps.have_run(written)) if arguments.no_compare else judge
    status = record_command(command, to, options, quiet=arguments.quiet, on_recorded=on_recorded)
    if not found:
        return status
    [result] = found
    emit_report(arguments.form, result, lambda: program_document(result), arguments.color)
    if result.memory.refused is not None or not result.memory.reached:
        return ExitCode.DIVERGED
    return status or (ExitCode.IDENTICAL if result.bitwise else ExitCode.DIVERGED)


def _run_of(process: ProcessTrace, rerun: Trace) -> tuple[ProcessTrace, Account] | None:
    """The process of a run that was this one; None, after an error message, where none was, or its recording failed."""
    own = next((p for p in rerun.processes if p.name == process.name), None)
    if own is None:
        names = ", ".join(p.name for p in rerun.processes)
        complain(
            f"no process of this run was {process.name}, but {names or 'none'}",
            hint="start the program itself, without torchrun: its rank and world size are set as recorded",
        )
        return None
    account = account_in(own, "memory", Account)
    return None if account is None else (own, account)  # without one it failed, which has been said


def _judge(trace: Trace, process: ProcessTrace, written: Path) -> ProgramRerun | None:
    """What the run gave; None, after an error message, where it was not this process, or not recorded to its end."""
    rerun = open_trace(written)
    ran = _run_of(process, rerun)
    if ran is None:
        return None
    own, account = ran
    comparison = compare(trace, rerun) if account.reached else None
    bitwise = comparison is not None and comparison.agrees is True and account.refused is None
    return ProgramRerun(process.name, str(trace.path), str(written), bitwise, own.why or "", account, comparison)
