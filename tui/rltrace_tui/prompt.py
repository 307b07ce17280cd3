"""The one-line prompt at the foot of a screen; errors are shown below the character."""

from collections.abc import Callable

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input, Static

from rltrace.errors import SelectorError

Check = Callable[[str], object]
"""Raises SelectorError for an invalid answer."""


class Prompt(Vertical):
    """Enter answers, Escape cancels; an invalid answer is not accepted."""

    BINDINGS = [Binding("escape", "cancel", "Cancel", id="prompt.cancel", tooltip="Close the prompt")]  # noqa: RUF012

    class Answered(Message):
        def __init__(self, question: str, answer: str) -> None:
            super().__init__()
            self.question, self.answer = question, answer

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.question = ""
        self._check: Check = lambda _: None
        self._previous_focus = ""

    def compose(self) -> ComposeResult:
        yield Input(id="answer", compact=True)
        yield Static(id="mistake")

    def ask(self, question: str, hint: str, value: str = "", check: Check = lambda _: None) -> None:
        self.question, self._check = question, check
        self._previous_focus = getattr(self.screen.focused, "id", None) or ""
        self.border_title = question
        answer = self.query_one(Input)
        answer.placeholder = hint
        answer.value = value
        self._show_mistake("")
        self.add_class("-shown")
        answer.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._show_mistake("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        answer = event.value
        try:
            if answer.strip():
                self._check(answer)
        except SelectorError as error:
            self._show_mistake(str(error))
            return
        self.action_cancel()
        self.post_message(self.Answered(self.question, answer))

    def action_cancel(self) -> None:
        self.remove_class("-shown")
        self.screen.focus_next(f"#{self._previous_focus}" if self._previous_focus else "*")

    def _show_mistake(self, mistake: str) -> None:
        line = self.query_one("#mistake", Static)
        line.update(mistake_text(mistake))
        line.display = bool(mistake)


def mistake_text(mistake: str) -> str:
    """A selector's error below the answer: the caret first, then the message."""
    message, *pointing = mistake.split("\n")
    return "\n".join([*(line.removeprefix("  ") for line in pointing[1:]), message])
