"""One window of two streams aligned, with all that tells extra, moved and renamed ops from other values.

Owns the order of those means, and where a window that goes on is cut.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.diff.align.blocks import WINDOW_ROWS, Block
from rltrace.diff.align.moved_calls import same_writers, used_alike, without_lookalikes
from rltrace.diff.align.reorder import settle_order
from rltrace.diff.align.rows import (
    ALIGN_BUDGET,
    Alignment,
    align,
    equal_runs,
    in_step,
    in_step_and_equal,
    safe_cut,
    with_fewest_moves,
)
from rltrace.diff.base.bisect import Unreadable
from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.coverage import still_open
from rltrace.diff.base.row_diff import candidates, difference
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
from rltrace.diff.base.tokens import StretchTokens, mix
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.errors import HoleError
from rltrace.trace.format.schema import Column, RowFlag

# --- edited -----------------------------------------------------------------------------------------------------------
#
# Lines that were edited, learned from ops that are proven to be one: equal, and computed from what matching ops wrote.
#
# A line that now prints another tensor may by chance print the same once, so equal values alone teach nothing. Owns the
# choice of what is proof enough; the names themselves are the view's.


TRIED = 8
"""Pairs of one line that are looked at for proof."""


def learn_edits(scene: DiffContext, a: RowRange, b: RowRange, found: Alignment) -> bool:
    """Take down which lines of B are edited ones of A, as far as these pairs prove it; whether any are new."""
    pairs = _equal_elsewhere(a, b, found)
    if not len(pairs):
        return False
    partner = np.full(len(a), -1, np.int64)
    partner[found.a] = found.b
    elsewhere = a.tokens.identity[found.a] != b.tokens.identity[found.b]
    used = used_alike(a, b, found, ~elsewhere)
    in_step = _in_step(a, b, found)
    learned = False
    for k in pairs.tolist():
        i, j = int(found.a[k]), int(found.b[k])
        drawn_in_step = k < in_step and bool(a.rows.flags(i) & RowFlag.RNG)
        if used[k] or drawn_in_step or same_writers(scene, (a, i), (b, j), partner):
            sites = (int(stretch.rows.columns[place, Column.SITE]) for stretch, place in ((a, i), (b, j)))
            learned |= b.view.learn(*sites)
    if learned:
        b.forget_names()
    return learned


def _equal_elsewhere(a: RowRange, b: RowRange, found: Alignment) -> Indices:
    """A few pairs, by number, of each two places in the code whose ops are equal, and tell something."""
    lines = np.stack([s.rows.column(Column.SITE)[at] for s, at in ((a, found.a), (b, found.b))], axis=1)
    there = a.tokens.identity[found.a] != b.tokens.identity[found.b]
    there &= ~found.moved & a.tokens.told[found.a] & ~candidates(a, found.a, b, found.b)
    pairs = np.flatnonzero(there)
    nth = occurrences(np.unique(lines[pairs], axis=0, return_inverse=True)[1].reshape(-1))
    few: Indices = pairs[nth < TRIED]
    return few


def _in_step(a: RowRange, b: RowRange, found: Alignment) -> int:
    """How many pairs at the start stand side by side and are equal: so far, neither side has drawn once more."""
    apart = (found.a != np.arange(len(found.a))) | (found.b != np.arange(len(found.b)))
    apart |= found.moved | candidates(a, found.a, b, found.b)
    return int(apart.argmax()) if apart.any() else len(apart)


# --- harmless ---------------------------------------------------------------------------------------------------------
#
# A stretch in which every op of one side is an op of the other, the same in all: nothing but extra and moved ops.
#
# The longest alignment by structure may buy one more row by shifting others against each other, where a part of the
# program ran once more and something moved besides. Owns the proof that no difference of values is needed to explain a
# stretch: one side has a row for every row of the other.


def without_differences(a: StretchTokens, b: StretchTokens) -> Alignment | None:
    """The alignment of equal rows alone, where it leaves rows of one side only; None where it does not."""
    fed_a, fed_b = mix(a.exact, a.sources), mix(b.exact, b.sources)
    if len(match_nth(fed_a, fed_b)[0]) < min(len(a), len(b)):
        return None
    try:
        in_order = _longest(fed_a, fed_b)
    except BudgetExceededError:
        return None
    rest_a, rest_b = np.setdiff1d(np.arange(len(a)), in_order[0]), np.setdiff1d(np.arange(len(b)), in_order[1])
    at_a, at_b = match_nth(fed_a[rest_a], fed_b[rest_b])
    all_a, all_b = np.concatenate([in_order[0], rest_a[at_a]]), np.concatenate([in_order[1], rest_b[at_b]])
    moved = np.repeat([False, True], [len(in_order[0]), len(at_a)])
    order = np.argsort(all_a)
    return with_fewest_moves(Alignment(len(a), len(b), all_a[order], all_b[order], moved[order], None))


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


def aligned(scene: DiffContext, a: RowRange, b: RowRange, open_end: bool) -> Alignment:
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


def _by_names(scene: DiffContext, a: RowRange, b: RowRange, open_end: bool) -> Alignment:
    for _ in range(LESSONS):
        found = align(a.tokens, b.tokens, open_end=open_end)
        if not learn_edits(scene, a, b, found):
            break
    return found


def _by_place(a: RowRange) -> Alignment:
    rows = np.arange(len(a))
    return Alignment(len(a), len(a), rows, rows, np.zeros(len(a), dtype=bool), None)


def first_unequal(a: RowRange, at_a: Indices, b: RowRange, at_b: Indices) -> int | None:
    """The first of these pairs that differs in anything that counts; None: all are equal."""
    for k in np.flatnonzero(candidates(a, at_a, b, at_b)).tolist():
        if difference(a, int(at_a[k]), b, int(at_b[k])).found:
            return int(k)
    return None


def cut_of(a: RowRange, b: RowRange, found: Alignment) -> tuple[int, int]:
    """Where a window is cut: before a first difference in its second half, which may be but a lack of what follows."""
    unequal = first_unequal(a, found.a, b, found.b)
    limit = None if unequal is None or 2 * found.a[unequal] < len(a) else int(found.a[unequal])
    cut = safe_cut(found, limit)
    return cut if cut != (0, 0) or limit is None else safe_cut(found)


# --- sequel -----------------------------------------------------------------------------------------------------------
#
# Two stretches of which nobody can read the sequel: before a hole, or where an unfinished trace breaks off.
#
# Owns what the rows that can be read settle, whatever may follow. Two rows that stand side by side and differ can be
# read in three ways: one op that computed something else; some ops that one side ran once more, after which the row
# comes again; the same ops in another order. The first reading stands unless rows beyond the end are needed to tell it
# from the others, which is so in three cases alone:
#
# - the step has more rows on one side than on the other, and so many rows from the difference on are not all readable,
#   or they are, and what comes after them is what the other side goes on with;
# - it is not known how many rows the step has (the trace breaks off), and more rows are equal if some ops were run once
#   more than if not;
# - one of the two rows comes again later on the other side, where nothing is equal to it, and fewer rows can be read
#   after it than before.
#
# Extra ops are settled where both sides have as many rows left in the step after the last pair, or by a long run of
# pairs after them.


@dataclass(frozen=True)
class TruncatedRange:
    """How many rows of the step follow two stretches."""

    rows: tuple[int, int] | None
    """None: not known."""

    def surplus(self, left_a: int, left_b: int) -> int | None:
        """How many rows more A has to the end of the step, where so many of each stretch are left."""
        return None if self.rows is None else left_a + self.rows[0] - left_b - self.rows[1]


def settle(scene: DiffContext, a: RowRange, b: RowRange, sequel: TruncatedRange) -> tuple[Alignment, tuple[int, int]]:
    """An alignment, and the places before which it holds whatever follows."""
    rows = min(len(a), len(b))
    if rows and np.array_equal(a.tokens.identity[:rows], b.tokens.identity[:rows]):
        found = _side_by_side(scene, a, b, rows)
        unequal = first_unequal(a, found.a, b, found.b)
        if unequal is None or _holds(a, b, found, unequal, sequel):
            return found, (rows, rows)
    found = aligned(scene, a, b, open_end=True)
    unequal = first_unequal(a, found.a, b, found.b)
    if unequal is not None and _comes_again(a, b, found, unequal):
        return found, _cut_before(a, b, found, unequal)
    end = _end(found)
    if found.sure and end != (0, 0) and sequel.surplus(len(a) - end[0], len(b) - end[1]) == 0:
        return found, end
    cut = cut_of(a, b, found)
    return found, cut if cut != (0, 0) else _cut_before(a, b, found, unequal)


def _cut_before(a: RowRange, b: RowRange, found: Alignment, unequal: int | None) -> tuple[int, int]:
    """After rows that are equal in all and of which each side has one alone, before the first pair that differs."""
    rows = len(found.a) if unequal is None else unequal
    certain = set(zip(*(at.tolist() for at in equal_runs(a.tokens, b.tokens, (0, len(a), 0, len(b)))), strict=True))
    for i, j in zip(found.a[:rows][::-1].tolist(), found.b[:rows][::-1].tolist(), strict=True):
        crossed = found.moved & ((found.a <= i) != (found.b <= j))
        if (i, j) in certain and not crossed.any():
            return i + 1, j + 1
    return 0, 0


def _side_by_side(scene: DiffContext, a: RowRange, b: RowRange, rows: int) -> Alignment:
    at = np.arange(rows)
    found = Alignment(len(a), len(b), at, at, np.zeros(rows, bool), None)
    return with_fewest_moves(without_lookalikes(scene, a, b, settle_order(a, b, found)))


def _end(found: Alignment) -> tuple[int, int]:
    """Places after the last pair, none of which moved across it; (0, 0): there is no such place."""
    if not len(found.a) or found.moved[-1]:
        return 0, 0
    end = int(found.a[-1]) + 1, int(found.b[-1]) + 1
    return end if int(found.b.max()) < end[1] else (0, 0)


def _holds(a: RowRange, b: RowRange, found: Alignment, pair: int, sequel: TruncatedRange) -> bool:
    """Whether rows side by side, the first pair that differs, are one op however the step goes on."""
    i, j = int(found.a[pair]), int(found.b[pair])
    x, y = _fed(a)[i:], _fed(b)[j:]
    surplus = sequel.surplus(len(x), len(y))
    if surplus is None:
        alike = _told_equal(a, i, x, y, 0)
        again = any(_told_equal(a, i, x, y, k) > alike for k in _again(x, y, len(x)))
        again = again or any(_told_equal(b, j, y, x, k) > alike for k in _again(y, x, len(y)))
    else:
        longer, other = (x, y) if surplus > 0 else (y, x)
        again = abs(surplus) >= len(longer) or any(_again(longer, other, abs(surplus)))
    return not again and not _comes_again(a, b, found, pair)


def _fed(side: RowRange) -> Tokens:
    """What each row is, what it computes and from what."""
    return mix(side.tokens.exact, side.tokens.sources)


def _again(longer: Tokens, other: Tokens, most: int) -> list[int]:
    """How many rows (1 to ``most``) may be extra in front of ``longer``, as all that follows is equal then."""
    starts = np.flatnonzero(longer[1 : most + 1] == other[:1]) + 1 if len(other) else np.empty(0, np.int64)
    return [k for k in starts.tolist() if np.array_equal(longer[k : k + len(other)], other[: len(longer) - k])]


def _told_equal(side: RowRange, first: int, longer: Tokens, other: Tokens, extra: int) -> int:
    """Rows with values of their own that are equal where ``extra`` rows stand in front of ``longer``."""
    rows = min(len(longer) - extra, len(other))
    told = side.tokens.told[first + extra : first + extra + rows]
    return int(np.sum(told & (longer[extra : extra + rows] == other[:rows])))


def _comes_again(a: RowRange, b: RowRange, found: Alignment, pair: int) -> bool:
    """Whether one row of the pair, near the end, is a later row of the other side that nothing is equal to."""
    i, j = int(found.a[pair]), int(found.b[pair])
    if 2 * i < min(len(a), len(b)):
        return False
    fed_a, fed_b = _fed(a), _fed(b)
    unequal = np.flatnonzero(fed_a[found.a] != fed_b[found.b])
    loose_a = np.concatenate([found.a[unequal], found.only_a])
    loose_b = np.concatenate([found.b[unequal], found.only_b])
    return _is_among(a, i, fed_a, loose_b[loose_b > j], fed_b) or _is_among(b, j, fed_b, loose_a[loose_a > i], fed_a)


def _is_among(side: RowRange, row: int, own: Tokens, others: Indices, theirs: Tokens) -> bool:
    """Whether a row is one of the other side's; what an op computes again and again is no sign of that."""
    telling = bool(side.tokens.told[row]) and not side.tokens.draws[row]
    return telling and not (own[:row] == own[row]).any() and int((theirs[others] == own[row]).sum()) == 1


