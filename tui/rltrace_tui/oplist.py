"""Both sides of a stream in one widget, a line for each pair of rows: they cannot scroll apart.

Owns drawing and the cursor. Any number of lines costs the same: only what is on the screen is read, and lines that were
drawn are kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style
from textual import work
from textual.binding import Binding
from textual.cache import LRUCache
from textual.events import Click, MouseMove
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from rltrace.diff.browse import Browser, Line
from rltrace.diff.findings import RowAt
from rltrace.diff.kernels import kernel_text
from rltrace.diff.pairing import Relation
from rltrace.diff.view import StreamView
from rltrace.errors import HoleError
from rltrace.trace.rows import Rows
from rltrace_tui.words import GLYPHS
from rltrace_tui.work import Stream

EXPLAINED = (
    "Ops: A on the left, B on the right, each pair of rows on one line; ▶ marks the finding of the verdict. A number"
    " before an op of B is its row there, where it is another one than in A. Runs of identical ops, and steps that were"
    " not looked at yet, are folded."
)
DETAILS = ("place", "kernel", "module", "phase")
LEAST = 8
"""Columns in which a detail still says something."""

KEPT = 2_000
"""Lines that are kept as drawn."""

CLASSES = {
    Relation.DIFFERS: "oplist--origin",
    Relation.RECEIVES: "oplist--receiver",
    Relation.UNSURE: "oplist--unsure",
    Relation.UNPAIRED: "oplist--unsure",
    Relation.ONLY_A: "oplist--side",
    Relation.ONLY_B: "oplist--side",
}


@dataclass(frozen=True)
class Cell:
    """One side of a line."""

    text: str
    detail: str


class OpList(ScrollView, can_focus=True):
    """The lines of one pair of streams."""

    COMPONENT_CLASSES = {  # noqa: RUF012
        "oplist--cursor", "oplist--origin", "oplist--receiver", "oplist--side", "oplist--fold", "oplist--unsure",
    }  # fmt: skip
    BINDINGS = [  # noqa: RUF012
        Binding("j,down", "move(1)", "Down", show=False, id="oplist.down", tooltip="Down"),
        Binding("k,up", "move(-1)", "Up", show=False, id="oplist.up", tooltip="Up"),
        Binding("pagedown", "page(1)", "Page down", show=False, id="oplist.pagedown", tooltip="A page down"),
        Binding("pageup", "page(-1)", "Page up", show=False, id="oplist.pageup", tooltip="A page up"),
        Binding("home", "end(0)", "Top", show=False, id="oplist.top", tooltip="First line"),
        Binding("end", "end(1)", "Bottom", show=False, id="oplist.bottom", tooltip="Last line"),
    ]
    explained = EXPLAINED
    cursor = reactive(0, repaint=False)
    detail = reactive(0)

    class Moved(Message):
        """The cursor stands elsewhere, or the lines are others."""

    class Chosen(Message):
        """Somebody wants to see more of the line under the cursor."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.stream: Stream | None = None
        self._strips: LRUCache[tuple[object, ...], Strip] = LRUCache(KEPT)
        self._generation = 0
        self._prefetched = 0

    # --- content ------------------------------------------------------------------------------------------------------

    @property
    def browser(self) -> Browser | None:
        return self.stream.browser if self.stream else None

    @property
    def line(self) -> Line | None:
        """What is under the cursor."""
        if self.browser is None or not len(self.browser):
            return None
        return self.browser.line(min(self.cursor, len(self.browser) - 1))

    def show(self, stream: Stream) -> None:
        """Show another pair of streams."""
        self.stream = stream
        self.changed(0)

    def changed(self, cursor: int) -> None:
        """The lines are others now: put the cursor on ``cursor``."""
        self._generation += 1
        self._strips.clear()
        height = len(self.browser) if self.browser else 0
        self.virtual_size = Size(self.size.width, height)
        self.cursor = max(0, min(cursor, height - 1))
        self._keep_in_view(center=True)
        self.refresh()
        self.post_message(self.Moved())

    def watch_detail(self) -> None:
        self._generation += 1
        self._strips.clear()
        self.refresh()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._strips.clear()

    # --- moving -------------------------------------------------------------------------------------------------------

    def move(self, to: int, center: bool = False) -> None:
        """Put the cursor on a line, and the line in view."""
        if self.browser is None:
            return
        before, self.cursor = self.cursor, max(0, min(to, len(self.browser) - 1))
        self._keep_in_view(center)
        for line in {before, self.cursor}:
            self.refresh(Region(0, line - self.scroll_offset.y, self.size.width, 1))
        self.post_message(self.Moved())
        if abs(self.cursor - self._prefetched) >= self.page // 2:
            self._prefetched = self.cursor
            self._prefetch()

    def _keep_in_view(self, center: bool) -> None:
        height, top = max(1, self.scrollable_content_region.height), self.scroll_offset.y
        if top <= self.cursor < top + height and not center:
            return
        if center:
            target = self.cursor - height // 3
        else:
            target = self.cursor if self.cursor < top else self.cursor - height + 1
        self.scroll_to(y=max(0, target), animate=False, force=True, immediate=True)

    def action_move(self, by: int) -> None:
        self.move(self.cursor + by)

    def action_page(self, direction: int) -> None:
        self.move(self.cursor + direction * self.page)

    def action_end(self, last: int) -> None:
        self.move(len(self.browser) - 1 if last and self.browser else 0)

    @property
    def page(self) -> int:
        return max(1, self.scrollable_content_region.height - 1)

    def on_click(self, event: Click) -> None:
        self.move(event.y + self.scroll_offset.y)
        if event.chain > 1:
            self.post_message(self.Chosen())

    def on_mouse_move(self, event: MouseMove) -> None:
        event.stop()

    @work(thread=True, exclusive=True, group="prefetch", exit_on_error=False)
    def _prefetch(self) -> None:
        """Read what one page up and down needs, so that paging finds it there."""
        browser, cursor, page = self.browser, self.cursor, self.page
        if browser is None:
            return
        for at in (cursor - page, cursor + page):
            if 0 <= at < len(browser):
                with browser.lock:
                    if at < len(browser):
                        line = browser.line(at)
                        _touch(browser.a, line.a)
                        _touch(browser.b, line.b)

    # --- drawing ------------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        number, width = y + self.scroll_offset.y, self.scrollable_content_region.width
        browser = self.browser
        if browser is None or number >= len(browser):
            return Strip.blank(width, self.rich_style)
        at_cursor = number == self.cursor
        key = (number, width, at_cursor, self.has_focus, self._generation, self.app.theme)
        strip = self._strips.get(key)
        if strip is None:
            with browser.lock:
                strip = self._draw(browser, number, width, at_cursor)
            self._strips[key] = strip
        return strip

    def _draw(self, browser: Browser, number: int, width: int, at_cursor: bool) -> Strip:
        line = browser.line(number)
        base = self.rich_style
        if at_cursor:
            base += self.get_component_rich_style("oplist--cursor")
        if line.relation is None:
            text = f"{'':>{self._numbers(browser)}} {fold_text(browser, line)}"
            style = base + self.get_component_rich_style("oplist--fold", partial=True)
            return Strip([Segment(_fit(text, width), style)], width)
        style = base
        if line.relation in CLASSES:
            style += self.get_component_rich_style(CLASSES[line.relation], partial=True)
        return Strip(self._row(browser, line, width, style, base), width)

    def _row(self, browser: Browser, line: Line, width: int, style: Style, base: Style) -> list[Segment]:
        digits = self._numbers(browser)
        assert line.relation is not None
        mark = "▶" if (line.a, line.b) in browser.pins else " "
        number = "–" if line.a is None else f"{line.a:,}"
        head = f"{mark}{number:>{digits}} {GLYPHS[line.relation]} "
        left = (width - len(head) - 3) // 2
        right = width - len(head) - 3 - left
        same_place = line.b is None or line.a == line.b
        number_b = "" if same_place else f"{line.b:,} " + ("↕ " if line.moved else "")
        return [
            Segment(head, style),
            Segment(_columns(self._cell(browser.a, line.a), left), style),
            Segment(" │ ", base),
            Segment(_columns(self._cell(browser.b, line.b, number_b), right), style),
        ]

    def _cell(self, view: StreamView, index: int | None, prefix: str = "") -> Cell:
        if index is None:
            return Cell("", "")
        try:
            rows, place = view.row(index)
        except HoleError as error:
            return Cell(f"{prefix}! {error}", "")
        value = rows.value(place)
        text = prefix + view.op(rows, place).removesuffix(".default") + ("" if value is None else f" → {value!r}")
        return Cell(text, self._detail_of(view, rows, place))

    def _detail_of(self, view: StreamView, rows: Rows, place: int) -> str:
        row = RowAt(view, rows, place)
        match DETAILS[self.detail]:
            case "kernel":
                return kernel_text(row.kernel) or ""
            case "module":
                return row.module
            case "phase":
                return row.phase
        stack = row.stack
        return f"{stack[0].file.rpartition('/')[2]}:{stack[0].line}" if stack else ""

    @staticmethod
    def _numbers(browser: Browser) -> int:
        return len(f"{max(browser.a.rows, browser.b.rows):,}")


