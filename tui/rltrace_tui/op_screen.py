"""The third screen: one op on both sides, with the ops upstream of its inputs."""

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, Static
from textual.widgets.option_list import Option
from textual.worker import Worker, WorkerState, get_current_worker

from rltrace.diff.base.findings import row_at
from rltrace.diff.display.browser import BrowserLine
from rltrace.query.op_pair import OpPair
from rltrace.query.values import OpValues, op_values
from rltrace_tui import diff_text, op_text
from rltrace_tui.app_protocol import KeyGuard, copy, host
from rltrace_tui.data import DataSource, StreamPairData
from rltrace_tui.editor import edit
from rltrace_tui.messages import OpRead, ValuesRead, WentUpstream, read_op
from rltrace_tui.option_list import Choices
from rltrace_tui.pane import Pane

EXPLAINED = (
    "Op: one op on both sides. Enter on an input goes upstream, past views and copies, to the op that wrote it; "
    "Backspace goes back down. Digests are 64-bit hashes: equal digests are equal bytes."
)
VALUES = (
    "Values: recorded tensors of the op (--values), both sides next to each other; the elements that differ most "
    "come first. ULP is the number of representable numbers between the two: 1 for neighbours. An element with – "
    "has no distance: it holds a NaN or an infinity."
)

UNWRAPPED = 10_000
"""Columns of copied text, in which commands stay on one line."""


class OpScreen(KeyGuard, Screen[None]):
    """One op."""

    explained = EXPLAINED
    AUTO_FOCUS = "#inputs"
    BINDINGS = [  # noqa: RUF012
        Binding("enter", "upstream", "Upstream", id="op.upstream", tooltip="The op that wrote this input"),
        Binding("backspace,u", "down", "Back", id="op.down", tooltip="Back down to the previous op"),
        Binding("v", "values", "Values", id="op.values", tooltip="Recorded values, or back to the rest"),
        Binding("l", "list", "List", id="op.list", tooltip="This op among its neighbours"),
        Binding("o", "edit", "Source", show=False, id="op.edit", tooltip="Open the source line in $EDITOR"),
        Binding("y", "copy", "Copy", show=False, id="op.copy", tooltip="Copy all of this as text (over OSC 52)"),
    ]

    def __init__(self, source: DataSource, stream: str, a: int | None, b: int | None) -> None:
        super().__init__()
        self._source = source
        self._stream_name = stream
        self._at = (a, b)
        self._history: list[tuple[int | None, int | None]] = []
        self._pair: OpPair | None = None
        self._values: tuple[OpValues, tuple[str, ...]] | None = None
        self._trouble = ""

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Choices(id="inputs", markup=False)
        with Horizontal(id="about"):
            yield Pane("Op", EXPLAINED, "details", self._details)
            yield Pane("Values", VALUES, "values", self._value_lines)
        yield Static("rltrace needs 60 columns and 16 lines", id="small")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self._read()

    def show(self, a: int | None, b: int | None) -> None:
        """Show another op, from which Backspace returns."""
        if (a, b) != self._at:
            self._history.append(self._at)
            self._at = (a, b)
            self._read()

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        self._pair, self._values, self._trouble = None, None, ""
        self.query_one("#head", Static).update(self._head())
        self._load(self._at)

    @work(thread=True, exclusive=True, group="op", exit_on_error=False)
    def _load(self, at: tuple[int | None, int | None]) -> None:
        with self._source.prioritized():
            self._get(at)

    def _get(self, at: tuple[int | None, int | None]) -> None:
        worker, stream = get_current_worker(), self._source.stream(self._stream_name)
        message = read_op(stream, *at)
        if message.pair is None or not worker.is_cancelled:
            self.post_message(message)
        if message.pair is None or worker.is_cancelled:
            return
        with stream.browser.lock:
            rows = [None if k is None else row_at(v, k) for v, k in zip(stream.views, at, strict=True)]
        if worker.is_cancelled:
            return
        with self._source.values_lock:
            found = op_values(rows[0], rows[1])
        shown = next(row for row in rows if row is not None)
        commands = () if found.any_recorded else self._source.recording_commands(shown)
        if not worker.is_cancelled:
            self.post_message(ValuesRead(at, found, commands))

    def on_op_read(self, message: OpRead) -> None:
        if message.at == self._at:
            self._pair, self._trouble = message.pair, message.trouble
            self._redraw()

    def on_values_read(self, message: ValuesRead) -> None:
        if message.at == self._at:
            self._values = message.values, message.commands
            self.query_one("#values", Pane).draw(self._value_lines)

    def _redraw(self) -> None:
        self._draw_inputs()
        self.query_one("#details", Pane).draw(self._details)
        self.query_one("#values", Pane).draw(self._value_lines)
        self.query_one("#head", Static).update(self._head())
        self.refresh_bindings()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state == WorkerState.ERROR and event.worker.error is not None:
            host(self).fail(event.worker.error)

    # --- drawing ------------------------------------------------------------------------------------------------------

    def _head(self) -> Content:
        a, b = self._at
        pair = (("A", a), ("B", b)) if self._source.is_pair else (("op", a),)
        rows = (
            f"op {a:,}"
            if a == b and a is not None
            else "   ".join(f"{side} {'–' if row is None else f'{row:,}'}" for side, row in pair)
        )
        depth = f"   {len(self._history)} down" if self._history else ""
        sides = [] if self._pair is None else [line.op for line in (self._pair.a, self._pair.b) if line is not None]
        return Content.assemble(" ", (" | ".join(dict.fromkeys(sides)), "bold"), f"   {rows}{depth}")

    def _draw_inputs(self) -> None:
        options = self.query_one("#inputs", Choices)
        options.clear_options()
        options.border_title = "Inputs (Enter walks upstream)"
        if self._pair is None or not self._pair.inputs:
            options.add_option(Option("no tensor inputs", disabled=True))
            return
        options.add_options([Option(op_text.input_text(entry)) for entry in self._pair.inputs])
        options.highlighted = 0

    def _details(self, width: int) -> diff_text.Lines:
        if self._trouble:
            return diff_text.labelled("damage", self._trouble, width, "$text-warning")
        return (
            [diff_text.plain("reading …", "$text-muted")] if self._pair is None else op_text.op_lines(self._pair, width)
        )

    def _value_lines(self, width: int) -> diff_text.Lines:
        if self._values is None:
            return [] if self._trouble else [diff_text.plain("reading …", "$text-muted")]
        return op_text.values_lines(*self._values, width)

    # --- keys ---------------------------------------------------------------------------------------------------------

    def reason(self, action: str, parameters: tuple[object, ...]) -> str:
        if action == "down" and not self._history:
            return "this is where you began"
        if action in ("edit", "copy", "upstream", "values") and self._pair is None:
            return self._trouble or "the op is not loaded yet"
        if action == "list":
            return self._source.no_ops_reason
        if action == "upstream" and self._pair is not None and not self._pair.inputs:
            return "this op has no tensor inputs"
        return ""

    def on_option_list_option_selected(self, event: Choices.OptionSelected) -> None:
        self._walk(event.option_index)

    def action_upstream(self) -> None:
        self._walk(self.query_one("#inputs", Choices).highlighted or 0)

    def _walk(self, place: int) -> None:
        if self._pair is not None and place < len(self._pair.inputs):
            self._look_upstream(self._at, place)

    @work(thread=True, exclusive=True, group="op", exit_on_error=False)
    def _look_upstream(self, at: tuple[int | None, int | None], place: int) -> None:
        stream = self._source.stream(self._stream_name)
        with stream.browser.lock:
            found = stream.pairs.upstream(*at, place)
        if not get_current_worker().is_cancelled:
            self.post_message(WentUpstream(place, found))

    def on_went_upstream(self, message: WentUpstream) -> None:
        found = message.found
        if found is None:
            self.notify(f"input {message.place}: no recorded op wrote it", severity="warning")
            return
        if found.passed:
            self.notify(f"past {found.passed} view{'s' if found.passed > 1 else ''} or copies")
        self.show(found.a, found.b)

    def action_down(self) -> None:
        self._at = self._history.pop()
        self._read()

    def action_values(self) -> None:
        self.toggle_class("-values")
        shown = self.query_one("#values" if self.has_class("-values") else "#details", Pane)
        shown.focus()

    def action_list(self) -> None:
        host(self).show_ops_at(self._stream_name, *self._at)

    def action_edit(self) -> None:
        if self._pair is not None:
            edit(self.app, self._pair.shown.stack, self._pair.paths)

    def action_copy(self) -> None:
        if self._pair is None:
            return
        inputs = [op_text.input_text(entry) for entry in self._pair.inputs]
        lines = [line.plain.rstrip() for line in (*self._details(UNWRAPPED), *self._value_lines(UNWRAPPED))]
        copy(self.app, "\n".join([self._head().plain.strip(), *inputs, *lines]), "the op is")


