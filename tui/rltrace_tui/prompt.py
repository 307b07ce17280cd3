"""The one-line question at the foot of a screen: what to look for, where to go."""

from __future__ import annotations

from textual.binding import Binding
from textual.message import Message
from textual.widgets import Input


class Prompt(Input):
    """Asks; Enter answers, Escape takes it back."""

    BINDINGS = [Binding("escape", "cancel", "Cancel", id="prompt.cancel", tooltip="Ask no more")]  # noqa: RUF012

    class Answered(Message):
        def __init__(self, question: str, answer: str) -> None:
            super().__init__()
            self.question, self.answer = question, answer

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.question = ""

    def ask(self, question: str, hint: str, value: str = "") -> None:
        self.question = question
        self.border_title = question
        self.placeholder = hint
        self.value = value
        self.add_class("-shown")
        self.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.action_cancel()
        if event.value.strip():
            self.post_message(self.Answered(self.question, event.value.strip()))

    def action_cancel(self) -> None:
        self.remove_class("-shown")
        self.screen.focus_next("OpList")
