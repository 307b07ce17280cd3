"""Algorithms over sequences of 64-bit tokens: common ends, longest increasing subsequence, linear-space Myers.

Pure functions of NumPy arrays and lists, independent of traces. Sources: E. W. Myers, "An O(ND) Difference
Algorithm and Its Variations" (1986), section 4b (linear space); patience sorting for the increasing subsequence.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Tokens = NDArray[np.uint64]
Indices = NDArray[np.int64]

EMPTY: Indices = np.empty(0, dtype=np.int64)


class BudgetExceededError(Exception):
    """The sequences are too different to be aligned within the budget."""


@dataclass
class SearchBudget:
    """The elementary steps of Myers' algorithm that are left."""

    left: int

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise BudgetExceededError


def grouped(keyed: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, in order."""
    found: dict[K, list[V]] = {}
    for key, value in keyed:
        found.setdefault(key, []).append(value)
    return found


def common_prefix(a: Tokens | Indices, b: Tokens | Indices) -> int:
    """Number of equal tokens at the start."""
    n = min(len(a), len(b))
    unequal = a[:n] != b[:n]
    return int(unequal.argmax()) if unequal.any() else n


def common_suffix(a: Tokens, b: Tokens) -> int:
    """Number of equal tokens at the end."""
    return common_prefix(a[::-1], b[::-1])


def longest_increasing(values: Indices) -> Indices:
    """Positions of a longest strictly increasing subsequence of ``values``."""
    if len(values) < 2 or bool(np.all(values[1:] > values[:-1])):
        return np.arange(len(values), dtype=np.int64)
    tails: list[int] = []
    tail_at: list[int] = []
    previous = [0] * len(values)
    for i, value in enumerate(values.tolist()):
        k = bisect_left(tails, value)
        previous[i] = tail_at[k - 1] if k else -1
        if k == len(tails):
            tails.append(value)
            tail_at.append(i)
        else:
            tails[k] = value
            tail_at[k] = i
    found = np.empty(len(tails), dtype=np.int64)
    at = tail_at[-1]
    for k in range(len(tails) - 1, -1, -1):
        found[k] = at
        at = previous[at]
    return found


def heaviest_increasing(values: Indices, weights: Indices) -> Indices:
    """Positions of a strictly increasing subsequence with the greatest sum of weights; time is quadratic."""
    total, previous = weights.astype(np.int64), np.full(len(values), -1, np.int64)
    for i in range(1, len(values)):
        before = np.where(values[:i] < values[i], total[:i], 0)
        best = int(before.argmax())
        if before[best] > 0:
            total[i], previous[i] = total[i] + before[best], best
    found: list[int] = []
    at = int(total.argmax()) if len(total) else -1
    while at >= 0:
        found.append(at)
        at = int(previous[at])
    return np.array(found[::-1], np.int64)


def occurrences(codes: Tokens | Indices) -> Indices:
    """For each element, the number of equal ones before it."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    starts = np.concatenate([[True], ordered[1:] != ordered[:-1]]) if len(ordered) else np.empty(0, dtype=bool)
    places = np.arange(len(ordered))
    nth = np.empty(len(ordered), dtype=np.int64)
    nth[order] = places - np.maximum.accumulate(np.where(starts, places, 0))
    return nth


def codes_of(a: Tokens, b: Tokens) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Both sequences as small integers, and how many distinct tokens there are."""
    found, inverse = np.unique(np.concatenate([a, b]), return_inverse=True)
    inverse = inverse.astype(np.int64)
    return inverse[: len(a)], inverse[len(a) :], len(found)


def match_nth(a: Tokens, b: Tokens) -> tuple[Indices, Indices]:
    """Pairs of the nth occurrence of a token in ``a`` with its nth in ``b``, by position in ``a``."""
    code_a, code_b, count = codes_of(a, b)
    keys = occurrences(code_a) * count + code_a, occurrences(code_b) * count + code_b
    _, at_a, at_b = np.intersect1d(*keys, assume_unique=True, return_indices=True)
    order = np.argsort(at_a)
    return at_a[order].astype(np.int64), at_b[order].astype(np.int64)


def unique_pairs(a: Tokens, b: Tokens) -> tuple[Indices, Indices]:
    """Pairs of tokens that occur exactly once on either side, as far as their order agrees (patience diff)."""
    code_a, code_b, count = codes_of(a, b)
    once = (np.bincount(code_a, minlength=count) == 1) & (np.bincount(code_b, minlength=count) == 1)
    at_a, at_b = np.flatnonzero(once[code_a]), np.flatnonzero(once[code_b])
    place = np.empty(count, np.int64)
    place[code_b[at_b]] = at_b
    partner = place[code_a[at_a]]
    chosen = longest_increasing(partner)
    return at_a[chosen], partner[chosen]


def longest_common(a: Tokens, b: Tokens, budget: SearchBudget) -> tuple[Indices, Indices]:
    """A longest common subsequence as pairs of positions; BudgetExceededError past the budget. Memory is linear.

    Tokens that only one side has cannot be part of it and are dropped first.
    """
    if not len(a) or not len(b):
        return EMPTY, EMPTY
    keep_a, keep_b = np.flatnonzero(np.isin(a, b)), np.flatnonzero(np.isin(b, a))
    code_a, code_b, _ = codes_of(a[keep_a], b[keep_b])
    pairs = _myers(code_a.tolist(), code_b.tolist(), budget)
    if not pairs:
        return EMPTY, EMPTY
    at = np.array(sorted(pairs), dtype=np.int64)
    return keep_a[at[:, 0]], keep_b[at[:, 1]]


def reach_an_end(a: Tokens, b: Tokens, budget: SearchBudget) -> tuple[int, int]:
    """Lengths of the prefixes that align with the fewest edits when either sequence ends; the rest costs nothing.

    For sequences that were truncated: forcing their ends to match would shift everything in between.
    """
    keep_a, keep_b = np.flatnonzero(np.isin(a, b)), np.flatnonzero(np.isin(b, a))
    if not len(keep_a):
        return 0, 0
    code_a, code_b, _ = codes_of(a[keep_a], b[keep_b])
    x, y = _first_border(code_a.tolist(), code_b.tolist(), budget)  # not 0: each side has the other's first token
    return int(keep_a[x - 1]) + 1, int(keep_b[y - 1]) + 1


def _first_border(a: list[int], b: list[int], budget: SearchBudget) -> tuple[int, int]:
    n, m = len(a), len(b)
    reach = {1: 0}
    for d in range(min(n + m + 1, MANY)):
        budget.spend(d + 1)
        for k in range(-d, d + 1, 2):
            x = start = _furthest(reach, k, d)
            while x < n and x - k < m and a[x] == b[x - k]:
                x += 1
            budget.spend(x - start)
            if x >= n or x - k >= m:
                return min(x, n), min(x - k, m)
            reach[k] = x
    front = _Front(np.array(a), np.array(b), reach)
    for d in range(MANY, n + m + 1):
        diagonals, furthest = front.advance(d, budget)
        ends = np.flatnonzero((furthest >= n) | (furthest - diagonals >= m))
        if len(ends):
            x, k = int(furthest[ends[0]]), int(diagonals[ends[0]])
            return min(x, n), min(x - k, m)
    raise AssertionError("an end is reached after n + m edits at the latest")


def _myers(a: list[int], b: list[int], budget: SearchBudget) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    todo = [(0, len(a), 0, len(b))]
    while todo:
        a0, a1, b0, b1 = todo.pop()
        while a0 < a1 and b0 < b1 and a[a0] == b[b0]:
            pairs.append((a0, b0))
            a0, b0 = a0 + 1, b0 + 1
        while a0 < a1 and b0 < b1 and a[a1 - 1] == b[b1 - 1]:
            a1, b1 = a1 - 1, b1 - 1
            pairs.append((a1, b1))
        if a0 == a1 or b0 == b1:
            continue
        x, y = _middle(a, b, (a0, a1, b0, b1), budget)
        todo += [(a0, x, b0, y), (x, a1, y, b1)]
    return pairs


def _middle(a: list[int], b: list[int], box: tuple[int, int, int, int], budget: SearchBudget) -> tuple[int, int]:
    """A point on a shortest edit path that splits the box into two smaller ones."""
    a0, a1, b0, b1 = box
    n, m = a1 - a0, b1 - b0
    delta = n - m
    forward, backward = {1: 0}, {1: 0}
    for d in range(min((n + m + 1) // 2 + 1, MANY)):
        budget.spend(2 * d + 2)
        for k in range(-d + 2 * max(0, d - m), d - 2 * max(0, d - n) + 1, 2):
            x = _furthest(forward, k, d)
            start = x
            while x < n and x - k < m and a[a0 + x] == b[b0 + x - k]:
                x += 1
            budget.spend(x - start)
            forward[k] = x
            if delta & 1 and -(d - 1) <= delta - k <= d - 1 and x + backward.get(delta - k, -1) >= n:
                return a0 + x, b0 + x - k
        for k in range(-d + 2 * max(0, d - m), d - 2 * max(0, d - n) + 1, 2):
            x = _furthest(backward, k, d)
            start = x
            while x < n and x - k < m and a[a1 - 1 - x] == b[b1 - 1 - x + k]:
                x += 1
            budget.spend(x - start)
            backward[k] = x
            if not delta & 1 and -d <= delta - k <= d and x + forward.get(delta - k, -1) >= n:
                return a1 - x, b1 - x + k
    own_a, own_b = np.array(a[a0:a1]), np.array(b[b0:b1])
    fronts = _Front(own_a, own_b, forward), _Front(own_a[::-1], own_b[::-1], backward)
    for d in range(MANY, (n + m + 1) // 2 + 1):
        for is_back in (0, 1):
            diagonals, furthest = fronts[is_back].advance(d, budget)
            if delta & 1 == is_back:
                continue
            opposite = fronts[1 - is_back].at(delta - diagonals)
            met = np.flatnonzero((abs(delta - diagonals) <= d - 1 + is_back) & (furthest + opposite >= n))
            if len(met):
                x, k = int(furthest[met[0]]), int(diagonals[met[0]])
                return (a1 - x, b1 - x + k) if is_back else (a0 + x, b0 + x - k)
    raise AssertionError("two edit paths of half the length always meet")


MANY = 48
"""Edits from which on all diagonals are followed at once; fewer are faster one by one."""

FEW = 16
"""Diagonals that are followed one by one as far as they go."""


class _Front:
    """How far each diagonal was followed from one end of two sequences."""

    def __init__(self, a: NDArray[np.int64], b: NDArray[np.int64], reach: dict[int, int]) -> None:
        self._a, self._b = a, b
        self._reach = np.full(len(a) + len(b) + 3, -2)
        for k, x in reach.items():
            if -len(b) <= k <= len(a):
                self._reach[k + len(b) + 1] = x

    def at(self, diagonals: Indices) -> Indices:
        found: Indices = self._reach[diagonals + len(self._b) + 1]
        return found

    def advance(self, d: int, budget: SearchBudget) -> tuple[Indices, Indices]:
        """The diagonals that ``d`` edits lead to, ascending, and how far."""
        n, m = len(self._a), len(self._b)
        diagonals = np.arange(-d + 2 * max(0, d - m), d - 2 * max(0, d - n) + 1, 2)
        x = np.maximum(self.at(diagonals + 1), self.at(diagonals - 1) + 1)
        start, going = int(x.sum()), np.arange(len(x))
        while len(going) > FEW:
            going = going[(x[going] < n) & (x[going] - diagonals[going] < m)]
            going = going[self._a[x[going]] == self._b[x[going] - diagonals[going]]]
            x[going] += 1
        for k in going.tolist():
            x[k] += self._equal_from(int(x[k]), int(x[k] - diagonals[k]))
        budget.spend(d + 1 + int(x.sum()) - start)
        self._reach[diagonals + m + 1] = x
        return diagonals, x

    def _equal_from(self, x: int, y: int) -> int:
        """Number of equal tokens from these places on."""
        done, size = 0, 64
        while True:
            a, b = (own[at + done : at + done + size] for own, at in ((self._a, x), (self._b, y)))
            found = common_prefix(a, b)
            done += found
            if found < size:
                return done
            size *= 2


def _furthest(reach: dict[int, int], k: int, d: int) -> int:
    """Where diagonal ``k`` is entered at distance ``d``: from above or from the left, whichever is further on."""
    if d == 0:
        return 0
    down, right = reach.get(k + 1, -1), reach.get(k - 1, -2) + 1
    return max(down, right)


# --- table ------------------------------------------------------------------------------------------------------------
#
# The best alignment of two short sequences by dynamic programming. The recurrence is that of the longest common
# subsequence (Needleman and Wunsch, 1970, without gap costs); scores of several levels choose among the longest.


MAX_CELLS = 1 << 20
"""Cells of a table: 8 MiB, about twenty milliseconds."""

LEVEL_BITS = 12
"""Bits that count the pairs of one level; the shorter side of a table of ``MAX_CELLS`` has fewer rows than that."""


def is_small(box: tuple[int, int, int, int]) -> bool:
    """Whether a table fits rows [0:1] of one side and [2:3] of the other."""
    return (box[1] - box[0] + 1) * (box[3] - box[2] + 1) <= MAX_CELLS


def best_pairs(levels: Sequence[tuple[Tokens, Tokens]]) -> tuple[Indices, Indices]:
    """The alignment with the most equal tokens of the first level; among ties, the most of the next level, and so on.

    At most five levels. Among equally good alignments, rows are matched as early as possible.
    """
    n, m = len(levels[0][0]), len(levels[0][1])
    if not n or not m:
        return EMPTY, EMPTY
    score = np.zeros((n + 1, m + 1), np.int64)
    for i in range(n):
        worth = np.zeros(m, np.int64)
        for k, (a, b) in enumerate(reversed(levels)):
            worth += (a[i] == b).astype(np.int64) << (LEVEL_BITS * k)
        np.maximum.accumulate(np.maximum(score[i, 1:], score[i, :-1] + worth), out=score[i + 1, 1:])
    return _path(score)


def _path(score: np.ndarray) -> tuple[Indices, Indices]:
    i, j = score.shape[0] - 1, score.shape[1] - 1
    pairs = []
    while i and j:
        best = score[i, j]
        if score[i - 1, j] == best:
            i -= 1
        elif score[i, j - 1] == best:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs.append((i, j))
    at = np.array(pairs[::-1], np.int64).reshape(-1, 2)
    return at[:, 0], at[:, 1]
