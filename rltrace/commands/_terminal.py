"""Opening of the terminal interface, and its results.

The only module of ``rltrace`` that imports ``rltrace_tui``, and only when it opens, as the import takes long. Knows
nothing of screens.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rltrace.diff import Comparison
from rltrace.trace.format.location import Location

if TYPE_CHECKING:
    from rltrace.commands._parity_result import ParityResult
    from rltrace.diff.base.model import Pair
    from rltrace.parity.call_range import RecordedStream
    from rltrace.parity.inputs import TraceArgument
    from rltrace_tui.parity_data import ParityData


def can_open() -> bool:
    """Whether standard input and output are a terminal that can draw."""
    has_terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    return has_terminal and os.environ.get("TERM", "dumb") not in ("", "dumb")


def show_diff(
    a: Location, b: Location, *, strict: bool, starts: Pair[int] | None = None, confirm: Path | None = None
) -> Comparison | None:
    """Open the interface on two traces; None if it was left before the verdict. Raises the errors of the comparison.

    ``starts``: as of ``compare``. ``confirm``: the outcome of an experiment on them; by default the one next to
    trace B, if any.
    """
    from rltrace.trace.read.reader import open_trace
    from rltrace_tui.diff_app import DiffApp

    for path in (a, b):
        open_trace(path)  # an unreadable trace is an error message, not a screen
    app = DiffApp(a, b, strict=strict, starts=starts, confirm=confirm)
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


def show_parity(traces: tuple[TraceArgument, TraceArgument], judge: Callable[[], ParityResult]) -> ParityResult | None:
    """Open the interface on two programs that are compared by row; None if it was left before the result.

    ``judge`` compares them, and is called once. Raises its errors.
    """
    from rltrace_tui.parity_app import ParityApp

    results: list[ParityResult] = []

    def find() -> ParityData:
        results.append(judge())
        return _parity_data(results[0])

    app = ParityApp((traces[0].path.name, traces[1].path.name), find)
    app.run()
    if not results and app.failure is not None:
        raise app.failure
    return results[0] if results else None


def _parity_data(result: ParityResult) -> ParityData:
    from rltrace.diff.base.view import StreamView
    from rltrace.parity.report.gap import effects_texts
    from rltrace.parity.report.text import render_parity
    from rltrace_tui.parity_data import ParityData

    def view(recorded: RecordedStream | None) -> StreamView:
        assert recorded is not None  # that of a trace always is
        return StreamView(recorded.process, recorded.stream)

    compared = result.compared
    views = view(compared.a.call_range.recorded), view(compared.b.call_range.recorded)
    more = tuple(effects_texts(result.effects))
    report = render_parity(result.parity, result.required, more)
    return ParityData(result.parity, result.required, views, result.traces, report, more)
