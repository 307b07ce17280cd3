"""Order alone is no difference of values: rows of one place in the code that only changed places among themselves.

A program that walks a set of strings runs the same ops in another order in every process. Matched by execution index,
each of them would seem to compute something else. Owns the test for a *pure* permutation: at one site and op, the
rows that differ compute the same things on both sides, each exactly as often, from matching producers. Anything short
of that stays as it is.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.align.blocks import WINDOW_ROWS
from rltrace.diff.align.rows import Alignment
from rltrace.diff.base.row_diff import candidates, difference
from rltrace.diff.base.sequences import Indices, Tokens, codes_of, longest_increasing, match_nth
from rltrace.diff.base.tokens import mix, values_of
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.errors import HoleError
from rltrace.trace.format.row_hashes import AnyOrder, input_digests
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import RowFlag

# --- unwritten --------------------------------------------------------------------------------------------------------
#
# Marked rows that changed places: two of them cannot be told apart by digests, as those may hold bytes nobody wrote.
#
# A replay memory from ``empty`` is filled key by key, in the order of a set: paired by position, the write of one key
# would seem to be that of another, and whoever reads the key to read memory that no op wrote. Owns the pairing of such
# rows by what they were given, once it is known which rows gave it.


Given = tuple[tuple[int, int], ...]
"""Of every input, in B's rows, the row that wrote it (or its kind of origin) and which of that row's it is."""

Moved = tuple[Indices, Indices, Indices]
"""Pairs, and the group that each stands or falls with."""

LARGEST = 20_000
"""Marked rows of a window; where there are more, they stay paired by position."""

BEFORE, NOWHERE = -(1 << 40), -(1 << 50)
"""Added to rows before the stretches, and in place of a row that has no partner: no row, and no kind of origin."""

ROUNDS = 16
"""How far what was learned of one marked row is passed on to marked rows that read what it wrote."""


def moved_unwritten(a: RowRange, b: RowRange, alignment: Alignment, partner: Indices, groups: int) -> Moved:
    """Marked rows that are to be paired otherwise; ``partner``: B's rows by A's, as far as they are known.

    All of one site, op and computation are paired anew or none is, each with a row that was given the same.
    Groups are numbered from ``groups`` on.
    """
    none = np.empty(0, np.int64)
    flags = a.flags(RowFlag.MARKED)[alignment.a] & b.flags(RowFlag.MARKED)[alignment.b]
    at_a, at_b = alignment.a[flags], alignment.b[flags]
    if not len(at_a) or len(at_a) > LARGEST:
        return none, none, none
    partner, own = partner.copy(), np.arange(len(b), dtype=np.int64)
    place_a, place_b, count = codes_of(_places(a, at_a), _places(b, at_b))
    found: dict[int, tuple[Indices, Indices]] = {}
    for _ in range(ROUNDS):
        again = False
        for place in np.flatnonzero(_is_doubtful(a.rows, at_a, b.rows, at_b, partner, place_a, count)).tolist():
            rows_a, rows_b = at_a[place_a == place], at_b[place_b == place]
            matched = _by_given(
                [_given(a.rows, int(i), partner) for i in rows_a], [_given(b.rows, int(j), own) for j in rows_b]
            )
            if matched is not None and not np.array_equal(partner[rows_a], rows_b[matched]):
                partner[rows_a] = rows_b[matched]
                found[place] = rows_a, rows_b[matched]
                again = True
        if not again:
            break
    if not found:
        return none, none, none
    sizes = [len(rows) for rows, _ in found.values()]
    numbers = np.repeat(np.arange(groups, groups + len(sizes)), sizes)
    return (*(np.concatenate(rows) for rows in zip(*found.values(), strict=True)), numbers)  # type: ignore[return-value]


def _places(stretch: RowRange, at: Indices) -> NDArray[np.uint64]:
    """Site, op and computation of some rows, as one token each."""
    return mix(stretch.tokens.identity[at], stretch.tokens.computation[at])


def _is_doubtful(
    a: Rows, at_a: Indices, b: Rows, at_b: Indices, partner: Indices, place: Indices, count: int
) -> NDArray[np.bool_]:
    """Which places in the code have a pair that was not given the same, the partners being what they are."""
    own = np.arange(len(b), dtype=np.int64)
    pairs = zip(at_a.tolist(), at_b.tolist(), strict=True)
    unlike = np.array([_given(a, i, partner) != _given(b, int(j), own) for i, j in pairs])
    doubtful = np.zeros(count, dtype=bool)
    doubtful[place[unlike]] = True
    return doubtful


def _given(rows: Rows, i: int, partner: Indices) -> Given:
    given = []
    for link in rows.inputs(i):
        target, row = i - link.distance, link.distance
        if row > 0 and target >= 0:
            row = int(partner[target]) if partner[target] >= 0 else NOWHERE
        elif row > 0:
            row = BEFORE + target  # the stretches begin at matching rows
        given.append((row, -1 if link.slot is None else link.slot))
    return tuple(given)


def _by_given(a: list[Given], b: list[Given]) -> Indices | None:
    """For each of ``a`` the place in ``b`` of what was given the same, the nth with the nth; None: not all have one."""
    places: dict[Given, deque[int]] = defaultdict(deque)
    for place, given in enumerate(b):
        places[given].append(place)
    found = [places[given].popleft() if places[given] else -1 for given in a]
    return None if -1 in found else np.array(found, np.int64)


# --- reorder ----------------------------------------------------------------------------------------------------------


Place = tuple[int, int, int]
"""First row of A, first row of B, number of rows of either side."""


def reordered_rows(view_a: StreamView, view_b: StreamView, place: Place) -> Alignment | None:
    """The rows of a step that holds the same on both sides in another order, paired by what makes its digest.

    None where they cannot be read, or are too many to be held at a time.
    """
    a0, b0, count = place
    if count > WINDOW_ROWS:
        return None
    try:
        a, b = view_a.read(a0, a0 + count), view_b.read(b0, b0 + count)
    except HoleError:
        return None
    at_a, at_b = match_nth(_free_hashes(a), _free_hashes(b))
    if len(at_a) != count:
        return None
    moved = np.ones(len(at_a), dtype=bool)
    moved[longest_increasing(at_b)] = False
    return Alignment(count, count, at_a, at_b, moved, None)


def partners_of(view_a: StreamView, view_b: StreamView, place: Place) -> Indices:
    """Rows of B's stream that the rows of such a step of A are; -1 where that cannot be found out."""
    partner = np.full(place[2], -1, np.int64)
    found = reordered_rows(view_a, view_b, place)
    if found is not None:
        partner[found.a] = place[1] + found.b
    return partner


