"""Which rows of A have been matched with which of B so far, kept as runs: memory follows differences, not rows."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from rltrace.diff.sequences import Indices


class Matching:
    """Matched rows of two streams, by row number in each. Rows are added in A's order."""

    def __init__(self, base: int) -> None:
        self.base = base
        """Rows before it are matched position by position; all are equal, bytes that no op wrote aside."""
        self._starts: list[int] = []
        self._runs: list[tuple[int, int]] = []

    def add_run(self, a: int, b: int, count: int) -> None:
        """Rows ``a`` onwards are rows ``b`` onwards."""
        if count:
            self._starts.append(a)
            self._runs.append((b, count))

    def add(self, a: Indices, b: Indices) -> None:
        """Pairs, ascending in ``a``."""
        if not len(a):
            return
        breaks = np.flatnonzero((np.diff(a) != 1) | (np.diff(b) != 1)) + 1
        starts = np.concatenate([[0], breaks])
        counts = np.diff(np.concatenate([starts, [len(a)]]))
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            self.add_run(int(a[start]), int(b[start]), count)

    def partner(self, row: int) -> int | None:
        """The row of B that is A's ``row``; None where A alone has it."""
        if row < self.base:
            return row
        at = bisect_right(self._starts, row) - 1
        if at < 0:
            return None
        b, count = self._runs[at]
        offset = row - self._starts[at]
        return b + offset if offset < count else None
