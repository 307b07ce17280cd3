"""Row hashes: 64 bits each for the identity of a row and for the values that it computed.

Owns their definition, which is part of the format (docs/reference/trace-format.md, "Prefix digests"). Portable keys
enter a hash, never ids, so two traces agree whatever order they interned entries in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

from rltrace.trace.format.rows import Offsets, Rows
from rltrace.trace.format.schema import SLOT_UNKNOWN, Column, Kind, Origin, RowFlag

Hashes = NDArray[np.uint64]

KEYED: Final = (
    (Column.OP, "ops"),
    (Column.STRUCTURE, "structures"),
    (Column.SITE, "sites"),
    (Column.MODULE, "modules"),
    (Column.SCALARS, "scalars"),
)
"""The columns that are the structure of a row, besides KIND, and the tables of their ids."""

INTEGERS, FLOATS, DIGESTS = 101, 102, 103
"""Sections of cells in the salt of a hash; a column uses its number."""

GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


class Keyed(Protocol):
    """The keys of a table, by id."""

    @property
    def keys(self) -> NDArray[np.uint64]: ...


class RowHashes(NamedTuple):
    structure: Hashes
    values: Hashes
    marked: Hashes
    results: Hashes
    """Of structure and values without the reads: independent of which row reads a tensor first."""


def splitmix64(x: Hashes) -> Hashes:
    """The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), elementwise, in a new array."""
    z = x + GOLDEN
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def salt(section: int, position: Hashes) -> Hashes:
    """A salt that differs by section and by position within the section."""
    return splitmix64(splitmix64(position) ^ np.uint64(section << 32))


def row_hashes(rows: Rows, tables: Mapping[str, Keyed]) -> RowHashes:
    """The hashes of all rows, each of shape [n]. The marked hash of an unmarked row is 0."""
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
    """Per row, the sum modulo 2^64 of its cells, each mixed with its position and its section."""
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


# --- any order --------------------------------------------------------------------------------------------------------
#
# Hashes of rows that do not change when independent ops are reordered; part of the format
# (docs/reference/trace-format.md, "Steps in any order"). Links are distances in rows, and only the first reader of a
# tensor digests it, so both depend on the order. Here an input is its bytes where a row of the step digested them, else
# the result of the row that wrote them.


BYTES, WRITER, ORIGIN = 105, 106, 107
"""More sections in the salt of a hash."""

BEFORE, UNWRITTEN, OTHER = 4, 5, 6
"""Positions in section ORIGIN after the negated values of ``schema.Origin``: written before the step and not digested;
digested by a row that may read uninitialised memory; anything else."""

MAX_STEP_ROWS: Final = 1 << 18
"""A longer step has no digest in any order, which bounds the memory for an open step."""

BATCH: Final = 1 << 14
"""Rows hashed at a time: their data fits a processor's cache, which saves a third of the time."""

Indices = NDArray[np.int64]


class Unordered(NamedTuple):
    """Hashes of adjacent rows."""

    hashes: Hashes
    """Shape [n]: of the row, its results and its inputs."""
    ordered: NDArray[np.bool_]
    """Whether its place among the other ordered rows matters: it overwrites memory without reading it, uses untracked
    memory, or is an event. Shape [n]."""


