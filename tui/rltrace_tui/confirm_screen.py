"""The fourth screen: the arms of an experiment as they finish, its outcome, and the kinds of op.

Draws an ``ExperimentResult``; runs nothing.
"""

from __future__ import annotations

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.message import Message
from textual.screen import Screen
from textual.widgets import Footer, Static
from textual.widgets.option_list import Option
from textual.worker import Worker, WorkerState

from rltrace.experiment.outcome import ExperimentResult, OriginClass, OutcomeError
from rltrace_tui import confirm_text, diff_text
from rltrace_tui.app_protocol import KeyGuard, copy, host
from rltrace_tui.confirm_text import Outcomes
from rltrace_tui.data import DiffData
from rltrace_tui.option_list import Choices
from rltrace_tui.pane import Pane

ARMS = (
    "Confirm: an experiment on the first difference. A0 and B0 are controls: the runs again, unchanged. B←A is B "
    "with A's values injected where B begins to differ, A←B the mirror. ✓ as expected of the cause, ✗ not."
)
CLASSES = "Kinds of op at which a difference begins, the likeliest to matter first. Enter goes to the first op of one."
POLL_INTERVAL = 1.0
"""Seconds between two reads of the file of an unfinished experiment."""


class OutcomeRead(Message):
    """The file was read."""

    def __init__(self, outcome: ExperimentResult | None, trouble: str) -> None:
        super().__init__()
        self.outcome, self.trouble = outcome, trouble


class ConfirmScreen(KeyGuard, Screen[None]):
    """The outcome of ``rltrace confirm``."""

    explained = ARMS
    AUTO_FOCUS = "#arms"
    BINDINGS = [  # noqa: RUF012
        Binding("enter", "first_op", "First op", id="replay.first_op", tooltip="The first op of a kind, in the list"),
        Binding("r", "read", "Read again", id="replay.read", tooltip="Read the file of the experiment again"),
        Binding("y", "copy", "Copy", id="replay.copy", tooltip="Copy the outcome as text (over OSC 52)"),
    ]

    def __init__(self, work: DiffData, outcomes: Outcomes) -> None:
        super().__init__()
        self._work, self._outcomes = work, outcomes
        self._outcome: ExperimentResult | None = None
        self._trouble = ""
        self._is_read = False

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Pane("Confirm", ARMS, "arms", self._arms)
        classes = Choices(id="classes", markup=False)
        classes.display = False
        yield classes
        yield Static("rltrace needs 60 columns and 16 lines", id="small")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self.set_interval(POLL_INTERVAL, self._poll)

    def on_screen_resume(self) -> None:
        self._read()

    def _poll(self) -> None:
        """Read the file of an unfinished experiment again while this screen is shown."""
        if self.is_current and (self._outcome is None or self._outcome.word is None):
            self._read()

    @work(thread=True, exclusive=True, group="outcome", exit_on_error=False)
    def _read(self) -> None:
        try:
            self.post_message(OutcomeRead(self._outcomes.read(), ""))
        except OutcomeError as error:
            self.post_message(OutcomeRead(None, str(error)))

    def on_outcome_read(self, message: OutcomeRead) -> None:
        if self._is_read and (message.outcome, message.trouble) == (self._outcome, self._trouble):
            return
        self._is_read, self._outcome, self._trouble = True, message.outcome, message.trouble
        self._redraw()

    def _redraw(self) -> None:
        outcome = self._outcome
        self.query_one("#arms", Pane).redraw()
        headline, style = confirm_text.headline(outcome)
        head = Content.assemble(f" {self._work.names}   ", (headline, f"bold {style}"))
        self.query_one("#head", Static).update(head)
        classes = self.query_one("#classes", Choices)
        classes.clear_options()
        classes.border_title = "Kinds of op at which a difference begins"
        was_shown, classes.display = classes.display, bool(outcome and outcome.classes)
        if outcome is not None:
            classes.add_options(Option(line) for line in confirm_text.class_lines(outcome))
            classes.highlighted = 0 if outcome.classes else None
        if classes.display and not was_shown:
            classes.focus()
        self.refresh_bindings()

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state == WorkerState.ERROR and event.worker.error is not None:
            host(self).fail(event.worker.error)

    def _arms(self, width: int) -> diff_text.Lines:
        if not self._is_read:
            return [diff_text.plain("reading …", "$text-muted")]
        if self._trouble:
            return diff_text.labelled("trouble", self._trouble, width, "$text-warning")
        if self._outcome is None:
            return confirm_text.missing_lines(self._outcomes.commands(), str(self._outcomes.path), width)
        return confirm_text.arm_lines(self._outcome, width)

    # --- keys ---------------------------------------------------------------------------------------------------------

    def reason(self, action: str, parameters: tuple[object, ...]) -> str:
        if action in ("copy", "first_op") and self._outcome is None:
            return "no experiment has been run on these two traces"
        return "no kinds of op are known yet" if action == "first_op" and not self._kinds else ""

    @property
    def _kinds(self) -> tuple[OriginClass, ...]:
        return () if self._outcome is None else self._outcome.classes

    def action_first_op(self) -> None:
        self._show_first_op(self.query_one("#classes", Choices).highlighted or 0)

    def action_read(self) -> None:
        self._is_read = False
        self._read()

    def action_copy(self) -> None:
        assert self._outcome is not None
        lines = [*confirm_text.arm_lines(self._outcome, 100)]
        texts = [line.plain.rstrip() for line in lines] + confirm_text.class_lines(self._outcome)
        copy(self.app, "\n".join(texts), "the outcome is")

    def on_option_list_option_selected(self, event: Choices.OptionSelected) -> None:
        self._show_first_op(event.option_index)

    def _show_first_op(self, index: int) -> None:
        kind = self._kinds[index]
        if kind.row_in_a is None or kind.stream not in self._work.streams:
            self.notify("the row of its first op in A was not recorded", severity="warning")
        else:
            host(self).show_ops_at(kind.stream, kind.row_in_a, None)
