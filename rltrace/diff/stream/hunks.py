"""Ops that only one side has, or that changed places: counted, and the first hundred runs of them kept.

Owns how one-sided rows are grouped into hunks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.findings import row_at
from rltrace.diff.base.model import Hunk, Structure
from rltrace.diff.base.sequences import Indices
from rltrace.diff.base.view import StreamView

LARGEST = 100


@dataclass
class HunkCounter:
    """Structural differences of one pair of streams, in the order in which they are found."""

    a: StreamView
    b: StreamView
    only_a: int = 0
    only_b: int = 0
    reordered: int = 0
    reordered_steps: int = 0
    """Steps that hold the same rows in another order, as their digests prove; how many rows moved nobody counted."""
    hunks: list[Hunk] = field(default_factory=list)

    def one_sided(self, kind: str, rows: Indices, other: Indices) -> None:
        """Rows (numbers in their stream) that only one side has; ``other``: where they would stand in the other one."""
        if kind == "only-a":
            self.only_a += len(rows)
        else:
            self.only_b += len(rows)
        for start, stop in _runs(len(rows), np.diff(rows) != 1):
            if len(self.hunks) >= LARGEST:
                return
            at, count, beside = int(rows[start]), stop - start, int(other[start])
            self._keep(kind, (at, count, beside, 0) if kind == "only-a" else (beside, 0, at, count))

    def moved(self, rows_a: Indices, rows_b: Indices) -> None:
        """Pairs that stand at another place in the order of the two sides."""
        self.reordered += len(rows_a)
        for start, stop in _runs(len(rows_a), (np.diff(rows_a) != 1) | (np.diff(rows_b) != 1)):
            if len(self.hunks) >= LARGEST:
                return
            count = stop - start
            self._keep("reordered", (int(rows_a[start]), count, int(rows_b[start]), count))

    @property
    def is_full(self) -> bool:
        """Whether no more hunks are kept."""
        return len(self.hunks) >= LARGEST

    def structure(self, whole: bool) -> Structure:
        return Structure(self.only_a, self.only_b, self.reordered, tuple(self.hunks), whole, self.reordered_steps)

    def _keep(self, kind: str, place: tuple[int, int, int, int]) -> None:
        first = row_at(self.b, place[2]) if kind == "only-b" else row_at(self.a, place[0])
        step = first.step if first.view.process.step_count else None
        self.hunks.append(Hunk(kind, self.a.name, step, *place, str(first)))


def _runs(count: int, breaks: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """(start, stop) of the runs of ``count`` things, cut after every place where ``breaks`` is True."""
    if not count:
        return []
    edges = [0, *(np.flatnonzero(breaks) + 1).tolist(), count]
    return list(pairwise(edges))