def fold_text(browser: Browser, line: Line) -> str:
    """What a fold says of the lines in it."""
    piece = line.piece
    assert piece is not None
    if piece.trouble:
        return f"⋯ rows {piece.a0:,} to {piece.a1 - 1:,} of A cannot be shown: {piece.trouble}"
    count = f"{piece.rows:,} op" + ("" if piece.rows == 1 else "s")
    if piece.equal:
        return f"⋯ {count.replace(' op', ' identical op')} ⋯"
    step = browser.step_of(piece)
    where = "" if step is None else f"step {step:,}: "
    a, b = piece.a1 - piece.a0, piece.b1 - piece.b0
    if not a or not b:
        return f"⋯ {where}{count} of {'A' if a else 'B'} alone ⋯"
    sizes = count if a == b else f"{a:,} ops of A, {b:,} of B"
    return f"⋯ {where}{sizes}, not looked at yet ⋯"


def _touch(view: StreamView, index: int | None) -> None:
    if index is not None and index < view.rows:
        try:
            view.row(index)
        except HoleError:
            return


def _columns(cell: Cell, width: int) -> str:
    """The text on the left, the detail on the right where there is room for both."""
    column = max(len(cell.text) + 2, min(int(width * 0.55), width - len(cell.detail)))
    if not cell.detail or width - column < LEAST:
        return _fit(cell.text, width)
    return _fit(f"{cell.text:<{column}}{cell.detail}", width)


def _fit(text: str, width: int) -> str:
    return f"{text:<{width}}" if len(text) <= width else f"{text[: max(0, width - 1)]}…"[:width]
