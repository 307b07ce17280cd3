"""The application: which screen is shown, the keys that work everywhere, and what it ends with.

Owns the search's worker and its messages. A failure of a worker becomes a readable screen; whatever happens here, no
trace is written to.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from time import monotonic

from textual import work
from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.message import Message
from textual.screen import Screen
from textual.worker import Worker, WorkerState, get_current_worker

from rltrace.diff import Comparison
from rltrace.diff.model import Probe
from rltrace.diff.timeline import Curve
from rltrace_tui.failure import FailureScreen
from rltrace_tui.help import HelpScreen
from rltrace_tui.op import OpScreen
from rltrace_tui.ops import OpsScreen
from rltrace_tui.overview import OverviewScreen
from rltrace_tui.work import CancelledError, Work

EVERY = 0.05
"""Seconds between two reports of progress."""


class ProbeMade(Message):
    """The search compared two prefix digests."""

    def __init__(self, stream: str, respect: str, probe: Probe, rows: int) -> None:
        super().__init__()
        self.stream, self.respect, self.probe, self.rows = stream, respect, probe, rows


class Walked(Message):
    """The comparison went on along a stream."""

    def __init__(self, stream: str, done: int, rows: int) -> None:
        super().__init__()
        self.stream, self.done, self.rows = stream, done, rows


class SearchDone(Message):
    """There is a verdict."""

    def __init__(self, comparison: Comparison) -> None:
        super().__init__()
        self.comparison = comparison


class CurvesRead(Message):
    """The numbers that both sides read out."""

    def __init__(self, curves: tuple[Curve, ...]) -> None:
        super().__init__()
        self.curves = curves


class Failed(Message):
    """Something could not be done."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class RltraceApp(App[Comparison]):
    """``rltrace diff A B`` in a terminal. Returns the comparison; None: there is none."""

    TITLE = "rltrace"
    CSS_PATH = Path(__file__).with_name("app.tcss")
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-narrow"), (76, "-normal"), (100, "-wide")]  # noqa: RUF012  Textual's
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (16, "-short"), (24, "-tall")]  # noqa: RUF012  own declaration
    DEFAULT_MODE = "overview"
    BINDINGS = [  # noqa: RUF012
        Binding("question_mark", "help", "Help", id="app.help", tooltip="What the focused part shows, and its keys"),
        Binding("1", "overview", "Overview", id="app.overview", tooltip="Verdict, evidence, timeline, search"),
        Binding("2", "ops", "Ops", id="app.ops", tooltip="Both sides, op by op"),
        Binding("3", "op", "Op", id="app.op", tooltip="The op that the verdict names"),
        Binding("escape", "leave", "Back", show=False, id="app.back", tooltip="Stop the search, or go back"),
        Binding("q", "quit", "Quit", id="app.quit", tooltip="Leave; nothing that runs is touched"),
    ]

    def __init__(self, a: Path, b: Path, *, strict: bool = False) -> None:
        super().__init__()
        self.work = Work(a, b, strict)
        self.overview, self.ops = OverviewScreen(self.work), OpsScreen(self.work)
        self.add_mode("overview", lambda: self.overview)
        self.add_mode("ops", lambda: self.ops)
        self.failure: BaseException | None = None
        self.cancelled = False
        self._searching: Worker[None] | None = None
        self._next_report = 0.0

    def on_mount(self) -> None:
        self.sub_title = f"A {self.work.path_a}   B {self.work.path_b}"
        self._searching = self._search()

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        yield from super().get_system_commands(screen)
        yield SystemCommand("Overview", "Verdict, evidence, timeline, search", self.action_overview)
        if self.check_action("ops", ()):
            yield SystemCommand("Ops", "Both sides, op by op", self.action_ops)
        for name, active in screen.active_bindings.items():
            if name and active.enabled and active.node is screen and active.binding.description:
                binding = active.binding
                yield SystemCommand(
                    binding.description,
                    binding.tooltip or "",
                    lambda b=binding: self._run(screen, b.action),
                )

    async def _run(self, screen: Screen[object], action: str) -> None:
        await self.run_action(action, screen)

    # --- the search ---------------------------------------------------------------------------------------------------

    @work(thread=True, exclusive=True, group="search", exit_on_error=False)
    def _search(self) -> None:
        worker = get_current_worker()

        def stop_if_asked() -> None:
            if worker.is_cancelled:
                raise CancelledError

        def probed(stream: str, respect: str, probe: Probe, rows: int) -> None:
            stop_if_asked()
            self.post_message(ProbeMade(stream, respect, probe, rows))

        def walked(stream: str, done: int, rows: int) -> None:
            stop_if_asked()
            if monotonic() >= self._next_report:
                self._next_report = monotonic() + EVERY
                self.post_message(Walked(stream, done, rows))

        try:
            self.post_message(SearchDone(self.work.search(probed, walked)))
            for name in self.work.streams[:1]:
                self.work.stream(name)  # so that it is there when it is asked for
            self.post_message(CurvesRead(self.work.curves(lambda: worker.is_cancelled)))
        except CancelledError:
            return
        except Exception as error:  # a worker's failure is told, never raised
            self.post_message(Failed(error))

    def on_probe_made(self, message: ProbeMade) -> None:
        self.overview.probed(message.stream, message.respect, message.probe, message.rows)

    def on_walked(self, message: Walked) -> None:
        self.overview.walked(message.stream, message.done, message.rows)

    def on_search_done(self, message: SearchDone) -> None:
        self.overview.found(message.comparison)
        self.refresh_bindings()

    def on_curves_read(self, message: CurvesRead) -> None:
        self.overview.curves_read(message.curves)

    def on_failed(self, message: Failed) -> None:
        self.fail(message.error)

    def fail(self, error: BaseException) -> None:
        """Show a failure on a screen of its own."""
        self.failure = error
        self.overview.stopped("failed")
        self.push_screen(FailureScreen(error))

    def _handle_exception(self, error: Exception) -> None:
        """What nobody foresaw in a widget: it can draw no more, so the application ends, and the command says why."""
        if self.is_headless or os.environ.get("RLTRACE_DEBUG"):
            super()._handle_exception(error)
            return
        self.failure = error
        self.exit(None)
        self._close_messages_no_wait()

    # --- going about --------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that have nothing to show yet are dimmed."""
        if action in ("ops", "op"):
            if not self.work.streams:
                return None
            if action == "op":
                shown = self.work.shown
                return True if shown is not None and shown.op is not None else None
        return True

    def action_overview(self) -> None:
        self.switch_mode("overview")

    def action_ops(self) -> None:
        self.switch_mode("ops")

    def action_op(self) -> None:
        shown = self.work.shown
        if shown is not None and shown.stream in self.work.streams:
            self.show_op(shown.stream, shown.a_index, shown.b_index)

    def show_op(self, stream: str, a: int | None, b: int | None) -> None:
        """One op in full, over whatever is shown."""
        if isinstance(self.screen, OpScreen):
            self.screen.show(a, b)
            return
        self.push_screen(OpScreen(self.work, stream, a, b))

    def show_ops_at(self, stream: str, a: int | None, b: int | None) -> None:
        """The list of ops, at one of them."""
        while len(self.screen_stack) > 1:
            self.pop_screen()
        self.switch_mode("ops")
        self.ops.go(stream, a, b)

    def action_help(self) -> None:
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen(self.screen))

    def action_leave(self) -> None:
        if self._searching is not None and self._searching.state == WorkerState.RUNNING and not self.work.comparison:
            self.cancelled = True
            self._searching.cancel()
            self.overview.stopped("stopped")
        elif len(self.screen_stack) > 1:
            self.pop_screen()
        elif self.current_mode != "overview":
            self.switch_mode("overview")

    async def action_quit(self) -> None:
        self.workers.cancel_all()
        self.exit(self.work.comparison)
