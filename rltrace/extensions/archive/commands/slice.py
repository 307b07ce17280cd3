"""``rltrace slice``: a window of a trace, to carry to another machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rltrace.commands._option_types import TraceLocation, argument, option, verb
from rltrace.commands.console import narrate, readable_size
from rltrace.trace.format.location import Location
from rltrace.wording import counted


@dataclass(frozen=True, kw_only=True)
class SliceArguments:
    trace: Location = argument()
    steps: str = option(required=True, metavar="A:B", help="Optimizer steps to keep in full, without B.")
    output: Path = option(
        "-o", "--output", required=True, type=TraceLocation(written=True), metavar="FILE", help="Slice to write."
    )
    force: bool = option(help="Replace an existing trace.")


@verb(SliceArguments)
def command(arguments: SliceArguments) -> None:
    """Cut steps A to B out of TRACE: all prefix digests, full rows of the window only.

    The slice is a trace. Compared with a whole trace it still shows where the two first differ, and why, if that is
    within the window.
    """
    from rltrace.errors import UsageError
    from rltrace.extensions.archive.slice import slice_trace
    from rltrace.selectors import parse_range

    window = parse_range(arguments.steps)
    if window.stop is None:
        raise UsageError(f"--steps {arguments.steps}: give the last step, too, as in {window.start}:{window.start + 1}")
    sliced = slice_trace(arguments.trace, window.start, window.stop, arguments.output, force=arguments.force)
    narrate(
        f"{sliced.path}: {counted(sliced.rows, 'op')} of {sliced.of:,} in full (whole chunks), all prefix digests, "
        f"{readable_size(sliced.bytes)}"
    )
