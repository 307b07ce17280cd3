"""``rltrace show TRACE`` in a terminal: its recording, system, steps and logged scalars, and its ops.

Owns the worker that reads the trace.
"""

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Footer, Static
from textual.worker import get_current_worker

from rltrace.report.document import ALL, Section
from rltrace.report.info import FACT_SECTIONS, info_document
from rltrace.report.text import document_text
from rltrace.trace.format.location import Location
from rltrace_tui import charts, diff_text
from rltrace_tui.app_protocol import copy
from rltrace_tui.base import BaseApp, CurvesRead, Failed
from rltrace_tui.curves import CurveScreen
from rltrace_tui.data import TraceData
from rltrace_tui.pane import Pane

TRACE = "Trace: what was run and when, how it was recorded, and how each of its processes ended."
FACTS = "System and settings: facts of machine, versions, settings and sources."
TIMELINE = (
    "Steps: a bar for each optimizer step, of JAX each iteration (or for several), its height the number of ops; s: "
    "the step was skipped. Below, a logged scalar (.item(), jax.debug.callback), its last value next to it; [ and ] "
    "pick another one, c lists them."
)


class TraceScreen(CurveScreen):
    """One trace, without its ops."""

    _work: TraceData
    AUTO_FOCUS = "#trace"
    BINDINGS = [  # noqa: RUF012
        Binding("right_square_bracket", "curve(1)", "Curve", key_display="]", id="trace.next", tooltip="Next curve"),
        Binding("left_square_bracket", "curve(-1)", "Curve", key_display="[", show=False, id="trace.previous",
                tooltip="Previous curve"),
        Binding("c", "curves", "Curves", id="trace.curves", tooltip="Choose a curve from a list"),
        Binding("y", "copy", "Copy", id="trace.copy", tooltip="Copy all of this as text (over OSC 52)"),
    ]  # fmt: skip

    def __init__(self, work: TraceData) -> None:
        super().__init__(work, "reading")

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        with Horizontal(id="top"):
            yield Pane("Trace", TRACE, "trace", self._trace)
            yield Pane("System and settings", FACTS, "facts", self._facts)
        yield Pane("Steps", TIMELINE, "timeline", self._timeline)
        yield Static("rltrace needs 60 columns and 16 lines", id="small")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self._redraw()

    def show_info(self) -> None:
        """Show everything but the curves."""
        self._state = ""
        self._redraw()

    def _draw_head(self) -> None:
        states = [] if self._work.info is None else [process.state for process in self._work.info.processes]
        state = self._state or ", ".join(dict.fromkeys(states))
        style = "$text-success" if state == "complete" else "$text-warning"
        self.query_one("#head", Static).update(
            Content.assemble(f" rltrace   {self._work.names}   ", (state.upper(), f"bold {style}"))
        )

    # --- drawing ------------------------------------------------------------------------------------------------------

    def _trace(self, width: int) -> diff_text.Lines:
        if self._work.info is None:
            return [Content("Reading …" if self._state == "reading" else f"Reading was {self._state}.")]
        document = info_document(self._work.info)
        others = (section for section in document.sections if not section.name.startswith(FACT_SECTIONS))
        return diff_text.sections_lines((Section("", "", facts=document.facts, limit=ALL), *others), width)

    def _facts(self, width: int) -> diff_text.Lines:
        if self._work.info is None:
            return []
        sections = info_document(self._work.info).sections
        own = (section for section in sections if section.name.startswith(FACT_SECTIONS))
        return diff_text.sections_lines(own, width)

    def _timeline(self, width: int) -> diff_text.Lines:
        if self._work.info is None:
            return []
        lines: diff_text.Lines = []
        space = width - charts.MARGIN
        for own in self._work.steps:
            if len(self._work.steps) > 1:
                lines.append(diff_text.plain(own.process, "bold"))
            axis = charts.axis(len(own.steps), None, space)
            lines += [Content(f"  {axis}"), Content(f"  {charts.step_bar(own, space)}{charts.step_sizes(own)}")]
        if not lines:
            lines.append(diff_text.plain("The program made no step.", "$text-muted"))
        return self._with_curve(lines, (len(own.steps) for own in self._work.steps), width)

    # --- keys ---------------------------------------------------------------------------------------------------------

    def reason(self, action: str, parameters: tuple[object, ...]) -> str:
        if self._work.info is None and action in ("curve", "curves", "copy"):
            return "the trace is being read"
        return self._curves.disabled_reason if action in ("curve", "curves") else ""

    def action_copy(self) -> None:
        assert self._work.info is not None
        copy(self.app, document_text(info_document(self._work.info)), "the facts of the trace are")


# --- application ------------------------------------------------------------------------------------------------------


class TraceRead(Message):
    """The trace was read, except its curves."""


class TraceApp(BaseApp[None]):
    """Returns nothing, as there is no verdict."""

    overview: TraceScreen

    def __init__(self, path: Location) -> None:
        self.work = TraceData(path)
        super().__init__(self.work, TraceScreen(self.work))

    def on_mount(self) -> None:
        self.sub_title = str(self.work.path)
        self._open()

    @work(thread=True, exclusive=True, group="search", exit_on_error=False)
    def _open(self) -> None:
        worker = get_current_worker()
        try:
            self.work.read()
            self.post_message(TraceRead())
            for name in self.work.streams[:1]:
                self.work.stream(name)  # in advance
            self.post_message(CurvesRead(self.work.curves(lambda: self.work.pause(lambda: worker.is_cancelled))))
        except Exception as error:  # shown on a screen
            self.post_message(Failed(error))

    def on_trace_read(self) -> None:
        self.overview.show_info()
        self.ops_are_known()

    @property
    def is_searching(self) -> bool:
        return self.work.info is None and self.failure is None

    def reason(self, action: str, parameters: tuple[object, ...]) -> str:
        if action == "op":
            return "one trace has no verdict: 2 lists all ops"
        return super().reason(action, parameters)

    async def action_quit(self) -> None:
        self.workers.cancel_all()
        self.exit(None)
