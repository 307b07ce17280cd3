"""Both sides of a stream in one widget, a line for each pair of rows, or the stream of a single trace.

Owns drawing and the cursor. Draws only lines on the screen, so their number does not matter; a worker reads the rows,
and an unread row is a placeholder.
"""

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
from textual.worker import get_current_worker

from rltrace.diff.display.browser import Browser, BrowserLine
from rltrace.diff.display.row_pairs import Relation
from rltrace_tui.data import StreamPairData
from rltrace_tui.diff_text import GLYPHS, fit, fold_text
from rltrace_tui.row_cache import DETAILS, Row, RowCache, RowText

PAIRED = (
    "Ops: A on the left, B on the right, each pair of rows on one line; ▶ marks the finding of the verdict. A "
    "number before an op of B is its row there, if it is not that of A. Runs of identical ops, and steps that are "
    "not loaded, are folded."
)
SINGLE = "Ops: everything that one thread ran, in order, folded step by step. → is a logged scalar."
MIN_DETAIL = 8
"""Columns that a detail needs."""

SOURCE_WIDTH, SOURCE_COLUMN = 100, 0.4
"""Columns from which on the lines of one trace have their source line, and where it begins, as a share of them."""

CACHED_LINES = 2_000
"""Drawn lines that are cached."""

PLACEHOLDER = RowText("…")

CLASSES = {
    Relation.DIFFERS: "oplist--origin",
    Relation.RECEIVES: "oplist--receiver",
    Relation.UNSURE: "oplist--unsure",
    Relation.UNPAIRED: "oplist--unsure",
    Relation.ONLY_A: "oplist--side",
    Relation.ONLY_B: "oplist--side",
}


