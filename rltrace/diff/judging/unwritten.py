"""Marked rows that changed places: two of them cannot be told apart by digests, as those may hold bytes nobody wrote.

A replay memory from ``empty`` is filled key by key, in the order of a set: paired by position, the write of one key
would seem to be that of another, and whoever reads the key to read memory that no op wrote. Owns the pairing of such
rows by what they were given, once it is known which rows gave it.
"""

from __future__ import annotations

from collections import defaultdict, deque

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.aligning.align import Alignment
from rltrace.diff.aligning.sequences import Indices, codes_of
from rltrace.diff.aligning.tokens import mix
from rltrace.diff.view import Stretch
from rltrace.trace.rows import Rows
from rltrace.trace.schema import RowFlag

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


def moved_unwritten(a: Stretch, b: Stretch, alignment: Alignment, partner: Indices, groups: int) -> Moved:
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


def _places(stretch: Stretch, at: Indices) -> NDArray[np.uint64]:
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
