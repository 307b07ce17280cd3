"""The op under the cursor, beside the list where the terminal is wide and tall enough for it."""

from __future__ import annotations

from textual import work
from textual.content import Content
from textual.worker import get_current_worker

from rltrace.diff.browse import Line
from rltrace.errors import HoleError
from rltrace_tui import opwords, words
from rltrace_tui.news import Looked
from rltrace_tui.pane import Pane
from rltrace_tui.work import Source, Stream

EXPLAINED = "Under the cursor: this op in short. Enter shows all of it."
PAUSE = 0.06
"""Seconds the cursor has to rest before its op is read."""


class Preview(Pane):
    """Follows the cursor, at a distance: nobody who moves on waits for it."""

    can_focus = False

    def __init__(self, source: Source, id: str) -> None:
        super().__init__("", EXPLAINED, id)
        self._source = source
        self._wanted: tuple[Stream, int | None, int | None] | None = None
        self.can_focus = False

    def show(self, stream: Stream, line: Line | None) -> None:
        """The op of a line, once the cursor rests on it."""
        wanted = None if line is None or line.relation is None else (stream, line.a, line.b)
        if not self.display or wanted == self._wanted:
            return
        self._wanted = wanted
        if wanted is None:
            self.draw(lambda _: [])
        else:
            self.set_timer(PAUSE, lambda: self._load(wanted) if wanted == self._wanted else None)

    @work(thread=True, exclusive=True, group="preview", exit_on_error=False)
    def _load(self, wanted: tuple[Stream, int | None, int | None]) -> None:
        stream, a, b = wanted
        try:
            with stream.browser.lock:
                pair = stream.pairs.pair(a, b)
        except HoleError as error:
            self.post_message(Looked((a, b), None, str(error)))
            return
        if not get_current_worker().is_cancelled:
            self.post_message(Looked((a, b), pair))

    def on_looked(self, message: Looked) -> None:
        message.stop()
        if self._wanted is None or message.at != self._wanted[1:]:
            return
        pair = message.pair
        self.border_title = "" if pair is None else pair.shown.op
        if pair is None:
            self.draw(lambda width: words.labelled("damage", message.trouble, width, "$text-warning"))
            return

        def lines(width: int) -> words.Lines:
            inputs = [Content(opwords.input_text(entered)[:width]) for entered in pair.inputs[:3]]
            return [*inputs, *opwords.op_lines(pair, width)]

        self.draw(lines)
