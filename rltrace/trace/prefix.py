"""Row hashes and prefix digests: what makes "everything up to row n is equal" one comparison.

Owns their definition, which is part of the format (docs/trace-format.md, "Prefix digests"). A row has three 64-bit
hashes, structure, values and marked; each is chained over a stream by streaming XXH3-64, which can be asked at any row.
Ids never enter a hash, only the portable keys behind them, so two traces agree whatever order they interned things in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

from rltrace.trace.rows import Offsets, Rows
from rltrace.trace.schema import Column, RowFlag

Hashes = NDArray[np.uint64]

KEYED: Final = (
    (Column.OP, "ops"),
    (Column.STRUCTURE, "structures"),
    (Column.SITE, "sites"),
    (Column.MODULE, "modules"),
    (Column.SCALARS, "scalars"),
)
"""The columns that make the structure of a row, besides KIND, and the tables their ids are of."""

INTEGERS, FLOATS, DIGESTS = 101, 102, 103
"""Sections of cells in the salt of a hash; columns use their own number."""

GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


class Keyed(Protocol):
    """A table, as far as hashing needs it."""

    @property
    def keys(self) -> NDArray[np.uint64]: ...


class RowHashes(NamedTuple):
    structure: Hashes
    values: Hashes
    marked: Hashes


class Digests(NamedTuple):
    """Prefix digests of a stream at one row."""

    structure: int
    values: int
    marked: int


def splitmix64(x: Hashes) -> Hashes:
    """The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), element by element, on a fresh array."""
    z = x + GOLDEN
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _salt(section: int, position: Hashes) -> Hashes:
    return splitmix64(splitmix64(position) ^ np.uint64(section << 32))


def row_hashes(rows: Rows, tables: Mapping[str, Keyed]) -> RowHashes:
    """The three hashes of every row, each of shape [n]. The marked hash of an unmarked row is 0."""
    zero = np.zeros(1, np.uint64)
    structure = splitmix64(rows.column(Column.KIND).astype(np.uint64) ^ _salt(Column.KIND, zero))
    for column, table in KEYED:
        structure += _mixed(tables[table].keys, rows.column(column), _salt(column, zero))
    values = _cell_sums(rows.integers.view(np.uint64), rows.integer_offsets, INTEGERS)
    values += _cell_sums(rows.floats.view(np.uint64), rows.float_offsets, FLOATS)
    digests = _cell_sums(rows.digests, rows.digest_offsets, DIGESTS)
    is_marked = (rows.column(Column.FLAGS) & np.uint32(RowFlag.MARKED)) != 0
    marked = np.where(is_marked, splitmix64(digests), np.uint64(0))
    digests[is_marked] = 0
    return RowHashes(splitmix64(structure), splitmix64(values + digests), marked)


def _mixed(keys: NDArray[np.uint64], ids: NDArray[np.uint32], salt: Hashes) -> Hashes:
    if len(keys) <= len(ids):
        return np.take(splitmix64(keys ^ salt), ids)
    return splitmix64(np.take(keys, ids) ^ salt)


def _cell_sums(cells: NDArray[np.uint64], offsets: Offsets, section: int) -> Hashes:
    """Per row, the sum modulo 2^64 of its cells, each mixed with its place in the row and its section."""
    if not len(cells):
        return np.zeros(len(offsets) - 1, np.uint64)
    counts = np.diff(offsets)
    position = np.arange(len(cells), dtype=np.int64) - np.repeat(offsets[:-1], counts)
    salts = _salt(section, np.arange(int(counts.max()), dtype=np.uint64))
    total = np.zeros(len(cells) + 1, np.uint64)
    np.cumsum(splitmix64(cells ^ np.take(salts, position)), out=total[1:])
    return np.take(total, offsets[1:]) - np.take(total, offsets[:-1])


class Chains:
    """The three prefix digests of a stream while it grows, and those of the current step alone."""

    def __init__(self) -> None:
        self.rows = 0
        self._prefix = (xxh3_64(), xxh3_64(), xxh3_64())
        self._step = (xxh3_64(), xxh3_64())

    def advance(self, hashes: RowHashes) -> None:
        """Take in the hashes of the next rows."""
        data = [np.ascontiguousarray(h, "<u8").data for h in hashes]
        for chain, chunk in zip(self._prefix, data, strict=True):
            chain.update(chunk)
        for chain, chunk in zip(self._step, data[:2], strict=True):
            chain.update(chunk)
        self.rows += len(hashes.structure)

    def advance_to(self, stop: int, hashes: RowHashes, first: int) -> None:
        """Take in rows up to ``stop`` of a stretch that starts at row ``first``."""
        part = slice(self.rows - first, stop - first)
        self.advance(RowHashes(*(h[part] for h in hashes)))

    def digests(self) -> Digests:
        return Digests(*(chain.intdigest() for chain in self._prefix))

    def end_step(self) -> tuple[int, int]:
        """Digests (structure, values) of the rows since the last call."""
        ended = self._step[0].intdigest(), self._step[1].intdigest()
        self._step = (xxh3_64(), xxh3_64())
        return ended


def chain_digests(hashes: RowHashes, at: Iterable[int]) -> list[Digests]:
    """Prefix digests at the given ascending rows of a stream whose rows from 0 on have these hashes."""
    chains, found = Chains(), []
    for row in at:
        chains.advance_to(row, hashes, 0)
        found.append(chains.digests())
    return found
