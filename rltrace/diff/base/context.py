"""What the judgement of a pair of rows may look at besides the pair."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from rltrace.diff.base.model import NamedDifference
from rltrace.diff.base.sequences import Indices
from rltrace.diff.base.view import StreamView

# --- matching ---------------------------------------------------------------------------------------------------------
#
# Which rows of A have been matched with which of B so far, kept as runs: memory follows differences, not rows.


REMEMBERED = 16
"""Steps in another order whose rows were asked for and are kept."""


class _Run(NamedTuple):
    b: int
    rows: int
    reordered: bool
    """The same rows in another order, which nobody has asked for yet."""


class Matching:
    """Matched rows of two streams, by row number in each. Rows are added in A's order."""

    def __init__(self, base: int, pair: Callable[[int, int, int], Indices] | None = None) -> None:
        self.base = base
        """Rows before it are matched position by position; all are equal, bytes that no op wrote aside."""
        self._pair = pair
        """(row of A, row of B, count) to the rows of B that so many rows of A are, -1 where that is not known."""
        self._starts: list[int] = []
        self._runs: list[_Run] = []
        self._paired: OrderedDict[int, Indices] = OrderedDict()

    def add_run(self, a: int, b: int, count: int) -> None:
        """Rows ``a`` onwards are rows ``b`` onwards."""
        if count:
            self._starts.append(a)
            self._runs.append(_Run(b, count, reordered=False))

    def add_reordered(self, a: int, b: int, count: int) -> None:
        """So many rows from ``a`` on are those from ``b`` on, in an order that is found out when somebody asks."""
        self._starts.append(a)
        self._runs.append(_Run(b, count, reordered=True))

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
        """The row of B that is A's ``row``; None where A alone has it, or where that cannot be found out."""
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

    def _in_order(self, at: int, offset: int) -> int | None:
        if at not in self._paired:
            if self._pair is None:
                return None
            self._paired[at] = self._pair(self._starts[at], self._runs[at].b, self._runs[at].rows)
            if len(self._paired) > REMEMBERED:
                self._paired.popitem(last=False)
        found = int(self._paired[at][offset])
        return found if found >= 0 else None


# --- scene ------------------------------------------------------------------------------------------------------------


class Partners(Protocol):
    """Which rows of two streams are the same op."""

    def partner(self, row: int) -> int | None:
        """The row of B that is A's ``row``; None: not known, or A alone has it."""


@dataclass(frozen=True)
class DiffContext:
    """Two streams, and what has been settled about them so far."""

    a: StreamView
    b: StreamView
    matching: Partners
    settings: tuple[NamedDifference, ...]
    """Facts that select kernels and differ."""
