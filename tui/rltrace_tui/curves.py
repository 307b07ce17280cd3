"""Logged scalars, one curve at a time, below the timeline of steps.

Owns which curve is shown, for one run, or for two on one scale.
"""

from collections.abc import Iterable

from textual.screen import Screen

from rltrace.diff.metrics.timeline import Curve
from rltrace_tui import charts, diff_text
from rltrace_tui.app_protocol import KeyGuard
from rltrace_tui.data import DataSource
from rltrace_tui.option_list import Picker
from rltrace_tui.pane import Pane


class Curves:
    """The curves and the index of the one that is shown."""

    def __init__(self) -> None:
        self.all: tuple[Curve, ...] | None = None
        """None: not read yet."""
        self.at = 0

    @property
    def disabled_reason(self) -> str:
        """Why no other curve can be chosen; "" if one can."""
        if self.all is None:
            return "the curves are being read"
        if not self.all:
            return "no scalar was logged (.item(), jax.debug.callback)"
        return "" if len(self.all) > 1 else "there is only one curve"

    def turn(self, direction: int) -> None:
        assert self.all
        self.at = (self.at + direction) % len(self.all)

    def picker(self) -> Picker:
        assert self.all
        return Picker("Curve", [title(curve) for curve in self.all], self.at)

    def lines(self, steps: int, width: int, height: int) -> diff_text.Lines:
        """The chosen curve in ``height`` lines, over at least ``steps`` steps, as the timeline above.

        A curve with numbers at few of them is drawn over these alone.
        """
        if self.all is None:
            return [diff_text.plain("reading the curves …", "$text-muted")]
        if not self.all:
            return [diff_text.plain("No scalar was logged (.item(), jax.debug.callback).", "$text-muted")]
        curve = self.all[self.at]
        steps = max([steps, *(step + 1 for step, _ in (*curve.a[-1:], *curve.b[-1:]))])
        drawn = charts.without_gaps(curve, steps)
        count = steps if drawn is curve else 1 + max(step for step, _ in (*drawn.a, *drawn.b))
        by_number = "" if drawn is curve else f", its {count:,} steps alone"
        head = f"{self.at + 1}/{len(self.all)}  {title(curve)}  {charts.range_text(curve)}{by_number}"
        sides = 2 if curve.b else 1
        return [
            *charts.curve_lines(drawn, count, width, max(1, (height - 1) // sides)),
            diff_text.plain(diff_text.fit(head, width), "$text-muted"),
        ]


class CurveScreen(KeyGuard, Screen[None]):
    """A first screen: panes, and a curve in that called ``#timeline``."""

    def __init__(self, work: DataSource, state: str) -> None:
        """``state``: until the work is finished."""
        super().__init__()
        self._work = work
        self._state = state
        self._curves = Curves()

    def show_curves(self, curves: tuple[Curve, ...]) -> None:
        self._curves.all = curves
        self._redraw()

    def show_state(self, state: str) -> None:
        if not self._work.is_finished:
            self._state = state
            self._redraw()

    def _redraw(self) -> None:
        for pane in self.query(Pane):
            pane.redraw()
        self._draw_head()
        self.refresh_bindings()

    def _draw_head(self) -> None:
        raise NotImplementedError

    def _with_curve(self, lines: diff_text.Lines, counts: Iterable[int], width: int) -> diff_text.Lines:
        """The lines of the timelines of so many steps, and a curve below."""
        height = self.query_one("#timeline", Pane).scrollable_content_region.height
        return lines + self._curves.lines(max(counts, default=0), width, height - len(lines))

    def action_curve(self, direction: int) -> None:
        self._curves.turn(direction)
        self.query_one("#timeline", Pane).redraw()

    def action_curves(self) -> None:
        def chosen(number: int | None) -> None:
            if number is not None:
                self._curves.at = number
                self.query_one("#timeline", Pane).redraw()

        self.app.push_screen(self._curves.picker(), chosen)


def title(curve: Curve) -> str:
    """``diverges at step 4  train.py:26  errors.append(e.item())``."""
    more = "" if curve.whole else ", read in places"
    if not curve.b:
        return f"{len(curve.a):,} steps{more}  {curve.place}  {curve.name}"
    if curve.diverges_at is None:
        return f"equal where read{more}  {curve.place}  {curve.name}"
    return (
        f"{'diverges' if curve.whole else 'differs'} at step {curve.diverges_at:,}{more}  {curve.place}  {curve.name}"
    )
