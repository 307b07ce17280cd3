"""Alignment of one window of two streams: extra, reordered and moved ops are separated from differences of values.

Owns the order in which that is done, and where a window is cut.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rltrace.diff.align.blocks import WINDOW_ROWS, Block
from rltrace.diff.align.moved_calls import drop_false_matches, same_writers, with_matching_users
from rltrace.diff.align.reorder import match_reordered
from rltrace.diff.align.rows import (
    ALIGN_BUDGET,
    Alignment,
    align,
    equal_runs,
    is_aligned,
    is_aligned_and_equal,
    minimize_moves,
    safe_cut,
)
from rltrace.diff.base.bisect import Unreadable
from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.coverage import unfinished_text
from rltrace.diff.base.row_diff import Difference, candidates, difference
from rltrace.diff.base.sequences import (
    BudgetExceededError,
    Indices,
    SearchBudget,
    Tokens,
    best_pairs,
    common_prefix,
    common_suffix,
    is_small,
    longest_common,
    match_nth,
    occurrences,
)
from rltrace.diff.base.tokens import RowTokens, mix
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.errors import HoleError
from rltrace.trace.format.schema import Column, RowFlag

# --- edited lines -----------------------------------------------------------------------------------------------------
#
# Edited lines, learned from pairs that are equal and read what matched ops wrote. Equal values alone are no proof: a
# line that now prints another tensor may print the same value by chance.


MAX_PROOFS = 8
"""Pairs of one line that are examined for proof."""


def learn_edits(context: DiffContext, a: RowRange, b: RowRange, found: Alignment) -> bool:
    """Record which lines of B are edited lines of A, as far as these pairs prove it; returns whether any is new."""
    pairs = _equal_at_other_sites(a, b, found)
    if not len(pairs):
        return False
    partner = np.full(len(a), -1, np.int64)
    partner[found.a] = found.b
    other_site = a.tokens.identity[found.a] != b.tokens.identity[found.b]
    used = with_matching_users(a, b, found, ~other_site)
    prefix = _equal_prefix(a, b, found)
    learned = False
    for k in pairs.tolist():
        i, j = int(found.a[k]), int(found.b[k])
        drawn_in_prefix = k < prefix and bool(a.rows.flags(i) & RowFlag.RNG)
        if used[k] or drawn_in_prefix or same_writers(context, (a, i), (b, j), partner):
            sites = (int(stretch.rows.columns[place, Column.SITE]) for stretch, place in ((a, i), (b, j)))
            learned |= b.view.learn(*sites)
    if learned:
        b.drop_tokens()
    return learned


def _equal_at_other_sites(a: RowRange, b: RowRange, found: Alignment) -> Indices:
    """Numbers of a few pairs of each two call sites whose ops are equal and have values."""
    lines = np.stack([s.rows.column(Column.SITE)[at] for s, at in ((a, found.a), (b, found.b))], axis=1)
    chosen = a.tokens.identity[found.a] != b.tokens.identity[found.b]
    chosen &= ~found.moved & a.tokens.has_values[found.a] & ~candidates(a, found.a, b, found.b)
    pairs = np.flatnonzero(chosen)
    nth = occurrences(np.unique(lines[pairs], axis=0, return_inverse=True)[1].reshape(-1))
    few: Indices = pairs[nth < MAX_PROOFS]
    return few


def _equal_prefix(a: RowRange, b: RowRange, found: Alignment) -> int:
    """Number of pairs at the start that are equal, position by position: no side has an extra draw there."""
    unequal = (found.a != np.arange(len(found.a))) | (found.b != np.arange(len(found.b)))
    unequal |= found.moved | candidates(a, found.a, b, found.b)
    return int(unequal.argmax()) if unequal.any() else len(unequal)


# --- extra and moved ops only -----------------------------------------------------------------------------------------
#
# Ranges in which every row of one side equals a row of the other. The longest alignment by structure may match one row
# more at the price of shifting others, where a part of the program ran once more and other rows moved; then no
# difference of values is needed to explain the range.


def without_differences(a: RowTokens, b: RowTokens) -> Alignment | None:
    """The alignment of equal rows, where it leaves rows of at most one side; otherwise None."""
    own_a, own_b = mix(a.exact, a.sources), mix(b.exact, b.sources)
    if len(match_nth(own_a, own_b)[0]) < min(len(a), len(b)):
        return None
    try:
        in_order = _longest(own_a, own_b)
    except BudgetExceededError:
        return None
    rest_a, rest_b = np.setdiff1d(np.arange(len(a)), in_order[0]), np.setdiff1d(np.arange(len(b)), in_order[1])
    at_a, at_b = match_nth(own_a[rest_a], own_b[rest_b])
    all_a, all_b = np.concatenate([in_order[0], rest_a[at_a]]), np.concatenate([in_order[1], rest_b[at_b]])
    moved = np.repeat([False, True], [len(in_order[0]), len(at_a)])
    order = np.argsort(all_a)
    return minimize_moves(Alignment(len(a), len(b), all_a[order], all_b[order], moved[order], None))


def _longest(a: Tokens, b: Tokens) -> tuple[Indices, Indices]:
    head = common_prefix(a, b)
    tail = common_suffix(a[head:], b[head:])
    inner_a, inner_b = a[head : len(a) - tail], b[head : len(b) - tail]
    if is_small((0, len(inner_a), 0, len(inner_b))):
        at_a, at_b = best_pairs([(inner_a, inner_b)])
    else:
        at_a, at_b = longest_common(inner_a, inner_b, SearchBudget(ALIGN_BUDGET))
    ends = np.arange(head), np.arange(tail)
    return (
        np.concatenate([ends[0], head + at_a, len(a) - tail + ends[1]]),
        np.concatenate([ends[0], head + at_b, len(b) - tail + ends[1]]),
    )


# --- window -----------------------------------------------------------------------------------------------------------


CONTEXT = 512
"""Rows before the first difference that are read with it, as the producers of the rows after it."""


def context_before(a: StreamView, b: StreamView, base: int) -> int:
    """Number of readable rows before ``base``, the first difference, in the same step."""
    start = max(0, base - CONTEXT)
    if base == start or base >= min(a.rows, b.rows):
        return 0
    try:
        steps = [view.read(start, base + 1).rows.column(Column.STEP) for view in (a, b)]
    except HoleError:
        return 0
    return int(min(np.sum(own[:-1] == own[-1]) for own in steps))


def align_window(context: DiffContext, a: RowRange, b: RowRange, open_end: bool) -> Alignment:
    """The final alignment of two ranges; ``open_end``: the streams continue after them."""
    # cut off within a long loop, rows may only seem to be aligned
    by_position = is_aligned_and_equal(a, b) if open_end else is_aligned(a, b)
    found = _without_false_matches(context, a, b, None if by_position else _align_by_tokens(context, a, b, open_end))
    if by_position or open_end:
        return found
    differs = first_unequal(a, found.a, b, found.b) is not None
    simpler = without_differences(a.tokens, b.tokens) if differs or found.moved.any() else None
    if simpler is None or not (differs or simpler.moved.sum() < found.moved.sum()):
        return found
    return simpler


MAX_ROUNDS = 3
"""How often a window is aligned again after edited lines were learned from it."""


def _align_by_tokens(context: DiffContext, a: RowRange, b: RowRange, open_end: bool) -> Alignment:
    for _ in range(MAX_ROUNDS):
        found = align(a.tokens, b.tokens, open_end=open_end)
        if not learn_edits(context, a, b, found):
            break
    return found


def _without_false_matches(context: DiffContext, a: RowRange, b: RowRange, found: Alignment | None) -> Alignment:
    """``found`` (None: matched by position), reordered rows matched by what they compute."""
    if found is None:
        rows = np.arange(min(len(a), len(b)))
        found = Alignment(len(a), len(b), rows, rows, np.zeros(len(rows), bool), None)
    return minimize_moves(drop_false_matches(context, a, b, match_reordered(a, b, found)))


def first_unequal(a: RowRange, at_a: Indices, b: RowRange, at_b: Indices) -> int | None:
    """Number of the first of these pairs with a difference that counts; None: there is none."""
    return next((k for k, _ in unequal_pairs(a, at_a, b, at_b)), None)


def unequal_pairs(a: RowRange, at_a: Indices, b: RowRange, at_b: Indices) -> Iterator[tuple[int, Difference]]:
    """Numbers of the pairs with a difference that counts, and the difference, in order."""
    may_differ = np.flatnonzero(candidates(a, at_a, b, at_b)) if a.view.shortcuts.row_hashes else np.arange(len(at_a))
    for k in may_differ.tolist():
        found = difference(a, int(at_a[k]), b, int(at_b[k]))
        if found.found:
            yield int(k), found


def cut_of(a: RowRange, b: RowRange, found: Alignment) -> tuple[int, int]:
    """Where a window is cut: before a first difference in its second half, which the rows after it may explain."""
    unequal = first_unequal(a, found.a, b, found.b)
    limit = None if unequal is None or 2 * found.a[unequal] < len(a) else int(found.a[unequal])
    cut = safe_cut(found, limit)
    return cut if cut != (0, 0) or limit is None else safe_cut(found)


# --- truncated ranges -------------------------------------------------------------------------------------------------
#
# Ranges whose continuation cannot be read: before a hole, or at the end of an unfinished trace. Decides what holds
# whatever follows. Two different rows at the same position may be one op that computed something else, ops that only
# one side ran (the row follows after them), or the same ops in another order. They count as one op, except in three
# cases, in which rows after the end would be needed:
#
# - the step has more rows on one side, and that many rows from the difference on cannot all be read, or the rows after
#   them are those that the other side continues with;
# - the number of rows of the step is not known (the trace ends), and more rows are equal if one side ran extra ops;
# - one of the two rows occurs later on the other side, unmatched, and fewer rows can be read after it than before.
#
# Extra ops are certain where both sides have equally many rows of the step after the last pair, or where a long run of
# pairs follows them.


@dataclass(frozen=True)
class TruncatedRange:
    """The rows of the step after two ranges."""

    rows: tuple[int, int] | None
    """Numbers of A and B; None: not known."""

    def surplus(self, left_a: int, left_b: int) -> int | None:
        """How many more rows A has to the end of the step, with ``left_a`` and ``left_b`` left in the ranges."""
        return None if self.rows is None else left_a + self.rows[0] - left_b - self.rows[1]


def align_truncated(
    context: DiffContext, a: RowRange, b: RowRange, truncated: TruncatedRange
) -> tuple[Alignment, tuple[int, int]]:
    """An alignment, and the places up to which it holds whatever follows."""
    rows = min(len(a), len(b))
    if rows and np.array_equal(a.tokens.identity[:rows], b.tokens.identity[:rows]):
        found = _without_false_matches(context, a, b, None)
        unequal = first_unequal(a, found.a, b, found.b)
        if unequal is None or _is_same_op(a, b, found, unequal, truncated):
            return found, (rows, rows)
    found = align_window(context, a, b, open_end=True)
    unequal = first_unequal(a, found.a, b, found.b)
    if unequal is not None and _recurs(a, b, found, unequal):
        return found, _cut_before(a, b, found, unequal)
    end = _end(found)
    if found.sure and end != (0, 0) and truncated.surplus(len(a) - end[0], len(b) - end[1]) == 0:
        return found, end
    cut = cut_of(a, b, found)
    return found, cut if cut != (0, 0) else _cut_before(a, b, found, unequal)


def _cut_before(a: RowRange, b: RowRange, found: Alignment, unequal: int | None) -> tuple[int, int]:
    """The place after the last pair of equal rows that occur once on each side, before the first pair that differs."""
    rows = len(found.a) if unequal is None else unequal
    certain = set(zip(*(at.tolist() for at in equal_runs(a.tokens, b.tokens, (0, len(a), 0, len(b)))), strict=True))
    for i, j in zip(found.a[:rows][::-1].tolist(), found.b[:rows][::-1].tolist(), strict=True):
        crossed = found.moved & ((found.a <= i) != (found.b <= j))
        if (i, j) in certain and not crossed.any():
            return i + 1, j + 1
    return 0, 0


def _end(found: Alignment) -> tuple[int, int]:
    """Places after the last pair, where no reordered pair lies across them; otherwise (0, 0)."""
    if not len(found.a) or found.moved[-1]:
        return 0, 0
    end = int(found.a[-1]) + 1, int(found.b[-1]) + 1
    return end if int(found.b.max()) < end[1] else (0, 0)


def _is_same_op(a: RowRange, b: RowRange, found: Alignment, pair: int, truncated: TruncatedRange) -> bool:
    """Whether the first pair that differs, at the same position, is one op however the step continues."""
    i, j = int(found.a[pair]), int(found.b[pair])
    x, y = _with_sources(a)[i:], _with_sources(b)[j:]
    surplus = truncated.surplus(len(x), len(y))
    if surplus is None:
        equal = _count_equal(a, i, x, y, 0)
        recurs = any(_count_equal(a, i, x, y, k) > equal for k in _extra_counts(x, y, len(x)))
        recurs = recurs or any(_count_equal(b, j, y, x, k) > equal for k in _extra_counts(y, x, len(y)))
    else:
        longer, other = (x, y) if surplus > 0 else (y, x)
        recurs = abs(surplus) >= len(longer) or any(_extra_counts(longer, other, abs(surplus)))
    return not recurs and not _recurs(a, b, found, pair)


def _with_sources(side: RowRange) -> Tokens:
    """Tokens of structure, values and inputs of each row."""
    return mix(side.tokens.exact, side.tokens.sources)


def _extra_counts(longer: Tokens, other: Tokens, limit: int) -> list[int]:
    """Counts (1 to ``limit``) of rows at the start of ``longer`` after which it equals ``other``."""
    starts = np.flatnonzero(longer[1 : limit + 1] == other[:1]) + 1 if len(other) else np.empty(0, np.int64)
    return [k for k in starts.tolist() if np.array_equal(longer[k : k + len(other)], other[: len(longer) - k])]


def _count_equal(side: RowRange, first: int, longer: Tokens, other: Tokens, extra: int) -> int:
    """Number of equal rows that have values, if the first ``extra`` rows of ``longer`` are extra."""
    rows = min(len(longer) - extra, len(other))
    has_values = side.tokens.has_values[first + extra : first + extra + rows]
    return int(np.sum(has_values & (longer[extra : extra + rows] == other[:rows])))


def _recurs(a: RowRange, b: RowRange, found: Alignment, pair: int) -> bool:
    """Whether a row of the pair, near the end, equals a later, unmatched row of the other side."""
    i, j = int(found.a[pair]), int(found.b[pair])
    if 2 * i < min(len(a), len(b)):
        return False
    own_a, own_b = _with_sources(a), _with_sources(b)
    unequal = np.flatnonzero(own_a[found.a] != own_b[found.b])
    unequal_a = np.concatenate([found.a[unequal], found.only_a])
    unequal_b = np.concatenate([found.b[unequal], found.only_b])
    return _is_among(a, i, own_a, unequal_b[unequal_b > j], own_b) or _is_among(
        b, j, own_b, unequal_a[unequal_a > i], own_a
    )


def _is_among(side: RowRange, row: int, own: Tokens, others: Indices, theirs: Tokens) -> bool:
    """Whether a row equals exactly one of ``others``; a result that occurred before is no evidence."""
    is_evidence = bool(side.tokens.has_values[row]) and not side.tokens.draws[row]
    return is_evidence and not (own[:row] == own[row]).any() and int((theirs[others] == own[row]).sum()) == 1


# --- windows of a block -----------------------------------------------------------------------------------------------
#
# Reads and aligns a block window by window. Stops at a hole or where the alignment is uncertain.


Place = tuple[int, int]
"""A row of A and one of B, or places in two ranges."""


@dataclass(frozen=True)
class AlignedWindow:
    """One window of a block, aligned."""

    a: RowRange
    b: RowRange
    found: Alignment
    cut: Place
    """The alignment holds before these places."""
    final: bool = False
    """Both streams end with it."""
    stop: str | None = None
    """Why the comparison ends here; None: it continues."""
    hole: Unreadable | None = None
    """The unreadable rows, where they are the reason."""


def has_more(context: DiffContext, block: Block) -> bool:
    """Whether a side may have run more ops than it has rows for."""
    return not block.ended and not (context.a.process.has_complete_journal and context.b.process.has_complete_journal)


def read_window(context: DiffContext, block: Block, at: Place) -> AlignedWindow:
    """The window of ``block`` that begins at row ``at[0]`` of A and ``at[1]`` of B."""
    stop = min(block.a1, at[0] + WINDOW_ROWS), min(block.b1, at[1] + WINDOW_ROWS)
    end = context.a.readable(at[0], stop[0]), context.b.readable(at[1], stop[1])
    a, b = context.a.read(at[0], end[0]), context.b.read(at[1], end[1])
    if end != stop:
        return _before_hole(context, block, (a, b), (end, stop))
    ends = stop[0] == block.a1, stop[1] == block.b1
    if all(ends) and not has_more(context, block):
        return _cut_where_unsure(
            AlignedWindow(a, b, align_window(context, a, b, open_end=False), (len(a), len(b)), not block.ended)
        )
    if any(ends):
        return _cut_where_unsure(_at_end(context, block, (a, b), ends))
    found = align_window(context, a, b, open_end=True)
    cut = (len(a), len(b)) if is_aligned_and_equal(a, b) else cut_of(a, b, found)
    return _cut_where_unsure(AlignedWindow(a, b, found, cut, stop=_unsure(at) if cut == (0, 0) else None))


def _truncated(context: DiffContext, block: Block, a: RowRange, b: RowRange) -> TruncatedRange:
    return TruncatedRange(None if has_more(context, block) else (block.a1 - a.end, block.b1 - b.end))


def _before_hole(
    context: DiffContext, block: Block, sides: tuple[RowRange, RowRange], to: tuple[Place, Place]
) -> AlignedWindow:
    """``to``: rows up to which both sides could be read, and rows up to which the window would go."""
    a, b = sides
    found, cut = align_truncated(context, a, b, _truncated(context, block, a, b))
    stop = hole = None
    if cut == (0, 0) or cut[0] == len(a) or cut[1] == len(b):
        hole = _first_hole(context, *to)
        stop = f"rows {hole.first:,} to {hole.first + hole.rows - 1:,} of {hole.side.upper()} cannot be read"
    return _cut_where_unsure(AlignedWindow(a, b, found, cut, stop=stop, hole=hole))


def _first_hole(context: DiffContext, end: Place, stop: Place) -> Unreadable:
    return next(
        Unreadable(side, *hole)
        for side, view, k in (("a", context.a, 0), ("b", context.b, 1))
        if end[k] < stop[k] and (hole := view.hole(end[k], stop[k])) is not None
    )


def _at_end(
    context: DiffContext, block: Block, sides: tuple[RowRange, RowRange], ends: tuple[bool, bool]
) -> AlignedWindow:
    """The window where a side ends, and the other continues or may have; ``ends``: whether A and B end here."""
    a, b = sides
    found, cut = align_truncated(context, a, b, _truncated(context, block, a, b))
    used_up = (ends[0] and cut[0] == len(a)) or (ends[1] and cut[1] == len(b))
    if all(ends) and used_up:
        return AlignedWindow(a, b, found, (len(a), len(b)), final=not block.ended)
    if cut != (0, 0) or used_up:
        return AlignedWindow(a, b, found, cut)
    return AlignedWindow(
        a, b, found, cut, stop=_unfinished(context) if has_more(context, block) else _unsure((a.first, b.first))
    )


def _cut_where_unsure(read_window: AlignedWindow) -> AlignedWindow:
    unsure = read_window.found.unsure
    if unsure is None or not unsure < read_window.cut:
        return read_window
    at = read_window.a.first + unsure[0], read_window.b.first + unsure[1]
    return AlignedWindow(read_window.a, read_window.b, read_window.found, unsure, stop=_unsure(at))


def _unsure(at: Place) -> str:
    return f"alignment unsure from row {at[0]:,} of A and row {at[1]:,} of B on"


def _unfinished(context: DiffContext) -> str:
    side, view = ("B", context.b) if context.a.process.has_complete_journal else ("A", context.a)
    return unfinished_text(side, view.process)
