"""``rltrace rerun``: the ops of a recorded step, run again by themselves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.commands._option_types import is_given, options_of, verb
from rltrace.commands.console import ExitCode, emit, emit_report, readable_size
from rltrace.errors import UsageError
from rltrace.extensions.repro.commands._rerun_arguments import WITH_CMD, RerunArguments
from rltrace.trace.format.location import Location
from rltrace.trace.format.schema import has_iterations

if TYPE_CHECKING:
    from rltrace.extensions.repro.op_sequence import RecordedMemory, SequenceOp
    from rltrace.extensions.repro.rerun_program import ProgramSteps
    from rltrace.trace.read.process import ProcessTrace
    from rltrace.trace.read.reader import Trace


@verb(RerunArguments)
def command(arguments: RerunArguments) -> int:
    """Run the ops of TRACE again, one after the other, in one process; or CMD, the program itself.

    TRACE is of rltrace record --rerunnable SELECTOR. CMD is run as one process without a launcher: it makes a few steps
    and then the recorded ones, on the recorded memory, and is compared with them.

    Ends with 0 if every op gives the recorded bits, with 1 if not; CMD's status if it fails. With --no-compare: 125
    where CMD did not come to the recorded steps, or called other collectives.

    \b
      rltrace rerun --size 40:41 run.zarr
      rltrace record --rerunnable all --steps 40:41 --until 40 -o step.zarr -- python train.py
      rltrace rerun step.zarr
      rltrace rerun step.zarr -- python train.py
    """
    from rltrace.extensions.repro.op_sequence import RecordedMemory

    if arguments.command and arguments.sized is None:
        from rltrace.extensions.repro.rerun_program import rerun_program

        if arguments.values_inputs and not arguments.values:
            raise UsageError("--values-inputs needs --values SELECTOR")
        steps = recorded_steps(arguments.trace, arguments.name, arguments.warm_up, arguments.until)
        return rerun_program(steps, arguments.command, arguments)
    opened = _open_step(arguments.trace)
    if arguments.sized is not None:
        return _print_size(opened, arguments.sized, arguments.name, arguments.form, arguments.color)
    process, ops, selectors = find_sequence(opened, arguments.name)
    if any(map(is_given, options_of(WITH_CMD))):
        raise UsageError(
            "-o, --warm-up, --until, --verify-inputs, --values, --break-at, --no-compare, --force and --quiet are for a"
            " program: give it after --"
        )
    memory = RecordedMemory(opened, process, arguments.checkpoint)
    return _rerun_ops(process, memory, ops, selectors, arguments)


def _rerun_ops(
    process: ProcessTrace,
    memory: RecordedMemory,
    ops: list[SequenceOp],
    selectors: list[str],
    arguments: RerunArguments,
) -> int:
    from rltrace.extensions.repro.op_sequence import SequenceRun, ops_not_run
    from rltrace.extensions.repro.rerun_report import rerun_document
    from rltrace.extensions.repro.rerun_result import rerun_result
    from rltrace.rerun.recorded_op import import_modules
    from rltrace.selectors import parse_selectors
    from rltrace.trace.format.schema import Column

    import_modules(arguments.imports)
    not_run = ops_not_run(process, ops, parse_selectors(selectors))
    result = rerun_result(process, SequenceRun(process, memory).run(ops), not_run)
    steps = sorted({int(op.stream.read(op.row, op.row + 1).columns[0, Column.STEP]) for op in (ops[0], ops[-1])})
    emit_report(arguments.form, result, lambda: rerun_document(result, steps), arguments.color)
    return ExitCode.IDENTICAL if result.bitwise else ExitCode.DIVERGED


def _print_size(trace: Trace, steps: tuple[int, int | None], name: str | None, form: str, color: str) -> int:
    """Raises UsageError."""
    from rltrace.command_lines import record_step
    from rltrace.extensions.repro.rerun_report import size_document
    from rltrace.extensions.repro.rerun_size import rerun_size
    from rltrace.selectors import Range

    check_ops_of_torch(trace.path, trace.processes)
    within = Range(*steps)
    chosen = (process for process in trace.processes if name in (None, process.name))
    found = [memory for process in chosen if (memory := rerun_size(process, within)) is not None]
    if not found:
        raise UsageError(f"{trace.path} has no ops of these steps{f' in process {name}' if name else ''}")
    emit_report(form, found, lambda: size_document(found, within, readable_size), color)
    if form == "text" and within.stop == within.start + 1:
        emit("\n" + record_step(trace, within.start, "step.zarr", "--rerunnable", "all"))
    return ExitCode.IDENTICAL


def _open_step(location: Path) -> Trace:
    """Open a trace with recorded memory. Raises UsageError for that of a program that read such memory."""
    from rltrace.trace.read.reader import open_trace

    opened = open_trace(location)
    if opened.rerun_of is not None:
        raise UsageError(
            f"{location} is of a program that ran a step again; name the trace of that step: {opened.rerun_of}"
        )
    return opened


def recorded_steps(location: Path, name: str | None, warm_up: int | None, until: int | None) -> ProgramSteps:
    """The steps of a trace that a program can run again, as one of its processes. Raises UsageError."""
    opened = _open_step(location)
    process, _, selectors = find_sequence(opened, name)
    if "all" not in selectors:
        raise UsageError(
            f"{opened.path} was recorded with --rerunnable {' and '.join(selectors)}: a program needs what all of its"
            " ops read, --rerunnable all"
        )
    from rltrace.extensions.repro.rerun_program import ProgramSteps

    return ProgramSteps(opened, process, warm_up, until)


def check_ops_of_torch(trace: Location, processes: Iterable[ProcessTrace]) -> None:
    """Raise UsageError for processes with rows of JAX only: its calls, iterations and what is within them."""
    if {has_iterations(process.engine) for process in processes} == {True}:
        raise UsageError(f"{trace} is of a JAX program: only ops of torch can be run again")


def find_sequence(trace: Trace, name: str | None) -> tuple[ProcessTrace, list[SequenceOp], list[str]]:
    """The process, its ops and the selectors that they were recorded by. Raises UsageError."""
    from rltrace.command_lines import record
    from rltrace.extensions.repro.op_sequence import op_sequence

    check_ops_of_torch(trace.path, trace.processes)
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
