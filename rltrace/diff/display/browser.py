"""Two streams side by side as lines, for display.

Owns the order of the lines and which of them are folded. It is built from digests: no rows are read until a piece is
opened, and then only rows of that piece. Decides no verdict: the findings of a comparison are an argument.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from threading import RLock

import numpy as np

from rltrace.diff.align.blocks import step_after
from rltrace.diff.base.context import Matching
from rltrace.diff.base.model import Finding
from rltrace.diff.base.view import StreamView
from rltrace.diff.display.row_pairs import (
    Keep,
    Lines,
    Relation,
    aligned_lines,
    equal_lines,
    one_sided_lines,
    pair_rows,
    window_end,
)
from rltrace.diff.display.segments import CONTEXT, MAX_ROWS, SHORTEST_FOLD, Piece, own_pieces, pieces
from rltrace.errors import HoleError
from rltrace.trace.format.schema import Step


@dataclass(frozen=True)
class BrowserLine:
    """One line: a row of each side or of one, or a fold."""

    a: int | None
    """Row of A; for a fold, the first one."""
    b: int | None
    relation: Relation | None
    """None: a fold."""
    moved: bool = False
    piece: Piece | None = None
    """The piece that the line belongs to."""


class Browser:
    """The lines of one pair of streams. Thread-safe: state is replaced as a whole, and reads are serialised."""

    def __init__(self, a: StreamView, b: StreamView | None, findings: Iterable[Finding] = ()) -> None:
        """``b`` None: only A, which is shown beside itself and folded step by step."""
        self.a, self.b = a, b or a
        self.is_single = b is None
        self.lock = RLock()
        """Held while rows of these streams are read."""
        self.hide_receivers = False
        self._filter: tuple[Keep, Keep] | None = None
        own = [f for f in findings if f.stream == a.name]
        self.pins = {(f.a_index, f.b_index) for f in own if f.a_index is not None or f.b_index is not None}
        """Rows of findings; these are always pairs."""
        self._set_pieces(list(own_pieces(a) if b is None else pieces(a, b, self.pins)))

    # --- lines --------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self._state[1][-1])

    @property
    def pieces(self) -> list[Piece]:
        return self._state[0]

    def _set_pieces(self, new: list[Piece]) -> None:
        """Replace the state: the pieces, and the first line of each, followed by the number of lines."""
        self._state = new, np.cumsum([0, *(self._height(piece) for piece in new)])

    def _height(self, piece: Piece) -> int:
        if not piece.is_open:
            return 1
        if piece.lines is None:
            return piece.rows
        return len(piece.lines.shown(self.hide_receivers))

    def set_hide_receivers(self, hide: bool) -> None:
        """Hide rows that only propagate a difference, or show them again."""
        with self.lock:
            self.hide_receivers = hide
            self._set_pieces(self.pieces)

    def set_filter(self, keep: tuple[Keep, Keep] | None) -> None:
        """Show only rows that ``keep`` selects (in A, in B); None: all rows. Reads the open pieces; a long run that was
        not read is folded.
        """
        with self.lock:
            self._filter = keep
            self._set_pieces([new for piece in self.pieces for new in self._filtered(piece)])

    @property
    def is_filtered(self) -> bool:
        return self._filter is not None

    def piece_at(self, line: int) -> int:
        """Number of the piece that holds a line."""
        return int(np.searchsorted(self._state[1], line, side="right")) - 1

    def first_line(self, piece: int) -> int:
        return int(self._state[1][piece])

    def line(self, number: int) -> BrowserLine:
        """Line ``number``, from 0; reads nothing."""
        pieces_, starts = self._state
        at = int(np.searchsorted(starts, number, side="right")) - 1
        piece, offset = pieces_[at], number - int(starts[at])
        if not piece.is_open:
            return BrowserLine(piece.a0, None if self.is_single else piece.b0, None, piece=piece)
        if piece.lines is None:
            b = None if self.is_single else piece.b0 + offset
            return BrowserLine(piece.a0 + offset, b, Relation.EQUAL, piece=piece)
        return self._row_line(piece.lines, int(piece.lines.shown(self.hide_receivers)[offset]), piece)

    def _row_line(self, lines: Lines, k: int, piece: Piece) -> BrowserLine:
        a, b = int(lines.a[k]), int(lines.b[k])
        return BrowserLine(
            a if a >= 0 else None,
            b if b >= 0 and not self.is_single else None,
            Relation(int(lines.relation[k])),
            bool(lines.moved[k]),
            piece,
        )

    # --- place of a row -----------------------------------------------------------------------------------------------

    def piece_of(self, side: str, row: int) -> int:
        """Number of the piece that holds a row of ``"a"`` or ``"b"``."""
        return min(bisect_right(self.pieces, row, key=lambda p: p.a1 if side == "a" else p.b1), len(self.pieces) - 1)

    def line_of(self, side: str, row: int) -> int:
        """The line that shows a row, or the fold that contains it; for a hidden row, the next line shown."""
        pieces_, starts = self._state
        for at in range(self.piece_of(side, row), len(pieces_)):
            piece, start = pieces_[at], int(starts[at])
            if not piece.is_open:
                if (piece.a0 <= row < piece.a1) if side == "a" else (piece.b0 <= row < piece.b1):
                    return start
            elif piece.lines is None:
                offset = row - (piece.a0 if side == "a" else piece.b0)
                if 0 <= offset < piece.rows:
                    return start + offset
            else:
                rows = piece.lines.a if side == "a" else piece.lines.b
                found = np.flatnonzero(rows == row)
                if len(found):
                    shown = piece.lines.shown(self.hide_receivers)
                    return max(0, min(start + int(np.searchsorted(shown, found[0])), len(self) - 1))
        return max(0, len(self) - 1)

    def is_hidden(self, side: str, row: int) -> bool:
        """Whether a row of an open piece is hidden."""
        if not len(self):
            return True
        line = self.line(self.line_of(side, row))
        return line.relation is not None and (line.a if side == "a" else line.b) != row

    # --- opening and folding ------------------------------------------------------------------------------------------

    def opened(self, piece: Piece) -> list[Piece]:
        """The pieces that replace a folded piece when it is opened; reads its rows unless all are equal."""
        if piece.equal and self._filter is None:
            return [replace(piece, is_open=True)]
        if piece.trouble:
            return [piece]
        try:
            with self.lock:
                return self._read_equal(piece) if piece.equal else self._read(piece)
        except HoleError as error:
            return [replace(piece, trouble=str(error))]

    def replace_piece(self, at: int, old: Piece, new: list[Piece]) -> None:
        """Replace piece ``old`` at number ``at`` by ``new``; no effect if another piece is there now."""
        with self.lock:
            if at < len(self.pieces) and self.pieces[at] is old:
                self._set_pieces([*self.pieces[:at], *new, *self.pieces[at + 1 :]])

    def open(self, at: int) -> None:
        """Open piece ``at`` in place."""
        piece = self.pieces[at]
        if not piece.is_open:
            self.replace_piece(at, piece, self.opened(piece))

    def fold(self, at: int) -> int:
        """Fold piece ``at`` and all that were cut from the same piece; returns the number of the fold."""
        piece = self.pieces[at]
        whole = piece.part_of
        if whole is None or (piece.equal and piece.is_open):
            foldable = piece.equal or piece.lines is None
            self.replace_piece(at, piece, [replace(piece, is_open=False, lines=None)] if foldable else [piece])
            return at
        first = last = at
        while first > 0 and self.pieces[first - 1].part_of is whole:
            first -= 1
        while last + 1 < len(self.pieces) and self.pieces[last + 1].part_of is whole:
            last += 1
        self._set_pieces([*self.pieces[:first], whole, *self.pieces[last + 1 :]])
        return first

    def reveal(self, side: str, row: int) -> int:
        """Open the folds that hide a row; returns the line that shows it."""
        for _ in range(3):  # a piece, a fold within it
            line = self.line_of(side, row)
            at = self.piece_at(line)
            piece = self.pieces[at]
            if piece.is_open or piece.trouble:
                return line
            self.open(at)
        return self.line_of(side, row)

    # --- next origin --------------------------------------------------------------------------------------------------

    def seek(self, line: int, direction: int, cancelled: Callable[[], bool] = lambda: False) -> tuple[str, int] | None:
        """(side, row) of the next row after ``line`` (before it, with -1) where a difference may begin; reads rows."""
        at = self.piece_at(line)
        numbers = range(at, len(self.pieces)) if direction > 0 else range(at, -1, -1)
        for number in numbers:
            piece = self.pieces[number]
            if cancelled():
                return None
            if piece.equal or piece.trouble:
                continue
            parts = [piece] if piece.lines is not None else self.opened(piece)
            found = [k for part in parts if part.lines is not None for k in self._stops(part.lines)]
            ahead = [stop for stop in found if number != at or self._beyond(stop, line, direction)]
            if ahead:
                return ahead[0] if direction > 0 else ahead[-1]
        return None

    def _stops(self, lines: Lines) -> Iterator[tuple[str, int]]:
        kinds = (Relation.DIFFERS, Relation.ONLY_A, Relation.ONLY_B)
        before = Relation.EQUAL
        lines = lines if lines.visible is None else lines.only(lines.visible)
        for k in np.flatnonzero(np.isin(lines.relation, kinds) | (lines.relation == Relation.EQUAL)).tolist():
            relation = Relation(int(lines.relation[k]))
            if relation in kinds and (relation is Relation.DIFFERS or relation is not before):
                yield ("a", int(lines.a[k])) if lines.a[k] >= 0 else ("b", int(lines.b[k]))
            before = relation

    def _beyond(self, stop: tuple[str, int], line: int, direction: int) -> bool:
        found = self.line_of(*stop)
        return found > line if direction > 0 else found < line

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read(self, piece: Piece) -> list[Piece]:
        """The rows of a piece, with identical runs folded."""
        a1, b1 = min(piece.a1, piece.a0 + MAX_ROWS), min(piece.b1, piece.b0 + MAX_ROWS)
        a, b = self.a.read(piece.a0, a1), self.b.read(piece.b0, b1)
        rest: list[Piece] = []
        if (a1, b1) != (piece.a1, piece.b1):
            ends = window_end(a, b) if len(a) and len(b) else (len(a), len(b))
            if ends == (0, 0):
                return [replace(piece, trouble="the two sides are too different here to be aligned")]
            a, b = a.cut(a.first, a.first + ends[0]), b.cut(b.first, b.first + ends[1])
            rest = [replace(piece, a0=a.end, b0=b.end, part_of=piece)]
        if piece.is_aligned:
            lines = aligned_lines(a, b)
        elif not len(a) or not len(b):
            lines = one_sided_lines(a, b)
        else:
            lines = pair_rows(a, b, self.pins)
        lines = lines.filtered(a, b, self._filter)
        return [
            Piece(
                *bounds, equal=equal, is_aligned=equal, lines=None if equal else part, is_open=not equal, part_of=piece
            )
            for bounds, equal, part in lines.runs((piece.a0, piece.b0), SHORTEST_FOLD, CONTEXT)
        ] + rest

    def _read_equal(self, piece: Piece) -> list[Piece]:
        """The rows of an identical piece, filtered; at most as many as are read at a time."""
        count = min(piece.a1 - piece.a0, MAX_ROWS)
        a, b = self.a.read(piece.a0, piece.a0 + count), self.b.read(piece.b0, piece.b0 + count)
        lines = equal_lines(a, b).filtered(a, b, self._filter)
        rest = replace(piece, a0=a.end, b0=b.end, is_open=False, lines=None)
        return [replace(piece, a1=a.end, b1=b.end, lines=lines, is_open=True), *([rest] if rest.rows else [])]

    def _filtered(self, piece: Piece) -> list[Piece]:
        """A piece under the current filter."""
        if not piece.is_open or (piece.lines is None and self._filter is None):
            return [piece]
        if piece.equal and (self._filter is None or piece.rows > MAX_ROWS):
            return [replace(piece, lines=None, is_open=self._filter is None)]
        try:
            if piece.lines is None:
                return self._read_equal(piece)
            a, b = self.a.read(piece.a0, piece.a1), self.b.read(piece.b0, piece.b1)
        except HoleError as error:
            return [replace(piece, is_open=False, lines=None, trouble=str(error))]
        return [replace(piece, lines=piece.lines.filtered(a, b, self._filter))]

    def step_of(self, piece: Piece) -> int | None:
        """The step in which a piece begins; None where the stream's thread made no attempt. Reads no row."""
        view, row = (self.a, piece.a0) if piece.a1 > piece.a0 else (self.b, piece.b0)
        attempt = view.attempt_after(row)
        if attempt is not None:
            return int(attempt[Step.STEP])
        return step_after(view, len(view.steps)) if len(view.steps) else None


# --- partners ---------------------------------------------------------------------------------------------------------
#
# Matched rows of a browser, as far as its pieces were read; opens none.


class PartnerLookup(Matching):
    """Matched rows, as far as the pieces of a browser were read."""

    def __init__(self, browser: Browser) -> None:
        super().__init__(0)
        self._browser = browser

    def partner(self, row: int) -> int | None:
        return self._matched("a", row)

    def partner_in_a(self, row: int) -> int | None:
        return self._matched("b", row)

    def _matched(self, side: str, row: int) -> int | None:
        """The other side's row that is matched with a row of ``side``; None: unmatched, or not known."""
        piece = self._browser.pieces[self._browser.piece_of(side, row)]
        order = 1 if side == "a" else -1
        if piece.is_aligned:
            start, other_start = (piece.a0, piece.b0)[::order]
            return row - start + other_start
        if piece.lines is None:
            return None
        own, others = (piece.lines.a, piece.lines.b)[::order]
        found = others[own == row]
        return int(found[0]) if len(found) and found[0] >= 0 else None
