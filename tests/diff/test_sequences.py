"""The sequence algorithms against slow, obvious references."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rltrace.diff.base import sequences
from rltrace.diff.base.sequences import (
    LEVEL_BITS,
    MAX_CELLS,
    BudgetExceededError,
    SearchBudget,
    best_pairs,
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

words = st.lists(st.integers(0, 4), max_size=24)


def tokens(word: list[int]) -> np.ndarray:
    return np.array(word, dtype=np.uint64)


def longest_common_length(a: list[int], b: list[int]) -> int:
    """The textbook table."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@given(words, words)
def test_common_ends(a: list[int], b: list[int]) -> None:
    """Prefix and suffix are as long as a loop finds them."""
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert common_prefix(tokens(a), tokens(b)) == n
    assert common_suffix(tokens(a[::-1]), tokens(b[::-1])) == n


@contextmanager
def followed_at_once(many: int, few: int) -> Iterator[None]:
    """All diagonals are from ``many`` edits on, while more than ``few`` go on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "MANY", many)
        patch.setattr(sequences, "FEW", few)
        yield


at_once = st.sampled_from([(48, 16), (0, 0), (2, 1)])


@given(words, words, at_once)
def test_longest_common_is_longest(a: list[int], b: list[int], many: tuple[int, int]) -> None:
    """Pairs are equal, in order on both sides, and as many as the textbook table allows; the same ones however the
    diagonals are followed."""
    at_a, at_b = longest_common(tokens(a), tokens(b), SearchBudget(10**6))
    with followed_at_once(*many):
        again = longest_common(tokens(a), tokens(b), SearchBudget(10**6))
    assert (at_a.tolist(), at_b.tolist()) == (again[0].tolist(), again[1].tolist())
    assert [a[i] for i in at_a] == [b[j] for j in at_b]
    assert all(np.diff(at_a) > 0) and all(np.diff(at_b) > 0)
    assert len(at_a) == longest_common_length(a, b)


def test_a_budget_can_be_spent_to_its_end() -> None:
    """A budget can be spent to its end, and no further."""
    budget = SearchBudget(3)
    budget.spend(2)
    budget.spend(1)
    with pytest.raises(BudgetExceededError):
        budget.spend(1)


def test_longest_common_gives_up_past_its_budget() -> None:
    """Sequences too different to align within the budget are said to be so."""
    a = np.arange(2_000, dtype=np.uint64)
    with pytest.raises(BudgetExceededError):
        longest_common(a, a[::-1].copy(), SearchBudget(10_000))


@given(st.lists(st.integers(0, 30), max_size=9))
def test_longest_increasing_is_longest(values: list[int]) -> None:
    """Increasing, and no subset of the positions does better."""
    at = longest_increasing(np.array(values, dtype=np.int64))
    chosen = [values[i] for i in at]
    assert list(at) == sorted(at) and all(x < y for x, y in pairwise(chosen))
    best = 0
    for mask in range(1 << len(values)):
        some = [v for i, v in enumerate(values) if mask >> i & 1]
        if all(x < y for x, y in pairwise(some)):
            best = max(best, len(some))
    assert len(chosen) == best


@given(words)
def test_occurrences_count_equal_elements_before(word: list[int]) -> None:
    """The nth of a kind is n."""
    assert occurrences(np.array(word, dtype=np.int64)).tolist() == [word[:i].count(x) for i, x in enumerate(word)]


@given(words, words)
def test_match_nth_pairs_the_nth_with_the_nth(a: list[int], b: list[int]) -> None:
    """Every occurrence that both sides have is paired, and nothing else is."""
    pairs = dict(zip(*(side.tolist() for side in match_nth(tokens(a), tokens(b))), strict=True))
    want = {}
    for i, x in enumerate(a):
        places = [j for j, y in enumerate(b) if y == x]
        if a[:i].count(x) < len(places):
            want[i] = places[a[:i].count(x)]
    assert pairs == want


@given(words, words, at_once)
def test_reaching_an_end_with_the_fewest_edits(a: list[int], b: list[int], many: tuple[int, int]) -> None:
    """One side is used up as far as it matters, and no other place to stop needs fewer edits on the way."""
    both = set(a) & set(b)
    with followed_at_once(*many):
        x, y = reach_an_end(tokens(a), tokens(b), SearchBudget(10**6))
    kept_a, kept_b = [t for t in a if t in both], [t for t in b if t in both]
    stop_a, stop_b = sum(t in both for t in a[:x]), sum(t in both for t in b[:y])
    assert not kept_a or stop_a == len(kept_a) or stop_b == len(kept_b)

    def edits(i: int, j: int) -> int:
        return i + j - 2 * longest_common_length(kept_a[:i], kept_b[:j])

    borders = [(len(kept_a), j) for j in range(len(kept_b) + 1)] + [(i, len(kept_b)) for i in range(len(kept_a) + 1)]
    assert edits(stop_a, stop_b) == min(edits(i, j) for i, j in borders)


def test_reaching_an_end_past_tokens_of_one_side() -> None:
    """They count as before the place, as far as a token follows that both sides have."""
    a, b = tokens([9, 1, 9, 2, 9]), tokens([8, 1, 8])
    assert reach_an_end(a, b, SearchBudget(100)) == (2, 2)
    assert reach_an_end(b, a, SearchBudget(100)) == (2, 2)
    assert reach_an_end(tokens([9, 9]), b, SearchBudget(100)) == (0, 0)


@given(words, words)
def test_unique_pairs(a: list[int], b: list[int]) -> None:
    """Only what occurs once on either side, in an order that both agree on."""
    at_a, at_b = unique_pairs(tokens(a), tokens(b))
    assert [a[i] for i in at_a] == [b[j] for j in at_b]
    assert all(a.count(a[i]) == b.count(a[i]) == 1 for i in at_a)
    assert all(x < y for x, y in pairwise(at_b.tolist()))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), max_size=8))
def test_heaviest_increasing_is_heaviest(values: list[tuple[int, int]]) -> None:
    """The positions are increasing, and no subset of them weighs more."""
    at = heaviest_increasing(*(np.array([pair[k] for pair in values], np.int64) for k in (0, 1))).tolist()
    assert at == sorted(at) and all(values[i][0] < values[j][0] for i, j in pairwise(at))
    best = 0
    for mask in range(1 << len(values)):
        some = [pair for i, pair in enumerate(values) if mask >> i & 1]
        if all(x[0] < y[0] for x, y in pairwise(some)):
            best = max(best, sum(weight for _, weight in some))
    assert sum(values[i][1] for i in at) == best


short = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=6)


@given(short, short)
def test_best_pairs_are_best(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    """In order, equal in some level; none has more pairs of the first level, and of those none more of the second."""
    levels = [(tokens([x[k] for x in a]), tokens([y[k] for y in b])) for k in (0, 1)]
    at_a, at_b = (at.tolist() for at in best_pairs(levels))
    assert all(x < y for x, y in pairwise(at_a)) and all(x < y for x, y in pairwise(at_b))
    table = [[(0, 0)] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            before = table[i][j]
            taken = before[0] + (x[0] == y[0]), before[1] + (x[1] == y[1])
            table[i + 1][j + 1] = max(taken, table[i][j + 1], table[i + 1][j])
    pairs = [(a[i], b[j]) for i, j in zip(at_a, at_b, strict=True)]
    assert tuple(sum(x[k] == y[k] for x, y in pairs) for k in (0, 1)) == table[-1][-1]
    assert all(x[0] == y[0] or x[1] == y[1] for x, y in pairs)


def test_best_pairs_come_early() -> None:
    """Of equally good pairs the earliest rows of both sides are chosen."""
    assert [at.tolist() for at in best_pairs([(tokens([1]), tokens([1, 1]))])] == [[0], [0]]
    assert [at.tolist() for at in best_pairs([(tokens([1, 1]), tokens([1]))])] == [[0], [0]]


def test_a_table_has_its_cells() -> None:
    """A row and a column more than rows are aligned; the pairs of a level fit its bits."""
    assert is_small((100, 1123, 50, 1073)) and is_small((0, MAX_CELLS // 2 - 1, 7, 8))
    assert not is_small((100, 1124, 50, 1073)) and not is_small((100, 1123, 50, 1074))
    assert (1 << LEVEL_BITS) ** 2 > MAX_CELLS
