"""Alignment of the rows of A and B in a range where their structure differs.

Equal rows at both ends are matched first. A small box gets the best alignment, by dynamic programming: the most rows of
the same structure, among ties the most of the same site, then the most with equal values. A large box is cut at anchors
and aligned by linear-space Myers under a budget. Rows left over are matched by what they compute. Past the budget the
alignment is "unsure"; it never guesses. Uses only tokens and links; memory is linear in the range, plus one table.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

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
from rltrace.diff.base.tokens import RowTokens, mix
from rltrace.diff.base.view import RowRange
from rltrace.trace.format.schema import Column, Kind

# --- anchors ----------------------------------------------------------------------------------------------------------
#
# Pairs of rows that are certain enough to cut a large box at: long runs of rows that are equal in all, and occurrences
# of tokens that both sides have equally often.


MIN_RUN = 8
"""Equal rows in a run that are no coincidence, each at most this many rows after the last."""

Box = tuple[int, int, int, int]
"""Rows [0:1] of A and [2:3] of B."""


def equal_runs(a: RowTokens, b: RowTokens, box: Box) -> tuple[Indices, Indices]:
    """Pairs whose structure and values occur once on either side, in long runs at equal distances.

    By structure alone, a loop could shift by an iteration where counts differ. Rows computed from draws and constants
    only are no evidence: after one more draw, every iteration has the values of the one before.
    """
    a0, a1, b0, b1 = box
    if min(a1 - a0, b1 - b0) < MIN_RUN:
        return EMPTY, EMPTY
    use_a, use_b = a0 + _evidence(a, a0, a1), b0 + _evidence(b, b0, b1)
    at_a, at_b = unique_pairs(a.exact[use_a], b.exact[use_b])
    at_a, at_b = use_a[at_a], use_b[at_b]
    breaks = (np.diff(at_a) != np.diff(at_b)) | (np.diff(at_a) > MIN_RUN)
    starts = np.concatenate([[0], np.flatnonzero(breaks) + 1, [len(at_a)]])
    lengths = np.diff(starts)
    keep = np.repeat(lengths >= MIN_RUN, lengths)
    return at_a[keep], at_b[keep]


def _evidence(side: RowTokens, start: int, stop: int) -> Indices:
    """Places, from ``start``, of rows whose values could not be those of another iteration after one more draw."""
    drawn, fresh = _provenance(side, start, stop)
    return np.flatnonzero(side.has_values[start:stop] & ~side.draws[start:stop] & (fresh | ~drawn))


def _provenance(side: RowTokens, start: int, stop: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """For each row, whether it depends on a draw within the rows, and whether on outside data."""
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
                fresh[row] |= fresh[row - distance] and not cell & 2  # bit 1: that row read the same, and did not write
    return np.array(drawn, bool), np.array(fresh, bool)


def execution_indices(a: RowTokens, b: RowTokens, box: Box) -> tuple[Indices, Indices]:
    """Pairs by token and occurrence, for tokens that both sides have equally often, as far as their order agrees."""
    a0, a1, b0, b1 = box
    if a0 == a1 or b0 == b1:
        return EMPTY, EMPTY
    code_a, code_b, count = codes_of(a.identity[a0:a1], b.identity[b0:b1])
    same_count = np.bincount(code_a, minlength=count) == np.bincount(code_b, minlength=count)
    keep_a, keep_b = np.flatnonzero(same_count[code_a]), np.flatnonzero(same_count[code_b])
    order_a = np.lexsort((occurrences(code_a)[keep_a], code_a[keep_a]))
    order_b = np.lexsort((occurrences(code_b)[keep_b], code_b[keep_b]))
    partner = np.empty(len(keep_a), dtype=np.int64)
    partner[order_a] = keep_b[order_b]
    chosen = longest_increasing(partner)
    return a0 + keep_a[chosen], b0 + partner[chosen]


# --- align ------------------------------------------------------------------------------------------------------------


ALIGN_BUDGET = 3_000_000
"""Elementary Myers steps per range: about two seconds of Python."""


@dataclass(frozen=True, eq=False)
class Alignment:
    """Matched rows of a range; positions count from the start of the range."""

    rows_a: int
    rows_b: int
    a: Indices
    """Matched rows of A, ascending."""
    b: Indices
    """Their partners in B; ascending except where ``moved``."""
    moved: NDArray[np.bool_]
    """Whether the pair has another place in the order of B; shape [pairs]."""
    unsure: tuple[int, int] | None
    """Rows of A and B from which the sides were too different to be aligned within the budget; None: all is sure."""

    @property
    def sure(self) -> bool:
        return self.unsure is None

    @property
    def only_a(self) -> Indices:
        return _missing(self.a, self.rows_a)

    @property
    def only_b(self) -> Indices:
        return _missing(self.b, self.rows_b)


MAX_RUNS = 2_000
"""Runs of adjacent pairs for which moves are minimized; with more, more rows than needed may be flagged as moved."""


def minimize_moves(found: Alignment) -> Alignment:
    """``found`` with as few rows as possible flagged as moved: all others have the same order on both sides."""
    if not found.moved.any():
        return found
    starts = np.flatnonzero(np.concatenate([[True], (np.diff(found.a) != 1) | (np.diff(found.b) != 1)]))
    if len(starts) > MAX_RUNS:
        return found
    weights = np.diff(np.concatenate([starts, [len(found.b)]]))
    stays = heaviest_increasing(found.b[starts], weights)
    moved = np.ones(len(starts), bool)
    moved[stays] = False
    return replace(found, moved=np.repeat(moved, weights))


def align(a: RowTokens, b: RowTokens, *, open_end: bool = False, budget: int = ALIGN_BUDGET) -> Alignment:
    """Match the rows of two ranges; ``open_end``: the streams continue after them, so their ends need not match."""
    aligner = _Aligner(a, b, SearchBudget(budget), open_end)
    aligner.run()
    (at_a, at_b), (from_a, from_b) = _concatenated(aligner.pairs), _concatenated(aligner.moved)
    flags = np.repeat([False, True], [len(at_a), len(from_a)])
    at_a, at_b = np.concatenate([at_a, from_a]), np.concatenate([at_b, from_b])
    order = np.argsort(at_a)
    return Alignment(len(a), len(b), at_a[order], at_b[order], flags[order], aligner.unsure)


Pair = tuple[Tokens, Tokens]
"""Tokens of one kind, of A and B."""

Pairs = tuple[Indices, Indices]
"""Matched rows of A and their partners in B."""


@dataclass
class _Aligner:
    a: RowTokens
    b: RowTokens
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
        """Apply the means from the surest to the weakest, each to the rows that the earlier ones left."""
        left: list[Box] = []
        for box in self._boxes(self._trim((0, len(self.a), 0, len(self.b)), self._exact_with_sources)):
            left += self._match_by_structure(self._reach(box) if self._is_open(box) else box)
        self._match_moved(self._exact_with_sources)
        self._match_moved(self.exact)
        for box in left:
            self._match_by_computation(box)
        self._match_moved(self.content, values_only=True)

    def _boxes(self, box: Box) -> Iterator[Box]:
        """A small box as it is; a large one cut at certain pairs, the surest first."""
        if is_small(box):
            yield box
            return
        for part in self._split(box, equal_runs(self.a, self.b, box)):
            inner = self._trim(part, self.exact)
            whole = is_small(inner) or self._is_open(inner)
            for gap in [inner] if whole else self._split(inner, execution_indices(self.a, self.b, inner)):
                trimmed = self._trim(gap, self.exact)
                yield trimmed if is_small(trimmed) else self._trim(trimmed, self.structure)

    def _match_by_structure(self, box: Box) -> Iterator[Box]:
        """Align by structure, then by identity; yields the boxes that this leaves."""
        if is_small(box):
            levels = (self.structure, self.identity, self._exact_of_values, self._exact_with_sources, self.exact)
            a0, a1, b0, b1 = box
            at_a, at_b = best_pairs([(a[a0:a1], b[b0:b1]) for a, b in levels])
            yield from self._split(box, (a0 + at_a, b0 + at_b))
            return
        for part in self._split(box, self._myers(box, self.structure)):
            yield from self._split(part, self._myers(part, self.identity))

    def _match_moved(self, tokens: Pair, values_only: bool = False) -> None:
        """Match remaining rows with equal tokens by occurrence; ``values_only``: only rows that have values."""
        left_a, left_b = self._unmatched((0, len(self.a), 0, len(self.b)))
        if values_only:
            left_a, left_b = left_a[self.a.has_values[left_a]], left_b[self.b.has_values[left_b]]
            if not self._same_draws(left_a, left_b):
                left_a, left_b = left_a[~self.a.draws[left_a]], left_b[~self.b.draws[left_b]]
        if len(left_a) and len(left_b):
            at_a, at_b = match_nth(tokens[0][left_a], tokens[1][left_b])
            self._add(left_a[at_a], left_b[at_b], self.moved)

    def _same_draws(self, left_a: Indices, left_b: Indices) -> bool:
        """Whether these rows draw the same on both sides; after one more draw, each has the RNG state of the next."""
        a, b = self.content[0][left_a[self.a.draws[left_a]]], self.content[1][left_b[self.b.draws[left_b]]]
        return np.array_equal(np.sort(a), np.sort(b))

    def _match_by_computation(self, box: Box) -> None:
        """Match rows with other call sites (an edited line) by what they compute, then by their op only."""
        left_a, left_b = self._unmatched(box)
        if np.array_equal(self.computation[0][left_a], self.computation[1][left_b]):
            self._add(left_a, left_b)
            return
        tokens = self._content_of_values, self._content_with_sources, self.computation, self.operator
        levels = [(a[left_a], b[left_b]) for a, b in tokens]
        whole = 0, len(left_a), 0, len(left_b)
        parts = [whole]
        if not is_small(whole):
            found = self._longest(*levels[0], box)
            self._add(left_a[found[0]], left_b[found[1]])
            parts = [part for part in gaps(whole, found) if is_small(part)]
        for a0, a1, b0, b1 in parts:
            at_a, at_b = best_pairs([(a[a0:a1], b[b0:b1]) for a, b in levels])
            self._add(left_a[a0 + at_a], left_b[b0 + at_b])

    def _unmatched(self, box: Box) -> Pairs:
        """Rows of a box that are not matched yet."""
        a, b = self.free
        return box[0] + np.flatnonzero(a[box[0] : box[1]]), box[2] + np.flatnonzero(b[box[2] : box[3]])

    # --- tokens of all rows, computed once and not for each of thousands of boxes -------------------------------

    @cached_property
    def _exact_with_sources(self) -> Pair:
        return self._with_sources(self.exact)

    @cached_property
    def _content_with_sources(self) -> Pair:
        return self._with_sources(self.content)

    @cached_property
    def _exact_of_values(self) -> Pair:
        return self._with_values_only(self.exact)

    @cached_property
    def _content_of_values(self) -> Pair:
        return self._with_values_only(self.content)

    def _with_values_only(self, tokens: Pair) -> Pair:
        return self.a.with_values_only(tokens[0], 0), self.b.with_values_only(tokens[1], 1)

    def _with_sources(self, tokens: Pair) -> Pair:
        """``tokens`` combined with the values that the inputs come from."""
        return mix(tokens[0], self.a.sources), mix(tokens[1], self.b.sources)

    # --- the open end -----------------------------------------------------------------------------------------

    def _is_open(self, box: Box) -> bool:
        """Whether the streams continue after this box, so that its ends need not match."""
        return self.open_end and box[1] == len(self.a) and box[3] == len(self.b)

    def _reach(self, box: Box) -> Box:
        a0, a1, b0, b1 = box
        a, b = self.structure[0][a0:a1], self.structure[1][b0:b1]
        if not np.isin(a, b).any():
            return box
        try:
            x, y = reach_an_end(a, b, self.budget)
        except BudgetExceededError:
            self._give_up(box)
            return a0, a0, b0, b0
        return a0, a0 + x, b0, b0 + y

    # --- pieces -----------------------------------------------------------------------------------------------

    def _trim(self, box: Box, tokens: Pair) -> Box:
        """Match equal rows at the ends of ``box``; returns the rest of it."""
        a0, a1, b0, b1 = box
        a, b = tokens
        head = common_prefix(a[a0:a1], b[b0:b1])
        tail = 0 if self._is_open(box) else common_suffix(a[a0 + head : a1], b[b0 + head : b1])
        self._add(a0 + np.arange(head), b0 + np.arange(head))
        self._add(a1 - tail + np.arange(tail), b1 - tail + np.arange(tail))
        return a0 + head, a1 - tail, b0 + head, b1 - tail

    def _split(self, box: Box, pairs: Pairs) -> Iterator[Box]:
        """Add ``pairs``; returns the boxes between them in which both sides have rows."""
        self._add(*pairs)
        return gaps(box, pairs)

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


def _concatenated(pairs: list[Pairs]) -> Pairs:
    return np.concatenate([EMPTY, *(a for a, _ in pairs)]), np.concatenate([EMPTY, *(b for _, b in pairs)])


def _missing(present: Indices, count: int) -> Indices:
    absent = np.ones(count, dtype=bool)
    absent[present] = False
    return np.flatnonzero(absent)


# --- cuts -------------------------------------------------------------------------------------------------------------
#
# Places in two aligned ranges: where they may be cut, what is before a pair, where a one-sided row would be.


ANCHOR_ROWS = 32
"""Adjacent matched rows after which a range may be cut."""


def is_aligned(a: RowRange, b: RowRange) -> bool:
    """Whether both ranges have the same ops, position by position."""
    return len(a) == len(b) and np.array_equal(a.hashes.structure, b.hashes.structure)


def is_aligned_and_equal(a: RowRange, b: RowRange) -> bool:
    """Whether both ranges have the same ops with equal hashes, position by position."""
    rows = np.arange(min(len(a), len(b)))
    return is_aligned(a, b) and not candidates(a, rows, b, rows).any()


def one_sided(stretch: RowRange, rows: Indices, end: int) -> Indices:
    """One-sided ops before place ``end``, without a window's opening rows: those are not ops of the program."""
    rows = rows[rows < end]
    own: Indices = rows[stretch.rows.column(Column.KIND)[rows] != Kind.WINDOW]
    return own


