"""The second screen: the runs op by op, folded where they are identical (of one trace: step by step)."""

from __future__ import annotations

import re
from collections.abc import Callable

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.widgets import Footer, Static
from textual.worker import Worker, WorkerState, get_current_worker

from rltrace.diff.pieces import Piece
from rltrace.errors import HoleError, SelectorError
from rltrace.report.seek import next_row
from rltrace.select import Selector, escape, parse_selectors
from rltrace.trace.schema import Phase
from rltrace_tui.cells import DETAILS
from rltrace_tui.editor import edit
from rltrace_tui.host import Reasoned, copy, host
from rltrace_tui.news import Arrived, Looked, Opened, Sought
from rltrace_tui.oplist import OpList
from rltrace_tui.picker import Picker
from rltrace_tui.preview import Preview
from rltrace_tui.prompt import Prompt
from rltrace_tui.work import Source, Stream

FIND, GO, FILTER = "Find", "Go to", "Show only"
SELECTORS = "op=*addmm, module=critic*, site=train.py:*, phase=backward, kernel=*gemm*, step=3:5"
PHASES = ["all phases", *(phase.name.lower() for phase in Phase)]


class OpsScreen(Reasoned, Screen[None]):
    """The ops of one stream at a time."""

    AUTO_FOCUS = "#oplist"
    BINDINGS = [  # noqa: RUF012
        Binding("enter", "inspect", "Open", id="ops.inspect", tooltip="This op in full; opens a fold"),
        Binding("n", "seek(1)", "Next", id="ops.next", tooltip="Next op at which a difference may begin"),
        Binding("N", "seek(-1)", "Previous ≠", show=False, id="ops.previous", tooltip="Previous such op"),
        Binding("space,f", "fold", "Fold", show=False, id="ops.toggle", tooltip="Open or fold what the cursor is on"),
        Binding("slash", "find", "Find", id="ops.find", tooltip="Find ops by a selector: op=*mm,module=critic*"),
        Binding("full_stop", "again(1)", "Find next", key_display=".", show=False, id="ops.again",
                tooltip="Find again"),
        Binding("comma", "again(-1)", "Find previous", key_display=",", show=False, id="ops.back",
                tooltip="Find again, backwards"),
        Binding("g", "go", "Go", id="ops.go", tooltip="Go to an op (184213, or b184214) or a step (s37)"),
        Binding("i", "hide", "Receivers", show=False, id="ops.hide", tooltip="Hide ops that only pass a difference on"),
        Binding("p", "phase", "Phase", show=False, id="ops.phase", tooltip="Show the ops of one phase only"),
        Binding("w", "filter", "Filter", id="ops.filter", tooltip="Show only what a selector finds"),
        Binding("d", "detail", "Detail", show=False, id="ops.detail", tooltip="Show place, kernel, module or phase"),
        Binding("s", "stream", "Stream", show=False, id="ops.stream", tooltip="Another stream of ops"),
        Binding("o", "edit", "Source", show=False, id="ops.edit", tooltip="Open the source line in $EDITOR"),
        Binding("y", "copy", "Copy", show=False, id="ops.copy", tooltip="Copy this line (over OSC 52)"),
        Binding("escape", "leave", "Back", show=False, id="ops.leave", tooltip="Stop looking, or go back"),
    ]  # fmt: skip

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source
        self._selector: Selector | None = None
        self._text = ""
        self._busy = ""
        self.list = OpList(id="oplist")
        self._asked: tuple[str, int | None, int | None] | None = None
        """Where to go once there is a screen."""
        self._is_there = False

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield self.list
        yield Preview(self._source, id="preview")
        yield Static(id="status")
        yield Prompt(id="prompt")
        yield Static("rltrace needs 60 columns and 16 lines", id="small")
        yield Footer(show_command_palette=False, compact=True)

    def reason(self, action: str, parameters: tuple[object, ...]) -> str:
        alone = self.list.browser is not None and self.list.browser.alone
        if action in ("seek", "hide") and alone:
            return "one trace by itself differs from nothing"
        if action == "stream" and len(self._source.streams) < 2:
            return "there is one stream of ops only"
        if action == "edit" and (self.list.line is None or self.list.line.relation is None):
            return "a fold has no source line"
        if action == "again" and self._selector is None:
            return "nothing has been looked for yet: / asks what"
        if action not in ("leave", "find") and self.list.stream is None:
            return "the ops are not there yet"
        return ""

    # --- arriving -----------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        self._is_there = True
        if self._asked is not None:
            asked, self._asked = self._asked, None
            self.go(*asked)

    def on_screen_resume(self) -> None:
        shown, names = self._source.shown, self._source.streams
        if self._asked is not None or self.list.stream is not None or self._busy or not names:
            return
        if shown is not None and shown.stream in names:
            self.go(shown.stream, shown.a_index, shown.b_index)
        else:
            self.go(names[0], None, None)

    def go(self, name: str, a: int | None, b: int | None) -> None:
        """Show a stream, the cursor on a row of it."""
        if not self._is_there:
            self._asked = (name, a, b)
            return
        self._say("preparing the ops …")
        self._show(name, ("a", a) if a is not None else None if b is None else ("b", b))

    @work(thread=True, exclusive=True, group="ops", exit_on_error=False)
    def _show(self, name: str, row: tuple[str, int] | None) -> None:
        with self._source.awaited():
            self._get(name, row)

    def _get(self, name: str, row: tuple[str, int] | None) -> None:
        worker, stream = get_current_worker(), self._source.stream(name)
        browser = stream.browser
        if row is None:
            self.post_message(Arrived(stream, 0))
            return
        before = browser.line_of(*row) if len(browser) else 0
        self.post_message(Arrived(stream, before, more=True))  # what is there is drawn, then what is being read
        line = browser.reveal(*row) if len(browser) else 0
        said = "that op is hidden here; the next one is shown" if browser.is_hidden(*row) else ""
        if not worker.is_cancelled:
            self.post_message(Arrived(stream, line, said=said))

    def on_arrived(self, message: Arrived) -> None:
        if self.list.stream is not message.stream:
            self.list.show(message.stream)
        self._busy = "reading …" if message.more else ""
        self.list.changed(message.line)
        if message.said:
            self.notify(message.said)
        self.refresh_bindings()

    # --- one line -----------------------------------------------------------------------------------------------------

    def action_inspect(self) -> None:
        line = self.list.line
        if line is None:
            return
        if line.relation is None:
            self.action_fold()
        elif self.list.stream is not None:
            host(self).show_op(self.list.stream.name, line.a, line.b)

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
        elif piece.equal and not browser.is_filtered:
            self._put(Opened(stream, at, piece, browser.opened(piece)))
        else:
            self._say("reading …")
            self._open(stream, at, piece)

    @work(thread=True, exclusive=True, group="ops", exit_on_error=False)
    def _open(self, stream: Stream, at: int, piece: Piece) -> None:
        with self._source.awaited():
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

    def action_copy(self) -> None:
        if self.list.line is not None:
            strip = self.list.render_line(self.list.cursor - self.list.scroll_offset.y)
            copy(self.app, " ".join(strip.text.split()), "the line is")

    def action_edit(self) -> None:
        stream, line = self.list.stream, self.list.line
        if stream is not None and line is not None and line.relation is not None:
            self._look(stream, line.a, line.b)

    @work(thread=True, exclusive=True, group="ops", exit_on_error=False)
    def _look(self, stream: Stream, a: int | None, b: int | None) -> None:
        try:
            with stream.browser.lock:
                pair = stream.pairs.pair(a, b)
        except HoleError as error:
            self.post_message(Looked((a, b), None, str(error)))
            return
        self.post_message(Looked((a, b), pair))

    def on_looked(self, message: Looked) -> None:
        message.stop()
        if message.pair is None:
            self.notify(message.trouble, severity="warning")
        else:
            edit(self.app, message.pair.shown.stack, message.pair.paths)

    def action_detail(self) -> None:
        self.list.detail = (self.list.detail + 1) % len(DETAILS)
        self._draw_status()

    # --- looking for something ----------------------------------------------------------------------------------------

    def action_seek(self, direction: int) -> None:
        stream, start = self.list.stream, self.list.cursor
        if stream is not None:
            what = "op at which a difference may begin"
            self._seek(stream, lambda stop: stream.browser.seek(start, direction, stop), what)

    def action_find(self) -> None:
        self.query_one(Prompt).ask(FIND, SELECTORS, self._text, asked_for)

    def action_again(self, direction: int) -> None:
        stream, selector = self.list.stream, self._selector
        start = self._start(direction)
        if stream is None or selector is None or start is None:
            return
        side, first = start
        view = stream.browser.a if side == "a" else stream.browser.b

        chosen = stream.within_filter(selector)

        def look(stop: Callable[[], bool]) -> tuple[str, int] | None:
            found = next_row(view.process, view.stream, chosen, first, direction, stop, stream.browser.lock)
            return None if found is None else (side, found)

        self._seek(stream, look, self._text)

    def _start(self, direction: int) -> tuple[str, int] | None:
        """From which row on to look: the one after (before) what is under the cursor, on a side that has it."""
        line = self.list.line
        if line is None:
            return None
        side = "a" if line.a is not None and (line.piece is None or line.piece.a1 > line.piece.a0) else "b"
        row = (line.a if side == "a" else line.b) or 0
        if line.relation is not None:
            return side, row + direction
        return side, row if direction > 0 else row - 1

    @work(thread=True, exclusive=True, group="ops", exit_on_error=False)
    def _seek(self, stream: Stream, look: Callable[[Callable[[], bool]], tuple[str, int] | None], what: str) -> None:
        worker = get_current_worker()
        self.app.call_from_thread(self._say, "looking …  (Escape stops)")
        wrong = ""
        try:
            found = look(lambda: worker.is_cancelled)
            if found is not None:
                stream.browser.reveal(*found)
        except SelectorError as error:
            found, wrong = None, str(error)
        if not worker.is_cancelled:
            self.post_message(Sought(stream, found, what, wrong))

    def on_sought(self, message: Sought) -> None:
        self._busy = ""
        if self.list.stream is not message.stream:
            return
        if message.found is None:
            severity: SeverityLevel = "warning" if message.wrong else "information"
            self.notify(message.wrong or f"no further {message.what}", severity=severity)
            self._draw_status()
        else:
            self.list.changed(message.stream.browser.line_of(*message.found))

    def action_go(self) -> None:
        self.query_one(Prompt).ask(GO, "184213 (row of A), b184214 (row of B), s37 (step)", check=place_asked)

    def _go(self, text: str) -> None:
        browser = self.list.browser
        if browser is None:
            return
        kind, number = place_asked(text)
        if kind == "s":
            row = self._source.first_row_of(browser, number)
            target = None if row is None else ("a", row)
        else:
            view = browser.a if kind == "a" else browser.b
            target = (kind, number) if number < view.rows else None
        if target is None:
            self.notify(f"there is no {text.strip()}", severity="warning")
        elif self.list.stream is not None:
            self._say("reading …")
            self._show(self.list.stream.name, target)

    def on_prompt_answered(self, message: Prompt.Answered) -> None:
        if message.question == FILTER:
            self._show_only(message.answer)
        elif message.question == GO and message.answer.strip():
            self._go(message.answer)
        elif message.question == FIND and message.answer.strip():
            self._text = as_selector(message.answer)
            self._selector = asked_for(message.answer)
            self.refresh_bindings()
            self.action_again(1)

    # --- what is shown ------------------------------------------------------------------------------------------------

    def action_hide(self) -> None:
        browser, line = self.list.browser, self.list.line
        if browser is None or line is None:
            return
        browser.set_hide_receivers(not browser.hide_receivers)
        side, row = ("a", line.a) if line.a is not None else ("b", line.b)
        self.list.changed(browser.line_of(side, row or 0))

    def action_phase(self) -> None:
        word = self._only.removeprefix("phase=")
        at = PHASES.index(word) if word in PHASES else 0

        def chosen(number: int | None) -> None:
            if number is not None:
                self._show_only(f"phase={PHASES[number]}" if number else "")

        self.app.push_screen(Picker("Phase", PHASES, at), chosen)

    def action_filter(self) -> None:
        self.query_one(Prompt).ask(FILTER, f"{SELECTORS}; empty: everything", self._only, asked_for)

    @property
    def _only(self) -> str:
        return self.list.stream.only if self.list.stream is not None else ""

    def _show_only(self, text: str) -> None:
        stream = self.list.stream
        if stream is not None:
            self._say("reading …")
            self._apply(stream, as_selector(text) if text.strip() else "", self._row())

    def _row(self) -> tuple[str, int]:
        line = self.list.line
        if line is None:
            return "a", 0
        return ("a", line.a) if line.a is not None else ("b", line.b or 0)

    @work(thread=True, exclusive=True, group="ops", exit_on_error=False)
    def _apply(self, stream: Stream, text: str, row: tuple[str, int]) -> None:
        said = ""
        try:
            stream.filter(text)
        except SelectorError as error:
            said = str(error)
        self.post_message(Arrived(stream, stream.browser.line_of(*row) if len(stream.browser) else 0, said=said))

    def action_stream(self) -> None:
        names = self._source.streams
        at = names.index(self.list.stream.name) if self.list.stream is not None else 0

        def chosen(number: int | None) -> None:
            if number is not None and number != at:
                self.go(names[number], None, None)

        self.app.push_screen(Picker("Stream", [f"{name}   {self._source.sizes(name)}" for name in names], at), chosen)

    def action_leave(self) -> None:
        if self._busy:
            self.workers.cancel_group(self, "ops")
            self._say("")
        else:
            host(self).leave()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state == WorkerState.ERROR and event.worker.error is not None:
            self._busy = ""
            host(self).fail(event.worker.error)

    # --- drawing ------------------------------------------------------------------------------------------------------

    def on_op_list_moved(self) -> None:
        self._draw_status()
        line, stream = self.list.line, self.list.stream
        if stream is not None:
            self.query_one(Preview).show(stream, line)

    def _say(self, what: str) -> None:
        self._busy = what
        self._draw_status()

    def _draw_status(self) -> None:
        browser, stream = self.list.browser, self.list.stream
        if browser is None or stream is None:
            self.query_one("#status", Static).update(f" {self._busy}")
            return
        head = f" {stream.name}   {self._source.sizes(stream.name)}   detail: {DETAILS[self.list.detail]}"
        hidden = "   receivers hidden" if browser.hide_receivers else ""
        only = f"   only {stream.only}" if stream.only else ""
        self.query_one("#head", Static).update(head + only + hidden)
        self.query_one("#status", Static).update(f" {self._busy or self._where()}")

    def _where(self) -> str:
        line = self.list.line
        if line is None:
            return "no op is left: w changes the filter" if self._only else "no op"
        if line.relation is None:
            return "space opens the fold"
        cell = self.list.cell
        return "…" if cell is None else cell.where


def as_selector(text: str) -> str:
    """A bare word is part of an operator's name."""
    return text if "=" in text or text.strip() == "all" else f"op=*{escape(text.strip())}*"


def asked_for(text: str) -> Selector:
    """Raises SelectorError, which points at a character of ``text``."""
    return parse_selectors([as_selector(text)])


def place_asked(text: str) -> tuple[str, int]:
    """("a" or "b", row) or ("s", step). Raises SelectorError."""
    asked = re.fullmatch(r"\s*(s|step|a|b)?\s*([0-9][0-9,_]*)\s*", text, re.IGNORECASE)
    if asked is None:
        raise SelectorError("a row (184213, b184214) or a step (s37) is wanted")
    return (asked[1] or "a").lower()[0], int(re.sub("[,_]", "", asked[2]))
