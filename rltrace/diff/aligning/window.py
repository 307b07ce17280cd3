"""One window of two streams aligned, with all that tells extra, moved and renamed ops from other values.

Owns the order of those means, and where a window that goes on is cut.
"""

from __future__ import annotations

import numpy as np

from rltrace.diff.aligning.align import Alignment, align, with_fewest_moves
from rltrace.diff.aligning.cuts import in_step, in_step_and_equal, safe_cut
from rltrace.diff.aligning.edited import learn_edits
from rltrace.diff.aligning.elsewhere import without_lookalikes
from rltrace.diff.aligning.reorder import settle_order
from rltrace.diff.aligning.sequences import Indices
from rltrace.diff.judging.harmless import without_differences
from rltrace.diff.judging.pairs import candidates, difference
from rltrace.diff.judging.scene import Scene
from rltrace.diff.view import StreamView, Stretch
from rltrace.errors import HoleError
from rltrace.trace.schema import Column

CONTEXT = 512
"""Rows before the first difference that are read with it: what the first rows in question were computed from."""


def context_before(a: StreamView, b: StreamView, base: int) -> int:
    """How many of the rows before ``base``, where two streams part, are of the same step and can be read."""
    start = max(0, base - CONTEXT)
    if base == start or base >= min(a.rows, b.rows) or a.hole(start, base + 1) or b.hole(start, base + 1):
        return 0
    try:
        steps = [view.read(start, base + 1).rows.column(Column.STEP) for view in (a, b)]
    except HoleError:
        return 0
    return int(min(np.sum(own[:-1] == own[-1]) for own in steps))


def aligned(scene: Scene, a: Stretch, b: Stretch, open_end: bool) -> Alignment:
    """``open_end``: the stretches were cut off and go on."""
    by_place = in_step_and_equal(a, b) if open_end else in_step(a, b)  # cut off in a long loop, rows only seem in step
    found = _by_place(a) if by_place else _by_names(scene, a, b, open_end)
    found = with_fewest_moves(without_lookalikes(scene, a, b, settle_order(a, b, found)))
    if by_place or open_end:
        return found
    differs = first_unequal(a, found.a, b, found.b) is not None
    simpler = without_differences(a.tokens, b.tokens) if differs or found.moved.any() else None
    if simpler is None or not (differs or simpler.moved.sum() < found.moved.sum()):
        return found
    return simpler


LESSONS = 3
"""How often a window is aligned again because of what it taught about edited lines."""


def _by_names(scene: Scene, a: Stretch, b: Stretch, open_end: bool) -> Alignment:
    for _ in range(LESSONS):
        found = align(a.tokens, b.tokens, open_end=open_end)
        if not learn_edits(scene, a, b, found):
            break
    return found


def _by_place(a: Stretch) -> Alignment:
    rows = np.arange(len(a))
    return Alignment(len(a), len(a), rows, rows, np.zeros(len(a), dtype=bool), None)


def first_unequal(a: Stretch, at_a: Indices, b: Stretch, at_b: Indices) -> int | None:
    """The first of these pairs that differs in anything that counts; None: all are equal."""
    for k in np.flatnonzero(candidates(a, at_a, b, at_b)).tolist():
        if difference(a, int(at_a[k]), b, int(at_b[k])).found:
            return int(k)
    return None


def cut_of(a: Stretch, b: Stretch, found: Alignment) -> tuple[int, int]:
    """Where a window is cut: before a first difference in its second half, which may be but a lack of what follows."""
    unequal = first_unequal(a, found.a, b, found.b)
    limit = None if unequal is None or 2 * found.a[unequal] < len(a) else int(found.a[unequal])
    cut = safe_cut(found, limit)
    return cut if cut != (0, 0) or limit is None else safe_cut(found)
