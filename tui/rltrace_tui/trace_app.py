"""``rltrace show TRACE`` in a terminal.

Owns the worker that reads the trace.
"""

from __future__ import annotations

from textual import work
from textual.message import Message
from textual.worker import get_current_worker

from rltrace.diff.metrics.timeline import Curve
from rltrace.trace.format.location import Location
from rltrace_tui.base import BaseApp, Failed
from rltrace_tui.data import TraceData
from rltrace_tui.trace_screen import TraceScreen


class TraceRead(Message):
    """The trace was read, except its curves."""


class OwnCurvesRead(Message):
    """The logged scalars were read."""

    def __init__(self, curves: tuple[Curve, ...]) -> None:
        super().__init__()
        self.curves = curves


class TraceApp(BaseApp[None]):
    """Returns nothing, as there is no verdict."""

    overview: TraceScreen

    def __init__(self, path: Location) -> None:
        self.work = TraceData(path)
        super().__init__(self.work, TraceScreen(self.work))

    def on_mount(self) -> None:
        self.sub_title = str(self.work.path)
        self._open()

    @work(thread=True, exclusive=True, group="search", exit_on_error=False)
    def _open(self) -> None:
        worker = get_current_worker()
        try:
            self.work.read()
            self.post_message(TraceRead())
            for name in self.work.streams[:1]:
                self.work.stream(name)  # in advance
            self.post_message(OwnCurvesRead(self.work.curves(lambda: self.work.pause(lambda: worker.is_cancelled))))
        except Exception as error:  # shown on a screen
            self.post_message(Failed(error))

    def on_trace_read(self) -> None:
        self.overview.show_info()
        self.ops_are_known()

    def on_own_curves_read(self, message: OwnCurvesRead) -> None:
        self.overview.show_curves(message.curves)

    @property
    def is_searching(self) -> bool:
        return self.work.info is None and self.failure is None

    def fail(self, error: BaseException) -> None:
        self.overview.show_state("failed")
        super().fail(error)

    def reason(self, action: str, parameters: tuple[object, ...]) -> str:
        if action == "op":
            return "one trace has no verdict: 2 lists all ops"
        return super().reason(action, parameters)

    async def action_quit(self) -> None:
        self.workers.cancel_all()
        self.exit(None)
