"""The second screen: both runs op by op, folded where they are identical."""

from __future__ import annotations

import re
from collections.abc import Callable

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import Screen
from textual.widgets import Footer, Static
from textual.worker import Worker, WorkerState, get_current_worker

from rltrace.diff.pieces import Piece
from rltrace.errors import SelectorError
from rltrace.report.seek import next_row
from rltrace.select import Selector, parse_selectors
from rltrace_tui.news import Arrived, Opened, Sought
from rltrace_tui.oplist import DETAILS, OpList
from rltrace_tui.prompt import Prompt
from rltrace_tui.work import Stream, Work

FIND, GO = "Find", "Go to"


class OpsScreen(Screen[None]):
    """The ops of one stream at a time."""

    AUTO_FOCUS = "OpList"
    BINDINGS = [  # noqa: RUF012
        Binding("enter", "inspect", "Open", id="ops.inspect", tooltip="This op in full; opens a fold"),
        Binding("n", "seek(1)", "Next", id="ops.next", tooltip="Next op that differs without receiving a difference"),
        Binding("N", "seek(-1)", "Previous ≠", show=False, id="ops.previous", tooltip="Previous such op"),
        Binding("space", "fold", "Fold", show=False, id="ops.toggle", tooltip="Open or fold what is under the cursor"),
        Binding("slash", "find", "Find", id="ops.find", tooltip="Find ops by a selector: op=*mm,module=critic*"),
        Binding("full_stop", "again(1)", "Find next", key_display=".", show=False, id="ops.again",
                tooltip="Find again"),
        Binding("comma", "again(-1)", "Find previous", key_display=",", show=False, id="ops.back",
                tooltip="Find again, backwards"),
        Binding("g", "go", "Go", id="ops.go", tooltip="Go to an op (184213, or b184214) or a step (s37)"),
        Binding("i", "hide", "Receivers", show=False, id="ops.hide", tooltip="Hide ops that only pass a difference on"),
        Binding("d", "detail", "Detail", show=False, id="ops.detail", tooltip="Show place, kernel, module or phase"),
        Binding("s", "stream", "Stream", show=False, id="ops.stream", tooltip="The next stream of ops"),
        Binding("y", "copy", "Copy", show=False, id="ops.copy", tooltip="Copy this line (over OSC 52)"),
        Binding("escape", "leave", "Back", show=False, id="ops.leave", tooltip="Stop looking, or go back"),
    ]  # fmt: skip

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work
        self._selector: Selector | None = None
        self._text = ""
        self._busy = ""

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield OpList(id="oplist")
        yield Static(id="status")
        yield Prompt(id="prompt")
        yield Static("rltrace needs 60 columns and 16 lines", id="small")
        yield Footer(show_command_palette=False)

    @property
    def list(self) -> OpList:
        return self.query_one(OpList)

    def on_screen_resume(self) -> None:
        shown, names = self._work.shown, self._work.streams
        if self.list.stream is not None or self._busy or not names:
            return
        if shown is not None and shown.stream in names:
            self.go(shown.stream, shown.a_index, shown.b_index)
        else:
            self.go(names[0], None, None)

    def go(self, name: str, a: int | None, b: int | None) -> None:
        """Show a stream, the cursor on a row of it."""
        self._busy = "preparing the ops …"
        self._draw_status()
        self._show(name, ("a", a) if a is not None else None if b is None else ("b", b))

    @work(thread=True, exclusive=True, group="ops", exit_on_error=False)
    def _show(self, name: str, row: tuple[str, int] | None) -> None:
        stream = self._work.stream(name)
        line = 0 if row is None else stream.browser.reveal(*row)
        if not get_current_worker().is_cancelled:
            self.post_message(Arrived(stream, line))

    def on_arrived(self, message: Arrived) -> None:
        self._busy = ""
        if self.list.stream is not message.stream:
            self.list.show(message.stream)
        self.list.changed(message.line)

    def _reveal(self, row: tuple[str, int]) -> None:
        if self.list.stream is not None:
            self._show(self.list.stream.name, row)

    # --- keys ---------------------------------------------------------------------------------------------------------

    def action_inspect(self) -> None:
        line = self.list.line
        if line is None:
            return
        if line.relation is None:
            self.action_fold()
        elif self.list.stream is not None:
            self.app.show_op(self.list.stream.name, line.a, line.b)  # type: ignore[attr-defined]

    def on_op_list_chosen(self) -> None:
        self.action_inspect()

    def action_fold(self) -> None:
        stream, browser = self.list.stream, self.list.browser
        if stream is None or browser is None or not len(browser):
            return
        at = browser.piece_at(self.list.cursor)
        piece = browser.pieces[at]
        if piece.is_open:
            self.list.changed(browser.first_line(browser.fold(at)))
        elif piece.equal:
            self._put(Opened(stream, at, piece, browser.opened(piece)))
        else:
            self._open(stream, at, piece)

    @work(thread=True, exclusive=True, group="ops", exit_on_error=False)
    def _open(self, stream: Stream, at: int, piece: Piece) -> None:
        self._working("reading …")
        self.post_message(Opened(stream, at, piece, stream.browser.opened(piece)))

    def on_opened(self, message: Opened) -> None:
        self._busy = ""
        self._put(message)

    def _put(self, message: Opened) -> None:
        browser = message.stream.browser
        if message.new and message.new[0].trouble and not message.piece.trouble:
            self.notify(message.new[0].trouble, severity="warning")
        browser.put(message.at, message.piece, message.new)
        if self.list.stream is message.stream:
            self.list.changed(browser.first_line(min(message.at, len(browser.pieces) - 1)))

    def action_seek(self, direction: int) -> None:
        stream, start = self.list.stream, self.list.cursor
        if stream is not None:
            what = "op that differs without receiving a difference"
            self._seek(stream, lambda stop: stream.browser.seek(start, direction, stop), what)

    def action_find(self) -> None:
        self.query_one(Prompt).ask(FIND, "op=*addmm, module=critic*, site=train.py:*, phase=backward", self._text)

    def action_again(self, direction: int) -> None:
        stream, line, selector = self.list.stream, self.list.line, self._selector
        if stream is None or line is None or selector is None:
            return
        side = "a" if line.a is not None and (line.piece is None or line.piece.a1 > line.piece.a0) else "b"
        view = stream.browser.a if side == "a" else stream.browser.b
        row = line.a if side == "a" else line.b
        end = row if row is None or line.relation is not None else row + (line.piece.rows - 1 if line.piece else 0)
        start = (row if direction < 0 else end) or 0
        first = start + direction if line.relation is not None else (start if direction > 0 else start - 1)
        if line.relation is None and direction > 0:
            first = row or 0

        def look(stop: Callable[[], bool]) -> tuple[str, int] | None:
            found = next_row(view.process, view.stream, selector, first, direction, stop, stream.browser.lock)
            return None if found is None else (side, found)

        self._seek(stream, look, self._text)

    @work(thread=True, exclusive=True, group="ops", exit_on_error=False)
    def _seek(self, stream: Stream, look: Callable[[Callable[[], bool]], tuple[str, int] | None], what: str) -> None:
        worker = get_current_worker()
        self._working("looking …  (Escape stops)")
        try:
            found = look(lambda: worker.is_cancelled)
            line = None if found is None else stream.browser.reveal(*found)
        except SelectorError as error:
            self.app.call_from_thread(self.notify, str(error), severity="warning")
            line = None
        if not worker.is_cancelled:
            self.post_message(Sought(stream, line, what))

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state == WorkerState.ERROR and event.worker.error is not None:
            self._busy = ""
            self.app.fail(event.worker.error)  # type: ignore[attr-defined]

    def on_sought(self, message: Sought) -> None:
        self._busy = ""
        if self.list.stream is not message.stream:
            return
        if message.line is None:
            self.notify(f"no further {message.what}")
            self._draw_status()
        else:
            self.list.changed(message.line)

    def _working(self, what: str) -> None:
        self._busy = what
        self.app.call_from_thread(self._draw_status)

    def action_leave(self) -> None:
        if self._busy:
            self.workers.cancel_group(self, "ops")
            self._busy = ""
            self._draw_status()
        else:
            self.app.action_leave()  # type: ignore[attr-defined]

    def action_go(self) -> None:
        self.query_one(Prompt).ask(GO, "184213 (row of A), b184214 (row of B), s37 (step)")

    def on_prompt_answered(self, message: Prompt.Answered) -> None:
        if message.question == FIND:
            self._find(message.answer)
        else:
            self._go(message.answer)

    def _find(self, text: str) -> None:
        asked = text if "=" in text or text == "all" else f"op=*{text}*"
        try:
            self._selector, self._text = parse_selectors([asked]), asked
        except SelectorError as error:
            self.notify(str(error), severity="warning")
            return
        self.action_again(1)

    def _go(self, text: str) -> None:
        asked = re.fullmatch(r"\s*(s|step|a|b)?\s*([0-9][0-9,_]*)\s*", text, re.IGNORECASE)
        browser = self.list.browser
        if asked is None or browser is None:
            self.notify("a row (184213, b184214) or a step (s37) is wanted", severity="warning")
            return
        kind, number = (asked[1] or "a").lower()[0], int(re.sub("[,_]", "", asked[2]))
        if kind == "s":
            row = self._work.first_row_of(browser, number)
            target = None if row is None else ("a", row)
        else:
            view = browser.a if kind == "a" else browser.b
            target = (kind, number) if number < view.rows else None
        if target is None:
            self.notify(f"there is no {text}", severity="warning")
        else:
            self._reveal(target)

    def action_hide(self) -> None:
        browser, line = self.list.browser, self.list.line
        if browser is None or line is None:
            return
        browser.set_hide_receivers(not browser.hide_receivers)
        side, row = ("a", line.a) if line.a is not None else ("b", line.b)
        self.list.changed(browser.line_of(side, row or 0))

    def action_detail(self) -> None:
        self.list.detail = (self.list.detail + 1) % len(DETAILS)
        self._draw_status()

    def action_stream(self) -> None:
        names = self._work.streams
        if self.list.stream is not None and len(names) > 1:
            name = names[(names.index(self.list.stream.name) + 1) % len(names)]
            self.go(name, None, None)

    def action_copy(self) -> None:
        if self.list.line is not None:
            strip = self.list.render_line(self.list.cursor - self.list.scroll_offset.y)
            self.app.copy_to_clipboard(" ".join(strip.text.split()))
            self.notify("the line is copied")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "stream":
            return True if len(self._work.streams) > 1 else None
        if action == "again":
            return True if self._selector is not None else None
        return True

    # --- drawing ------------------------------------------------------------------------------------------------------

    def on_op_list_moved(self) -> None:
        self._draw_status()

    def _draw_status(self) -> None:
        browser, stream = self.list.browser, self.list.stream
        if browser is None or stream is None:
            self.query_one("#status", Static).update(f" {self._busy}")
            return
        sizes = f"A {browser.a.rows:,} ops   B {browser.b.rows:,} ops"
        head = f" {stream.name}   {sizes}   detail: {DETAILS[self.list.detail]}"
        self.query_one("#head", Static).update(head)
        hidden = "   receivers hidden" if browser.hide_receivers else ""
        self.query_one("#status", Static).update(f" {self._busy or self._where()}{hidden}")

    def _where(self) -> str:
        line, browser = self.list.line, self.list.browser
        if line is None or browser is None:
            return ""
        if line.relation is None:
            return "space opens the fold"
        with browser.lock:
            return self._work.where(browser, line)
