"""What the classification of a pair of rows knows besides the pair: both streams, their matching, the settings."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rltrace.diff.base.model import NamedDifference
from rltrace.diff.base.sequences import Indices
from rltrace.diff.base.view import StreamView

# --- matching ---------------------------------------------------------------------------------------------------------
#
# Pairs of matched rows, stored as runs: memory grows with the differences, not with the rows.


MAX_CACHED_STEPS = 16
"""Reordered steps whose pairs are cached."""


class _Run(NamedTuple):
    b: int
    rows: int
    reordered: bool
    """The same rows in another order, which is computed on request."""


class Matching:
    """Matched rows of two streams, by row number. Rows are added in A's order."""

    def __init__(self, base: int, pair: Callable[[int, int, int], Indices] | None = None) -> None:
        self.base = base
        """Rows before it are matched position by position and equal, except for uninitialised memory."""
        self._pair = pair
        """(row of A, row of B, count) to the rows of B that match these rows of A; -1: not known."""
        self._starts: list[int] = []
        self._runs: list[_Run] = []
        self._paired: OrderedDict[int, Indices] = OrderedDict()

    def add_run(self, a: int, b: int, count: int) -> None:
        """Match ``count`` rows from ``a`` on with those from ``b`` on, in order."""
        if count:
            self._starts.append(a)
            self._runs.append(_Run(b, count, reordered=False))

    def add_reordered(self, a: int, b: int, count: int) -> None:
        """Match ``count`` rows from ``a`` on with those from ``b`` on, in an order that is computed on request."""
        self._starts.append(a)
        self._runs.append(_Run(b, count, reordered=True))

    def add(self, a: Indices, b: Indices) -> None:
        """Match row ``a[k]`` with ``b[k]``; ``a`` ascends."""
        if not len(a):
            return
        breaks = np.flatnonzero((np.diff(a) != 1) | (np.diff(b) != 1)) + 1
        starts = np.concatenate([[0], breaks])
        counts = np.diff(np.concatenate([starts, [len(a)]]))
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            self.add_run(int(a[start]), int(b[start]), count)

    def partner(self, row: int) -> int | None:
        """The row of B matched with A's ``row``; None: unmatched, or not known."""
        if row < self.base:
            return row
        at = bisect_right(self._starts, row) - 1
        if at < 0:
            return None
        run = self._runs[at]
        offset = row - self._starts[at]
        if offset >= run.rows:
            return None
        return self._in_order(at, offset) if run.reordered else run.b + offset

    def partner_in_a(self, row: int) -> int | None:
        """The row of A matched with B's ``row``; None: unmatched, or not known."""
        if row < self.base:
            return row
        for at, run in enumerate(self._runs):
            if run.b <= row < run.b + run.rows:
                found = range(run.rows) if run.reordered else (row - run.b,)
                return next((self._starts[at] + n for n in found if self.partner(self._starts[at] + n) == row), None)
        return None

    def _in_order(self, at: int, offset: int) -> int | None:
        if at not in self._paired:
            if self._pair is None:
                return None
            self._paired[at] = self._pair(self._starts[at], self._runs[at].b, self._runs[at].rows)
            if len(self._paired) > MAX_CACHED_STEPS:
                self._paired.popitem(last=False)
        found = int(self._paired[at][offset])
        return found if found >= 0 else None


# --- context ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DiffContext:
    """Two streams, their matched rows so far, and the settings that differ."""

    a: StreamView
    b: StreamView
    matching: Matching
    settings: tuple[NamedDifference, ...]
    """Facts that select kernels and differ."""
    unused: set[int] = field(default_factory=set)
    """Rows of A whose values differ only because they compute with uninitialised memory, and that no training used."""
    permuted: set[int] = field(default_factory=set)
    """Rows of A that got their tensors in another order in B, and treat each by itself."""
    exchanged: set[int] = field(default_factory=set)
    """Rows of A that carry an object between processes, equal on both sides, in other bytes."""
