"""The screen of a failure: a message and a hint, never a traceback."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, Static

from rltrace.errors import RltraceError


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
