"""Pairs of rows with different call sites: whether they are the same op at all.

An edited line leaves ops that compute the same; an edited log line leaves ops that only look similar. Pairs with equal
values stay. A pair with different values must read what matched ops wrote, or matched ops must read what it wrote;
otherwise it is one op of A and another of B, and no difference of values.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.align.blocks import optimizer_keys
from rltrace.diff.align.rows import Alignment
from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.findings import RowAt, writer_of
from rltrace.diff.base.row_diff import candidates, difference
from rltrace.diff.base.sequences import Indices
from rltrace.diff.base.view import RowRange
from rltrace.errors import HoleError
from rltrace.trace.format.schema import VALUE_FLAGS, Column, Generator, Origin, Phase, RowFlag, Step

# --- evidence ---------------------------------------------------------------------------------------------------------
#
# Dataflow evidence that two rows with different call sites are one op: their producers and their consumers. Values are
# not used, as they may be equal by chance.


def same_writers(
    context: DiffContext, a: tuple[RowRange, int], b: tuple[RowRange, int], partner: Indices
) -> bool | None:
    """Whether matched ops wrote all inputs of two rows; None: no producer is known."""
    row_a, row_b = RowAt(context.a, a[0].rows, a[1]), RowAt(context.b, b[0].rows, b[1])
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
        matched = context.matching.partner(writer_a.index) == writer_b.index if place < 0 else partner[place] == other
        if not matched or (place >= 0) != (other >= 0):
            return False
        found = True
    return found


MAX_CHAIN = 64
"""Doubtful ops in a chain, each reading what the one before wrote."""

LOOK_AHEAD = 1 << 12
"""Rows after a range that are searched for consumers of what was written in it."""


def with_matching_users(
    a: RowRange, b: RowRange, found: Alignment, sure: NDArray[np.bool_], *, ahead: bool = False
) -> NDArray[np.bool_]:
    """Which pairs wrote the same input of a pair that is ``sure``, or of one that this proves.

    ``ahead``: also search the rows after the ranges for consumers of pairs that have none within them.
    """
    uses_a, uses_b = _uses(a), _uses(b)
    writers, users = _shared(found, uses_a, uses_b)
    used = np.zeros(len(found.a), bool)
    if ahead:
        idle = ~np.isin(found.a, uses_a[2]) & ~np.isin(found.b, uses_b[2]) & ~a.flags(VALUE_FLAGS)[found.a]
        used = _used_ahead(a, b, found, np.flatnonzero(idle & ~sure))
    for _ in range(MAX_CHAIN):
        more = writers[(sure | used)[users]]
        if used[more].all():
            break
        used[more] = True
    return used


Uses = tuple[Indices, Indices, Indices]
"""Consumers, input numbers and producers: places within a range, those of producers may be negative."""


def _uses(stretch: RowRange) -> Uses:
    """Links of rows to the rows that wrote their inputs; links to rows that only read the same are left out."""
    links, offsets = stretch.tokens.links, stretch.tokens.link_offsets
    user = np.repeat(np.arange(len(stretch)), np.diff(offsets))
    wrote = (links >> 12 > 0) & (links & 2 == 0)
    place = np.arange(len(links)) - offsets[user]
    return user[wrote], place[wrote], (user - (links >> 12))[wrote]


def _shared(found: Alignment, a: Uses, b: Uses) -> tuple[Indices, Indices]:
    """Numbers of the pairs (producer, consumer) that are linked through the same input on both sides."""
    keys = []
    for (user, place, writer), rows, count in ((a, found.a, found.rows_a), (b, found.b, found.rows_b)):
        pair = np.full(count, -1, np.int64)
        pair[rows] = np.arange(len(rows))
        inside = writer >= 0
        own = np.stack([pair[writer[inside]], pair[user[inside]], place[inside]], axis=1)
        keys.append(np.unique(own[(own >= 0).all(axis=1)], axis=0))
    both, counts = np.unique(np.concatenate(keys), axis=0, return_counts=True)
    return both[counts == 2, 0], both[counts == 2, 1]


def _used_ahead(a: RowRange, b: RowRange, found: Alignment, pairs: Indices) -> NDArray[np.bool_]:
    """Which of these ``pairs`` have consumers with the same identity and input number after the ranges."""
    used = np.zeros(len(found.a), bool)
    if len(pairs):
        users_a, users_b = _find_users_ahead(a, found.a[pairs]), _find_users_ahead(b, found.b[pairs])
        for k in pairs.tolist():
            used[k] = not users_a.get(int(found.a[k]), set()).isdisjoint(users_b.get(int(found.b[k]), ()))
    return used


def _find_users_ahead(stretch: RowRange, rows: Indices) -> dict[int, set[tuple[int, int]]]:
    """Consumers of each of these rows after the range: (identity token, number of the input), by place."""
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


# --- moved calls ------------------------------------------------------------------------------------------------------


def drop_false_matches(context: DiffContext, a: RowRange, b: RowRange, found: Alignment) -> Alignment:
    """``found`` without the pairs before the first true difference that are two different ops."""
    other_site = a.tokens.identity[found.a] != b.tokens.identity[found.b]
    unequal = candidates(a, found.a, b, found.b)
    other_optimizer = _of_other_optimizers(a, b, found, unequal)
    doubtful = np.flatnonzero((other_site | other_optimizer) & unequal)
    if not len(doubtful):
        return found
    partner = np.full(len(a), -1, np.int64)
    partner[found.a] = found.b
    used = with_matching_users(a, b, found, ~(other_site & unequal), ahead=True)
    drop = np.zeros(len(found.a), bool)
    for k in doubtful.tolist():
        i, j = int(found.a[k]), int(found.b[k])
        if not difference(a, i, b, j).found:
            continue
        if other_optimizer[k]:
            drop[k], partner[i] = True, -1
            continue
        after_moved = (
            bool(k) and other_site[k - 1] and not drop[k - 1] and (found.a[k - 1], found.b[k - 1]) == (i - 1, j - 1)
        )
        if used[k] or _same_draw(a, b, found, k, unequal) or _is_same_op(context, (a, i), (b, j), partner, after_moved):
            break
        drop[k], partner[i] = True, -1
    return replace(found, a=found.a[~drop], b=found.b[~drop], moved=found.moved[~drop]) if drop.any() else found


def _of_other_optimizers(a: RowRange, b: RowRange, found: Alignment, unequal: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which unequal pairs are of steps of two optimizers: not one op, even at one line."""
    processes = a.view.process, b.view.process
    keys = optimizer_keys(*processes)[0], optimizer_keys(*processes[::-1])[0]
    other = np.zeros(len(found.a), bool)
    if len({*keys[0].tolist(), *keys[1].tolist()}) < 2:
        return other
    steps = [stretch.rows.column(Column.PHASE)[at] == Phase.OPTIMIZER for stretch, at in ((a, found.a), (b, found.b))]
    for k in np.flatnonzero(steps[0] & steps[1] & unequal).tolist():
        ends = [stretch.view.attempt_after(stretch.first + int(at[k])) for stretch, at in ((a, found.a), (b, found.b))]
        made = [int(own[int(end[Step.OPTIMIZER])]) for own, end in zip(keys, ends, strict=True) if end is not None]
        other[k] = len(made) == 2 and made[0] != made[1]
    return other


