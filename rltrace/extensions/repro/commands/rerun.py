"""``rltrace rerun``: the ops of a recorded step, run again by themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.commands._option_types import argument, color_option, form_option, import_option, option, verb
from rltrace.commands.console import ExitCode, emit_report
from rltrace.errors import UsageError
from rltrace.trace.format.location import Location
from rltrace.trace.format.schema import has_iterations

if TYPE_CHECKING:
    from rltrace.extensions.repro.op_sequence import SequenceOp
    from rltrace.trace.read.process import ProcessTrace
    from rltrace.trace.read.reader import Trace


@dataclass(frozen=True, kw_only=True)
class RerunArguments:
    trace: Path = argument()
    name: str | None = option("--process", metavar="NAME", help="As in rank1/main; default: the only one.")
    imports: tuple[str, ...] = import_option()
    form: str = form_option()
    color: str = color_option()


@verb(RerunArguments)
def command(arguments: RerunArguments) -> int:
    """Run the ops of TRACE again, one after the other, in one process.

    TRACE is of rltrace record --rerunnable SELECTOR. Ends with 0 if every op gives the recorded bits, with 1 if not.

    \b
      rltrace record --rerunnable all --steps 40:41 --until 40 -o step.zarr -- python train.py
      rltrace rerun step.zarr
    """
    from rltrace.extensions.repro.op_sequence import SequenceRun, ops_not_run
    from rltrace.extensions.repro.report import rerun_document
    from rltrace.extensions.repro.rerun_result import rerun_result
    from rltrace.rerun.recorded_op import import_modules
    from rltrace.selectors import parse_selectors
    from rltrace.trace.format.schema import Column
    from rltrace.trace.read.reader import open_trace

    process, ops, selectors = find_sequence(open_trace(arguments.trace), arguments.name)
    import_modules(arguments.imports)
    not_run = ops_not_run(process, ops, parse_selectors(selectors))
    result = rerun_result(process, SequenceRun(process).run(ops), not_run)
    steps = sorted({int(op.stream.read(op.row, op.row + 1).columns[0, Column.STEP]) for op in (ops[0], ops[-1])})
    emit_report(arguments.form, result, lambda: rerun_document(result, steps), arguments.color)
    return ExitCode.IDENTICAL if result.bitwise else ExitCode.DIVERGED


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
