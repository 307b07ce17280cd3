"""Lists of lines to choose from.

Owns a workaround: Textual's list fails on page keys while the terminal is too small to show options that were added.
"""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option


class Choices(OptionList):
    """Textual's list of options, which ignores page keys while it has no size."""

    BINDINGS = [Binding("enter", "select", "Open", id="choices.open", tooltip="Open the line under the cursor")]  # noqa: RUF012

    def action_page_down(self) -> None:
        if self.scrollable_content_region:
            super().action_page_down()  # type: ignore[no-untyped-call]

    def action_page_up(self) -> None:
        if self.scrollable_content_region:
            super().action_page_up()  # type: ignore[no-untyped-call]


# --- picker -----------------------------------------------------------------------------------------------------------


class Picker(ModalScreen[int | None]):
    """A short list over the current screen; returns the index of the choice, or None."""

    BINDINGS = [Binding("escape,q", "dismiss(None)", "Close", id="picker.close", tooltip="Choose nothing")]  # noqa: RUF012

    def __init__(self, title: str, choices: Sequence[str], chosen: int = 0) -> None:
        super().__init__()
        self._title, self._choices, self._chosen = title, choices, chosen

    def compose(self) -> ComposeResult:
        yield Choices(*(Option(choice) for choice in self._choices), id="choices", markup=False)

    def on_mount(self) -> None:
        options = self.query_one(Choices)
        options.border_title = self._title
        options.highlighted = self._chosen

    def on_option_list_option_selected(self, event: Choices.OptionSelected) -> None:
        self.dismiss(event.option_index)
