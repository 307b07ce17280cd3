"""The third screen: one op as both sides ran it, and the way upstream from its inputs, with a way back."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, OptionList, Static
from textual.widgets.option_list import Option

from rltrace.diff.model import Pair
from rltrace.errors import HoleError
from rltrace.report.oplist import OpLine
from rltrace.report.ops import value_json
from rltrace.report.pair import OpPair, PairedInput
from rltrace_tui import words
from rltrace_tui.editor import edit
from rltrace_tui.pane import Pane
from rltrace_tui.work import Work

EXPLAINED = (
    "Op: one op as both sides ran it. Enter on an input walks upstream, past views and copies, to the op that made its"
    " numbers; Backspace goes back down. Digests are 64-bit fingerprints: equal digests are equal bytes."
)
MATCHES = {
    "read": ("=", "read here on both sides, equal"),
    "linked": ("=", "written by matching ops of this step"),
    "differ": ("≠", "differs"),
    "unknown": ("?", "not known whether equal"),
    "": (" ", ""),
}


class OpScreen(Screen[None]):
    """One op."""

    explained = EXPLAINED
    AUTO_FOCUS = "#inputs"
    BINDINGS = [  # noqa: RUF012
        Binding("enter", "upstream", "Upstream", id="op.upstream", tooltip="The op that made this input's numbers"),
        Binding("backspace,u", "down", "Back", id="op.down", tooltip="Back to where the walk came from"),
        Binding("l", "list", "List", id="op.list", tooltip="This op among its neighbours"),
        Binding("o", "edit", "Source", id="op.edit", tooltip="Open the source line in $EDITOR"),
        Binding("y", "copy", "Copy", id="op.copy", tooltip="Copy all of this as text (over OSC 52)"),
    ]

    def __init__(self, work: Work, stream: str, a: int | None, b: int | None) -> None:
        super().__init__()
        self._work = work
        self._stream = work.stream(stream)
        self._at = (a, b)
        self._way: list[tuple[int | None, int | None]] = []
        self._pair: OpPair | None = None
        self._trouble = ""

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield OptionList(id="inputs")
        yield Pane("Op", EXPLAINED, "details", self._details)
        yield Static("rltrace needs 60 columns and 16 lines", id="small")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._load()

    def show(self, a: int | None, b: int | None) -> None:
        """Another op, from which Backspace leads here."""
        if (a, b) != self._at:
            self._way.append(self._at)
            self._at = (a, b)
            self._load()

    def _load(self) -> None:
        try:
            with self._stream.browser.lock:
                self._pair = self._stream.pairs.pair(*self._at)
            self._trouble = ""
        except HoleError as error:
            self._pair, self._trouble = None, str(error)
        self._draw_inputs()
        self.query_one("#details", Pane).draw(self._details)
        self.query_one("#head", Static).update(self._head())
        self.refresh_bindings()

    # --- drawing ------------------------------------------------------------------------------------------------------

    def _head(self) -> Content:
        a, b = self._at
        rows = (
            f"op {a:,}"
            if a == b and a is not None
            else "   ".join(f"{side} {'–' if row is None else f'{row:,}'}" for side, row in (("A", a), ("B", b)))
        )
        way = f"   {len(self._way)} down" if self._way else ""
        return Content.assemble(" ", (self._pair.shown.op if self._pair else "", "bold"), f"   {rows}{way}")

    def _draw_inputs(self) -> None:
        options = self.query_one("#inputs", OptionList)
        options.clear_options()
        options.border_title = "Inputs (Enter walks upstream)"
        if self._pair is None or not self._pair.inputs:
            options.add_option(Option("no tensor inputs", disabled=True))
            return
        options.add_options([Option(input_text(entered)) for entered in self._pair.inputs])
        options.highlighted = 0

    def _details(self, width: int) -> words.Lines:
        pair = self._pair
        if pair is None:
            return words.labelled("damage", self._trouble, width, "$text-warning")
        shown = pair.shown
        lines: words.Lines = []
        for number in range(max(len(line.outputs) for line in (pair.a, pair.b) if line)):
            outputs = Pair(*(_nth(line.outputs, number) if line else None for line in (pair.a, pair.b)))
            lines += words.pair_lines("output", outputs, width)
        lines += words.pair_lines("number", _both(pair, lambda line: _value(line.value)), width)
        if any((pair.numbers.a, pair.numbers.b)):
            lines += words.pair_lines("scalars", pair.numbers, width)
        if pair.skeleton.a != pair.skeleton.b:
            lines += words.pair_lines("called", pair.skeleton, width)
        lines += words.pair_lines("rng", _both(pair, lambda line: line.rng), width)
        lines += words.pair_lines("kernel", _both(pair, lambda line: line.kernel or None), width)
        lines += words.pair_lines("module", _both(pair, lambda line: line.module or None), width)
        lines += words.labelled("when", f"step {shown.step:,}, {shown.phase}", width)
        lines += words.labelled("flags", ", ".join(shown.flags), width) if shown.flags else []
        for number, frame in enumerate(shown.stack):
            label = "stack" if number == 0 else ""
            lines += words.labelled(label, f"{frame.file}:{frame.line} {frame.function}", width)
            lines += words.labelled("", "  " + " ".join(frame.source.split()), width, "$text-muted")
        return lines

    # --- keys ---------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "down":
            return True if self._way else None
        if action in ("edit", "copy"):
            return True if self._pair is not None else None
        return True

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self._walk(event.option_index)

    def action_upstream(self) -> None:
        self._walk(self.query_one("#inputs", OptionList).highlighted or 0)

    def _walk(self, place: int) -> None:
        if self._pair is None or place >= len(self._pair.inputs):
            return
        with self._stream.browser.lock:
            found = self._stream.pairs.upstream(*self._at, place)
        if found is None:
            self.notify(f"input {place}: no recorded op is known to have made it", severity="warning")
            return
        if found.passed:
            self.notify(f"past {found.passed} view{'s' if found.passed > 1 else ''} or copies")
        self.show(found.a, found.b)

    def action_down(self) -> None:
        if self._way:
            self._at = self._way.pop()
            self._load()

    def action_list(self) -> None:
        self.app.show_ops_at(self._stream.name, *self._at)  # type: ignore[attr-defined]

    def action_edit(self) -> None:
        if self._pair is not None:
            edit(self.app, self._pair.shown.stack, self._pair.paths)

    def action_copy(self) -> None:
        if self._pair is None:
            return
        inputs = [input_text(entered) for entered in self._pair.inputs]
        details = [line.plain for line in self._details(100)]
        self.app.copy_to_clipboard("\n".join([self._head().plain.strip(), *inputs, *details]))
        self.notify("the op is copied")


def input_text(entered: PairedInput) -> str:
    """``= input 0  float32[4]  from op 12  read here on both sides, equal``."""
    glyph, what = MATCHES.get(entered.match, ("?", entered.match))
    shown = entered.a or entered.b
    assert shown is not None
    if shown.origin == "overwritten":
        return f"  input {entered.place}  {shown.layout}  only written"
    sides = [side for side in (entered.a, entered.b) if side is not None]
    origins = list(dict.fromkeys(f"op {s.producer:,}" if s.producer is not None else s.origin for s in sides))
    digests = list(dict.fromkeys(s.digest for s in sides if s.digest))
    told = f"  {' | '.join(digests)}" if digests else ""
    return f"{glyph} input {entered.place}  {shown.layout}  from {' | '.join(origins)}{told}  {what}".rstrip()


def _both(pair: OpPair, ask: Callable[[OpLine], str | None]) -> Pair[str]:
    return Pair(*(None if line is None else ask(line) for line in (pair.a, pair.b)))


def _nth(outputs: tuple[str, ...], k: int) -> str | None:
    return outputs[k] if k < len(outputs) else None


def _value(value: bool | int | float | complex | None) -> str | None:
    return None if value is None else str(value_json(value))
