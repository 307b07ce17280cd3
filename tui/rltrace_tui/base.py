"""The base of all applications: their screens, global keys, and failures.

Owns navigation between screens. Never writes to a trace.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Generic, TypeVar

from textual import events, work
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Static

from rltrace.diff.metrics.timeline import Curve
from rltrace.errors import RltraceError
from rltrace_tui.app_protocol import KeyGuard, disabled_reason
from rltrace_tui.curves import CurveScreen
from rltrace_tui.data import DataSource
from rltrace_tui.help import HelpScreen
from rltrace_tui.op_screen import OpScreen
from rltrace_tui.ops_screen import OpsScreen


def readable(error: BaseException) -> str:
    """The error in one or two sentences."""
    text = " ".join(str(error).split())
    if isinstance(error, RltraceError):
        return text
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}" + (f": {error.filename}" if error.filename else "")
    return f"{type(error).__name__}" + (f": {text}" if text else "")


class FailureScreen(Screen[None]):
    """One failure."""

    BINDINGS = [Binding("y", "copy", "Copy", id="failure.copy", tooltip="Copy the message")]  # noqa: RUF012

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._message = readable(error)
        self._expected = isinstance(error, RltraceError)

    def compose(self) -> ComposeResult:
        hint = "" if self._expected else "\n\nSet RLTRACE_DEBUG=1 and start again to see where it comes from."
        with VerticalScroll(id="failure"):
            yield Static(Content(f"{self._message}{hint}\n\nEscape goes back, q leaves."))
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.query_one("#failure").border_title = "This did not work"

    def action_copy(self) -> None:
        self.app.copy_to_clipboard(self._message)
        self.notify("copied")


T = TypeVar("T")


class Failed(Message):
    """Work failed."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class CurvesRead(Message):
    """The logged scalars were read."""

    def __init__(self, curves: tuple[Curve, ...]) -> None:
        super().__init__()
        self.curves = curves


