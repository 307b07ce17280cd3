"""``rltrace diff A B`` in a terminal.

Owns the worker of the comparison, its messages, and the result of the application.
"""

from time import monotonic

from textual import work
from textual.message import Message
from textual.worker import Worker, WorkerState, get_current_worker

from rltrace.diff import Comparison
from rltrace.diff.base.model import Pair, Probe
from rltrace.report.markdown import comparison_markdown
from rltrace.trace.format.location import Location
from rltrace_tui.base import BaseApp, CurvesRead, Failed
from rltrace_tui.data import CancelledError, DiffData
from rltrace_tui.overview_screen import OverviewScreen

PROGRESS_INTERVAL = 0.05
"""Seconds between two messages on progress."""


class ProbeMade(Message):
    """The search compared two prefix digests."""

    def __init__(self, stream: str, respect: str, probe: Probe, rows: int) -> None:
        super().__init__()
        self.stream, self.respect, self.probe, self.rows = stream, respect, probe, rows


class Walked(Message):
    """The comparison made progress in a stream."""

    def __init__(self, stream: str, done: int, rows: int) -> None:
        super().__init__()
        self.stream, self.done, self.rows = stream, done, rows


class SearchDone(Message):
    """The comparison is done."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__()
        self.comparison = comparison


class DiffApp(BaseApp[Comparison]):
    """Returns the comparison; None if it was left before."""

    overview: OverviewScreen

    def __init__(self, a: Location, b: Location, *, strict: bool = False, starts: Pair[int] | None = None) -> None:
        self.work = DiffData(a, b, strict, starts)
        super().__init__(self.work, OverviewScreen(self.work))
        self._searching: Worker[None] | None = None
        self._next_report = 0.0

    def on_mount(self) -> None:
        self.sub_title = f"A {self.work.path_a}   B {self.work.path_b}"
        self._searching = self._search()

    # --- the search ---------------------------------------------------------------------------------------------------

    @work(thread=True, exclusive=True, group="search", exit_on_error=False)
    def _search(self) -> None:
        worker = get_current_worker()

        def check_cancelled() -> None:
            if worker.is_cancelled:
                raise CancelledError

        def on_probe(stream: str, respect: str, probe: Probe, rows: int) -> None:
            check_cancelled()
            self.post_message(ProbeMade(stream, respect, probe, rows))

        def on_progress(stream: str, done: int, rows: int) -> None:
            check_cancelled()
            if monotonic() >= self._next_report:
                self._next_report = monotonic() + PROGRESS_INTERVAL
                self.post_message(Walked(stream, done, rows))

        try:
            self.post_message(SearchDone(self.work.search(on_probe, on_progress)))
            self.work.prepare()
            self.post_message(CurvesRead(self.work.curves(lambda: self.work.pause(lambda: worker.is_cancelled))))
        except CancelledError:
            return
        except Exception as error:  # shown on a screen
            self.post_message(Failed(error))

    def on_probe_made(self, message: ProbeMade) -> None:
        self.overview.add_probe(message.stream, message.respect, message.probe, message.rows)

    def on_walked(self, message: Walked) -> None:
        self.overview.show_progress(message.stream, message.done, message.rows)

    def on_search_done(self, message: SearchDone) -> None:
        self.overview.show_verdict(message.comparison)
        self.ops_are_known()

    @property
    def is_searching(self) -> bool:
        searching = self._searching
        return searching is not None and searching.state == WorkerState.RUNNING and self.work.comparison is None

    def stop(self) -> bool:
        if not self.is_searching:
            return False
        assert self._searching is not None
        self.cancelled = True
        self._searching.cancel()
        self.overview.show_state("stopped")
        return True

    # --- navigation ---------------------------------------------------------------------------------------------------

    def reason(self, action: str, parameters: tuple[object, ...]) -> str:
        return self.work.no_op_reason if action == "op" else super().reason(action, parameters)

    def exported(self) -> str:
        assert self.work.comparison is not None
        return comparison_markdown(self.work.comparison)

    async def action_quit(self) -> None:
        self.workers.cancel_all()
        self.exit(self.work.comparison)
