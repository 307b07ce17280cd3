"""Opening of the terminal interface, and its results.

Imports ``rltrace_tui`` only when it opens, as the import takes long. Knows nothing of screens.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from rltrace.diff import Comparison
from rltrace.trace.format.location import Location

if TYPE_CHECKING:
    from rltrace.diff.base.model import Pair


def can_open() -> bool:
    """Whether standard input and output are a terminal that can draw."""
    has_terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    return has_terminal and os.environ.get("TERM", "dumb") not in ("", "dumb")


def show_diff(a: Location, b: Location, *, strict: bool, starts: Pair[int] | None = None) -> Comparison | None:
    """Open the interface on two traces; None if it was left before the verdict. Raises the errors of the comparison.

    ``starts``: as of ``compare``.
    """
    from rltrace.trace.read.reader import open_trace
    from rltrace_tui.diff_app import DiffApp

    for path in (a, b):
        open_trace(path)  # an unreadable trace is an error message, not a screen
    app = DiffApp(a, b, strict=strict, starts=starts)
    comparison = app.run()
    if comparison is None and app.failure is not None:
        raise app.failure
    return comparison


def show_trace(trace: Location) -> None:
    """Open the interface on one trace. Raises the error of reading it if nothing could be shown."""
    from rltrace.trace.read.reader import open_trace
    from rltrace_tui.trace_app import TraceApp

    open_trace(trace)
    app = TraceApp(trace)
    app.run()
    if app.failure is not None and not app.work.is_finished:
        raise app.failure