def _free_hashes(step: RowRange) -> Tokens:
    return AnyOrder(step.first).advance(step.rows, step.hashes, []).hashes


def settle_order(a: RowRange, b: RowRange, alignment: Alignment) -> Alignment:
    """``alignment`` with rows that merely changed places matched by what they compute, and marked as moved."""
    unequal = _unequal(a, b, alignment)
    rows_a = np.sort(np.concatenate([alignment.a[unequal], alignment.only_a]))
    rows_b = np.sort(np.concatenate([alignment.b[unequal], alignment.only_b]))
    if not len(rows_a) or not len(rows_b):
        return alignment
    at_a, at_b, group = _permuted(a, b, rows_a, rows_b)
    if not len(at_a) or len(at_a) > LARGEST:
        return alignment
    more = moved_unwritten(a, b, alignment, _partners(alignment, at_a, at_b), int(group.max()) + 1)
    at_a, at_b, group = (np.concatenate(columns) for columns in zip((at_a, at_b, group), more, strict=True))
    keep = _with_matching_producers(a, b, alignment, (at_a, at_b, group))
    return _rematched(alignment, at_a[keep], at_b[keep]) if keep.any() else alignment


def _unequal(a: RowRange, b: RowRange, alignment: Alignment) -> NDArray[np.bool_]:
    """Which pairs differ. Who is the first to read a tensor in a step, and so has its digest, is a matter of order."""
    unequal = candidates(a, alignment.a, b, alignment.b)
    same = a.tokens.content[alignment.a] == b.tokens.content[alignment.b]
    for k in np.flatnonzero(unequal & same)[:LARGEST].tolist():
        unequal[k] = difference(a, int(alignment.a[k]), b, int(alignment.b[k])).found
    return unequal


