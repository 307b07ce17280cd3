"""A list of lines to choose from, which keeps still while a terminal is too small to show it.

Owns nothing else: options that were put in meanwhile have no lines yet, and Textual's own list fails looking for one.
"""

from __future__ import annotations

from textual.widgets import OptionList


class Choices(OptionList):
    """Textual's list of options."""

    def action_page_down(self) -> None:
        if self.scrollable_content_region:
            super().action_page_down()  # type: ignore[no-untyped-call]

    def action_page_up(self) -> None:
        if self.scrollable_content_region:
            super().action_page_up()  # type: ignore[no-untyped-call]
