"""Navigation in the list of ops: to a row, a step, the next origin, the next op that a selector matches.

Owns the searches and their workers; the screen shows the result.
"""

from collections.abc import Callable

from textual import work
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.worker import get_current_worker

from rltrace.errors import SelectorError
from rltrace.query.locate import next_row
from rltrace.selectors import Selector
from rltrace_tui.app_protocol import KeyGuard
from rltrace_tui.data import DataSource, StreamPairData
from rltrace_tui.input_parser import EXAMPLES, parse_place, parse_selector
from rltrace_tui.messages import Arrived, Sought
from rltrace_tui.op_list import OpList
from rltrace_tui.prompt import Prompt

FIND, GO = "Find", "Go to"


class NavigationScreen(KeyGuard, Screen[None]):
    """A screen around a list of ops."""

    def __init__(self, source: DataSource) -> None:
        super().__init__()
        self._source = source
        self._selector: Selector | None = None
        self._text = ""
        self._busy = ""
        self.list = OpList(id="oplist")
        self._pending: tuple[str, int | None, int | None] | None = None
        """Where to go once the screen is mounted."""
        self._can_go = False

    def draw_status(self) -> None:
        """Draw the status line."""
        raise NotImplementedError

    def _set_busy(self, text: str) -> None:
        self._busy = text
        self.draw_status()

    # --- arriving -----------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self._can_go = True
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self.go(*pending)

    def on_screen_resume(self) -> None:
        shown, names = self._source.shown, self._source.streams
        if self._pending is not None or self.list.stream is not None or self._busy or not names:
            return
        if shown is not None and shown.stream in names:
            self.go(shown.stream, shown.a_index, shown.b_index)
        else:
            self.go(names[0], None, None)

    def go(self, name: str, a: int | None, b: int | None) -> None:
        """Show a stream, the cursor on a row of it."""
        if not self._can_go:
            self._pending = (name, a, b)
            return
        self._set_busy("preparing the ops …")
        self._show(name, ("a", a) if a is not None else None if b is None else ("b", b))

    @work(thread=True, exclusive=True, group="ops", exit_on_error=False)
    def _show(self, name: str, row: tuple[str, int] | None) -> None:
        with self._source.prioritized():
            self._get(name, row)

    def _get(self, name: str, row: tuple[str, int] | None) -> None:
        worker, stream = get_current_worker(), self._source.stream(name)
        browser = stream.browser
        if row is None:
            self.post_message(Arrived(stream, 0))
            return
        before = browser.line_of(*row) if len(browser) else 0
        self.post_message(Arrived(stream, before, more=True))  # drawn now, and again when rows are read
        line = browser.reveal(*row) if len(browser) else 0
        note = "that op is hidden here; the next one is shown" if browser.is_hidden(*row) else ""
        if not worker.is_cancelled:
            self.post_message(Arrived(stream, line, note=note))

    def on_arrived(self, message: Arrived) -> None:
        if self.list.stream is not message.stream:
            self.list.show(message.stream)
        self._busy = "reading …" if message.more else ""
        self.list.changed(message.line)
        if message.note:
            self.notify(message.note)
        self.refresh_bindings()

    # --- searching ----------------------------------------------------------------------------------------------------

    def action_seek(self, direction: int) -> None:
        stream, start = self.list.stream, self.list.cursor
        if stream is not None:
            what = "op at which a difference may begin"
            self._seek(stream, lambda stop: stream.browser.seek(start, direction, stop), what)

    def action_find(self) -> None:
        self.query_one(Prompt).ask(FIND, EXAMPLES, self._text, parse_selector)

    def action_again(self, direction: int) -> None:
        stream, selector = self.list.stream, self._selector
        start = self._start(direction)
        if stream is None or selector is None or start is None:
            return
        side, first = start
        view = stream.browser.a if side == "a" else stream.browser.b

        chosen = stream.within_filter(selector)

        def search(stop: Callable[[], bool]) -> tuple[str, int] | None:
            found = next_row(view.process, view.stream, chosen, first, direction, stop, stream.browser.lock)
            return None if found is None else (side, found)

        self._seek(stream, search, self._text)

    def _start(self, direction: int) -> tuple[str, int] | None:
        """(side, row) to search from: the row after, or before, the line under the cursor."""
        line = self.list.line
        if line is None:
            return None
        side = "a" if line.a is not None and (line.piece is None or line.piece.a1 > line.piece.a0) else "b"
        row = (line.a if side == "a" else line.b) or 0
        if line.relation is not None:
            return side, row + direction
        return side, row if direction > 0 else row - 1

    @work(thread=True, exclusive=True, group="ops", exit_on_error=False)
    def _seek(
        self, stream: StreamPairData, search: Callable[[Callable[[], bool]], tuple[str, int] | None], what: str
    ) -> None:
        worker = get_current_worker()
        self.app.call_from_thread(self._set_busy, "looking …  (Escape stops)")
        message = ""
        try:
            found = search(lambda: worker.is_cancelled)
            if found is not None:
                stream.browser.reveal(*found)
        except SelectorError as error:
            found, message = None, str(error)
        if not worker.is_cancelled:
            self.post_message(Sought(stream, found, what, message))

    def on_sought(self, message: Sought) -> None:
        self._busy = ""
        if self.list.stream is not message.stream:
            return
        if message.found is None:
            severity: SeverityLevel = "warning" if message.error else "information"
            self.notify(message.error or f"no further {message.what}", severity=severity)
            self.draw_status()
        else:
            self.list.changed(message.stream.browser.line_of(*message.found))

    def action_go(self) -> None:
        self.query_one(Prompt).ask(GO, "184213 (row of A), b184214 (row of B), s37 (step)", check=parse_place)

    def _go(self, text: str) -> None:
        browser = self.list.browser
        if browser is None:
            return
        kind, number = parse_place(text)
        if kind == "s":
            row = self._source.first_row_of(browser, number)
            target = None if row is None else ("a", row)
        else:
            view = browser.a if kind == "a" else browser.b
            target = (kind, number) if number < view.rows else None
        if target is None:
            self.notify(f"there is no {text.strip()}", severity="warning")
        elif self.list.stream is not None:
            self._set_busy("reading …")
            self._show(self.list.stream.name, target)
