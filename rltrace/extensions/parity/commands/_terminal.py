"""The result of ``rltrace compare`` with its exit status, and the terminal interface that shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltrace.commands.console import ExitCode

if TYPE_CHECKING:
    from rltrace.extensions.parity.call_range import RecordedStream
    from rltrace.extensions.parity.compare import Compared
    from rltrace.extensions.parity.inputs import TraceArgument
    from rltrace.extensions.parity.report.compare import ParityReport
    from rltrace.trace.read.reader import Trace
    from rltrace_tui.parity_data import ParityData


@dataclass(frozen=True)
class ParityResult:
    """The comparison and its effects, compared with the requirements."""

    compared: Compared
    report: ParityReport
    traces: tuple[Trace, Trace]

    @property
    def status(self) -> int:
        if self.report.agrees is None:
            return ExitCode.UNDECIDED
        return ExitCode.IDENTICAL if self.report.agrees else ExitCode.DIVERGED


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
    from rltrace_tui.parity_data import ParityData

    def view(recorded: RecordedStream | None) -> StreamView:
        assert recorded is not None  # that of a trace always is
        return StreamView(recorded.process, recorded.stream)

    compared = result.compared
    views = view(compared.a.call_range.recorded), view(compared.b.call_range.recorded)
    return ParityData(result.report, views, result.traces)