# --- preview ----------------------------------------------------------------------------------------------------------

PREVIEW_EXPLAINED = "Under the cursor: this op in short. Enter shows all of it."
PAUSE = 0.06
"""Seconds that the cursor rests before its op is read."""


class Preview(Pane):
    """The op under the cursor, beside the list if the terminal is large enough."""

    def __init__(self, source: DataSource, id: str) -> None:
        super().__init__("", PREVIEW_EXPLAINED, id)
        self._source = source
        self._target: tuple[StreamPairData, int | None, int | None] | None = None
        self.can_focus = False

    def show(self, stream: StreamPairData, line: BrowserLine | None) -> None:
        """Show the op of a line, once the cursor rests on it."""
        target = None if line is None or line.relation is None else (stream, line.a, line.b)
        if not self.display or target == self._target:
            return
        self._target = target
        if target is None:
            self.draw(lambda _: [])
        else:
            self.set_timer(PAUSE, lambda: self._load(target) if target == self._target else None)

    @work(thread=True, exclusive=True, group="preview", exit_on_error=False)
    def _load(self, target: tuple[StreamPairData, int | None, int | None]) -> None:
        message = read_op(*target)
        if message.pair is None or not get_current_worker().is_cancelled:
            self.post_message(message)

    def on_op_read(self, message: OpRead) -> None:
        message.stop()
        if self._target is None or message.at != self._target[1:]:
            return
        pair = message.pair
        self.border_title = "" if pair is None else pair.shown.op
        if pair is None:
            self.draw(lambda width: diff_text.labelled("damage", message.trouble, width, "$text-warning"))
            return

        def lines(width: int) -> diff_text.Lines:
            inputs = [Content(op_text.input_text(entry)[:width]) for entry in pair.inputs[:3]]
            return [*inputs, *op_text.op_lines(pair, width)]

        self.draw(lines)
