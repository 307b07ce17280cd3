"""Digests over the rows of a stream: of all rows so far, and of the current step alone.

Owns what is chained over what (docs/reference/trace-format.md, "Prefix digests", "Steps in any order"). Streaming
XXH3-64 can be asked at any row, so where rows were cut on their way in never matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from xxhash import xxh3_64

from rltrace.trace.anyorder import LONGEST, AnyOrder, Unordered
from rltrace.trace.prefix import Hashes, Keyed, RowHashes, row_hashes
from rltrace.trace.rows import Rows


class Digests(NamedTuple):
    """Prefix digests of a stream at one row."""

    structure: int
    values: int
    marked: int


class StepDigests(NamedTuple):
    """Digests of the rows of one step."""

    structure: int
    values: int
    any_order: int
    """Equal where the step holds the same rows in another order that computes the same; 0: too long for one."""


class Chains:
    """The digests of a stream while it grows."""

    def __init__(self) -> None:
        self.rows = 0
        """Rows taken in so far."""
        self._prefix = (xxh3_64(), xxh3_64(), xxh3_64())
        self._any_order = AnyOrder()
        self._held: tuple[int, RowHashes, Unordered] | None = None
        self._step = (xxh3_64(), xxh3_64())
        self._ordered = xxh3_64()
        self._sum = self._step_rows = 0

    def hold(self, rows: Rows, tables: Mapping[str, Keyed], ends: Iterable[int]) -> None:
        """Look at the rows that come next; ``advance_to`` takes them in. Steps end at the rows ``ends``."""
        hashes = row_hashes(rows, tables)
        self._held = rows.first, hashes, self._any_order.advance(rows, hashes, sorted(ends))

    def advance_to(self, stop: int) -> None:
        """Take in the held rows before row ``stop`` of the stream."""
        if self._held is None:
            return
        first, hashes, unordered = self._held
        part = slice(self.rows - first, stop - first)
        data = [_bytes(column[part]) for column in hashes]
        for chain, chunk in zip((*self._prefix, *self._step), (*data[:3], *data[:2]), strict=True):
            chain.update(chunk)
        free = unordered.hashes[part]
        self._ordered.update(_bytes(free[unordered.ordered[part]]))
        self._sum = (self._sum + int(free.sum(dtype=np.uint64))) & 0xFFFFFFFFFFFFFFFF
        self._step_rows += len(free)
        self.rows = stop
        if stop == first + len(hashes.structure):
            self._held = None

    def digests(self) -> Digests:
        """Of all rows so far."""
        return Digests(*(chain.intdigest() for chain in self._prefix))

    def end_step(self) -> StepDigests:
        """Digests of the rows since the last call."""
        self._ordered.update(self._sum.to_bytes(8, "little"))
        any_order = self._ordered.intdigest() if self._step_rows <= LONGEST else 0
        ended = StepDigests(self._step[0].intdigest(), self._step[1].intdigest(), any_order)
        self._step = (xxh3_64(), xxh3_64())
        self._ordered = xxh3_64()
        self._sum = self._step_rows = 0
        return ended


def chain_digests(hashes: RowHashes, at: Iterable[int]) -> list[Digests]:
    """Prefix digests at the given ascending rows of a stream whose rows from 0 on have these hashes."""
    columns = hashes[:3]
    return [Digests(*(xxh3_64(_bytes(column[:row])).intdigest() for column in columns)) for row in at]


def _bytes(hashes: Hashes) -> memoryview:
    return np.ascontiguousarray(hashes, "<u8").data
