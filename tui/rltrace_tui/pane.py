"""A framed, scrolling pane that wraps its text to its width.

Owns wrapping on resize, and the pane's help text.
"""

from collections.abc import Callable

from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

Draw = Callable[[int], list[Content]]
"""Draws lines for a width."""


class Pane(VerticalScroll):
    """One pane of a screen; ``explained``: its help text."""

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
        """Draw with ``draw``, now and after every resize."""
        self._draw = draw
        self.redraw()

    def on_resize(self, _: Resize) -> None:
        self.redraw()

    @property
    def text(self) -> str:
        """The text of the pane, without style."""
        return "\n".join(line.plain for line in self._draw(self._width))

    @property
    def _width(self) -> int:
        return max(20, self.scrollable_content_region.width - (0 if self.show_vertical_scrollbar else 1))

    def redraw(self) -> None:
        """Draw again, with the current data."""
        lines = self._draw(self._width)
        self._text.update(Content("\n").join(lines))
