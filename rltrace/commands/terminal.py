"""The way into the terminal interface: when it opens, and what a verb makes of how it was left.

The only module of ``rltrace`` that imports ``rltrace_tui``, and only once it is certain that it opens: nothing else
pays for its import. Knows nothing of screens.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from rltrace.diff import Comparison


def can_open() -> bool:
    """Whether somebody sits at a terminal that can draw: standard input and output both are one, and it is not dumb."""
    ends = (sys.stdin, sys.stdout)
    return os.environ.get("TERM", "dumb") not in ("", "dumb") and all(end is not None and end.isatty() for end in ends)


def show_diff(a: Path, b: Path, *, strict: bool, confirm: Path | None = None) -> Comparison | None:
    """Open the interface on two traces; None: it was left before there was a verdict. Raises what the search raised.

    ``confirm``: the outcome of an experiment on them; None: the one beside trace B, where there is one.
    """
    from rltrace.trace.reader import open_trace
    from rltrace_tui.app import RltraceApp

    for path in (a, b):
        open_trace(path)  # what is no trace is told in one line, not on a screen
    app = RltraceApp(a, b, strict=strict, confirm=confirm)
    comparison = app.run()
    if comparison is None and app.failure is not None:
        raise app.failure
    return comparison


def show_trace(trace: Path) -> None:
    """Open the interface on one trace. Raises what reading it raised where nothing could be shown."""
    from rltrace.trace.reader import open_trace
    from rltrace_tui.single import ShowApp

    open_trace(trace)
    app = ShowApp(trace)
    app.run()
    if app.failure is not None and not app.work.is_finished:
        raise app.failure
