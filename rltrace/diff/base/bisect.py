"""The first row at which two streams differ: bisection over their prefix digests, then one read of rows.

Prefix digests are monotone: after the first difference none is equal again. Row values can become equal again, so
bisecting those would be wrong. Reads only the rows between the last equal and the first unequal digest, and never
names a row after an unreadable hole.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from rltrace.diff.base.model import Probe
from rltrace.diff.base.view import StreamView

STRUCTURE, VALUES, MARKED = 1, 2, 3
"""Columns of ``StreamTrace.marks``."""

OnProbe = Callable[[str, str, Probe, int], None]
"""(stream, one of RESPECTS, probe, rows in all)."""

COLUMN_NAMES = {STRUCTURE: "structure", VALUES: "values", MARKED: "marked"}


@dataclass(frozen=True)
class Unreadable:
    """Rows that cannot be read and may hold the first difference."""

    side: str
    """"a" or "b"."""
    first: int
    rows: int
    why: str


@dataclass(frozen=True)
class FirstDifference:
    """Where two streams first differ in one respect, within the rows that both have."""

    row: int | None
    """None: they are equal, or the difference may be in ``hole``."""
    hole: Unreadable | None = None


NOWHERE = FirstDifference(None)


@dataclass
class Bisection:
    """Searches over the prefix digests of one pair of streams."""

    a: StreamView
    b: StreamView
    probes: list[Probe] = field(default_factory=list)
    watch: OnProbe | None = None
    """Called with every probe."""
    first_structure: FirstDifference = NOWHERE

    def __post_init__(self) -> None:
        marks_a, marks_b = self.a.stream.marks, self.b.stream.marks
        rows, at_a, at_b = np.intersect1d(marks_a[:, 0], marks_b[:, 0], return_indices=True)
        self._rows = rows.astype(np.int64)
        self._a, self._b = marks_a[at_a], marks_b[at_b]
        self.shorter = min(self.a.rows, self.b.rows)

    def first(self, column: int, before: int | None = None) -> FirstDifference:
        """First row that differs in ``column`` of the marks; ``before``: search only rows before this one."""
        limit = self.shorter if before is None else min(before, self.shorter)
        last, unequal = self._bisect(column, limit)
        if unequal is None and last >= limit:
            return NOWHERE
        stop = limit if unequal is None else min(unequal, limit)
        return self._within(column, last, stop, certain=unequal is not None and unequal <= limit)

    def _bisect(self, column: int, limit: int) -> tuple[int, int | None]:
        """(last row whose mark is known to be equal, first whose mark is not)."""
        if not self.a.shortcuts.bisection:
            return 0, None
        rows = self._rows
        upper = int(np.searchsorted(rows, limit, side="right")) - 1  # row 0 has a digest in every stream
        if self._equal(upper, column):
            return int(rows[upper]), None
        low, high = -1, upper  # the digest before any row is equal by definition
        while high - low > 1:
            middle = (low + high) // 2
            if self._equal(middle, column):
                low = middle
            else:
                high = middle
        return (int(rows[low]) if low >= 0 else 0), int(rows[high])

    def _equal(self, at: int, column: int) -> bool:
        equal = bool(self._a[at, column] == self._b[at, column])
        self.probes.append(Probe(int(self._rows[at]), equal))
        if self.watch:
            self.watch(self.a.name, COLUMN_NAMES[column], self.probes[-1], self.shorter)
        return equal

    def _within(self, column: int, start: int, stop: int, certain: bool) -> FirstDifference:
        """Compare rows ``start`` to ``stop``; ``certain``: their digests prove that they differ somewhere."""
        for view in (self.a, self.b):  # both sides are asked for before either is read
            view.process.read_ahead()
            view.stream.read_rows_ahead(start, stop)
        end = min(self.a.readable(start, stop), self.b.readable(start, stop))
        if end > start:
            a, b = (view.read(start, end).hashes[column - 1] for view in (self.a, self.b))
            unequal = np.flatnonzero(a != b)
            if len(unequal):
                return FirstDifference(start + int(unequal[0]))
        if end < stop:
            return FirstDifference(None, self._hole(end, stop))
        if certain:
            return FirstDifference(None, Unreadable("a", start, stop - start, "its rows contradict its prefix digests"))
        return NOWHERE

    def _hole(self, start: int, stop: int) -> Unreadable:
        found = [
            (hole[0], Unreadable(side, *hole))
            for side, view in (("a", self.a), ("b", self.b))
            if (hole := view.hole(start, stop)) is not None
        ]
        return min(found, key=lambda pair: pair[0])[1]
