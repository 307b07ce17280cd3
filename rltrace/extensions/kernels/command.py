"""``rltrace kernels``: the kernels of every kind of call of a trace, as oneDNN and MKL or a profiler report them.

Owns the options, and what ``record --kernels`` does when the program has ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rltrace.commands._option_types import argument, form_option, option, quiet_option, recorded, verb
from rltrace.commands.console import complain, emit_report, narrate
from rltrace.errors import RltraceError, UsageError
from rltrace.recorder.base.options import ALL_STEPS, RecordOptions, Window
from rltrace.trace.format.location import Location, local_folder
from rltrace.wording import counted


@dataclass(frozen=True, kw_only=True)
class KernelsArguments:
    trace: Location = argument()
    other: Location | None = argument(metavar="[B]")
    ask: bool = option(help="Ask now, on the machine that was recorded.")
    steps: Window | None = recorded("steps", envvar=None, help="With --ask: only for calls of these steps.")
    everything: bool = option("--all", help="Also calls on which no library reported anything.")
    form: str = form_option()
    quiet: bool = quiet_option()


@verb(KernelsArguments)
def command(arguments: KernelsArguments) -> None:
    """List what ran for every kind of call of TRACE; with B, the calls for which another kernel ran there.

    A kind of call is an operator with its tensors' layouts and other arguments. oneDNN and MKL are asked in a
    separate process that makes each call once more, so the program is not disturbed; rltrace record --kernels asks
    when the program has ended, --ask asks for an existing trace, on the machine that it was recorded on. Kernels on a
    GPU are recorded by torch's profiler while the program runs, with record --kernels only.
    """
    from rltrace.extensions.kernels.report import kernels_document, kernels_of, other_kernels, other_kernels_document
    from rltrace.trace.read.reader import open_trace

    trace, other, ask = arguments.trace, arguments.other, arguments.ask
    if arguments.steps is not None and not ask:
        raise UsageError("--steps limits --ask")
    for path in (trace, other):
        if ask and path is not None:
            query(local_folder(path, "--ask"), arguments.steps or ALL_STEPS, quiet=arguments.quiet)
    a, b = open_trace(trace), None if other is None else open_trace(other)
    for found in filter(None, (a, b)):
        if not ask and not any(process.library_reports or process.launches for process in found.processes):
            raise UsageError(
                f"the libraries have not been asked what ran in {found.path}: --ask does, on the machine of that "
                "recording"
            )
    if b is None:
        kernels = kernels_of(a)
        emit_report(arguments.form, kernels, lambda: kernels_document(kernels, everything=arguments.everything))
    else:
        others = other_kernels(a, b)
        emit_report(arguments.form, others, lambda: other_kernels_document(others))


def query_recorded(trace: Path, options: RecordOptions, quiet: bool) -> bool:
    """Ask what ran, where the recording was to; returns whether that succeeded."""
    if options.kernels is None:
        return True
    try:
        query(trace, options.kernels, quiet=quiet)
    except RltraceError as error:
        complain(str(error))
        return False
    return True


def query(trace: Path, steps: Window, *, quiet: bool) -> None:
    """Ask oneDNN and MKL which kernels run, and narrate the result."""
    from rltrace.extensions.kernels.queries import query_kernels

    found = query_kernels(trace, steps)
    if not quiet:
        unknown = sum(found.unknown.values())
        more = f"unknown for {unknown}: {'; '.join(found.unknown)}" if unknown else ""
        kinds = counted(found.calls, "kind", "kinds")
        narrate(f"asked what runs for {kinds} of call; oneDNN or MKL reported {found.answered}", hint=more)
