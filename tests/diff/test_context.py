"""Matched rows are found again by the row of A."""

import numpy as np

from rltrace.diff.base.context import MAX_CACHED_STEPS, Matching


def test_runs() -> None:
    """Before the base by position, then by the runs that were added; between them nothing is matched."""
    matching = Matching(5)
    assert [matching.partner(row) for row in (0, 4, 5)] == [0, 4, None]
    matching.add_run(6, 10, 3)
    matching.add_run(9, 0, 0)
    matching.add(np.array([20, 21, 23, 24, 25]), np.array([30, 31, 32, 34, 35]))
    matching.add(np.empty(0, np.int64), np.empty(0, np.int64))
    found = {row: partner for row in range(5, 40) if (partner := matching.partner(row)) is not None}
    assert found == {6: 10, 7: 11, 8: 12, 20: 30, 21: 31, 23: 32, 24: 34, 25: 35}


def test_reordered_steps() -> None:
    """Their rows are paired on request, once; a row without a partner has none."""
    asked = []

    def pair(a: int, b: int, count: int) -> np.ndarray:
        asked.append((a, b, count))
        return np.array([b + 1, -1, b])

    matching = Matching(0, pair)
    for step in range(MAX_CACHED_STEPS + 2):
        matching.add_reordered(3 * step, 100 + 3 * step, 3)
    assert [matching.partner(row) for row in (0, 1, 2)] == [101, None, 100]
    assert asked == [(0, 100, 3)]
    for step in range(1, MAX_CACHED_STEPS + 2):
        assert matching.partner(3 * step + 2) == 100 + 3 * step
    asked.clear()
    assert (matching.partner(3 * MAX_CACHED_STEPS), matching.partner(6)) == (101 + 3 * MAX_CACHED_STEPS, 107)
    assert asked == []
    assert matching.partner(0) == 101 and asked == [(0, 100, 3)]


def test_an_order_that_cannot_be_computed() -> None:
    """Without a way to pair them, the rows of a reordered step are not known to be matched."""
    matching = Matching(0)
    matching.add_reordered(0, 0, 3)
    assert matching.partner(1) is None