def before(found: Alignment, inside: NDArray[np.bool_], unequal: int) -> tuple[int, int]:
    """Ends, in A and B, of the rows before pair ``unequal``."""
    a, b = int(found.a[inside][unequal]), int(found.b[inside][unequal])
    if not found.moved[inside][unequal]:
        return a, b
    in_order = found.b[(found.a < a) & ~found.moved]
    return a, int(in_order.max()) + 1 if len(in_order) else 0


def insertion_places(rows: Indices, own: Indices, others: Indices) -> Indices:
    """For each one-sided row, the place on the other side right after the last match before it."""
    at = np.searchsorted(own, rows) - 1
    if not len(own):
        return np.zeros(len(rows), np.int64)
    return np.where(at >= 0, others[np.maximum(at, 0)] + 1, 0)


def safe_cut(found: Alignment, limit: int | None = None) -> tuple[int, int]:
    """Where a range may be cut: after the last long run of adjacent pairs across whose end no reordered pair lies,
    before A's row ``limit``; else (0, 0)."""
    in_order = ~found.moved if limit is None else ~found.moved & (found.a < limit)
    at_a, at_b = found.a[in_order], found.b[in_order]
    if len(at_a) < ANCHOR_ROWS:
        return (0, 0)
    adjacent = (np.diff(at_a) == 1) & (np.diff(at_b) == 1)
    need = ANCHOR_ROWS - 1
    runs = np.convolve(adjacent.astype(np.int64), np.ones(need, np.int64), mode="valid") == need
    ends = np.flatnonzero(runs) + need
    cuts = at_a[ends] + 1, at_b[ends] + 1
    moved_a, moved_b = found.a[found.moved], found.b[found.moved]
    highest_before = np.concatenate([[-1], np.maximum.accumulate(moved_b)])
    lowest_after = np.concatenate([np.minimum.accumulate(moved_b[::-1])[::-1], [found.rows_b]])
    earlier = np.searchsorted(moved_a, cuts[0])
    safe = np.flatnonzero((highest_before[earlier] < cuts[1]) & (lowest_after[earlier] >= cuts[1]))
    return (int(cuts[0][safe[-1]]), int(cuts[1][safe[-1]])) if len(safe) else (0, 0)
