"""Two stretches of which nobody can read the sequel: before a hole, or where an unfinished trace breaks off.

Owns what the rows that can be read settle, whatever may follow. Two rows that stand side by side and differ can be read
in three ways: one op that computed something else; some ops that one side ran once more, after which the row comes
again; the same ops in another order. The first reading stands unless rows beyond the end are needed to tell it from
the others, which is so in three cases alone:

- the step has more rows on one side than on the other, and so many rows from the difference on are not all readable,
  or they are, and what comes after them is what the other side goes on with;
- it is not known how many rows the step has (the trace breaks off), and more rows are equal if some ops were run once
  more than if not;
- one of the two rows comes again later on the other side, where nothing is equal to it, and fewer rows can be read
  after it than before.

Extra ops are settled where both sides have as many rows left in the step after the last pair, or by a long run of
pairs after them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.diff.aligning.align import Alignment, with_fewest_moves
from rltrace.diff.aligning.anchors import equal_runs
from rltrace.diff.aligning.elsewhere import without_lookalikes
from rltrace.diff.aligning.reorder import settle_order
from rltrace.diff.aligning.sequences import Indices, Tokens
from rltrace.diff.aligning.tokens import mix
from rltrace.diff.aligning.window import aligned, cut_of, first_unequal
from rltrace.diff.judging.scene import Scene
from rltrace.diff.view import Stretch


@dataclass(frozen=True)
class Sequel:
    """How many rows of the step follow two stretches."""

    rows: tuple[int, int] | None
    """None: not known."""

    def surplus(self, left_a: int, left_b: int) -> int | None:
        """How many rows more A has to the end of the step, where so many of each stretch are left."""
        return None if self.rows is None else left_a + self.rows[0] - left_b - self.rows[1]


def settle(scene: Scene, a: Stretch, b: Stretch, sequel: Sequel) -> tuple[Alignment, tuple[int, int]]:
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


def _cut_before(a: Stretch, b: Stretch, found: Alignment, unequal: int | None) -> tuple[int, int]:
    """After rows that are equal in all and of which each side has one alone, before the first pair that differs."""
    rows = len(found.a) if unequal is None else unequal
    certain = set(zip(*(at.tolist() for at in equal_runs(a.tokens, b.tokens, (0, len(a), 0, len(b)))), strict=True))
    for i, j in zip(found.a[:rows][::-1].tolist(), found.b[:rows][::-1].tolist(), strict=True):
        crossed = found.moved & ((found.a <= i) != (found.b <= j))
        if (i, j) in certain and not crossed.any():
            return i + 1, j + 1
    return 0, 0


def _side_by_side(scene: Scene, a: Stretch, b: Stretch, rows: int) -> Alignment:
    at = np.arange(rows)
    found = Alignment(len(a), len(b), at, at, np.zeros(rows, bool), None)
    return with_fewest_moves(without_lookalikes(scene, a, b, settle_order(a, b, found)))


def _end(found: Alignment) -> tuple[int, int]:
    """Places after the last pair, none of which moved across it; (0, 0): there is no such place."""
    if not len(found.a) or found.moved[-1]:
        return 0, 0
    end = int(found.a[-1]) + 1, int(found.b[-1]) + 1
    return end if int(found.b.max()) < end[1] else (0, 0)


def _holds(a: Stretch, b: Stretch, found: Alignment, pair: int, sequel: Sequel) -> bool:
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


def _fed(side: Stretch) -> Tokens:
    """What each row is, what it computes and from what."""
    return mix(side.tokens.exact, side.tokens.sources)


def _again(longer: Tokens, other: Tokens, most: int) -> list[int]:
    """How many rows (1 to ``most``) may be extra in front of ``longer``, as all that follows is equal then."""
    starts = np.flatnonzero(longer[1 : most + 1] == other[:1]) + 1 if len(other) else np.empty(0, np.int64)
    return [k for k in starts.tolist() if np.array_equal(longer[k : k + len(other)], other[: len(longer) - k])]


def _told_equal(side: Stretch, first: int, longer: Tokens, other: Tokens, extra: int) -> int:
    """Rows with values of their own that are equal where ``extra`` rows stand in front of ``longer``."""
    rows = min(len(longer) - extra, len(other))
    told = side.tokens.told[first + extra : first + extra + rows]
    return int(np.sum(told & (longer[extra : extra + rows] == other[:rows])))


def _comes_again(a: Stretch, b: Stretch, found: Alignment, pair: int) -> bool:
    """Whether one row of the pair, near the end, is a later row of the other side that nothing is equal to."""
    i, j = int(found.a[pair]), int(found.b[pair])
    if 2 * i < min(len(a), len(b)):
        return False
    fed_a, fed_b = _fed(a), _fed(b)
    unequal = np.flatnonzero(fed_a[found.a] != fed_b[found.b])
    loose_a = np.concatenate([found.a[unequal], found.only_a])
    loose_b = np.concatenate([found.b[unequal], found.only_b])
    return _is_among(a, i, fed_a, loose_b[loose_b > j], fed_b) or _is_among(b, j, fed_b, loose_a[loose_a > i], fed_a)


def _is_among(side: Stretch, row: int, own: Tokens, others: Indices, theirs: Tokens) -> bool:
    """Whether a row is one of the other side's; what an op computes again and again is no sign of that."""
    telling = bool(side.tokens.told[row]) and not side.tokens.draws[row]
    return telling and not (own[:row] == own[row]).any() and int((theirs[others] == own[row]).sum()) == 1
