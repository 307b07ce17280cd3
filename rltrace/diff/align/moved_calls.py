"""Rows matched although they are called from other places in the code: whether they are the same op at all.

An edited line leaves ops that compute the same; a log line that now prints something else leaves ops that merely look
alike. Equal values need no further proof. Where they differ, the ops must compute with what matching ops wrote, or what
they wrote must be what matching ops compute with; anything less is one op of A and another of B, and no difference of
values.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.align.rows import Alignment
from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.findings import RowAt, writer_of
from rltrace.diff.base.row_diff import candidates, difference
from rltrace.diff.base.sequences import Indices
from rltrace.diff.base.view import RowRange
from rltrace.errors import HoleError
from rltrace.trace.format.schema import VALUE_FLAGS, Origin, RowFlag

# --- evidence ---------------------------------------------------------------------------------------------------------
#
# What tells that two rows, called from different places in the code, are one op: what they compute with, who uses it.
#
# Owns the following of links on both sides at once. Values are no part of it: equal ones may be chance.


def same_writers(scene: DiffContext, a: tuple[RowRange, int], b: tuple[RowRange, int], partner: Indices) -> bool | None:
    """Whether matching ops wrote all that two rows compute with; None: no op that is known wrote any of it."""
    row_a, row_b = RowAt(scene.a, a[0].rows, a[1]), RowAt(scene.b, b[0].rows, b[1])
    found = None
    for x, y in zip(row_a.rows.inputs(row_a.place), row_b.rows.inputs(row_b.place), strict=False):
        if Origin.OVERWRITTEN in (x.distance, y.distance):
            continue
        writer_a, writer_b = writer_of(row_a, x), writer_of(row_b, y)
        if writer_a is None and writer_b is None:
            continue
        if writer_a is None or writer_b is None:
            return False
        place, other = writer_a.index - a[0].first, writer_b.index - b[0].first
        matched = scene.matching.partner(writer_a.index) == writer_b.index if place < 0 else partner[place] == other
        if not matched or (place >= 0) != (other >= 0):
            return False
        found = True
    return found


LONGEST_CHAIN = 64
"""Doubtful ops in a row, each computing with what the one before wrote."""

LOOK_AHEAD = 1 << 12
"""Rows after a stretch among which those are sought that compute with what was written in it."""


def used_alike(
    a: RowRange, b: RowRange, found: Alignment, sure: NDArray[np.bool_], *, ahead: bool = False
) -> NDArray[np.bool_]:
    """Which pairs wrote what a pair that is ``sure``, or that is used so itself, has for the same input.

    ``ahead``: of those that nobody in the stretches computes with, look further on as well.
    """
    uses_a, uses_b = _uses(a), _uses(b)
    writers, users = _shared(found, uses_a, uses_b)
    used = np.zeros(len(found.a), bool)
    if ahead:
        idle = ~np.isin(found.a, uses_a[2]) & ~np.isin(found.b, uses_b[2]) & ~a.flags(VALUE_FLAGS)[found.a]
        used = _used_ahead(a, b, found, np.flatnonzero(idle & ~sure))
    for _ in range(LONGEST_CHAIN):
        more = writers[(sure | used)[users]]
        if used[more].all():
            break
        used[more] = True
    return used


Uses = tuple[Indices, Indices, Indices]
"""Rows, the number of an input, and the row that wrote it: places within a stretch, the writer's may be before it."""


def _uses(stretch: RowRange) -> Uses:
    """Who computes with what another row wrote; who only read the same before is left out."""
    links, offsets = stretch.tokens.links, stretch.tokens.link_offsets
    user = np.repeat(np.arange(len(stretch)), np.diff(offsets))
    wrote = (links >> 12 > 0) & (links & 2 == 0)
    place = np.arange(len(links)) - offsets[user]
    return user[wrote], place[wrote], (user - (links >> 12))[wrote]


def _shared(found: Alignment, a: Uses, b: Uses) -> tuple[Indices, Indices]:
    """Pairs, by number, that wrote an input of other pairs on both sides: (who wrote it, who computes with it)."""
    keys = []
    for (user, place, writer), rows, count in ((a, found.a, found.rows_a), (b, found.b, found.rows_b)):
        pair = np.full(count, -1, np.int64)
        pair[rows] = np.arange(len(rows))
        inside = writer >= 0
        own = np.stack([pair[writer[inside]], pair[user[inside]], place[inside]], axis=1)
        keys.append(np.unique(own[(own >= 0).all(axis=1)], axis=0))
    both, often = np.unique(np.concatenate(keys), axis=0, return_counts=True)
    return both[often == 2, 0], both[often == 2, 1]


