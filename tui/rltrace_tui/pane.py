"""A framed, scrolling part of a screen that wraps its text to its own width, and says what it shows.

Owns wrapping on resize and the text that ``?`` shows for it.
"""

from __future__ import annotations

from collections.abc import Callable

from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

Draw = Callable[[int], list[Content]]
"""Lines for a width."""


class Pane(VerticalScroll):
    """One part of a screen."""

    def __init__(self, title: str, explained: str, id: str, draw: Draw = lambda _: []) -> None:
        super().__init__(id=id)
        self.border_title = title
        self.explained = explained
        self._draw = draw
        self._text = Static()
        self.can_focus = True

    def compose(self):  # type: ignore[no-untyped-def]
        yield self._text

    def draw(self, draw: Draw) -> None:
        """Show what ``draw`` gives for the width there is, now and after every resize."""
        self._draw = draw
        self.redraw()

    def on_resize(self, _: Resize) -> None:
        self.redraw()

    @property
    def text(self) -> str:
        """What it shows, without style."""
        return "\n".join(line.plain for line in self._draw(self._width))

    @property
    def _width(self) -> int:
        return max(20, self.scrollable_content_region.width - (0 if self.show_vertical_scrollbar else 1))

    def redraw(self) -> None:
        """Show the same for what is known now."""
        lines = self._draw(self._width)
        self._text.update(Content("\n").join(lines))
