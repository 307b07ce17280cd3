"""A cache of rows as text, read in advance, so that drawing never waits for a disk or another reader.

Owns the cached rows. The screen calls ``get``, a worker ``fill``.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rltrace.diff.base.view import StreamView
from rltrace.diff.display.browser import Browser
from rltrace.errors import HoleError
from rltrace.query.ops import op_line
from rltrace.trace.format.rows import Rows

DETAILS = ("place", "kernel", "module", "phase")
"""Details of an op, of which one is shown."""

MAX_ROWS = 10_000
"""Rows in the cache."""

Row = tuple[str, int]
"""("a" or "b", row)."""


@dataclass(frozen=True)
class RowText:
    """One row as text."""

    text: str
    layouts: str = ""
    details: tuple[str, ...] = ("",) * len(DETAILS)
    source: str = ""
    """Place and source line."""
    where: str = ""
    """Step, phase, module, place and source line, on one line."""


class RowCache:
    """Text of the rows of a pair of streams."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._views = {"a": browser.a, "b": browser.b}
        self._known: dict[Row, RowText] = {}

    def get(self, row: Row) -> RowText | None:
        """The text of a row; None if it was not read yet."""
        return self._known.get(row)

    def fill(self, missing: Iterable[Row], cancelled: Callable[[], bool] = lambda: False) -> None:
        """Read rows, a segment at a time; the browser's lock is held for each reading only."""
        found: dict[Row, RowText] = {}
        rows: Rows | None = None
        loaded = ""
        for side, number in sorted(set(missing)):
            if cancelled():
                break
            try:
                if rows is None or side != loaded or not rows.first <= number < rows.first + len(rows):
                    loaded, rows = side, self._read(self._views[side], number)
                found[side, number] = self._cell(side, rows, number - rows.first)
            except HoleError as error:
                found[side, number] = RowText(f"! {error}", where=str(error))
        self._known = (self._known if len(self._known) + len(found) <= MAX_ROWS else {}) | found

    def _read(self, view: StreamView, number: int) -> Rows:
        with self._browser.lock:
            return view.row(number)[0]

    def _cell(self, side: str, rows: Rows, place: int) -> RowText:
        line = op_line(rows, place, self._views[side].name, self._views[side].process.words)
        value = "" if line.value is None else f" → {line.value!r}"
        text = line.op.removesuffix(".default") + value
        short = source = ""
        if line.site is not None:
            short = f"{line.site.file.rpartition('/')[2]}:{line.site.line}"
            source = f"{short}  {' '.join(line.site.source.split())}"
        layouts = ", ".join(entry.layout or "?" for entry in line.inputs) or (line.event.what if line.event else "")
        status = filter(None, [f"step {line.step:,}", line.phase, line.module, source])
        return RowText(text, layouts, (short, line.kernel, line.module, line.phase), source, "   ".join(status))
