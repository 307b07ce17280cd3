"""The first screen: the search while it runs, then the verdict, its evidence, and every step at a glance."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Footer, Static

from rltrace.diff import Comparison
from rltrace.diff.model import Probe, Verdict
from rltrace.diff.timeline import Curve
from rltrace.report.text import render_comparison
from rltrace_tui import words
from rltrace_tui.pane import Pane
from rltrace_tui.work import Work

VERDICT = "Verdict: where the two runs first differ, what kind of difference it is, and what that rests on."
ENVIRONMENT = "Environment: facts of machine, process and sources that differ, the likeliest to matter first."
TIMELINE = (
    "Timeline: one character for each optimizer step, or for several where they do not fit (then the worst of them)."
    " ± other ops were run; · one side alone made the step. Below, a number that both runs read out (.item()), on one"
    " scale, its last value beside it; [ and ] pick another one."
)
SEARCH = (
    "Search: prefix digests of both traces are compared at a few rows; each probe halves what is left. = before it all"
    " is equal, ≠ differs, ? not known."
)


SHOWN = {"structure": "same ops", "values": "same values"}
"""What the search asks, in words; what it asks of memory that nobody wrote decides nothing."""


class OverviewScreen(Screen[None]):
    """Verdict, environment, timeline, search."""

    AUTO_FOCUS = "#verdict"
    BINDINGS = [  # noqa: RUF012
        Binding("enter", "inspect", "Inspect", id="overview.inspect", tooltip="The op that the verdict names, in full"),
        Binding("right_square_bracket", "curve(1)", "Curve", key_display="]", id="overview.next", tooltip="Next curve"),
        Binding(
            "left_square_bracket", "curve(-1)", "Curve", key_display="[", show=False, id="overview.previous",
            tooltip="Previous curve",
        ),
        Binding("y", "copy", "Copy", id="overview.copy", tooltip="Copy the report as text (over OSC 52)"),
    ]  # fmt: skip

    def __init__(self, work: Work) -> None:
        super().__init__()
        self._work = work
        self._probes: dict[str, dict[str, list[Probe]]] = {}
        self._rows: dict[str, int] = {}
        self._curves: tuple[Curve, ...] | None = None
        self._curve = 0
        self._state = "searching"
        self._done = ""

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        with Horizontal(id="top"):
            yield Pane("Verdict", VERDICT, "verdict", self._verdict)
            yield Pane("Environment", ENVIRONMENT, "environment", self._environment)
        yield Pane("Timeline", TIMELINE, "timeline", self._timeline)
        yield Pane("Search", SEARCH, "search", self._search)
        yield Static("rltrace needs 60 columns and 16 lines", id="small")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._draw_head()

    # --- what is told -------------------------------------------------------------------------------------------------

    def probed(self, stream: str, respect: str, probe: Probe, rows: int) -> None:
        self._probes.setdefault(stream, {}).setdefault(respect, []).append(probe)
        self._rows[stream] = rows
        self.query_one("#search", Pane).draw(self._search)

    def walked(self, stream: str, done: int, rows: int) -> None:
        self._done = f"comparing {stream}: {done:,} of {rows:,} ops"
        self.query_one("#search", Pane).draw(self._search)

    def found(self, comparison: Comparison) -> None:
        self._state, self._done = "done", ""
        environment = self.query_one("#environment", Pane)
        environment.border_title = f"Environment ({len(comparison.environment)} differ)"
        self._redraw()

    def curves_read(self, curves: tuple[Curve, ...]) -> None:
        self._curves = curves
        self._redraw()

    def stopped(self, how: str) -> None:
        if self._work.comparison is None:
            self._state = how
            self._redraw()

    def _redraw(self) -> None:
        for pane in self.query(Pane):
            pane.draw(pane._draw)
        self._draw_head()

    # --- drawing ------------------------------------------------------------------------------------------------------

    def _draw_head(self) -> None:
        found = self._work.comparison
        word, style = words.HEADLINES[found.verdict] if found else (self._state.upper(), "$text-muted")
        names = f" rltrace   A {self._work.path_a.name}   B {self._work.path_b.name}   "
        self.query_one("#head", Static).update(Content.assemble(names, (word, f"bold {style}")))

    def _verdict(self, width: int) -> words.Lines:
        found = self._work.comparison
        if found is not None:
            return words.verdict_lines(found, self._work.shown, width)
        if self._state == "searching":
            return [Content("Looking for the first difference …  (Escape stops)")]
        return [Content(f"The search was {self._state}: there is no verdict.")]

    def _environment(self, width: int) -> words.Lines:
        found = self._work.comparison
        return words.environment_lines(found, width) if found else []

    def _timeline(self, width: int) -> words.Lines:
        lines: words.Lines = []
        shown = self._work.shown
        for timeline in self._work.timelines:
            mark = shown.step if shown is not None and shown.stream.startswith(timeline.process) else None
            if len(self._work.timelines) > 1:
                lines.append(words.plain(timeline.process, "bold"))
            bar = words.state_bar(timeline, width - words.ROOM)
            axis = words.axis(len(timeline.states), mark, width - words.ROOM)
            lines += [Content(f"  {axis}"), Content(f"  {bar}")]
        if self._work.comparison is not None and not lines:
            lines.append(words.plain("Neither program made an optimizer step.", "$text-muted"))
        return lines + self._curve_lines(width)

    def _curve_lines(self, width: int) -> words.Lines:
        if not self._curves:
            waiting = self._curves is None and self._work.comparison is not None
            return [words.plain("reading the curves …", "$text-muted")] if waiting else []
        curve = self._curves[self._curve]
        steps = max([len(t.states) for t in self._work.timelines], default=0)
        steps = max([steps, *(step + 1 for step, _ in (*curve.a[-1:], *curve.b[-1:]))])
        parts = (
            "equal where read"
            if curve.parts_at is None
            else f"{'parts' if curve.whole else 'differs'} at step {curve.parts_at:,}"
        )
        more = "" if curve.whole else ", read in places"
        head = f"{self._curve + 1}/{len(self._curves)}  {parts}{more}  {curve.place}  {curve.name}"
        return [*words.curve_lines(curve, steps, width), words.plain(head[:width], "$text-muted")]

    def _search(self, width: int) -> words.Lines:
        lines: words.Lines = []
        for stream, by_respect in self._probes.items():
            if len(self._probes) > 1:
                lines.append(words.plain(stream, "bold"))
            for respect, probes in by_respect.items():
                if respect in SHOWN:
                    lines.append(words.search_line(SHOWN[respect], probes, self._rows[stream], width))
        found = self._work.comparison
        if found is not None and not lines:
            what = "step digests" if found.level == "step" else "the ops themselves"
            lines.append(words.plain(f"Nothing to bisect: {what} were compared.", "$text-muted"))
        return [*([Content(self._done)] if self._done else []), *lines]

    # --- keys ---------------------------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "inspect":
            return self.app.check_action("op", ())
        if action == "curve":
            return True if self._curves and len(self._curves) > 1 else None
        if action == "copy":
            return True if self._work.comparison is not None else None
        return True

    def action_inspect(self) -> None:
        self.app.action_op()  # type: ignore[attr-defined]

    def action_curve(self, direction: int) -> None:
        assert self._curves
        self._curve = (self._curve + direction) % len(self._curves)
        self.query_one("#timeline", Pane).draw(self._timeline)

    def action_copy(self) -> None:
        found = self._work.comparison
        assert found is not None
        self.app.copy_to_clipboard(render_comparison(found, color=False))
        self.notify("the report is copied")

    @property
    def is_diverged(self) -> bool:
        return self._work.comparison is not None and self._work.comparison.verdict is Verdict.DIVERGED
