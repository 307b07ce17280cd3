"""The rows of a short range of two streams, paired for display, with the relation of each pair.

Owns the relations: equal, differs, receives, one side only. A pair *receives* a difference if one of its inputs differs
too. Aligns as ``diff`` does; decides no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.align.rows import Alignment, align, minimize_moves, safe_cut
from rltrace.diff.base.context import DiffContext, Matching
from rltrace.diff.base.findings import RowAt
from rltrace.diff.base.model import InputsMatch
from rltrace.diff.base.row_diff import Difference, candidates, difference
from rltrace.diff.base.view import RowRange
from rltrace.diff.causes.inputs import match_inputs

BUDGET = 300_000
"""Elementary steps of an alignment: a fraction of a second."""

PAIRS_TRIED = 256

Numbers = NDArray[np.int64]
Pin = tuple[int | None, int | None]
Keep = Callable[[RowRange], NDArray[np.bool_]]
"""Selects the rows of a range to show."""


class Relation(IntEnum):
    """The relation of the two sides of a line."""

    EQUAL = 0
    DIFFERS = 1
    """It differs, and no input does."""
    RECEIVES = 2
    """It differs, and so does an input."""
    UNSURE = 3
    """It differs, and an input may differ."""
    ONLY_A = 4
    ONLY_B = 5
    UNPAIRED = 6
    """The two sides are too different here to be aligned."""


@dataclass(frozen=True, eq=False)
class Lines:
    """Lines of a range, in order; arrays of shape [n]."""

    a: Numbers
    """Row of A; -1: none."""
    b: Numbers
    relation: Numbers
    moved: NDArray[np.bool_]
    """Whether B has it at another place in the order."""
    visible: NDArray[np.bool_] | None = None
    """Which lines a filter lets through; None: there is no filter."""

    def __len__(self) -> int:
        return len(self.a)

    def shown(self, hide_receivers: bool) -> Numbers:
        """Numbers of the lines to show."""
        shown = np.ones(len(self), bool) if self.visible is None else self.visible
        if hide_receivers:
            shown = shown & ~np.isin(self.relation, (Relation.RECEIVES, Relation.UNSURE))
        return np.flatnonzero(shown)

    def filtered(self, a: RowRange, b: RowRange, keep: tuple[Keep, Keep] | None) -> Lines:
        """The same lines, visible where ``keep`` selects the row of A (or of B, where A has none)."""
        if keep is None:
            return replace(self, visible=None)
        wanted_a, wanted_b = np.append(keep[0](a), False), np.append(keep[1](b), False)
        at_a, at_b = np.where(self.a < 0, -1, self.a - a.first), np.where(self.b < 0, -1, self.b - b.first)
        return replace(self, visible=np.where(at_a >= 0, wanted_a[at_a], wanted_b[at_b]))

    def only(self, chosen: NDArray[np.bool_]) -> Lines:
        """Some of the lines."""
        return Lines(self.a[chosen], self.b[chosen], self.relation[chosen], self.moved[chosen])

    def cut(self, start: int, stop: int) -> Lines:
        visible = None if self.visible is None else self.visible[start:stop]
        own = slice(start, stop)
        return Lines(self.a[own], self.b[own], self.relation[own], self.moved[own], visible)

    def runs(
        self, start: tuple[int, int], shortest: int, context: int
    ) -> Iterator[tuple[tuple[int, int, int, int], bool, Lines]]:
        """(rows of A and B, whether it is a run of identical rows, its lines), in order, without gaps."""
        plain = (self.relation == Relation.EQUAL) & ~self.moved
        edges = np.flatnonzero(np.diff(np.concatenate([[False], plain, [False]]).astype(np.int8)))
        cuts, folds = {0, len(self)}, set()
        for first, end in edges.reshape(-1, 2).tolist():
            low, high = first + (context if first else 0), end - (context if end < len(self) else 0)
            if high - low >= shortest:
                cuts |= {low, high}
                folds.add(low)
        ordered = sorted(cuts)
        at_a, at_b = start
        for low, high in pairwise(ordered):
            part = self.cut(low, high)
            end_a, end_b = max([at_a, *(part.a[part.a >= 0] + 1)]), max([at_b, *(part.b[part.b >= 0] + 1)])
            yield (at_a, int(end_a), at_b, int(end_b)), low in folds, part
            at_a, at_b = int(end_a), int(end_b)


def aligned_lines(a: RowRange, b: RowRange) -> Lines:
    """Rows paired position by position."""
    rows = np.arange(len(a))
    return _lines(a, rows, b, rows, np.zeros(len(a), bool), len(a), len(b))


def equal_lines(a: RowRange, b: RowRange) -> Lines:
    """Rows that are known to be equal, position by position."""
    rows = np.arange(len(a))
    return Lines(a.first + rows, b.first + rows, np.full(len(a), int(Relation.EQUAL)), np.zeros(len(a), bool))


def one_sided_lines(a: RowRange, b: RowRange) -> Lines:
    """Rows of one side only."""
    none = np.empty(0, np.int64)
    return _lines(a, none, b, none, np.zeros(0, bool), len(a), len(b))


def pair_rows(a: RowRange, b: RowRange, pins: Collection[Pin] = ()) -> Lines:
    """Align two ranges; ``pins``: rows that are pairs in any case (None: unmatched)."""
    b.view.use_site_names_of(a.view)
    at_a, at_b, moved = [], [], []
    end_a = end_b = 0
    sure = (len(a), len(b))
    for pin_a, pin_b in _inside(a, b, pins):
        part_a, part_b = a.cut(a.first + end_a, a.first + pin_a), b.cut(b.first + end_b, b.first + pin_b)
        last = (pin_a, pin_b) == (len(a), len(b))
        found = minimize_moves(align(part_a.tokens, part_b.tokens, budget=BUDGET))
        at_a.append(end_a + found.a)
        at_b.append(end_b + found.b)
        moved.append(found.moved)
        if found.unsure is not None:
            sure = (end_a + found.unsure[0], end_b + found.unsure[1])
            break
        end_a, end_b = pin_a, pin_b
        if not last:
            at_a.append(np.array([pin_a]))
            at_b.append(np.array([pin_b]))
            moved.append(np.array([False]))
            end_a, end_b = pin_a + 1, pin_b + 1
    return _lines(a, np.concatenate(at_a), b, np.concatenate(at_b), np.concatenate(moved), *sure)


def window_end(a: RowRange, b: RowRange) -> tuple[int, int]:
    """Places up to which two ranges can be aligned if the streams continue after them; (0, 0): nowhere.

    Without a long run of pairs, after any pair of the first half that no reordered pair lies across.
    """
    b.view.use_site_names_of(a.view)
    found = align(a.tokens, b.tokens, open_end=True, budget=BUDGET)
    end = safe_cut(found)
    if end == (0, 0):
        end = _last_pair(found, len(a) // 2, len(b) // 2)
    return (0, 0) if found.unsure is not None and found.unsure < end else end


def _last_pair(found: Alignment, limit_a: int, limit_b: int) -> tuple[int, int]:
    """Places after the last pair before these limits that no reordered pair lies across; (0, 0): there is none."""
    from_a, from_b = found.a[found.moved], found.b[found.moved]
    visible = ~found.moved & (found.a < limit_a) & (found.b < limit_b)
    for k in np.flatnonzero(visible)[::-1][:PAIRS_TRIED].tolist():
        if np.array_equal(from_a < found.a[k], from_b < found.b[k]):
            return int(found.a[k]) + 1, int(found.b[k]) + 1
    return 0, 0


def _inside(a: RowRange, b: RowRange, pins: Collection[Pin]) -> list[tuple[int, int]]:
    """The pins within two ranges, as places in them, followed by the ends of the ranges."""
    found = [
        (i - a.first, j - b.first)
        for i, j in pins
        if i is not None and j is not None and a.first <= i < a.end and b.first <= j < b.end
    ]
    chosen: list[tuple[int, int]] = []
    for i, j in sorted(found):
        if not chosen or j > chosen[-1][1]:
            chosen.append((i, j))
    return [*chosen, (len(a), len(b))]


def _lines(
    a: RowRange, at_a: Numbers, b: RowRange, at_b: Numbers, moved: NDArray[np.bool_], sure_a: int, sure_b: int
) -> Lines:
    """Pairs and unmatched rows in A's order; unmatched rows of B come before the pair that follows them."""
    relation = _relations(a, at_a, b, at_b)
    only_a = np.setdiff1d(np.arange(len(a)), at_a)
    only_b = np.setdiff1d(np.arange(len(b)), at_b)
    kept_a, kept_b = at_a[~moved], at_b[~moved]
    # an unmatched row of B has the place of the next pair of B
    next_pair = np.concatenate([kept_a, [len(a)]])[np.searchsorted(kept_b, only_b)]
    place = np.concatenate([at_a, only_a, next_pair]).astype(np.float64)
    turn = np.concatenate([np.ones(len(at_a)), np.zeros(len(only_a)), np.zeros(len(only_b))])
    tie = np.concatenate([at_b, np.zeros(len(only_a)), only_b])
    order = np.lexsort((tie, turn, place))
    unpaired = np.int64(Relation.UNPAIRED)
    one_sided = [
        np.where(only_a < sure_a, np.int64(Relation.ONLY_A), unpaired),
        np.where(only_b < sure_b, np.int64(Relation.ONLY_B), unpaired),
    ]
    none_a, none_b = np.full(len(only_b), -1), np.full(len(only_a), -1)
    return Lines(
        np.concatenate([a.first + at_a, a.first + only_a, none_a]).astype(np.int64)[order],
        np.concatenate([b.first + at_b, none_b, b.first + only_b]).astype(np.int64)[order],
        np.concatenate([relation, *one_sided]).astype(np.int64)[order],
        np.concatenate([moved, np.zeros(len(only_a) + len(only_b), bool)])[order],
    )