class FileWritten(Message):
    """A file was written."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path


class BaseApp(KeyGuard, App[T], Generic[T]):
    """The screens Overview, Ops and Op, and their global keys."""

    TITLE = "rltrace"
    CSS_PATH = Path(__file__).with_name("app.tcss")
    ENABLE_COMMAND_PALETTE = True
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (60, "-narrow"), (76, "-normal"), (100, "-wide")]  # noqa: RUF012  Textual's
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (16, "-short"), (24, "-tall"), (34, "-high")]  # noqa: RUF012  own declaration
    DEFAULT_MODE = "overview"
    BINDINGS = [  # noqa: RUF012
        Binding("question_mark", "help", "Help", id="app.help", tooltip="What the focused pane shows, and its keys"),
        Binding("1", "overview", "Overview", id="app.overview", tooltip="The first screen"),
        Binding("2", "ops", "Ops", id="app.ops", tooltip="Op by op"),
        Binding("3", "op", "Op", id="app.op", tooltip="The op that the verdict names"),
        Binding("escape", "leave", "Back", show=False, id="app.back", tooltip="Stop what runs, or go back"),
        Binding("q", "quit", "Quit", id="app.quit", tooltip="Leave; running programs are not affected"),
    ]

    def __init__(self, source: DataSource, overview: CurveScreen) -> None:
        super().__init__()
        self.source = source
        self.overview: CurveScreen = overview
        self.ops = OpsScreen(source)
        self.add_mode("overview", lambda: self.overview)
        self.add_mode("ops", lambda: self.ops)
        self.failure: BaseException | None = None
        self.cancelled = False
        self._awaits_ops = False

    # --- keys ---------------------------------------------------------------------------------------------------------

    def on_key(self, event: events.Key) -> None:
        """Give the reason why a key is disabled; that of the ops is carried out once they are known."""
        active = self.screen.active_bindings.get(event.key)
        if active is not None and not active.enabled and (reason := disabled_reason(active)):
            self._awaits_ops = self.is_searching and active.binding.action == "ops"
            more = "; the ops are shown then" if self._awaits_ops else ""
            self.notify(f"{reason}{more}", severity="warning")

    def ops_are_known(self) -> None:
        """The main search has ended: show the ops if their key was pressed before."""
        self.refresh_bindings()
        if self._awaits_ops and not self.source.no_ops_reason:
            self.action_ops()
        self._awaits_ops = False

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        yield from super().get_system_commands(screen)
        for active in screen.active_bindings.values():
            binding = active.binding
            if active.enabled and active.node in (screen, self) and binding.description and binding.id:
                node = active.node
                yield SystemCommand(
                    binding.description,
                    binding.tooltip or "",
                    lambda action=binding.action, node=node: self.run_action(action, node),
                )

    def deliver_screenshot(
        self, filename: str | None = None, path: str | None = None, time_format: str | None = None
    ) -> str | None:
        """Save a picture of the screen into the current folder: servers have no ~/Downloads, where Textual saves it."""
        return super().deliver_screenshot(filename, path or str(Path.cwd()), time_format)

    def reason(self, action: str, parameters: tuple[object, ...]) -> str:
        return self.source.no_ops_reason if action == "ops" else ""

    # --- navigation ---------------------------------------------------------------------------------------------------

    def action_overview(self) -> None:
        self._go("overview")

    def action_ops(self) -> None:
        self._go("ops")

    def _go(self, mode: str) -> None:
        """Show a mode's screen, with nothing over it."""
        self.switch_mode(mode)
        while len(self.screen_stack) > 1:
            self.pop_screen()

    def show_op(self, stream: str, a: int | None, b: int | None) -> None:
        if isinstance(self.screen, OpScreen):
            self.screen.show(a, b)
            return
        self.push_screen(OpScreen(self.source, stream, a, b))

    def show_ops_at(self, stream: str, a: int | None, b: int | None) -> None:
        while len(self.screen_stack) > 1:
            self.pop_screen()
        self._go("ops")
        self.ops.go(stream, a, b)

    def action_op(self) -> None:
        shown = self.source.shown
        if shown is not None and shown.stream in self.source.streams:
            self.show_op(shown.stream, shown.a_index, shown.b_index)

    def action_help(self) -> None:
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen(self.screen))

    def action_leave(self) -> None:
        if not self.stop() and len(self.screen_stack) > 1:
            self.pop_screen()
        elif self.current_mode != "overview" and not self.is_searching:
            self.switch_mode("overview")

    @property
    def is_searching(self) -> bool:
        """Whether the main search is running."""
        return False

    def stop(self) -> bool:
        """Stop the main search; False if it is not running."""
        return False

    def on_curves_read(self, message: CurvesRead) -> None:
        self.overview.show_curves(message.curves)

    # --- failures -----------------------------------------------------------------------------------------------------

    def on_failed(self, message: Failed) -> None:
        self.fail(message.error)

    def fail(self, error: BaseException) -> None:
        self.overview.show_state("failed")
        self.failure = error
        self.push_screen(FailureScreen(error))

    def _handle_exception(self, error: Exception) -> None:
        """End the application for an unexpected error in a widget; the command reports it."""
        if self.is_headless or os.environ.get("RLTRACE_DEBUG"):
            super()._handle_exception(error)
            return
        self.failure = error
        self.exit(None)
        self._close_messages_no_wait()

    # --- files --------------------------------------------------------------------------------------------------------

    def exported(self) -> str:
        """The text to export."""
        raise NotImplementedError

    @work(thread=True, exclusive=True, group="export", exit_on_error=False)
    def export(self, path: Path) -> None:
        try:
            text = self.exported()
            with path.open("x", encoding="utf-8") as file:  # never overwrites a file
                file.write(text)
        except OSError as error:
            what = "it exists already" if isinstance(error, FileExistsError) else error.strerror
            self.call_from_thread(self.notify, f"{path} is not written: {what}", severity="error")
            return
        except Exception as error:  # shown on a screen
            self.post_message(Failed(error))
            return
        self.post_message(FileWritten(path))

    def on_file_written(self, message: FileWritten) -> None:
        self.notify(f"written: {message.path}")