class AnyOrder:
    """The order-free hashes of a growing stream; remembers the rows of the open step."""

    def __init__(self, start: int = 0) -> None:
        self._start = start
        """First row of the open step. The arrays below hold what later rows of it can refer to."""
        self._results: Hashes = np.empty(0, np.uint64)
        self._read_keys: Indices = np.empty(0, np.int64)
        self._read_digests: Hashes = np.empty(0, np.uint64)

    def advance(self, rows: Rows, hashes: RowHashes, ends: list[int]) -> Unordered:
        """Hash the next rows; a step ends before each of ``ends`` (ascending rows of the stream)."""
        parts = []
        for start in range(0, max(len(rows), 1), BATCH):
            own = slice(start, min(start + BATCH, len(rows)))
            part = rows if len(rows) <= BATCH else rows.cut(own.start, own.stop)
            parts.append(self._advance(part, RowHashes(*(h[own] for h in hashes)), ends))
        return Unordered(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _advance(self, rows: Rows, hashes: RowHashes, ends: list[int]) -> Unordered:
        first, end = rows.first, rows.first + len(rows)
        starts = [self._start, *(row for row in ends if first <= row <= end)]
        step_start = np.repeat(starts, np.diff([first, *starts[1:], end]))
        links = _Links(rows, step_start, first - len(self._results))
        links.look_up(self._read_keys, self._read_digests)
        sums = links.sums(np.concatenate([self._results, hashes.results]))
        self._remember(rows, hashes.results, links, starts[-1])
        return Unordered(splitmix64(hashes.results + sums), links.ordered())

    def _remember(self, rows: Rows, results: Hashes, links: _Links, start: int) -> None:
        """Store what later rows of the step can refer to."""
        if start >= rows.first:
            self._forget()
        self._start = start
        if rows.first + len(rows) - start > MAX_STEP_ROWS:
            self._forget()
            return
        cut = max(start - rows.first, 0)
        keys, digests = links.reads_from(cut)
        self._results = np.concatenate([self._results, results[cut:]])
        self._read_keys = np.concatenate([self._read_keys, keys])
        self._read_digests = np.concatenate([self._read_digests, digests])

    def _forget(self) -> None:
        self._results = np.empty(0, np.uint64)
        self._read_keys, self._read_digests = np.empty(0, np.int64), np.empty(0, np.uint64)


def input_digests(rows: Rows) -> tuple[NDArray[np.bool_], Hashes]:
    """Whether one of these rows digested the bytes of each link, and their digests; shape [number of links] each."""
    links = _Links(rows, np.full(len(rows), rows.first), rows.first)
    links.look_up(np.empty(0, np.int64), np.empty(0, np.uint64))
    known, digests = np.zeros(len(rows.links), dtype=bool), np.zeros(len(rows.links), np.uint64)
    known[links.known] = True
    digests[links.known] = links.bytes
    return known, digests


class _Links:
    """The links of adjacent rows, unpacked, with the digests of their bytes where these are known."""

    def __init__(self, rows: Rows, step_start: Indices, known_from: int) -> None:
        self._rows = rows
        self._base = known_from
        """First row of the stream whose results are known."""
        offsets = rows.link_offsets
        self.owner = np.repeat(np.arange(len(rows)), np.diff(offsets))
        self.distance = rows.links >> 12
        self.target = rows.first + self.owner - self.distance
        """Row of the stream, where the distance is one."""
        reach = np.arange(rows.first, rows.first + len(rows)) - np.maximum(step_start, known_from)
        self.inside = (self.distance > 0) & (self.distance <= reach[self.owner])
        self.reads = np.flatnonzero(rows.links & 1)
        """Indices of the links that their row digested."""
        rank = np.concatenate([[0], np.cumsum(rows.reads)])
        owner = self.owner[self.reads]
        self._read_digests = rows.digests[rows.digest_offsets[owner] + np.arange(len(owner)) - rank[owner]]
        self.known = self.reads
        """Indices of the links whose bytes a row of the step digested."""
        self.bytes = self._read_digests

    def look_up(self, keys: Indices, digests: Hashes) -> None:
        """Set the digests of links to rows that read the same view; ``keys``, ``digests``: reads of earlier rows."""
        own_keys, own_digests = self.reads_from(0)
        keys, digests = np.concatenate([keys, own_keys]), np.concatenate([digests, own_digests])
        same_view = np.flatnonzero(((self._rows.links & 3) == 2) & self.inside)
        if not len(keys) or not len(same_view):
            return
        targets = _key(self.target[same_view], (self._rows.links[same_view] >> 2) & SLOT_UNKNOWN)
        found = np.minimum(np.searchsorted(keys, targets), len(keys) - 1)
        equal = keys[found] == targets
        self.known = np.concatenate([self.known, same_view[equal]])
        self.bytes = np.concatenate([self.bytes, digests[found[equal]]])

    def sums(self, results: Hashes) -> Hashes:
        """Per row, the sum modulo 2^64 of the terms of its inputs. ``results``: of the rows from ``known_from`` on."""
        links = self._rows.links
        origins = salt(ORIGIN, np.arange(OTHER + 1, dtype=np.uint64))
        terms = np.take(origins, np.where(self.distance > 0, BEFORE, np.minimum(-self.distance, OTHER)))
        linked = np.flatnonzero(self.inside)
        salts = np.take(salt(WRITER, np.arange(1 << 11, dtype=np.uint64)), (links[linked] >> 1) & 0x7FF)
        terms[linked] = splitmix64(np.take(results, self.target[linked] - self._base) ^ salts)
        marked = (self._rows.column(Column.FLAGS) & np.uint32(RowFlag.MARKED))[self.owner[self.known]] != 0
        terms[self.known] = np.where(
            marked, origins[UNWRITTEN], splitmix64(self.bytes ^ salt(BYTES, np.zeros(1, np.uint64)))
        )
        terms[self.distance == Origin.OVERWRITTEN] = origins[-int(Origin.OVERWRITTEN)]
        return row_sums(terms, self._rows.link_offsets)

    def ordered(self) -> NDArray[np.bool_]:
        """See ``Unordered``."""
        flags, kinds = self._rows.column(Column.FLAGS), self._rows.column(Column.KIND)
        allocation = (flags & np.uint32(RowFlag.ALLOCATION)) != 0
        view = (flags & np.uint32(RowFlag.VIEW)) != 0
        ordered: NDArray[np.bool_] = kinds != Kind.OP
        ordered |= allocation & (self._rows.column(Column.LINKS) > 0)  # set_ and resize_ change what their argument is
        ordered[self.owner[self.distance == Origin.OVERWRITTEN]] = True
        untracked = self.owner[self.distance == Origin.UNKNOWN]
        ordered[untracked[~view[untracked]]] = True
        return ordered

    def reads_from(self, cut: int) -> tuple[Indices, Hashes]:
        """Keys, ascending, and digests of the reads from row ``cut`` on (counted within these rows)."""
        first = int(np.searchsorted(self.reads, self._rows.link_offsets[cut]))
        at = self.reads[first:]
        place = at - self._rows.link_offsets[self.owner[at]]
        return _key(self._rows.first + self.owner[at], place), self._read_digests[first:]


def _key(row: Indices, place: Indices) -> Indices:
    key: Indices = (row << 10) | np.minimum(place, SLOT_UNKNOWN)
    return key


# --- chains -----------------------------------------------------------------------------------------------------------
#
# Digests of all rows so far, and of the current step (docs/reference/trace-format.md, "Prefix digests"). They do not
# depend on how the rows were split into segments.


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
    """Equal for steps whose independent ops are reordered; 0: the step is too long."""


class Chains:
    """The digests of a growing stream."""

    def __init__(self) -> None:
        self.rows = 0
        """Rows chained so far."""
        self._prefix = (xxh3_64(), xxh3_64(), xxh3_64())
        self._any_order = AnyOrder()
        self._loaded: tuple[int, RowHashes, Unordered] | None = None
        self._step = (xxh3_64(), xxh3_64())
        self._ordered = xxh3_64()
        self._sum = self._step_rows = 0

    def load(self, rows: Rows, tables: Mapping[str, Keyed], ends: Iterable[int]) -> None:
        """Hash the next rows, which ``advance_to`` then chains. Steps end at the rows ``ends``."""
        hashes = row_hashes(rows, tables)
        self._loaded = rows.first, hashes, self._any_order.advance(rows, hashes, sorted(ends))

    def advance_to(self, stop: int) -> None:
        """Chain the loaded rows before row ``stop`` of the stream."""
        if self._loaded is None:
            return
        first, hashes, unordered = self._loaded
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
            self._loaded = None

    def digests(self) -> Digests:
        """Digests of all rows so far."""
        return Digests(*(chain.intdigest() for chain in self._prefix))

    def end_step(self) -> StepDigests:
        """Digests of the rows since the last call, which are those of the step."""
        self._ordered.update(self._sum.to_bytes(8, "little"))
        any_order = self._ordered.intdigest() if self._step_rows <= MAX_STEP_ROWS else 0
        ended = StepDigests(self._step[0].intdigest(), self._step[1].intdigest(), any_order)
        self._step = (xxh3_64(), xxh3_64())
        self._ordered = xxh3_64()
        self._sum = self._step_rows = 0
        return ended


def chain_digests(hashes: RowHashes, at: Iterable[int]) -> list[Digests]:
    """Prefix digests at the rows ``at`` (ascending) of a stream with these hashes from row 0 on."""
    columns = hashes[:3]
    return [Digests(*(xxh3_64(_bytes(column[:row])).intdigest() for column in columns)) for row in at]


def _bytes(hashes: Hashes) -> memoryview:
    return np.ascontiguousarray(hashes, "<u8").data
