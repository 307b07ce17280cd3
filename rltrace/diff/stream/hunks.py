"""Hunks: runs of ops on one side only, or reordered. All are counted, the first hundred are listed."""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.findings import row_at
from rltrace.diff.base.model import Hunk, Structure
from rltrace.diff.base.sequences import Indices
from rltrace.diff.base.view import StreamView

MAX_HUNKS = 100


@dataclass
class HunkCounter:
    """Differences in structure of one pair of streams, in the order in which they are found."""

    a: StreamView
    b: StreamView
    only_a: int = 0
    only_b: int = 0
    reordered: int = 0
    reordered_steps: int = 0
    """Steps whose digests prove that they hold the same rows in another order; their rows are not counted."""
    hunks: list[Hunk] = field(default_factory=list)

    def one_sided(self, kind: str, rows: Indices, other: Indices) -> None:
        """Add rows (numbers in their stream) on one side only; ``other``: their places in the other stream."""
        if kind == "only-a":
            self.only_a += len(rows)
        else:
            self.only_b += len(rows)
        for start, stop in _runs(len(rows), np.diff(rows) != 1):
            if len(self.hunks) >= MAX_HUNKS:
                return
            at, count, place = int(rows[start]), stop - start, int(other[start])
            self._append(kind, (at, count, place, 0) if kind == "only-a" else (place, 0, at, count))

    def moved(self, rows_a: Indices, rows_b: Indices) -> None:
        """Add pairs with another place in the order of B."""
        self.reordered += len(rows_a)
        for start, stop in _runs(len(rows_a), (np.diff(rows_a) != 1) | (np.diff(rows_b) != 1)):
            if len(self.hunks) >= MAX_HUNKS:
                return
            count = stop - start
            self._append("reordered", (int(rows_a[start]), count, int(rows_b[start]), count))

    def opposite(self, of_a: bool, row: int) -> int | None:
        """The place in the other stream of a listed row that one side alone has; None: it is in no listed run."""
        for hunk in self.hunks:
            first, count = (hunk.a_start, hunk.a_count) if of_a else (hunk.b_start, hunk.b_count)
            if hunk.kind == ("only-a" if of_a else "only-b") and first <= row < first + count:
                return hunk.b_start if of_a else hunk.a_start
        return None

    @property
    def is_full(self) -> bool:
        """Whether no more hunks are listed."""
        return len(self.hunks) >= MAX_HUNKS

    def structure(self, whole: bool) -> Structure:
        return Structure(self.only_a, self.only_b, self.reordered, tuple(self.hunks), whole, self.reordered_steps)

    def _append(self, kind: str, place: tuple[int, int, int, int]) -> None:
        first = row_at(self.b, place[2]) if kind == "only-b" else row_at(self.a, place[0])
        step = first.step if first.view.process.step_count else None
        self.hunks.append(Hunk(kind, self.a.name, step, *place, str(first)))


def _runs(count: int, breaks: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """(start, stop) of runs of ``count`` rows, cut after every place where ``breaks`` is True."""
    if not count:
        return []
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), count]
    return list(pairwise(edges))