# --- passage ----------------------------------------------------------------------------------------------------------
#
# A block, window by window: what is read of both sides, how it is aligned, up to where that holds, and why it ends.
#
# Owns how much is looked at a time, and the sentences that say why a walk ends before its streams do.


Place = tuple[int, int]
"""A row of A and one of B, or places in two stretches."""


@dataclass(frozen=True)
class BlockReader:
    """One window of a block."""

    a: RowRange
    b: RowRange
    found: Alignment
    cut: Place
    """The alignment holds before these places."""
    final: bool = False
    """Both streams end with it."""
    stop: str | None = None
    """Why nothing can be told of what follows; None: it can."""
    hole: Unreadable | None = None
    """The same, where it is for rows that cannot be read."""


def goes_on(scene: DiffContext, block: Block) -> bool:
    """Whether a side may have run more than it has rows for."""
    return not block.ended and not (scene.a.process.has_complete_journal and scene.b.process.has_complete_journal)


def passage(scene: DiffContext, block: Block, at: Place) -> BlockReader:
    """The window of ``block`` that begins at row ``at`` of both sides."""
    stop = min(block.a1, at[0] + WINDOW_ROWS), min(block.b1, at[1] + WINDOW_ROWS)
    end = scene.a.readable(at[0], stop[0]), scene.b.readable(at[1], stop[1])
    a, b = scene.a.read(at[0], end[0]), scene.b.read(at[1], end[1])
    if end != stop:
        return _before_hole(scene, block, (a, b), (end, stop))
    ends = stop[0] == block.a1, stop[1] == block.b1
    if all(ends) and not goes_on(scene, block):
        return _as_far_as_sure(
            BlockReader(a, b, aligned(scene, a, b, open_end=False), (len(a), len(b)), not block.ended)
        )
    if any(ends):
        return _as_far_as_sure(_at_an_end(scene, block, (a, b), ends))
    found = aligned(scene, a, b, open_end=True)
    cut = (len(a), len(b)) if in_step_and_equal(a, b) else cut_of(a, b, found)
    return _as_far_as_sure(BlockReader(a, b, found, cut, stop=_unsure(at) if cut == (0, 0) else None))


