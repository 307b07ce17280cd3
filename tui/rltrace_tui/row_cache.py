"""The words of single rows, read ahead of whoever looks: drawing a line never waits for a disk or another reader.

Owns what is kept in memory of rows, and the reading of more. ``get`` is for the screen, ``fill`` for a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rltrace.diff.base.view import StreamView
from rltrace.diff.display.browser import Browser
from rltrace.errors import HoleError
from rltrace.query.ops import op_line
from rltrace.trace.format.rows import Rows

DETAILS = ("place", "kernel", "module", "phase")
"""What stands beside an op, one at a time."""

KEPT = 10_000
"""Rows whose words are kept."""

Row = tuple[str, int]
"""("a" or "b", row)."""


@dataclass(frozen=True)
class RowText:
    """One row in words."""

    text: str
    layouts: str = ""
    details: tuple[str, ...] = ("",) * len(DETAILS)
    where: str = ""
    """Step, phase, module, place and source line, on one line."""


class RowCache:
    """Words of the rows of one pair of streams."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._views = {"a": browser.a, "b": browser.b}
        self._known: dict[Row, RowText] = {}

    def get(self, row: Row) -> RowText | None:
        """The words of a row; None: nobody has read it yet."""
        return self._known.get(row)

    def fill(self, wanted: Iterable[Row], cancelled: Callable[[], bool] = lambda: False) -> None:
        """Read rows, a segment at a time; the browser's lock is held for each reading only."""
        found: dict[Row, RowText] = {}
        rows: Rows | None = None
        held = ""
        for side, number in sorted(set(wanted)):
            if cancelled():
                break
            try:
                if rows is None or side != held or not rows.first <= number < rows.first + len(rows):
                    held, rows = side, self._read(self._views[side], number)
                found[side, number] = self._cell(side, rows, number - rows.first)
            except HoleError as error:
                found[side, number] = RowText(f"! {error}", where=str(error))
        kept = self._known if len(self._known) + len(found) <= KEPT else {}
        self._known = kept | found

    def _read(self, view: StreamView, number: int) -> Rows:
        with self._browser.lock:
            return view.row(number)[0]

    def _cell(self, side: str, rows: Rows, place: int) -> RowText:
        line = op_line(rows, place, self._views[side].name, self._views[side].process.words)
        value = "" if line.value is None else f" → {line.value!r}"
        text = line.op.removesuffix(".default") + value
        short = where = ""
        if line.site is not None:
            short = f"{line.site.file.rpartition('/')[2]}:{line.site.line}"
            where = f"{short}  {' '.join(line.site.source.split())}"
        layouts = ", ".join(entered.layout or "?" for entered in line.inputs) or (line.event.what if line.event else "")
        told = filter(None, [f"step {line.step:,}", line.phase, line.module, where])
        return RowText(text, layouts, (short, line.kernel, line.module, line.phase), "   ".join(told))
