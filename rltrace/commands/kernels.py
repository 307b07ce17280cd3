"""``rltrace kernels``: the kernels of every kind of call of a trace, as oneDNN and MKL or a profiler report them.

Owns the options, and the meaning of ``record --kernels``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from rltrace.commands._option_types import parse_steps
from rltrace.commands.console import complain, emit, emit_json, narrate
from rltrace.errors import RltraceError, UsageError
from rltrace.wording import counted

Window = tuple[int, int | None]

ALL_STEPS: Window = (0, None)


@click.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.argument("other", type=click.Path(path_type=Path), required=False, metavar="[B]")
@click.option("--ask", is_flag=True, help="Ask the libraries now, on the machine that was recorded.")
@click.option("--steps", metavar="A:B", help="With --ask: only for calls of these steps.")
@click.option("--all", "everything", is_flag=True, help="Also calls on which no library reported anything.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--quiet", is_flag=True, help="No narration; errors are still shown.")
def command(
    trace: Path, other: Path | None, ask: bool, steps: str | None, everything: bool, form: str, quiet: bool
) -> None:
    """List what ran for every kind of call of TRACE; with B, the calls for which another kernel ran there.

    A kind of call is an operator with its tensors' layouts and other arguments. oneDNN and MKL are asked in a
    separate process that makes each call once more, so the program is not disturbed; rltrace record --kernels asks
    when the program has ended, --ask asks for an existing trace, on the machine that it was recorded on. Kernels on a
    GPU are recorded by torch's profiler while the program runs, with record --kernels only.
    """
    from rltrace.report.kernels import kernels_json, kernels_lines, other_json, other_lines
    from rltrace.trace.read.reader import open_trace

    if steps is not None and not ask:
        raise UsageError("--steps limits --ask")
    for path in filter(None, (trace, other)):
        if ask:
            query(path, parse_steps(steps) if steps is not None else ALL_STEPS, quiet=quiet)
    a, b = open_trace(trace), None if other is None else open_trace(other)
    for found in filter(None, (a, b)):
        if not ask and not any(process.library_reports or process.launches for process in found.processes):
            raise UsageError(
                f"the libraries have not been asked what ran in {found.path}: --ask does, on the machine of that "
                "recording"
            )
    if form == "json":
        emit_json(kernels_json(a) if b is None else other_json(a, b))
    else:
        emit("\n".join(kernels_lines(a, everything=everything) if b is None else other_lines(a, b)))


def parse_kernels(text: str, steps: Window | None) -> Window | None:
    """The steps of ``record --kernels``; None for ``off``. Raises UsageError."""
    if text == "off":
        return None
    if text == "all":
        return ALL_STEPS
    if text == "window":
        if steps is None:
            raise UsageError("--kernels window needs --steps; without it, give --kernels all")
        return steps
    if ":" not in text:
        raise UsageError(f"--kernels {text}: give off, window, all, or steps as A:B")
    return parse_steps(text)


def query_after(first: Callable[[], bool] | None, trace: Path, steps: Window, *, quiet: bool) -> Callable[[], bool]:
    """A function that calls ``first`` and then queries the libraries; returns whether both succeeded."""

    def query_recorded() -> bool:
        succeeded = first is None or first()
        try:
            query(trace, steps, quiet=quiet)
        except RltraceError as error:
            complain(str(error))
            return False
        return succeeded

    return query_recorded


def query(trace: Path, steps: Window, *, quiet: bool) -> None:
    """Ask oneDNN and MKL which kernels run, and narrate the result."""
    from rltrace.rerun_op.kernel_queries import query_kernels

    found = query_kernels(trace, steps)
    if not quiet:
        unknown = sum(found.unknown.values())
        more = f"unknown for {unknown}: {'; '.join(found.unknown)}" if unknown else ""
        kinds = counted(found.calls, "kind", "kinds")
        narrate(f"asked what runs for {kinds} of call; oneDNN or MKL reported {found.answered}", hint=more)