def _sequel(scene: DiffContext, block: Block, a: RowRange, b: RowRange) -> TruncatedRange:
    return TruncatedRange(None if goes_on(scene, block) else (block.a1 - a.end, block.b1 - b.end))


def _before_hole(
    scene: DiffContext, block: Block, sides: tuple[RowRange, RowRange], to: tuple[Place, Place]
) -> BlockReader:
    """``to``: up to which rows both sides could be read, and were to be."""
    a, b = sides
    found, cut = settle(scene, a, b, _sequel(scene, block, a, b))
    stop = hole = None
    if cut == (0, 0) or cut[0] == len(a) or cut[1] == len(b):
        hole = _first_hole(scene, *to)
        stop = f"rows {hole.first:,} to {hole.first + hole.rows - 1:,} of {hole.side.upper()} cannot be read"
    return _as_far_as_sure(BlockReader(a, b, found, cut, stop=stop, hole=hole))


def _first_hole(scene: DiffContext, end: Place, stop: Place) -> Unreadable:
    found = [
        Unreadable(side, *hole)
        for side, view, k in (("a", scene.a, 0), ("b", scene.b, 1))
        if end[k] < stop[k] and (hole := view.hole(end[k], stop[k])) is not None
    ]
    return found[0]


def _at_an_end(
    scene: DiffContext, block: Block, sides: tuple[RowRange, RowRange], ends: tuple[bool, bool]
) -> BlockReader:
    """One side ends and the other goes on, or nobody knows whether it would; ``ends``: which end here."""
    a, b = sides
    found, cut = settle(scene, a, b, _sequel(scene, block, a, b))
    used_up = (ends[0] and cut[0] == len(a)) or (ends[1] and cut[1] == len(b))
    if all(ends) and used_up:
        return BlockReader(a, b, found, (len(a), len(b)), final=not block.ended)
    if cut != (0, 0) or used_up:
        return BlockReader(a, b, found, cut)
    return BlockReader(
        a, b, found, cut, stop=_unfinished(scene) if goes_on(scene, block) else _unsure((a.first, b.first))
    )


def _as_far_as_sure(passage: BlockReader) -> BlockReader:
    unsure = passage.found.unsure
    if unsure is None or not unsure < passage.cut:
        return passage
    at = passage.a.first + unsure[0], passage.b.first + unsure[1]
    return BlockReader(passage.a, passage.b, passage.found, unsure, stop=_unsure(at))


def _unsure(at: Place) -> str:
    return f"alignment unsure from row {at[0]:,} of A and row {at[1]:,} of B on"


def _unfinished(scene: DiffContext) -> str:
    side, view = ("B", scene.b) if scene.a.process.has_complete_journal else ("A", scene.a)
    return still_open(side, view.process)