def _permuted(a: RowRange, b: RowRange, rows_a: Indices, rows_b: Indices) -> tuple[Indices, Indices, Indices]:
    """Pairs by content, and their group, of every site and op whose differing rows compute the same things."""
    place_a, place_b, count = codes_of(a.tokens.identity[rows_a], b.tokens.identity[rows_b])
    often_a, often_b = np.bincount(place_a, minlength=count), np.bincount(place_b, minlength=count)
    fits = (often_a == often_b) & (often_a > 1)
    keep_a, keep_b = fits[place_a], fits[place_b]
    rows_a, rows_b, place_a, place_b = rows_a[keep_a], rows_b[keep_b], place_a[keep_a], place_b[keep_b]
    content_a, content_b = _outcomes(a)[rows_a], _outcomes(b)[rows_b]
    order_a = np.lexsort((rows_a, a.tokens.structure[rows_a], content_a, place_a))
    order_b = np.lexsort((rows_b, b.tokens.structure[rows_b], content_b, place_b))
    wrong = place_a[order_a][content_a[order_a] != content_b[order_b]]
    right = ~np.isin(place_a[order_a], wrong)
    return rows_a[order_a][right], rows_b[order_b][right], place_a[order_a][right]


def _outcomes(stretch: RowRange) -> Tokens:
    """What each row computes; who reads first what came from outside, and so has its digest, is a matter of order."""
    return mix(stretch.tokens.computation, values_of(stretch.rows, given=False))


Candidates = tuple[Indices, Indices, Indices]


@dataclass(frozen=True)
class _Inputs:
    """Some rows, and of every link of theirs the digest of its bytes, whichever row was the first to read them."""

    rows: Rows
    known: NDArray[np.bool_]
    digests: NDArray[np.uint64]


def _with_matching_producers(a: RowRange, b: RowRange, alignment: Alignment, pairs: Candidates) -> np.ndarray:
    """Which pairs stand the test that what they read was written by matching rows; a group stands or falls as one."""
    at_a, at_b, group = pairs
    inputs_a, inputs_b = _Inputs(a.rows, *input_digests(a.rows)), _Inputs(b.rows, *input_digests(b.rows))
    keep = np.ones(len(at_a), dtype=bool)
    for _ in range(ROUNDS):
        partner = _partners(alignment, at_a[keep], at_b[keep])
        bad = {
            int(group[k])
            for k in np.flatnonzero(keep).tolist()
            if not _producers_match(inputs_a, int(at_a[k]), inputs_b, int(at_b[k]), partner)
        }
        if not bad:
            return keep
        keep &= ~np.isin(group, list(bad))
    return np.zeros(len(at_a), dtype=bool)


def _partners(alignment: Alignment, at_a: Indices, at_b: Indices) -> Indices:
    """B's rows by A's (-1: none), these pairs in place of those that the alignment has."""
    partner = np.full(alignment.rows_a, -1, dtype=np.int64)
    partner[alignment.a] = alignment.b
    partner[at_a] = at_b
    return partner


def _producers_match(a: _Inputs, i: int, b: _Inputs, j: int, partner: Indices) -> bool:
    first_a, first_b = int(a.rows.link_offsets[i]), int(b.rows.link_offsets[j])
    for k, (x, y) in enumerate(zip(a.rows.inputs(i), b.rows.inputs(j), strict=False)):
        if a.known[first_a + k] and b.known[first_b + k]:
            if a.digests[first_a + k] == b.digests[first_b + k]:
                continue
            if not a.rows.flags(i) & RowFlag.MARKED:  # else it may have read bytes that nobody wrote
                return False
        if x.distance <= 0 or y.distance <= 0:
            continue
        target_a, target_b = i - x.distance, j - y.distance
        if target_a >= 0 and target_b >= 0:
            if partner[target_a] != target_b:
                return False
        elif target_a != target_b and not a.rows.flags(i) & RowFlag.VIEW:
            return False  # before the stretches: they begin at matching rows
    return True


def _rematched(alignment: Alignment, at_a: Indices, at_b: Indices) -> Alignment:
    stays = ~np.isin(alignment.a, at_a) & ~np.isin(alignment.b, at_b)
    new_a, new_b = np.concatenate([alignment.a[stays], at_a]), np.concatenate([alignment.b[stays], at_b])
    moved = np.concatenate([alignment.moved[stays], np.ones(len(at_a), dtype=bool)])
    order = np.argsort(new_a)
    return Alignment(alignment.rows_a, alignment.rows_b, new_a[order], new_b[order], moved[order], alignment.unsure)
