"""The second screen: the runs op by op, folded where they are identical (of one trace: step by step)."""

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.widgets import Footer, Static
from textual.worker import Worker, WorkerState

from rltrace.diff.display.segments import Piece
from rltrace.errors import SelectorError
from rltrace.trace.format.schema import Phase
from rltrace_tui.app_protocol import copy, host
from rltrace_tui.data import StreamPairData
from rltrace_tui.editor import edit
from rltrace_tui.input_parser import EXAMPLES, expand_selector, parse_selector
from rltrace_tui.messages import Arrived, Opened, OpRead, read_op
from rltrace_tui.navigation import FIND, GO, NavigationScreen
from rltrace_tui.op_screen import Preview
from rltrace_tui.option_list import Picker
from rltrace_tui.prompt import Prompt
from rltrace_tui.row_cache import DETAILS

FILTER = "Show only"
PHASES = ["all phases", *(phase.name.lower() for phase in Phase)]


class OpsScreen(NavigationScreen):
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
        Binding("i", "hide", "Receivers", show=False, id="ops.hide", tooltip="Hide propagated differences"),
        Binding("p", "phase", "Phase", show=False, id="ops.phase", tooltip="Show the ops of one phase only"),
        Binding("w", "filter", "Filter", id="ops.filter", tooltip="Show only what a selector matches"),
        Binding("d", "detail", "Detail", show=False, id="ops.detail", tooltip="Show place, kernel, module or phase"),
        Binding("s", "stream", "Stream", show=False, id="ops.stream", tooltip="Another stream of ops"),
        Binding("o", "edit", "Source", show=False, id="ops.edit", tooltip="Open the source line in $EDITOR"),
        Binding("y", "copy", "Copy", show=False, id="ops.copy", tooltip="Copy this line (over OSC 52)"),
        Binding("escape", "leave", "Back", show=False, id="ops.leave", tooltip="Stop looking, or go back"),
    ]  # fmt: skip

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield self.list
        yield Preview(self._source, id="preview")
        yield Static(id="status")
        yield Prompt(id="prompt")
        yield Static("rltrace needs 60 columns and 16 lines", id="small")
        yield Footer(show_command_palette=False, compact=True)

    def reason(self, action: str, parameters: tuple[object, ...]) -> str:
        is_single = self.list.browser is not None and self.list.browser.is_single
        if action in ("seek", "hide") and is_single:
            return "one trace has no differences"
        if action == "stream" and len(self._source.streams) < 2:
            return "there is only one stream of ops"
        if action == "edit" and (self.list.line is None or self.list.line.relation is None):
            return "a fold has no source line"
        if action == "again" and self._selector is None:
            return "there is no search yet: / starts one"
        if action not in ("leave", "find") and self.list.stream is None:
            return "the ops are not loaded yet"
        return ""

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
            self._set_busy("reading …")
            self._open(stream, at, piece)

    @work(thread=True, exclusive=True, group="ops", exit_on_error=False)
    def _open(self, stream: StreamPairData, at: int, piece: Piece) -> None:
        with self._source.prioritized():
            self.post_message(Opened(stream, at, piece, stream.browser.opened(piece)))

    def on_opened(self, message: Opened) -> None:
        self._busy = ""
        self._put(message)

    def _put(self, message: Opened) -> None:
        browser = message.stream.browser
        if message.new and message.new[0].trouble and not message.piece.trouble:
            self.notify(message.new[0].trouble, severity="warning")
        browser.replace_piece(message.at, message.piece, message.new)
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
    def _look(self, stream: StreamPairData, a: int | None, b: int | None) -> None:
        self.post_message(read_op(stream, a, b))

    def on_op_read(self, message: OpRead) -> None:
        message.stop()
        if message.pair is None:
            self.notify(message.trouble, severity="warning")
        else:
            edit(self.app, message.pair.shown.stack, message.pair.paths)

    def action_detail(self) -> None:
        self.list.detail = (self.list.detail + 1) % len(DETAILS)
        self.draw_status()

    def on_prompt_answered(self, message: Prompt.Answered) -> None:
        if message.question == FILTER:
            self._show_only(message.answer)
        elif message.question == GO and message.answer.strip():
            self._go(message.answer)
        elif message.question == FIND and message.answer.strip():
            self._text = expand_selector(message.answer)
            self._selector = parse_selector(message.answer)
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
        phase = self._filter_text.removeprefix("phase=")
        at = PHASES.index(phase) if phase in PHASES else 0

        def chosen(number: int | None) -> None:
            if number is not None:
                self._show_only(f"phase={PHASES[number]}" if number else "")

        self.app.push_screen(Picker("Phase", PHASES, at), chosen)

    def action_filter(self) -> None:
        self.query_one(Prompt).ask(FILTER, f"{EXAMPLES}; empty: everything", self._filter_text, parse_selector)

    @property
    def _filter_text(self) -> str:
        return self.list.stream.filter_text if self.list.stream is not None else ""

    def _show_only(self, text: str) -> None:
        stream = self.list.stream
        if stream is not None:
            self._set_busy("reading …")
            self._apply(stream, expand_selector(text) if text.strip() else "", self._row())

    def _row(self) -> tuple[str, int]:
        line = self.list.line
        if line is None:
            return "a", 0
        return ("a", line.a) if line.a is not None else ("b", line.b or 0)

    @work(thread=True, exclusive=True, group="ops", exit_on_error=False)
    def _apply(self, stream: StreamPairData, text: str, row: tuple[str, int]) -> None:
        note = ""
        try:
            stream.filter(text)
        except SelectorError as error:
            note = str(error)
        self.post_message(Arrived(stream, stream.browser.line_of(*row) if len(stream.browser) else 0, note=note))

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
            self._set_busy("")
        else:
            host(self).action_leave()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state == WorkerState.ERROR and event.worker.error is not None:
            self._busy = ""
            host(self).fail(event.worker.error)

    # --- drawing ------------------------------------------------------------------------------------------------------

    def on_op_list_moved(self) -> None:
        self.draw_status()
        line, stream = self.list.line, self.list.stream
        if stream is not None:
            self.query_one(Preview).show(stream, line)

    def draw_status(self) -> None:
        browser, stream = self.list.browser, self.list.stream
        if browser is None or stream is None:
            self.query_one("#status", Static).update(f" {self._busy}")
            return
        head = f" {stream.name}   {self._source.sizes(stream.name)}   detail: {DETAILS[self.list.detail]}"
        hidden = "   propagated hidden" if browser.hide_receivers else ""
        only = f"   only {stream.filter_text}" if stream.filter_text else ""
        self.query_one("#head", Static).update(head + only + hidden)
        self.query_one("#status", Static).update(f" {self._busy or self._where()}")

    def _where(self) -> str:
        line = self.list.line
        if line is None:
            return "no op is left: w changes the filter" if self._filter_text else "no op"
        if line.relation is None:
            return "space opens the fold"
        cell = self.list.cell
        return "…" if cell is None else cell.where
