"""Pairs of rows that are certain enough to cut a large box at them.

Owns what counts as certain: long runs of rows that are equal in all, and execution indices of tokens that both sides
have equally often. Works on tokens and links alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.aligning.sequences import EMPTY, Indices, codes_of, longest_increasing, occurrences, unique_pairs
from rltrace.diff.aligning.tokens import StretchTokens

LINKED = 8
"""So many equal rows in a row, each at most so many rows after the last, are no coincidence."""

Box = tuple[int, int, int, int]
"""Rows [0:1] of A and [2:3] of B."""


def equal_runs(a: StretchTokens, b: StretchTokens, box: Box) -> tuple[Indices, Indices]:
    """Rows whose structure and values occur once on either side, where many of them stand at equal distances.

    Where counts differ, structure alone would let a loop slide by a round. Rows that are made of nothing but draws and
    constants are no evidence: one draw more, and every round has what the round before would have had.
    """
    a0, a1, b0, b1 = box
    if min(a1 - a0, b1 - b0) < LINKED:
        return EMPTY, EMPTY
    use_a, use_b = a0 + _evidence(a, a0, a1), b0 + _evidence(b, b0, b1)
    at_a, at_b = unique_pairs(a.exact[use_a], b.exact[use_b])
    at_a, at_b = use_a[at_a], use_b[at_b]
    apart = (np.diff(at_a) != np.diff(at_b)) | (np.diff(at_a) > LINKED)
    starts = np.concatenate([[0], np.flatnonzero(apart) + 1, [len(at_a)]])
    lengths = np.diff(starts)
    keep = np.repeat(lengths >= LINKED, lengths)
    return at_a[keep], at_b[keep]


def _evidence(side: StretchTokens, start: int, stop: int) -> Indices:
    """Places, from ``start``, of rows whose values could not be those of another round after one more draw."""
    drawn, fresh = _made_of(side, start, stop)
    return np.flatnonzero(side.told[start:stop] & ~side.draws[start:stop] & (fresh | ~drawn))


def _made_of(side: StretchTokens, start: int, stop: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of each row: whether it follows from a draw within the rows, and whether from what came in from outside."""
    drawn, fresh = side.draws[start:stop].tolist(), [False] * (stop - start)
    offsets = side.link_offsets[start : stop + 1]
    first, cells = int(offsets[0]), side.links[offsets[0] : offsets[-1]].tolist()
    places = (offsets - first).tolist()
    for row in range(stop - start):
        for cell in cells[places[row] : places[row + 1]]:
            distance = cell >> 12
            if distance == 0:
                fresh[row] = True
            elif 0 < distance <= row:
                drawn[row] |= drawn[row - distance]
                fresh[row] |= fresh[row - distance] and not cell & 2  # bit 1: it read the same, and wrote it not
    return np.array(drawn, bool), np.array(fresh, bool)


def execution_indices(a: StretchTokens, b: StretchTokens, box: Box) -> tuple[Indices, Indices]:
    """The nth of a token with the nth, of tokens that both sides have equally often, as far as their order agrees."""
    a0, a1, b0, b1 = box
    if a0 == a1 or b0 == b1:
        return EMPTY, EMPTY
    code_a, code_b, count = codes_of(a.identity[a0:a1], b.identity[b0:b1])
    often = np.bincount(code_a, minlength=count) == np.bincount(code_b, minlength=count)
    keep_a, keep_b = np.flatnonzero(often[code_a]), np.flatnonzero(often[code_b])
    order_a = np.lexsort((occurrences(code_a)[keep_a], code_a[keep_a]))
    order_b = np.lexsort((occurrences(code_b)[keep_b], code_b[keep_b]))
    partner = np.empty(len(keep_a), dtype=np.int64)
    partner[order_a] = keep_b[order_b]
    chosen = longest_increasing(partner)
    return a0 + keep_a[chosen], b0 + partner[chosen]
