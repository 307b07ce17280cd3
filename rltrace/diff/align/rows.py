"""Which row of A is which row of B inside a stretch where structure has parted.

Owns the order of the means. What is equal at both ends is matched first. A small box gets the best alignment there is,
by a full table: the most rows of the same structure, of these the most of the same site, of these the most with equal
values. A large one is cut at anchors and then aligned by linear-space Myers under a budget. What is left is matched by
what it computes. Says "unsure" past the budget and never guesses. Works on tokens and links alone; memory is linear in
the stretch, one table aside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.findings import RowAt
from rltrace.diff.base.row_diff import candidates
from rltrace.diff.base.sequences import (
    EMPTY,
    BudgetExceededError,
    Indices,
    SearchBudget,
    Tokens,
    best_pairs,
    codes_of,
    common_prefix,
    common_suffix,
    heaviest_increasing,
    is_small,
    longest_common,
    longest_increasing,
    match_nth,
    occurrences,
    reach_an_end,
    unique_pairs,
)
from rltrace.diff.base.tokens import StretchTokens, mix
from rltrace.diff.base.view import RowRange
from rltrace.trace.format.schema import Column, Kind

# --- anchors ----------------------------------------------------------------------------------------------------------
#
# Pairs of rows that are certain enough to cut a large box at them.
#
# Owns what counts as certain: long runs of rows that are equal in all, and execution indices of tokens that both sides
# have equally often. Works on tokens and links alone.


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


# --- align ------------------------------------------------------------------------------------------------------------


ALIGN_BUDGET = 3_000_000
"""Elementary Myers steps per stretch: about two seconds of Python."""


@dataclass(frozen=True, eq=False)
class Alignment:
    """Matched rows of a stretch; positions count from the start of the stretch."""

    rows_a: int
    rows_b: int
    a: Indices
    """Matched rows of A, ascending."""
    b: Indices
    """Their partners in B; ascending except where ``moved``."""
    moved: NDArray[np.bool_]
    """The pair stands at another place in the order of the two sides."""
    unsure: tuple[int, int] | None
    """From which rows on the two sides were too different to be aligned within the budget; None: all is sure."""

    @property
    def sure(self) -> bool:
        return self.unsure is None

    @property
    def only_a(self) -> Indices:
        return _missing(self.a, self.rows_a)

    @property
    def only_b(self) -> Indices:
        return _missing(self.b, self.rows_b)


MOST_RUNS = 2_000
"""Runs of adjacent pairs among which the fewest moves are sought; past it, what is called moved may be more."""


def with_fewest_moves(found: Alignment) -> Alignment:
    """``found``, where as few rows as possible are called moved: all others stand in one order on both sides."""
    if not found.moved.any():
        return found
    starts = np.flatnonzero(np.concatenate([[True], (np.diff(found.a) != 1) | (np.diff(found.b) != 1)]))
    if len(starts) > MOST_RUNS:
        return found
    weights = np.diff(np.concatenate([starts, [len(found.b)]]))
    stays = heaviest_increasing(found.b[starts], weights)
    moved = np.ones(len(starts), bool)
    moved[stays] = False
    return replace(found, moved=np.repeat(moved, weights))


def align(a: StretchTokens, b: StretchTokens, *, open_end: bool = False, budget: int = ALIGN_BUDGET) -> Alignment:
    """Match the rows of two stretches; ``open_end``: they were cut off and go on, so their last rows need not match."""
    work = _Work(a, b, SearchBudget(budget), open_end)
    work.run()
    (at_a, at_b), (from_a, from_b) = _joined(work.pairs), _joined(work.moved)
    flags = np.repeat([False, True], [len(at_a), len(from_a)])
    at_a, at_b = np.concatenate([at_a, from_a]), np.concatenate([at_b, from_b])
    order = np.argsort(at_a)
    return Alignment(len(a), len(b), at_a[order], at_b[order], flags[order], work.unsure)


Pair = tuple[Tokens, Tokens]
"""The same question to both sides."""

Pairs = tuple[Indices, Indices]
"""Matched rows of A, and their partners in B."""


@dataclass
class _Work:
    a: StretchTokens
    b: StretchTokens
    budget: SearchBudget
    open_end: bool
    pairs: list[Pairs] = field(default_factory=list)
    """Matched in order."""
    moved: list[Pairs] = field(default_factory=list)
    unsure: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        a, b = self.a, self.b
        self.exact: Pair = a.exact, b.exact
        self.structure: Pair = a.structure, b.structure
        self.identity: Pair = a.identity, b.identity
        self.computation: Pair = a.computation, b.computation
        self.content: Pair = a.content, b.content
        self.operator: Pair = a.operator, b.operator
        self.free = np.ones(len(a), bool), np.ones(len(b), bool)

    def run(self) -> None:
        """From the surest means to the weakest, each in what the ones before left."""
        left: list[Box] = []
        for box in self._boxes(self._trim((0, len(self.a), 0, len(self.b)), self._fed(self.exact))):
            left += self._by_structure(self._reach(box) if self._is_open(box) else box)
        self._by_moving(self._fed(self.exact))
        self._by_moving(self.exact)
        for box in left:
            self._by_computation(box)
        self._by_moving(self.content, told=True)

    def _boxes(self, box: Box) -> Iterator[Box]:
        """A small box as it is; a large one cut where that is certain, from the surest means on."""
        if is_small(box):
            yield box
            return
        for part in self._split(box, equal_runs(self.a, self.b, box)):
            inner = self._trim(part, self.exact)
            whole = is_small(inner) or self._is_open(inner)
            for gap in [inner] if whole else self._split(inner, execution_indices(self.a, self.b, inner)):
                trimmed = self._trim(gap, self.exact)
                yield trimmed if is_small(trimmed) else self._trim(trimmed, self.structure)

    def _by_structure(self, box: Box) -> Iterator[Box]:
        """The longest alignment by structure, then by execution index; boxes that this leaves."""
        if is_small(box):
            levels = (self.structure, self.identity, self._telling(self.exact), self._fed(self.exact), self.exact)
            yield from self._split(box, self._best(box, levels))
            return
        for part in self._split(box, self._myers(box, self.structure)):
            yield from self._split(part, self._myers(part, self.identity))

    def _by_moving(self, tokens: Pair, told: bool = False) -> None:
        """Rows left over on both sides with equal tokens: the nth with the nth. ``told``: only rows with a value."""
        left_a, left_b = self._left((0, len(self.a), 0, len(self.b)))
        if told:
            left_a, left_b = left_a[self.a.told[left_a]], left_b[self.b.told[left_b]]
            if not self._same_draws(left_a, left_b):
                left_a, left_b = left_a[~self.a.draws[left_a]], left_b[~self.b.draws[left_b]]
        if len(left_a) and len(left_b):
            at_a, at_b = match_nth(tokens[0][left_a], tokens[1][left_b])
            self._add(left_a[at_a], left_b[at_b], self.moved)

    def _same_draws(self, left_a: Indices, left_b: Indices) -> bool:
        """Whether these rows draw the same on both sides: one draw more would give each the state of its neighbour."""
        a, b = self.content[0][left_a[self.a.draws[left_a]]], self.content[1][left_b[self.b.draws[left_b]]]
        return np.array_equal(np.sort(a), np.sort(b))

    def _by_computation(self, box: Box) -> None:
        """Rows called from elsewhere (an edited line): matched by what they compute, then by their op alone."""
        left_a, left_b = self._left(box)
        if np.array_equal(self.computation[0][left_a], self.computation[1][left_b]):
            self._add(left_a, left_b)
            return
        content = self._telling(self.content)
        levels = [
            (a[left_a], b[left_b]) for a, b in (content, self._fed(self.content), self.computation, self.operator)
        ]
        whole = 0, len(left_a), 0, len(left_b)
        parts = [whole]
        if not is_small(whole):
            found = self._longest(*levels[0], box)
            self._add(left_a[found[0]], left_b[found[1]])
            parts = [part for part in gaps(whole, found) if is_small(part)]
        for a0, a1, b0, b1 in parts:
            at_a, at_b = best_pairs([(a[a0:a1], b[b0:b1]) for a, b in levels])
            self._add(left_a[a0 + at_a], left_b[b0 + at_b])

    def _left(self, box: Box) -> Pairs:
        """Rows of a box that are not matched yet."""
        a, b = self.free
        return box[0] + np.flatnonzero(a[box[0] : box[1]]), box[2] + np.flatnonzero(b[box[2] : box[3]])

    def _telling(self, tokens: Pair) -> Pair:
        return self.a.telling(tokens[0], 0), self.b.telling(tokens[1], 1)

    def _fed(self, tokens: Pair) -> Pair:
        """``tokens`` together with the values that the inputs come from."""
        return mix(tokens[0], self.a.sources), mix(tokens[1], self.b.sources)

    # --- the open end -----------------------------------------------------------------------------------------

    def _is_open(self, box: Box) -> bool:
        """Whether the stretches go on after this box, so that its end on one side need not be its end on the other."""
        return self.open_end and box[1] == len(self.a) and box[3] == len(self.b)

    def _reach(self, box: Box) -> Box:
        a0, a1, b0, b1 = box
        a, b = self.structure[0][a0:a1], self.structure[1][b0:b1]
        if not len(a) or not len(b) or not np.isin(a, b).any():
            return box
        try:
            x, y = reach_an_end(a, b, self.budget)
        except BudgetExceededError:
            self._give_up(box)
            return a0, a0, b0, b0
        return a0, a0 + x, b0, b0 + y

    # --- pieces -----------------------------------------------------------------------------------------------

    def _trim(self, box: Box, tokens: Pair) -> Box:
        """Match equal rows at the ends of ``box``; what is left of it."""
        a0, a1, b0, b1 = box
        a, b = tokens
        head = common_prefix(a[a0:a1], b[b0:b1])
        tail = 0 if self._is_open(box) else common_suffix(a[a0 + head : a1], b[b0 + head : b1])
        self._add(a0 + np.arange(head), b0 + np.arange(head))
        self._add(a1 - tail + np.arange(tail), b1 - tail + np.arange(tail))
        return a0 + head, a1 - tail, b0 + head, b1 - tail

    def _split(self, box: Box, pairs: Pairs) -> Iterator[Box]:
        """Keep ``pairs``; the boxes between them in which both sides have rows left."""
        self._add(*pairs)
        return gaps(box, pairs)

    def _best(self, box: Box, levels: Sequence[Pair]) -> Pairs:
        a0, a1, b0, b1 = box
        at_a, at_b = best_pairs([(a[a0:a1], b[b0:b1]) for a, b in levels])
        return a0 + at_a, b0 + at_b

    def _myers(self, box: Box, tokens: Pair) -> Pairs:
        a0, a1, b0, b1 = box
        at_a, at_b = self._longest(tokens[0][a0:a1], tokens[1][b0:b1], box)
        return a0 + at_a, b0 + at_b

    def _longest(self, a: Tokens, b: Tokens, box: Box) -> Pairs:
        try:
            return longest_common(a, b, self.budget)
        except BudgetExceededError:
            self._give_up(box)
            return EMPTY, EMPTY

    def _give_up(self, box: Box) -> None:
        if self.unsure is None or box[0] < self.unsure[0]:
            self.unsure = box[0], box[2]

    def _add(self, a: Indices, b: Indices, to: list[Pairs] | None = None) -> None:
        if len(a):
            (self.pairs if to is None else to).append((a, b))
            self.free[0][a] = False
            self.free[1][b] = False


def gaps(box: Box, pairs: Pairs) -> Iterator[Box]:
    """The boxes between ``pairs`` in which both sides have rows."""
    a0, a1, b0, b1 = box
    from_a, to_a = np.concatenate([[a0], pairs[0] + 1]), np.concatenate([pairs[0], [a1]])
    from_b, to_b = np.concatenate([[b0], pairs[1] + 1]), np.concatenate([pairs[1], [b1]])
    for k in np.flatnonzero((from_a < to_a) & (from_b < to_b)):
        yield int(from_a[k]), int(to_a[k]), int(from_b[k]), int(to_b[k])


def _joined(pairs: list[Pairs]) -> Pairs:
    if not pairs:
        return EMPTY, EMPTY
    return np.concatenate([p[0] for p in pairs]).astype(np.int64), np.concatenate([p[1] for p in pairs]).astype(
        np.int64
    )


def _missing(present: Indices, count: int) -> Indices:
    absent = np.ones(count, dtype=bool)
    absent[present] = False
    return np.flatnonzero(absent)


# --- cuts -------------------------------------------------------------------------------------------------------------
#
# Places in two aligned stretches: where they may be cut, what stands before a pair, what stands beside a row.


ANCHOR_ROWS = 32
"""Adjacent matching rows that make a safe place to cut a stretch."""

CUT_STRIDE, CUTS_TRIED = 16, 256
"""Places that are tried, from the end, until one lies between no two rows that changed places."""


def in_step(a: RowRange, b: RowRange) -> bool:
    """Whether every row of one stretch is the same op as the row at its place in the other."""
    return len(a) == len(b) and np.array_equal(a.hashes.structure, b.hashes.structure)


def in_step_and_equal(a: RowRange, b: RowRange) -> bool:
    """The same, and nothing that they compute seems to differ."""
    rows = np.arange(min(len(a), len(b)))
    return in_step(a, b) and not candidates(a, rows, b, rows).any()


def same_beginning(a: RowRange, b: RowRange) -> tuple[RowRange, RowRange]:
    """Where a hole cuts one side short, and what is left has the same structure: both cut there."""
    rows = min(len(a), len(b))
    short = a.cut(a.first, a.first + rows), b.cut(b.first, b.first + rows)
    return short if in_step(*short) else (a, b)


def row_or_none(stretch: RowRange, row: int) -> RowAt | None:
    place = row - stretch.first
    return RowAt(stretch.view, stretch.rows, place) if 0 <= place < len(stretch) else None


def one_sided(stretch: RowRange, rows: Indices, end: int) -> Indices:
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
