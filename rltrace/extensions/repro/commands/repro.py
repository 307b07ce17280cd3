"""``rltrace repro``: one recorded op, or those of a module, as a small script."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.commands._option_types import argument, import_option, option, quiet_option, verb
from rltrace.commands.console import narrate, readable_size
from rltrace.errors import UsageError
from rltrace.trace.format.location import Location
from rltrace.wording import counted

if TYPE_CHECKING:
    from rltrace.extensions.repro.folder import Repro
    from rltrace.query.locate import Located


@dataclass(frozen=True, kw_only=True)
class ReproArguments:
    trace: Location = argument()
    at: str | None = option(metavar="OP", help="A row, as diff and ops print it, or a selector.")
    module: str | None = option(metavar="NAME", help="All its ops, of a trace recorded with --rerunnable.")
    process: str | None = option(metavar="NAME", help="With --module the process, as in rank1/main.")
    against: Location | None = option(metavar="B", help="Compare with B's result, too.")
    output: Path | None = option("-o", "--output", metavar="FOLDER", help="Folder to write.")
    imports: tuple[str, ...] = import_option()
    force: bool = option(help="Replace an existing folder.")
    quiet: bool = quiet_option()


@verb(ReproArguments)
def command(arguments: ReproArguments) -> None:
    """Write one op of TRACE, or those of one module, with their inputs, as a folder that needs torch and NumPy only.

    The script in it runs the op many times and reports whether it is deterministic, and whether it gives the recorded
    bits, those of B, or neither; its options set threads, instruction sets, deterministic algorithms and TF32.

    TRACE must hold what the op read (rltrace record --values SELECTOR --values-inputs). OP is a row (1234,
    rank0/main:1234, or as diff prints it), or a selector; with --against and no --at it is the first op that differs.

    With --module the script runs forward and backward of the module and of those in it, each op on what those before it
    left in memory, and names the first that gives other bits than were recorded. TRACE is of record --rerunnable.

    \b
      rltrace repro step.zarr --module model.layers.3
      rltrace repro a.zarr --at 'op=addmm,step=3,nth=0'
      rltrace repro a.zarr --against b.zarr
    """
    from rltrace.extensions.repro.folder import write_folder

    text, against, imports = arguments.at, arguments.against, arguments.imports
    if arguments.module is None:
        a, b = find(arguments.trace, text, against)
        repro = prepare(a, b, imports, "repro")
        op = repro.ops[0]
        folder = _folder(arguments, f"{op.name.split('.')[1].strip('_')}-{a.row}")
        what, of = f"{op.name} of {a}, {counted(len(op.call.inputs), 'input')} of", ""
    else:
        if text is not None or against is not None:
            raise UsageError("--module writes all ops of a module: leave out --at and --against")
        folder = _folder(arguments, arguments.module)
        repro = _of_module(arguments.module, arguments)
        what, of = f"{counted(len(repro.ops), 'op')} of {arguments.module},", " of memory"
    size = write_folder(folder, repro)
    if not arguments.quiet:
        narrate(
            f"wrote {what} {readable_size(size)}{of}, to {folder}",
            hint=f"python {shlex.quote(str(folder / 'repro.py'))}",
        )


def _folder(arguments: ReproArguments, name: str) -> Path:
    """The folder to write. Raises UsageError where it exists."""
    folder = arguments.output if arguments.output is not None else Path(f"repro-{name}")
    if (folder.exists() and not arguments.force) or folder.is_file():
        raise UsageError(f"{folder} exists already; choose another name with -o, or replace it with --force")
    return folder


def _of_module(module: str, arguments: ReproArguments) -> Repro:
    """The ops of a module, with what they need. Raises UsageError, HoleError."""
    from rltrace.distribution import own_version
    from rltrace.extensions.repro.commands.rerun import find_sequence
    from rltrace.extensions.repro.folder import Repro, module_side, take_out
    from rltrace.extensions.repro.op_sequence import SequenceRun, ops_of
    from rltrace.rerun.recorded_op import import_modules
    from rltrace.selectors import parse_selectors
    from rltrace.trace.read.reader import open_trace

    process, ops, _ = find_sequence(open_trace(arguments.trace), arguments.process)
    import_modules(arguments.imports)
    wanted = ops_of(process, ops, parse_selectors([f"module={module}", f"module={module}.*"]))
    if not wanted:
        names = sorted({process.words.module(number) for number in range(len(process.tables["modules"]))} - {""})
        listed = ", ".join(names[:MAX_MODULES]) + (", …" if len(names) > MAX_MODULES else "")
        raise UsageError(
            f"{process.name} has no ops of the module {module} that can be run again; its modules: {listed}"
        )
    taken = take_out(process, SequenceRun(process), ops, wanted)
    notes = [f"Recorded in {process.name}.", f"Written by rltrace {own_version()}."]
    return Repro(module, taken, {"a": module_side(process, wanted)}, notes, arguments.imports, by_trace=False)


MAX_MODULES = 12
"""Modules that the error lists."""


def prepare(a: Located, b: Located | None, imports: Sequence[str], verb: str) -> Repro:
    """The op, ready to run, and its recorded results on each side. ``verb``: the one that the hint of an error names.

    Its inputs are those of A, or of B if A does not hold them, as the inputs of the first op that differs are equal.
    Raises UsageError, HoleError.
    """
    from rltrace.extensions.repro.folder import Repro, side_of
    from rltrace.rerun.recorded_op import (
        MissingValuesError,
        alignments_of,
        import_modules,
        recorded_op,
        results_of_row,
    )

    import_modules(imports)
    try:
        op = recorded_op(a.process, a.stream, a.row)
    except MissingValuesError as error:
        try:
            if b is None:
                raise
            op = recorded_op(b.process, b.stream, b.row)
        except MissingValuesError:
            raise UsageError(f"{error}\n{_how_to_record(a, b, verb)}") from None
    both = {"a": a} | ({} if b is None else {"b": b})
    sides = {
        name: side_of(at.process, at.rows, _kernel(at), alignments_of(at.process, at.stream, at.row))
        for name, at in both.items()
    }
    results = {name: results_of_row(at.rows, 0) for name, at in both.items()}
    op = replace(op, call=replace(op.call, results=results))
    return Repro(op.name, [op], sides, provenance(a, b), imports)


def find(trace: Location, text: str | None, against: Location | None) -> tuple[Located, Located | None]:
    """The op of A, and the matching one of B."""
    from rltrace.extensions.repro.commands.rerun import check_ops_of_torch
    from rltrace.query.locate import locate, matching_op, names_both
    from rltrace.trace.read.reader import open_trace

    a = open_trace(trace)
    b = None if against is None else open_trace(against)
    if text is None:
        if against is None:
            raise UsageError("give the op with --at OP, as in --at 'op=addmm,step=3,nth=0' or --at rank0/main:1234")
        text = _first_difference(trace, against)
        narrate(f"the first op that differs: {text}")
    at = locate(a, text)
    check_ops_of_torch(trace, [at.process])
    if b is None:
        return at, None
    return at, locate(b, text, is_b=True) if names_both(text) else matching_op(at, b)


def _first_difference(a: Location, b: Location) -> str:
    """The first op with different values, as text for ``--at``. Raises UsageError if there is none."""
    from rltrace.diff.compare import compare

    compared = compare(a, b)
    finding = compared.decisive or compared.first_value
    if finding is None or finding.a_index is None or finding.b_index is None:
        raise UsageError(f"{a} and {b} have no op with different values that both recorded; name one with --at OP")
    return f"{finding.a_index} (A), {finding.b_index} (B) of {finding.stream}"


def _kernel(at: Located) -> str:
    from rltrace.trace.format.schema import Column

    return at.process.words.kernel(int(at.rows.columns[0, Column.KERNEL])) or ""


def provenance(a: Located, b: Located | None) -> list[str]:
    """Where the op was recorded, for the head of the script."""
    from rltrace.distribution import own_version
    from rltrace.query.ops import op_line

    line = op_line(a.rows, 0, a.stream.name, a.process.words)
    where = f"op {a.row} of {a.stream.name}, step {line.step}, phase {line.phase}"
    lines = [f"Recorded at {where}{f', module {line.module}' if line.module else ''}"]
    if line.site is not None:
        lines.append(f"  {line.site.file}:{line.site.line} in {line.site.function}")
    lines += [f"and, as b, at op {b.row} of another run"] if b is not None else []
    return [*lines, f"Written by rltrace {own_version()}."]


def _how_to_record(at: Located, b: Located | None, verb: str) -> str:
    """Commands that record the missing values, and run the verb on them.

    A selector has the innermost line only. Where several callers of that line run such ops, the op is named by its row:
    the one that it has in every recording of the same steps.
    """
    from rltrace.command_lines import file_name, line, record, record_step
    from rltrace.query.locate import is_unique, selector_of
    from rltrace.query.ops import op_line

    selector, name = selector_of(at), file_name(at.trace, "values")
    step = op_line(at.rows, 0, at.stream.name, at.process.words).step
    values = ("--values", selector, "--values-inputs")
    if is_unique(at, selector):
        recording = record_step(at.trace, step, name, *values)
    else:
        first, end = next(iter(at.process.windows), (0, None))
        steps = () if (first, end) == (0, None) else ("--steps", f"{first}:{'' if end is None else end}")
        selector = str(at)
        recording = record(at.trace, name, *steps, "--until", step, *values)
    other = () if b is None else (b.trace.path,)
    against = () if b is None else ("--against", b.trace.path)
    words = (*other, "--at", selector) if verb == "explain" else ("--at", selector, *against)
    return f"  hint: {recording}\n        {line(verb, name, *words)}"
