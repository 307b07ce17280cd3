"""One module of two programs: its tensors, their rows, and the op at which it diverges.

Draws results of ``rltrace.extensions.parity``; computes nothing.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, Static
from textual.widgets.option_list import Option

from rltrace.extensions.parity.model import ModuleResult
from rltrace_tui import diff_text, parity_text
from rltrace_tui.app_protocol import KeyGuard, copy, host
from rltrace_tui.option_list import Choices
from rltrace_tui.pane import Pane
from rltrace_tui.parity_data import NAME, ParityWork

MODULE = (
    "Module: for each of its tensors, how many of the rows that both sides have differ, and the largest distance. A "
    "row is the vector of one token, or of one observation. ULP is the number of representable numbers in between."
)
OPS = "Ops of the module: the first that diverges, or those that it is one of. Enter shows one on both sides."
UNWRAPPED = 10_000
"""Columns of copied text."""


class OpsOfModule(Choices):
    """The ops of one module that can be shown."""

    explained = OPS
    BINDINGS = [  # noqa: RUF012
        Binding("enter", "select", "Op", id="module.select", tooltip="The op on both sides"),
    ]


class ModuleScreen(KeyGuard, Screen[None]):
    """One module."""

    explained = MODULE
    AUTO_FOCUS = "#firsts"
    BINDINGS = [  # noqa: RUF012
        Binding("enter", "op", "Op", id="module.op", tooltip="The op on both sides"),
        Binding("y", "copy", "Copy", id="module.copy", tooltip="Copy all of this as text (over OSC 52)"),
    ]

    def __init__(self, work: ParityWork, module: ModuleResult) -> None:
        super().__init__()
        self._work, self._module = work, module
        self._origin = work.origin(module)
        self._ops = parity_text.ops_of(self._origin)

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Pane("Module", MODULE, "module", self._lines)
        yield OpsOfModule(id="firsts", markup=False)
        yield Static("rltrace needs 60 columns and 16 lines", id="small")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        mark = parity_text.glyph(self._module, self._origin)
        head = Content.assemble(f" {mark} ", (str(self._module.path.b), "bold"))
        self.query_one("#head", Static).update(head)
        ops = self.query_one("#firsts", Choices)
        ops.border_title = "The op that diverges" if len(self._ops) < 2 else "One of these ops diverges"
        ops.display = bool(self._ops)
        ops.add_options(Option(parity_text.op_choice(pair, UNWRAPPED)) for pair in self._ops)
        ops.highlighted = 0 if self._ops else None
        if not self._ops:
            self.query_one("#module", Pane).focus()

    def _lines(self, width: int) -> diff_text.Lines:
        return parity_text.module_lines(self._module, self._origin, width)

    # --- keys ---------------------------------------------------------------------------------------------------------

    def reason(self, action: str, parameters: tuple[object, ...]) -> str:
        if action != "op" or self._ops:
            return ""
        if self._origin is not None:
            return "which op of the module it is, is unknown"
        if not self._module.differing:
            return "all rows that both sides computed are equal" if self._module.rows else "none of it was compared"
        return "propagated difference: ≠ marks the modules that diverge independently"

    def on_option_list_option_selected(self, event: Choices.OptionSelected) -> None:
        self._show(event.option_index)

    def action_op(self) -> None:
        self._show(self.query_one("#firsts", Choices).highlighted or 0)

    def _show(self, number: int) -> None:
        pair = self._ops[number]
        host(self).show_op(NAME, *(None if op is None else op.row for op in (pair.a, pair.b)))

    def action_copy(self) -> None:
        lines = [line.plain.rstrip() for line in self._lines(UNWRAPPED)]
        ops = [parity_text.op_choice(pair, UNWRAPPED) for pair in self._ops]
        copy(self.app, "\n".join([*lines, *ops]), "the module is")
