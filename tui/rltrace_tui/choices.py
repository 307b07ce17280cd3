"""A list of lines to choose from, which keeps still while a terminal is too small to show it.

Owns nothing else: Textual's own list looks for the line under its cursor even where it has none, and fails.
"""

from __future__ import annotations

from textual.widgets import OptionList


class Choices(OptionList):
    """Textual's list of options; plain text, no markup."""

    def action_page_down(self) -> None:
        if self.scrollable_content_region.area:
            super().action_page_down()  # type: ignore[no-untyped-call]

    def action_page_up(self) -> None:
        if self.scrollable_content_region.area:
            super().action_page_up()  # type: ignore[no-untyped-call]