class OpList(ScrollView, can_focus=True):
    """The lines of one pair of streams."""

    COMPONENT_CLASSES = {  # noqa: RUF012
        "oplist--cursor", "oplist--origin", "oplist--receiver", "oplist--side", "oplist--fold", "oplist--unsure",
    }  # fmt: skip
    BINDINGS = [  # noqa: RUF012
        Binding("j,down", "move(1)", "Down", show=False, id="oplist.down", tooltip="Down"),
        Binding("k,up", "move(-1)", "Up", show=False, id="oplist.up", tooltip="Up"),
        Binding("pagedown,ctrl+f", "page(1)", "Page down", show=False, id="oplist.pagedown", tooltip="A page down"),
        Binding("pageup,ctrl+b", "page(-1)", "Page up", show=False, id="oplist.pageup", tooltip="A page up"),
        Binding("home", "end(0)", "Top", show=False, id="oplist.top", tooltip="First line"),
        Binding("end,G", "end(1)", "Bottom", show=False, id="oplist.bottom", tooltip="Last line"),
    ]
    cursor = reactive(0, repaint=False)
    detail = reactive(0)

    class Moved(Message):
        """The cursor moved, or the lines changed."""

    class Chosen(Message):
        """The line under the cursor was selected."""

    class Filled(Message):
        """Rows of placeholders were read."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.stream: StreamPairData | None = None
        self._strips: LRUCache[tuple[object, ...], Strip] = LRUCache(CACHED_LINES)
        self._generation = 0
        self._is_requested = False

    # --- content ------------------------------------------------------------------------------------------------------

    @property
    def explained(self) -> str:
        return SINGLE if self.browser is not None and self.browser.is_single else PAIRED

    @property
    def browser(self) -> Browser | None:
        return self.stream.browser if self.stream else None

    @property
    def cells(self) -> RowCache | None:
        return self.stream.cells if self.stream else None

    @property
    def line(self) -> BrowserLine | None:
        """The line under the cursor."""
        if self.browser is None or not len(self.browser):
            return None
        return self.browser.line(min(self.cursor, len(self.browser) - 1))

    @property
    def cell(self) -> RowText | None:
        """The text of the row under the cursor, A's if A has it; None for a fold or an unread row."""
        line = self.line
        if line is None or line.relation is None or self.cells is None:
            return None
        row = _rows(line)
        return self.cells.get(row[0]) if row else None

    def show(self, stream: StreamPairData) -> None:
        """Show another pair of streams."""
        self.stream = stream
        self.changed(0)

    def changed(self, cursor: int) -> None:
        """Redraw changed lines, with the cursor on ``cursor``."""
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
        self._read_ahead()

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

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read_ahead(self) -> None:
        """Read rows a page away from the cursor in advance."""
        browser, cells, at, page = self.browser, self.cells, self.cursor, self.page
        if browser is None or cells is None:
            return
        ends = [browser.line(k) for k in (at - page, at + page) if 0 <= k < len(browser)]
        if any(cells.get(row) is None for line in ends if line.relation is not None for row in _rows(line)):
            self._request_rows()

    def _request_rows(self) -> None:
        """Read the rows on the screen and a page either side, once for any number of requests."""
        if not self._is_requested:
            self._is_requested = True
            self.call_later(self._fetch)

    def _fetch(self) -> None:
        self._is_requested = False
        browser, cells = self.browser, self.cells
        if browser is None or cells is None:
            return
        top, page = self.scroll_offset.y, self.page + 1
        pages = [range(top, top + page), range(top + page, top + 2 * page), range(top - page, top)]
        for lines in pages:  # the screen comes first
            shown = [browser.line(k) for k in lines if 0 <= k < len(browser)]
            missing = [r for x in shown if x.relation is not None for r in _rows(x) if cells.get(r) is None]
            if missing:
                self._fill(cells, missing)
                return

    @work(thread=True, exclusive=True, group="cells", exit_on_error=False)
    def _fill(self, cells: RowCache, missing: list[Row]) -> None:
        worker = get_current_worker()
        cells.fill(missing, lambda: worker.is_cancelled)
        if not worker.is_cancelled:
            self.post_message(self.Filled())

    def on_op_list_filled(self) -> None:
        self.refresh()
        self.post_message(self.Moved())
        self._request_rows()  # for the pages either side

    # --- drawing ------------------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        number, width = y + self.scroll_offset.y, self.scrollable_content_region.width
        browser, cells = self.browser, self.cells
        if browser is None or cells is None or number >= len(browser):
            return Strip.blank(width, self.rich_style)
        at_cursor = number == self.cursor
        key = (number, width, at_cursor, self.has_focus, self._generation, self.app.theme)
        strip = self._strips.get(key)
        if strip is None:
            line = browser.line(number)
            strip = self._draw(browser, line, width, at_cursor)
            if line.relation is None or all(cells.get(row) is not None for row in _rows(line)):
                self._strips[key] = strip
            else:
                self._request_rows()
        return strip

    def _draw(self, browser: Browser, line: BrowserLine, width: int, at_cursor: bool) -> Strip:
        base = self.rich_style
        if at_cursor:
            base += self.get_component_rich_style("oplist--cursor")
        if line.relation is None:
            text = f"{'':>{self._numbers(browser)}} {fold_text(browser, line)}"
            style = base + self.get_component_rich_style("oplist--fold", partial=True)
            return Strip([Segment(fit(text, width), style)], width)
        if browser.is_single:
            return Strip([Segment(self._own_line(browser, line, width), base)], width)
        style = base
        if line.relation in CLASSES:
            style += self.get_component_rich_style(CLASSES[line.relation], partial=True)
        return Strip(self._pair_line(browser, line, width, style, base), width)

    def _own_line(self, browser: Browser, line: BrowserLine, width: int) -> str:
        cell = self._cell("a", line.a)
        head = f" {line.a:>{self._numbers(browser)},} "
        text = f"{cell.text}  {cell.layouts}" if cell.layouts else cell.text
        if DETAILS[self.detail] == "place" and width >= SOURCE_WIDTH:
            column = max(len(text) + 2, int(width * SOURCE_COLUMN) - len(head))
            return fit(f"{head}{text:<{column}}{cell.source}", width)
        return head + _columns(text, cell.details[self.detail], width - len(head))

    def _pair_line(self, browser: Browser, line: BrowserLine, width: int, style: Style, base: Style) -> list[Segment]:
        digits = self._numbers(browser)
        assert line.relation is not None
        mark = "▶" if (line.a, line.b) in browser.pins else " "
        number = "–" if line.a is None else f"{line.a:,}"
        head = f"{mark}{number:>{digits}} {GLYPHS[line.relation]} "
        left = (width - len(head) - 3) // 2
        right = width - len(head) - 3 - left
        same_place = line.b is None or line.a == line.b
        number_b = "" if same_place else f"{line.b:,} " + ("↕ " if line.moved else "")
        a, b = self._cell("a", line.a), self._cell("b", line.b)
        return [
            Segment(head, style),
            Segment(_columns(a.text, a.details[self.detail], left), style),
            Segment(" │ ", base),
            Segment(_columns(number_b + b.text, b.details[self.detail], right), style),
        ]

    def _cell(self, side: str, index: int | None) -> RowText:
        if index is None:
            return RowText("")
        assert self.cells is not None
        return self.cells.get((side, index)) or PLACEHOLDER

    @staticmethod
    def _numbers(browser: Browser) -> int:
        return len(f"{max(browser.a.rows, browser.b.rows):,}")


def _rows(line: BrowserLine) -> list[Row]:
    """The rows of a line, A's first."""
    return [(side, row) for side, row in (("a", line.a), ("b", line.b)) if row is not None]


def _columns(text: str, detail: str, width: int) -> str:
    """The text on the left, the detail on the right if it fits; a long detail keeps its end."""
    column = max(len(text) + 2, min(int(width * 0.55), width - len(detail)))
    space = width - column
    if not detail or space < MIN_DETAIL:
        return fit(text, width)
    shown = detail if len(detail) <= space else f"…{detail[len(detail) - space + 1 :]}"
    return fit(f"{text:<{column}}{shown}", width)


__all__ = ["DETAILS", "OpList"]
