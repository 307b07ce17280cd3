"""Places in two aligned stretches: where they may be cut, what stands before a pair, what stands beside a row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.aligning.align import Alignment
from rltrace.diff.aligning.sequences import Indices
from rltrace.diff.findings import RowAt
from rltrace.diff.judging.pairs import candidates
from rltrace.diff.view import Stretch
from rltrace.trace.schema import Column, Kind

ANCHOR_ROWS = 32
"""Adjacent matching rows that make a safe place to cut a stretch."""

CUT_STRIDE, CUTS_TRIED = 16, 256
"""Places that are tried, from the end, until one lies between no two rows that changed places."""


def in_step(a: Stretch, b: Stretch) -> bool:
    """Whether every row of one stretch is the same op as the row at its place in the other."""
    return len(a) == len(b) and np.array_equal(a.hashes.structure, b.hashes.structure)


def in_step_and_equal(a: Stretch, b: Stretch) -> bool:
    """The same, and nothing that they compute seems to differ."""
    rows = np.arange(min(len(a), len(b)))
    return in_step(a, b) and not candidates(a, rows, b, rows).any()


def same_beginning(a: Stretch, b: Stretch) -> tuple[Stretch, Stretch]:
    """Where a hole cuts one side short, and what is left has the same structure: both cut there."""
    rows = min(len(a), len(b))
    short = a.cut(a.first, a.first + rows), b.cut(b.first, b.first + rows)
    return short if in_step(*short) else (a, b)


def row_or_none(stretch: Stretch, row: int) -> RowAt | None:
    place = row - stretch.first
    return RowAt(stretch.view, stretch.rows, place) if 0 <= place < len(stretch) else None


def one_sided(stretch: Stretch, rows: Indices, end: int) -> Indices:
    """One-sided ops before place ``end``: a window's opening rows belong to the recording, not to the program."""
    rows = rows[rows < end]
    own: Indices = rows[stretch.rows.column(Column.KIND)[rows] != Kind.WINDOW]
    return own


def before(found: Alignment, inside: NDArray[np.bool_], unequal: int) -> tuple[int, int]:
    """Ends of what lies before pair ``unequal`` on both sides."""
    a, b = int(found.a[inside][unequal]), int(found.b[inside][unequal])
    if not found.moved[inside][unequal]:
        return a, b
    in_order = found.b[(found.a < a) & ~found.moved]
    return a, int(in_order.max()) + 1 if len(in_order) else 0


def beside_of(rows: Indices, own: Indices, others: Indices) -> Indices:
    """For each row, the place on the other side that comes right after its last match."""
    at = np.searchsorted(own, rows) - 1
    if not len(own):
        return np.zeros(len(rows), np.int64)
    return np.where(at >= 0, others[np.maximum(at, 0)] + 1, 0)


def safe_cut(found: Alignment, limit: int | None = None) -> tuple[int, int]:
    """Where a stretch that goes on may be cut: after the last long run of adjacent matches; (0, 0): nowhere.

    ``limit``: before this row of A.
    """
    in_order = ~found.moved if limit is None else ~found.moved & (found.a < limit)
    at_a, at_b = found.a[in_order], found.b[in_order]
    if len(at_a) < ANCHOR_ROWS:
        return (0, 0)
    adjacent = (np.diff(at_a) == 1) & (np.diff(at_b) == 1)
    need = ANCHOR_ROWS - 1
    runs = np.convolve(adjacent.astype(np.int64), np.ones(need, np.int64), mode="valid") == need
    for place in np.flatnonzero(runs)[::-CUT_STRIDE][:CUTS_TRIED].tolist():
        last = place + need
        cut = int(at_a[last]) + 1, int(at_b[last]) + 1
        if not (found.moved & ((found.a < cut[0]) != (found.b < cut[1]))).any():
            return cut
    return (0, 0)
