"""Hashes of rows that do not change when independent ops change places: what a step computed, in any order.

Owns their definition, part of the format (docs/reference/trace-format.md, "Steps in any order"). Links count back in
rows and the first reader of a tensor digests it for all that follow, so neither a link nor a read is the same in
another order. Here an input stands for its bytes where a row of the step digested them, and else for what the row that
wrote them computed. Rows whose order matters and of which no link would tell are named, so that a digest can keep it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.prefix import Hashes, RowHashes, row_sums, salt, splitmix64
from rltrace.trace.rows import Rows
from rltrace.trace.schema import SLOT_UNKNOWN, Column, Kind, Origin, RowFlag

BYTES, WRITER, ORIGIN = 105, 106, 107
"""Sections in the salt of a hash, after those of ``prefix``."""

BEFORE, UNWRITTEN, OTHER = 4, 5, 6
"""Places in section ORIGIN after the negated values of ``schema.Origin``: a row before the step, and not digested;
digested by a row that may hold bytes nobody wrote; anything else."""

LONGEST: Final = 1 << 18
"""Rows of a step. Of a longer one no digest in any order is taken, so that what is kept of an open step has a bound."""

PART: Final = 1 << 14
"""Rows taken in at a time: what they need fits a processor's cache, and a third of the time is saved."""

Indices = NDArray[np.int64]


class Unordered(NamedTuple):
    """The rows of a stretch, each for itself."""

    hashes: Hashes
    """Shape [n]: what the row is, what it computed, and from what."""
    ordered: NDArray[np.bool_]
    """Whether its place among the others that are ordered matters: it overwrites memory without reading it, works on
    memory that cannot be followed, or is an event."""


class AnyOrder:
    """The order-free hashes of a stream while it grows; remembers the rows of the step that has not ended yet."""

    def __init__(self, start: int = 0) -> None:
        self._start = start
        """First row of the open step; of its rows so far what later ones can refer to:"""
        self._results: Hashes = np.empty(0, np.uint64)
        self._read_keys: Indices = np.empty(0, np.int64)
        self._read_digests: Hashes = np.empty(0, np.uint64)

    def advance(self, rows: Rows, hashes: RowHashes, ends: list[int]) -> Unordered:
        """Take in the next rows; a step ends before each of ``ends`` (ascending row numbers of the stream)."""
        parts = []
        for start in range(0, max(len(rows), 1), PART):
            own = slice(start, min(start + PART, len(rows)))
            part = rows if len(rows) <= PART else rows.cut(own.start, own.stop)
            parts.append(self._advance(part, RowHashes(*(h[own] for h in hashes)), ends))
        return Unordered(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _advance(self, rows: Rows, hashes: RowHashes, ends: list[int]) -> Unordered:
        first, end = rows.first, rows.first + len(rows)
        starts = [self._start, *(row for row in ends if first <= row <= end)]
        step_start = np.repeat(starts, np.diff([first, *starts[1:], end]))
        links = _Links(rows, step_start, first - len(self._results))
        links.look_up(self._read_keys, self._read_digests)
        sums = links.sums(np.concatenate([self._results, hashes.results]))
        self._keep(rows, hashes.results, links, starts[-1])
        return Unordered(splitmix64(hashes.results + sums), links.ordered())

    def _keep(self, rows: Rows, results: Hashes, links: _Links, start: int) -> None:
        """Remember what later rows of the step can refer to."""
        if start >= rows.first:
            self._forget()
        self._start = start
        if rows.first + len(rows) - start > LONGEST:
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
    """For every link, whether a row among these digested the bytes it stands for, and their digest."""
    links = _Links(rows, np.full(len(rows), rows.first), rows.first)
    links.look_up(np.empty(0, np.int64), np.empty(0, np.uint64))
    known, digests = np.zeros(len(rows.links), dtype=bool), np.zeros(len(rows.links), np.uint64)
    known[links.known] = True
    digests[links.known] = links.bytes
    return known, digests


class _Links:
    """The links of some rows, unpacked, each with the digest of its bytes where one is known."""

    def __init__(self, rows: Rows, step_start: Indices, known_from: int) -> None:
        self._rows = rows
        self._base = known_from
        """First row of the stream that a link can be followed to."""
        offsets = rows.link_offsets
        self.owner = np.repeat(np.arange(len(rows)), np.diff(offsets))
        self.distance = rows.links >> 12
        self.target = rows.first + self.owner - self.distance
        """Row of the stream, where the distance is one."""
        reach = np.arange(rows.first, rows.first + len(rows)) - np.maximum(step_start, known_from)
        self.inside = (self.distance > 0) & (self.distance <= reach[self.owner])
        self.reads = np.flatnonzero(rows.links & 1)
        """Places of the links that are digested by their row."""
        rank = np.concatenate([[0], np.cumsum(rows.reads)])
        owner = self.owner[self.reads]
        self._read_digests = rows.digests[rows.digest_offsets[owner] + np.arange(len(owner)) - rank[owner]]
        self.known = self.reads
        """Places of the links whose bytes some row of the step digested."""
        self.bytes = self._read_digests

    def look_up(self, keys: Indices, digests: Hashes) -> None:
        """Give a link to a row that read the same view the digest which that row took; ``keys``: of earlier rows."""
        own_keys, own_digests = self.reads_from(0)
        keys, digests = np.concatenate([keys, own_keys]), np.concatenate([digests, own_digests])
        asked = np.flatnonzero(((self._rows.links & 3) == 2) & self.inside)
        if not len(keys) or not len(asked):
            return
        wanted = _key(self.target[asked], (self._rows.links[asked] >> 2) & SLOT_UNKNOWN)
        found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        right = keys[found] == wanted
        self.known = np.concatenate([self.known, asked[right]])
        self.bytes = np.concatenate([self.bytes, digests[found[right]]])

    def sums(self, results: Hashes) -> Hashes:
        """Per row, the sum modulo 2^64 of what its inputs stand for. ``results``: of all rows that can be reached."""
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
        apart: NDArray[np.bool_] = kinds != Kind.OP
        apart |= allocation & (self._rows.column(Column.LINKS) > 0)  # set_ and resize_ change what their argument is
        apart[self.owner[self.distance == Origin.OVERWRITTEN]] = True
        untracked = self.owner[self.distance == Origin.UNKNOWN]
        apart[untracked[~view[untracked]]] = True
        return apart

    def reads_from(self, cut: int) -> tuple[Indices, Hashes]:
        """(key, digest) of every read of rows ``cut`` on (counted within the rows), by ascending key."""
        first = int(np.searchsorted(self.reads, self._rows.link_offsets[cut]))
        at = self.reads[first:]
        place = at - self._rows.link_offsets[self.owner[at]]
        return _key(self._rows.first + self.owner[at], place), self._read_digests[first:]


def _key(row: Indices, place: Indices) -> Indices:
    key: Indices = (row << 10) | np.minimum(place, SLOT_UNKNOWN)
    return key
