"""Row hashes: 64 bits that stand for what a row is, and for what it computed.

Owns their definition, which is part of the format (docs/reference/trace-format.md, "Prefix digests"). Ids never enter
a hash, only the portable keys behind them, so two traces agree whatever order they interned things in. ``chains``
makes digests of many rows from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.rows import Offsets, Rows
from rltrace.trace.schema import Column, Kind, RowFlag

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
    results: Hashes
    """Structure and values in one, without what the row read: equal in whatever order rows first read a tensor."""


def splitmix64(x: Hashes) -> Hashes:
    """The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), element by element, on a fresh array."""
    z = x + GOLDEN
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def salt(section: int, position: Hashes) -> Hashes:
    """What keeps apart equal cells of several sections, and of several positions within a section."""
    return splitmix64(splitmix64(position) ^ np.uint64(section << 32))


def row_hashes(rows: Rows, tables: Mapping[str, Keyed]) -> RowHashes:
    """The hashes of every row, each of shape [n]. The marked hash of an unmarked row is 0."""
    zero = np.zeros(1, np.uint64)
    sums = splitmix64(rows.column(Column.KIND).astype(np.uint64) ^ salt(Column.KIND, zero))
    for column, table in KEYED:
        sums += _mixed(tables[table].keys, rows.column(column), salt(column, zero))
    structure = splitmix64(sums)
    numbers = cell_sums(rows.integers.view(np.uint64), rows.integer_offsets, INTEGERS)
    numbers += cell_sums(rows.floats.view(np.uint64), rows.float_offsets, FLOATS)
    digests = cell_sums(*rows.hashed, DIGESTS)
    is_marked = (rows.column(Column.FLAGS) & np.uint32(RowFlag.MARKED)) != 0
    own = is_marked & (rows.column(Column.KIND) != Kind.OP)  # the numbers of an op are its arguments
    digests[own] += numbers[own]
    numbers[own] = 0
    marked = np.where(is_marked, splitmix64(digests), np.uint64(0))
    digests[is_marked] = 0
    values = splitmix64(numbers + digests)
    return RowHashes(structure, values, marked, splitmix64(structure + _unread(rows, values, numbers, is_marked)))


def _unread(rows: Rows, values: Hashes, numbers: Hashes, is_marked: NDArray[np.bool_]) -> Hashes:
    """The values hashes as if no row had digested an input."""
    readers = np.flatnonzero((rows.reads > 0) & ~is_marked)
    if not len(readers):
        return values
    starts = rows.digest_offsets[readers] + rows.reads[readers]
    offsets = np.concatenate([[0], np.cumsum(rows.digest_offsets[readers + 1] - starts)])
    at = np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], np.diff(offsets))
    unread = values.copy()
    unread[readers] = splitmix64(numbers[readers] + cell_sums(rows.digests[at], offsets, DIGESTS))
    return unread


def _mixed(keys: NDArray[np.uint64], ids: NDArray[np.uint32], salts: Hashes) -> Hashes:
    if len(keys) <= len(ids):
        return np.take(splitmix64(keys ^ salts), ids)
    return splitmix64(np.take(keys, ids) ^ salts)


def cell_sums(cells: NDArray[np.uint64], offsets: Offsets, section: int) -> Hashes:
    """Per row, the sum modulo 2^64 of its cells, each mixed with its place in the row and its section."""
    if not len(cells):
        return np.zeros(len(offsets) - 1, np.uint64)
    counts = np.diff(offsets)
    position = np.arange(len(cells), dtype=np.int64) - np.repeat(offsets[:-1], counts)
    salts = salt(section, np.arange(int(counts.max()), dtype=np.uint64))
    return row_sums(splitmix64(cells ^ np.take(salts, position)), offsets)


def row_sums(terms: Hashes, offsets: Offsets) -> Hashes:
    """Per row, the sum modulo 2^64 of its terms."""
    total = np.zeros(len(terms) + 1, np.uint64)
    np.cumsum(terms, out=total[1:])
    sums: Hashes = np.take(total, offsets[1:]) - np.take(total, offsets[:-1])
    return sums
