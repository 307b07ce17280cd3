"""The way into the terminal interface: when it opens, and what a verb makes of how it was left.

The only module of ``rltrace`` that imports ``rltrace_tui``, and only once it is certain that it opens: nothing else
pays for its import. Knows nothing of screens.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.diff import Comparison

if TYPE_CHECKING:
    from rltrace.commands._parity_result import ParityResult
    from rltrace.parity.call_range import RecordedStream
    from rltrace.parity.inputs import TraceArgument
    from rltrace_tui.parity_data import ParityData


def can_open() -> bool:
    """Whether somebody sits at a terminal that can draw: standard input and output both are one, and it is not dumb."""
    ends = (sys.stdin, sys.stdout)
    return os.environ.get("TERM", "dumb") not in ("", "dumb") and all(end is not None and end.isatty() for end in ends)


def show_diff(a: Path, b: Path, *, strict: bool, confirm: Path | None = None) -> Comparison | None:
    """Open the interface on two traces; None: it was left before there was a verdict. Raises what the search raised.

    ``confirm``: the outcome of an experiment on them; None: the one beside trace B, where there is one.
    """
    from rltrace.trace.read.reader import open_trace
    from rltrace_tui.diff_app import DiffApp

    for path in (a, b):
        open_trace(path)  # what is no trace is told in one line, not on a screen
    app = DiffApp(a, b, strict=strict, confirm=confirm)
    comparison = app.run()
    if comparison is None and app.failure is not None:
        raise app.failure
    return comparison


def show_trace(trace: Path) -> None:
    """Open the interface on one trace. Raises what reading it raised where nothing could be shown."""
    from rltrace.trace.read.reader import open_trace
    from rltrace_tui.trace_app import TraceApp

    open_trace(trace)
    app = TraceApp(trace)
    app.run()
    if app.failure is not None and not app.work.is_finished:
        raise app.failure


def show_parity(given: tuple[TraceArgument, TraceArgument], judge: Callable[[], ParityResult]) -> ParityResult | None:
    """Open the interface on two programs that are compared by row; None: it was left before there was a result.

    ``judge`` does the work, once; what it raised is raised.
    """
    from rltrace_tui.parity_app import ParityApp

    judged: list[ParityResult] = []

    def find() -> ParityData:
        judged.append(judge())
        return _found(judged[0])

    app = ParityApp((given[0].path.name, given[1].path.name), find)
    app.run()
    if not judged and app.failure is not None:
        raise app.failure
    return judged[0] if judged else None


def _found(judged: ParityResult) -> ParityData:
    from rltrace.diff.base.view import StreamView
    from rltrace.parity.report.gap import effects_texts
    from rltrace.parity.report.text import render_parity
    from rltrace_tui.parity_data import ParityData

    def view(recorded: RecordedStream | None) -> StreamView:
        assert recorded is not None  # a call range of a trace has a stream
        return StreamView(recorded.process, recorded.stream)

    both = judged.compared.a.call_range, judged.compared.b.call_range
    views = view(both[0].recorded), view(both[1].recorded)
    more = tuple(effects_texts(judged.effects))
    report = render_parity(judged.parity, judged.required, more)
    return ParityData(judged.parity, judged.required, views, judged.traces, report, more)
