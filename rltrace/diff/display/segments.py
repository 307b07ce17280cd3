"""Two streams cut into pieces by their digests: identical runs, and the steps that differ. Reads no rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from rltrace.diff.align.blocks import blocks
from rltrace.diff.base.bisect import MARKED, STRUCTURE, VALUES, Bisection
from rltrace.diff.base.view import StreamView, is_shifted
from rltrace.diff.display.row_pairs import Lines, Pin
from rltrace.trace.format.schema import Step

CONTEXT = 2
"""Identical rows that are shown beside one that differs."""

SHORTEST_FOLD = 6
"""Identical rows that are worth a fold."""

MAX_ROWS = 1 << 13
"""Rows of a side that are read and aligned at a time."""


BEFORE = "they are from before the comparison begins"


@dataclass(frozen=True, eq=False)
class Piece:
    """Adjacent lines: folded into one, or open."""

    a0: int
    a1: int
    b0: int
    b1: int
    equal: bool
    """Every row is identical on both sides, position by position."""
    is_aligned: bool
    """The rows are paired position by position, whatever they computed."""
    is_computed_alike: bool = False
    """All ops computed the same; events among them, or ops on uninitialised memory, may differ."""
    lines: Lines | None = None
    """The rows, once they were read; None: not read."""
    is_open: bool = False
    part_of: Piece | None = None
    """The piece that it was cut from when that was read."""
    trouble: str = ""
    """Why its rows cannot be shown."""

    @property
    def rows(self) -> int:
        """Rows of the side that has more."""
        return max(self.a1 - self.a0, self.b1 - self.b0)


def pieces(a: StreamView, b: StreamView, pins: Collection[Pin] = ()) -> Iterator[Piece]:
    """All pieces of two streams, in order; ``pins``: rows that are pairs. Reads only what a bisection reads."""
    if a.start or b.start:
        yield Piece(0, a.start, 0, b.start, equal=False, is_aligned=False, trouble=BEFORE)
    base, diverged, marked = _bounds(a, b, pins)
    first = max(0, base - CONTEXT) if base < max(a.rows, b.rows) else base
    if first >= SHORTEST_FOLD:
        yield Piece(0, first, 0, first, equal=True, is_aligned=True)
        if first < base:
            yield Piece(first, base, first, base, equal=True, is_aligned=True, is_open=True)
        first = base
    else:
        first = 0
    yield from _merged(_steps(a, b, (first, diverged, marked), pins))


def own_pieces(view: StreamView) -> Iterator[Piece]:
    """All pieces of a single stream: a fold for every step, and one for the rows after the last. Reads the steps."""
    ends = sorted({0, view.rows, *(min(end, view.rows) for end in view.steps[:, Step.END_ROW].tolist())})
    for start, stop in pairwise(ends):
        yield Piece(start, stop, start, stop, equal=True, is_aligned=True, is_open=len(ends) == 2)


def _bounds(a: StreamView, b: StreamView, pins: Collection[Pin]) -> tuple[int, int, int]:
    """(end of the identical rows, end of the rows that are paired position by position, first event that differs)."""
    if a.process.windows != b.process.windows or is_shifted(a.process, b.process):
        return 0, 0, 0
    search = Bisection(a, b)
    rows = []
    for column in (STRUCTURE, VALUES, MARKED):
        found = search.first(column)
        hidden = found.hole.first if found.hole is not None else search.shorter
        rows.append(hidden if found.row is None else found.row)
    shifted = [min(row for row in pin if row is not None) for pin in pins if pin[0] != pin[1]]
    pinned = [row for pin in pins for row in pin if row is not None]  # of an event, before anything depends on it
    marked = a.rows if found.row is None or found.row > rows[0] else found.row  # else it may be another event
    return min([*rows, *pinned]), min([rows[0], *shifted]), marked


def _steps(a: StreamView, b: StreamView, bounds: tuple[int, int, int], pins: Collection[Pin]) -> Iterator[Piece]:
    """The steps from the first row of both sides on that is not known to be identical."""
    first, diverged, marked = bounds
    for block in blocks(a, b):
        a0, b0 = max(block.a0, first), max(block.b0, first)
        a1, b1 = max(block.a1, a0), max(block.b1, b0)
        pinned = any(row is not None and a0 <= row < a1 for row, _ in pins)
        if block.same and not pinned and a0 - block.a0 == b0 - block.b0:
            if a1 <= marked:
                yield Piece(a0, a1, b0, b1, equal=True, is_aligned=True)
            else:
                yield from _side_by_side(a0, a1, b0 - a0, is_computed_alike=True)
            continue
        paired_end = min(diverged, a1, b1) if a0 == b0 else a0
        if paired_end > a0 and (a0 + MAX_ROWS < paired_end or paired_end == a1 == b1):
            yield from _side_by_side(a0, paired_end)
            a0 = b0 = paired_end
        if a0 < a1 or b0 < b1:
            yield Piece(a0, a1, b0, b1, equal=False, is_aligned=False)


def _side_by_side(start: int, stop: int, shift: int = 0, *, is_computed_alike: bool = False) -> Iterator[Piece]:
    """Rows paired position by position, at most ``MAX_ROWS`` in a piece; ``shift``: how much later B's rows are."""
    for at in range(start, stop, MAX_ROWS):
        end = min(at + MAX_ROWS, stop)
        piece = Piece(at, end, at + shift, end + shift, equal=False, is_aligned=True)
        yield replace(piece, is_computed_alike=is_computed_alike)


def _merged(found: Iterable[Piece]) -> Iterator[Piece]:
    """Adjacent equal pieces as one, those whose ops are equal up to ``MAX_ROWS``; empty ones left out."""
    previous: Piece | None = None
    for piece in chain(found, [None]):
        if piece is not None and not piece.rows:
            continue
        if previous is not None and piece is not None and _is_continued(previous, piece):
            previous = replace(previous, a1=piece.a1, b1=piece.b1)
            continue
        if previous is not None:
            yield previous
        previous = piece


def _is_continued(piece: Piece, by: Piece) -> bool:
    short = piece.is_computed_alike and by.is_computed_alike and piece.rows + by.rows <= MAX_ROWS
    return (piece.equal and by.equal) or short
