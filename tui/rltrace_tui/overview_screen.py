"""The first screen: the search while it runs, then the verdict, its evidence, and a timeline of steps."""

from pathlib import Path

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Footer, Static

from rltrace.diff import Comparison
from rltrace.diff.base.model import Probe
from rltrace.report.diff import verdict_document
from rltrace.report.text import document_text
from rltrace_tui import charts, diff_text
from rltrace_tui.app_protocol import copy, host
from rltrace_tui.curves import CurveScreen
from rltrace_tui.data import DiffData
from rltrace_tui.pane import Pane
from rltrace_tui.prompt import Prompt

VERDICT = "Verdict: where the two runs first differ, the cause, and the evidence."
ENVIRONMENT = "System and settings: facts of machine, process and sources that differ, the likeliest to matter first."
TIMELINE = (
    "Timeline: one character for each optimizer step, of JAX each iteration, or for several where they do not fit "
    "(then the worst of them). ± other ops were run; · only one side made the step. Below, a logged scalar of both "
    "runs (.item(), jax.debug.callback), on one scale, its last value next to it; [ and ] pick another one, c lists "
    "them."
)
SEARCH = (
    "Search: prefix digests of both traces are compared at a few rows; each probe halves the rest. = before it all "
    "is equal, ≠ differs, ? unknown."
)

SEARCHES = {"structure": "same ops", "values": "same values"}
"""Labels of the searches that decide the verdict; that of uninitialised memory does not."""

EXPORT = "Export the verdict as Markdown to"


class OverviewScreen(CurveScreen):
    """Verdict, system and settings, timeline, search."""

    _work: DiffData
    AUTO_FOCUS = "#verdict"
    BINDINGS = [  # noqa: RUF012
        Binding("enter", "inspect", "Inspect", id="overview.inspect", tooltip="The op that the verdict names, in full"),
        Binding("right_square_bracket", "curve(1)", "Curve", key_display="]", show=False, id="overview.next",
                tooltip="Next curve"),
        Binding("left_square_bracket", "curve(-1)", "Curve", key_display="[", show=False, id="overview.previous",
                tooltip="Previous curve"),
        Binding("c", "curves", "Curves", show=False, id="overview.curves", tooltip="Choose a curve from a list"),
        Binding("y", "copy", "Copy", id="overview.copy", tooltip="Copy the report as text (over OSC 52)"),
        Binding("e", "export", "Export", id="overview.export", tooltip="Write the verdict as Markdown, for an issue"),
    ]  # fmt: skip

    def __init__(self, work: DiffData) -> None:
        super().__init__(work, "searching")
        self._probes: dict[str, dict[str, list[Probe]]] = {}
        self._rows: dict[str, int] = {}
        self._done = ""

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        with Horizontal(id="top"):
            yield Pane("Verdict", VERDICT, "verdict", self._verdict)
            yield Pane("System and settings", ENVIRONMENT, "environment", self._environment)
        yield Pane("Timeline", TIMELINE, "timeline", self._timeline)
        yield Pane("Search", SEARCH, "search", self._search)
        yield Prompt(id="prompt")
        yield Static("rltrace needs 60 columns and 16 lines", id="small")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        self._draw_head()

    # --- messages -----------------------------------------------------------------------------------------------------

    def add_probe(self, stream: str, respect: str, probe: Probe, rows: int) -> None:
        self._probes.setdefault(stream, {}).setdefault(respect, []).append(probe)
        self._rows[stream] = rows
        self.query_one("#search", Pane).draw(self._search)

    def show_progress(self, stream: str, done: int, rows: int) -> None:
        self._done = f"comparing {stream}: {done:,} of {rows:,} ops"
        self.query_one("#search", Pane).draw(self._search)

    def show_verdict(self, comparison: Comparison) -> None:
        self._state, self._done = "done", ""
        environment = self.query_one("#environment", Pane)
        environment.border_title = f"System and settings ({len(comparison.system)})"
        self.set_class(True, "-found")
        self.set_class(not comparison.system, "-same-system")
        self._redraw()

    # --- drawing ------------------------------------------------------------------------------------------------------

    def _draw_head(self) -> None:
        found = self._work.comparison
        headline = diff_text.headline(verdict_document(found)) if found else (self._state.upper(), "bold $text-muted")
        self.query_one("#head", Static).update(Content.assemble(f" rltrace   {self._work.names}   ", headline))

    def _verdict(self, width: int) -> diff_text.Lines:
        found = self._work.comparison
        if found is not None:
            return diff_text.verdict_lines(verdict_document(found), width)
        if self._state == "searching":
            return [Content("Looking for the first difference …  (Escape stops)")]
        return [Content(f"The search was {self._state}: there is no verdict.")]

    def _environment(self, width: int) -> diff_text.Lines:
        found = self._work.comparison
        return diff_text.environment_lines(verdict_document(found), width) if found else []

    def _timeline(self, width: int) -> diff_text.Lines:
        if self._work.comparison is None:
            return []
        lines: diff_text.Lines = []
        shown = self._work.shown
        for timeline in self._work.timelines:
            mark = shown.step if shown is not None and shown.stream.startswith(timeline.process) else None
            if len(self._work.timelines) > 1:
                lines.append(diff_text.plain(timeline.process, "bold"))
            bar = charts.state_bar(timeline, width - charts.MARGIN)
            axis = charts.axis(len(timeline.states), mark, width - charts.MARGIN)
            lines += [Content(f"  {axis}"), Content(f"  {bar}")]
        if not lines:
            lines.append(diff_text.plain("Neither program made a step.", "$text-muted"))
        return self._with_curve(lines, (len(timeline.states) for timeline in self._work.timelines), width)

    def _search(self, width: int) -> diff_text.Lines:
        lines: diff_text.Lines = []
        for stream, by_respect in self._probes.items():
            if len(self._probes) > 1:
                lines.append(diff_text.plain(stream, "bold"))
            for respect, probes in by_respect.items():
                if respect in SEARCHES:
                    lines.append(charts.search_line(SEARCHES[respect], probes, self._rows[stream], width))
        found = self._work.comparison
        if found is not None and not lines:
            what = "step digests" if found.level == "step" else "the ops themselves"
            lines.append(diff_text.plain(f"Nothing to bisect: {what} were compared.", "$text-muted"))
        return [*([Content(self._done)] if self._done else []), *lines]

    # --- keys ---------------------------------------------------------------------------------------------------------

    def reason(self, action: str, parameters: tuple[object, ...]) -> str:
        if self._work.comparison is None and action in ("inspect", "curve", "curves", "copy", "export"):
            return "there is no verdict yet" if self._state == "searching" else f"the search was {self._state}"
        if action == "inspect":
            return self._work.no_op_reason
        return self._curves.disabled_reason if action in ("curve", "curves") else ""

    def action_inspect(self) -> None:
        host(self).action_op()

    def action_copy(self) -> None:
        found = self._work.comparison
        assert found is not None
        copy(self.app, document_text(verdict_document(found)), "the report is")

    def action_export(self) -> None:
        name = "-".join(path.name.removesuffix(".zarr") for path in (self._work.path_a, self._work.path_b))
        self.query_one(Prompt).ask(EXPORT, "a file; an existing one is kept", f"{name}.md")

    def on_prompt_answered(self, message: Prompt.Answered) -> None:
        if message.question == EXPORT and message.answer.strip():
            host(self).export(Path(message.answer.strip()).expanduser())