def _same_draw(a: RowRange, b: RowRange, found: Alignment, k: int, unequal: NDArray[np.bool_]) -> bool:
    """Whether two draws are one op: they have no inputs, so the rows before or after them have to be equal.

    The rows before and after a range are matched. Two draws from different states are not one op where the next matched
    draw from that generator finds equal states: something put the state back on each side.
    """
    i, j = int(found.a[k]), int(found.b[k])
    if not a.rows.flags(i) & b.rows.flags(j) & RowFlag.RNG or _is_put_back(a, b, found, k):
        return False
    if (i, j) in ((0, 0), (len(a) - 1, len(b) - 1)) and a.first and b.first:
        return True
    return any(
        0 <= n < len(found.a) and not unequal[n] and (int(found.a[n]), int(found.b[n])) == (i + n - k, j + n - k)
        for n in (k - 1, k + 1)
    )


def _is_put_back(a: RowRange, b: RowRange, found: Alignment, k: int) -> bool:
    """Whether the next matched draw from the generator of pair ``k`` is one of a call site, and finds equal states."""
    drew = np.ones(len(found.a) - k - 1, bool)
    for stretch, places in ((a, found.a), (b, found.b)):
        later, numbers = places[k + 1 :], stretch.rows.generators
        own = numbers[places[k]]
        drew &= stretch.flags(RowFlag.RNG)[later] & (numbers[later] == own) & (own != Generator.UNKNOWN)
    following = np.flatnonzero(drew)
    if not len(following):
        return False
    i, j = (int(places[k + 1 + following[0]]) for places in (found.a, found.b))
    is_compared = not (a.rows.flags(i) | b.rows.flags(j)) & RowFlag.MARKED
    same_site = a.tokens.identity[i] == b.tokens.identity[j]
    return bool(is_compared and same_site and a.rows.rng(i) == b.rows.rng(j))


def _is_same_op(
    context: DiffContext, a: tuple[RowRange, int], b: tuple[RowRange, int], partner: Indices, after_moved: bool
) -> bool:
    """Whether two rows are one op. ``after_moved``: the rows before them have different call sites as well."""
    same = same_writers(context, a, b, partner)
    if same is not None:
        return same
    links = zip(a[0].rows.inputs(a[1]), b[0].rows.inputs(b[1]), strict=False)
    return after_moved or any(x.digest is not None and x.digest == y.digest for x, y in links)
