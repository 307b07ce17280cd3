"""The first screen of two programs: the verdict, and every module in execution order.

Draws results of ``rltrace.extensions.parity``; computes nothing.
"""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, Static
from textual.widgets.option_list import Option

from rltrace.extensions.parity.report.compare import parity_document
from rltrace.report.text import document_text
from rltrace_tui import diff_text, parity_text
from rltrace_tui.app_protocol import KeyGuard, copy
from rltrace_tui.module_screen import ModuleScreen
from rltrace_tui.option_list import Choices
from rltrace_tui.pane import Pane
from rltrace_tui.parity_data import ParityWork

VERDICT = (
    "Verdict: the first module whose inputs agree and whose outputs differ, the cause, and what was compared with "
    "what. A is the generator, or the reference; B is the trainer."
)
MODULES = (
    "Modules, each after those that it calls: how many of the rows that both sides computed differ, and the largest "
    "distance. ≠ its inputs agree and its outputs differ, ~ propagated difference, ? none of it could be compared."
)
NARROW = 60
"""Columns before the width is known."""


class ModuleList(Choices):
    """The modules."""

    explained = MODULES
    BINDINGS = [  # noqa: RUF012
        Binding("enter", "select", "Open", id="modules.select", tooltip="The module in full, and its ops"),
    ]


class ModulesScreen(KeyGuard, Screen[None]):
    """Verdict and modules."""

    AUTO_FOCUS = "#modules"
    BINDINGS = [  # noqa: RUF012
        Binding("enter", "open", "Open", id="modules.open", tooltip="The module under the cursor in full, and its ops"),
        Binding("n", "origin(1)", "Next ≠", id="modules.next", tooltip="Next module that diverges independently"),
        Binding("N", "origin(-1)", "Previous ≠", show=False, id="modules.previous",
                tooltip="Previous module that diverges independently"),
        Binding("y", "copy", "Copy", id="modules.copy", tooltip="Copy the report as text (over OSC 52)"),
    ]  # fmt: skip

    def __init__(self, work: ParityWork) -> None:
        super().__init__()
        self._work = work
        self._state = "comparing"

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Pane("Verdict", VERDICT, "parity", self._verdict)
        yield ModuleList(id="modules", markup=False)
        yield Static("rltrace needs 60 columns and 16 lines", id="small")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.redraw()

    def on_resize(self) -> None:
        self._draw_modules()

    def show_state(self, state: str) -> None:
        self._state = state
        self.redraw()

    def redraw(self) -> None:
        """Draw the current result."""
        found = self._work.found
        self.query_one("#parity", Pane).redraw()
        waiting = (self._state.upper(), "bold $text-muted")
        headline = waiting if found is None else diff_text.headline(parity_document(found.report))
        head = Content.assemble(f" rltrace   {self._work.names}   ", headline)
        self.query_one("#head", Static).update(head)
        self._draw_modules()
        self.refresh_bindings()

    def _draw_modules(self) -> None:
        options = self.query_one("#modules", Choices)
        modules = self._work.modules
        at = options.highlighted
        width = options.scrollable_content_region.width or NARROW
        root = parity_text.root_of(modules)
        options.border_title = f"Modules{f' of {root}' if root else ''}: rows that differ, largest distance"
        options.clear_options()
        options.add_options(Option(parity_text.module_line(m, self._work.origin(m), root, width)) for m in modules)
        first = next(iter(self._origins), 0)
        options.highlighted = (at if at is not None else first) if modules else None

    def _verdict(self, width: int) -> diff_text.Lines:
        found = self._work.found
        if found is None:
            waiting = self._state == "comparing"
            return [
                diff_text.plain("Comparing the rows of both …" if waiting else f"The comparison was {self._state}.")
            ]
        return diff_text.verdict_lines(parity_document(found.report), width)

    # --- keys ---------------------------------------------------------------------------------------------------------

    def reason(self, action: str, parameters: tuple[object, ...]) -> str:
        if self._work.found is None and action in ("open", "origin", "copy"):
            return "there is no result yet" if self._state == "comparing" else f"the comparison was {self._state}"
        if action == "open" and not self._work.modules:
            return "no module of A matches one of B"
        if action == "origin" and not self._origins:
            return "no module is known to diverge independently"
        return ""

    @property
    def _origins(self) -> tuple[int, ...]:
        return () if self._work.found is None else self._work.found.origin_indices

    def on_option_list_option_selected(self, event: Choices.OptionSelected) -> None:
        self._open(event.option_index)

    def action_open(self) -> None:
        self._open(self.query_one("#modules", Choices).highlighted or 0)

    def _open(self, number: int) -> None:
        self.app.push_screen(ModuleScreen(self._work, self._work.modules[number]))

    def action_origin(self, direction: int) -> None:
        options = self.query_one("#modules", Choices)
        at = options.highlighted or 0
        further = [k for k in self._origins if (k > at if direction > 0 else k < at)]
        if further:
            options.highlighted = further[0] if direction > 0 else further[-1]
        else:
            self.notify(
                "no other module diverges independently " + ("after this one" if direction > 0 else "before this one")
            )

    def action_copy(self) -> None:
        assert self._work.found is not None
        copy(self.app, document_text(parity_document(self._work.found.report)), "the report is")