def _used_ahead(a: RowRange, b: RowRange, found: Alignment, asked: Indices) -> NDArray[np.bool_]:
    """Which of the pairs ``asked`` for wrote what the same line has for the same input, soon after the stretches."""
    used = np.zeros(len(found.a), bool)
    if len(asked):
        users_a, users_b = _users_ahead(a, found.a[asked]), _users_ahead(b, found.b[asked])
        for k in asked.tolist():
            used[k] = not users_a.get(int(found.a[k]), set()).isdisjoint(users_b.get(int(found.b[k]), ()))
    return used


def _users_ahead(stretch: RowRange, rows: Indices) -> dict[int, set[tuple[int, int]]]:
    """Of each of these rows, by place, who computes with what it wrote: (identity token, number of the input)."""
    found: dict[int, set[tuple[int, int]]] = {}
    try:
        ahead = stretch.view.read(stretch.end, min(stretch.end + LOOK_AHEAD, stretch.view.rows))
    except HoleError:
        return found
    user, place, writer = _uses(ahead)
    writer = writer + len(stretch)
    for k in np.flatnonzero(np.isin(writer, rows)).tolist():
        found.setdefault(int(writer[k]), set()).add((int(ahead.tokens.identity[user[k]]), int(place[k])))
    return found


# --- elsewhere --------------------------------------------------------------------------------------------------------


def without_lookalikes(scene: DiffContext, a: RowRange, b: RowRange, found: Alignment) -> Alignment:
    """``found`` without pairs, up to the first true difference, that are two ops rather than one."""
    elsewhere = a.tokens.identity[found.a] != b.tokens.identity[found.b]
    unequal = candidates(a, found.a, b, found.b)
    doubtful = np.flatnonzero(elsewhere & unequal)
    if not len(doubtful):
        return found
    partner = np.full(len(a), -1, np.int64)
    partner[found.a] = found.b
    used = used_alike(a, b, found, ~(elsewhere & unequal), ahead=True)
    drop = np.zeros(len(found.a), bool)
    for k in doubtful.tolist():
        i, j = int(found.a[k]), int(found.b[k])
        if not difference(a, i, b, j).found:
            continue
        wide = bool(k) and elsewhere[k - 1] and not drop[k - 1] and (found.a[k - 1], found.b[k - 1]) == (i - 1, j - 1)
        if used[k] or _same_draw(a, b, found, k, unequal) or _is_one(scene, (a, i), (b, j), partner, wide):
            break
        drop[k], partner[i] = True, -1
    return replace(found, a=found.a[~drop], b=found.b[~drop], moved=found.moved[~drop]) if drop.any() else found


def _same_draw(a: RowRange, b: RowRange, found: Alignment, k: int, unequal: NDArray[np.bool_]) -> bool:
    """Whether two draws are one: they have no inputs to tell, so the rows before or after have to be equal.

    What stands before and after a stretch is matched.
    """
    i, j = int(found.a[k]), int(found.b[k])
    if not a.rows.flags(i) & b.rows.flags(j) & RowFlag.RNG:
        return False
    if (i, j) in ((0, 0), (len(a) - 1, len(b) - 1)) and a.first and b.first:
        return True
    return any(
        0 <= n < len(found.a) and not unequal[n] and (int(found.a[n]), int(found.b[n])) == (i + n - k, j + n - k)
        for n in (k - 1, k + 1)
    )


def _is_one(scene: DiffContext, a: tuple[RowRange, int], b: tuple[RowRange, int], partner: Indices, wide: bool) -> bool:
    """Whether two rows are one op. ``wide``: the rows before them are called from other places as well."""
    same = same_writers(scene, a, b, partner)
    if same is not None:
        return same
    links = zip(a[0].rows.inputs(a[1]), b[0].rows.inputs(b[1]), strict=False)
    return wide or any(x.digest is not None and x.digest == y.digest for x, y in links)