def _relations(a: RowRange, at_a: Numbers, b: RowRange, at_b: Numbers) -> Numbers:
    found = np.zeros(len(at_a), np.int64)
    if not len(at_a):
        return found
    matching = Matching(a.first if a.first == b.first else 0)
    order = np.argsort(at_a)
    matching.add(a.first + at_a[order], b.first + at_b[order])
    context = DiffContext(a.view, b.view, matching, ())
    events_differ = (a.hashes.marked[at_a] != b.hashes.marked[at_b]) & ~a.marked_ops[at_a]
    found[events_differ] = Relation.DIFFERS
    for k in np.flatnonzero(candidates(a, at_a, b, at_b) & ~events_differ).tolist():
        i, j = int(at_a[k]), int(at_b[k])
        seen = difference(a, i, b, j)
        if seen.found:
            found[k] = _relation(context, RowAt(a.view, a.rows, i), RowAt(b.view, b.rows, j), seen)
    return found


def _relation(context: DiffContext, a: RowAt, b: RowAt, seen: Difference) -> Relation:
    if seen.rng:
        return Relation.DIFFERS
    known = {operand.match for operand in match_inputs(context, a, b)}
    if InputsMatch.DIFFER in known:
        return Relation.RECEIVES
    return Relation.UNSURE if InputsMatch.UNKNOWN in known else Relation.DIFFERS
