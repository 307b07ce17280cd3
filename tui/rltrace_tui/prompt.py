"""The one-line question at the foot of a screen: what to look for, where to go. A mistake is shown where it stands."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.message import Message
from textual.widgets import Input, Static

from rltrace.errors import SelectorError

Check = Callable[[str], object]
"""Raises SelectorError where an answer cannot be used."""


class Prompt(Vertical):
    """Asks; Enter answers, Escape takes it back. What cannot be used is said under the character, and asked again."""

    BINDINGS = [Binding("escape", "cancel", "Cancel", id="prompt.cancel", tooltip="Close the prompt")]  # noqa: RUF012

    class Answered(Message):
        def __init__(self, question: str, answer: str) -> None:
            super().__init__()
            self.question, self.answer = question, answer

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.question = ""
        self._check: Check = lambda _: None
        self._home = ""

    def compose(self) -> ComposeResult:
        yield Input(id="answer", compact=True)
        yield Static(id="mistake")

    def ask(self, question: str, hint: str, value: str = "", check: Check = lambda _: None) -> None:
        self.question, self._check = question, check
        self._home = getattr(self.screen.focused, "id", None) or ""
        self.border_title = question
        answer = self.query_one(Input)
        answer.placeholder = hint
        answer.value = value
        self._tell("")
        self.add_class("-shown")
        answer.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._tell("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        answer = event.value
        try:
            if answer.strip():
                self._check(answer)
        except SelectorError as error:
            self._tell(str(error))
            return
        self.action_cancel()
        self.post_message(self.Answered(self.question, answer))

    def action_cancel(self) -> None:
        self.remove_class("-shown")
        self.screen.focus_next(f"#{self._home}" if self._home else "*")

    def _tell(self, mistake: str) -> None:
        told = self.query_one("#mistake", Static)
        told.update(under_the_answer(mistake))
        told.display = bool(mistake)


def under_the_answer(mistake: str) -> str:
    """A selector's error as it stands under what was typed: the caret first, then what is wrong there."""
    what, *pointing = mistake.split("\n")
    return "\n".join([*(line.removeprefix("  ") for line in pointing[1:]), what])
