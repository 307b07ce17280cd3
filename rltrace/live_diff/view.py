"""A stream of a running program as a comparison sees it: the row at hand, and what is known of the rows before.

Owns what a running program cannot know of its stream, which is unknown here as in a hole. A row before that matches one
of A is that row of A, since a comparison is over at the first difference. No torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.row_diff import Difference
from rltrace.diff.base.sequences import Tokens
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.errors import HoleError
from rltrace.live_diff.reference_trace import Content, RowPartners
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.core.hooks import FixedCells
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind, Origin, RowFlag, pack_link
from rltrace.trace.read.names import Words
from rltrace.trace.read.stream import TABLE_COLUMNS

PAYLOADS = (*TABLE_COLUMNS.values(), "frames", "layouts")
"""Tables of the program whose payloads are looked up."""

OWN = 1 << 31
"""Ids from here on are those of the program's tables; below, of A's."""

UNKNOWN = (1 << 32) - 1
NOT_IN_A = "an op that A does not run"

NESTED = ("sites", "structures")
"""Tables whose payloads are ids."""

LINK_BITS = (1 << 12) - 1
"""What of a link is no distance."""


class LiveRow(NamedTuple):
    """A row as the program made it."""

    row: int
    step: int
    fixed: FixedCells
    links: bytes
    content: Content

    def harmless_difference(self, rows: Rows, i: int) -> Difference | None:
        """The difference from a row of A that is the same but for its digests; None where it may count.

        This is what ``difference`` finds in most rows that are not the same, in a tenth of the time.
        """
        if self.fixed[5] & RowFlag.MARKED.value:
            return Difference(marked=True)
        links, digests = memoryview(self.links).cast("q"), memoryview(self.content.digests).cast("Q").tolist()
        links_a = rows.links[rows.link_offsets[i] : rows.link_offsets[i + 1]].tolist()
        digests_a = rows.digests[rows.digest_offsets[i] : rows.digest_offsets[i + 1]].tolist()
        at = at_a = 0
        for link, link_a in zip(links, links_a, strict=True):
            if link & link_a & 1 and digests[at] != digests_a[at_a]:
                return None
            at, at_a = at + (link & 1), at_a + (link_a & 1)
        return Difference() if digests[at:] == digests_a[at_a:] else None

    def rows(self, kernel: int = 0, settings: int = 0) -> Rows:
        """The same as a row of a trace, with ids of the program's tables."""
        op, structure, site, module, scalars, bits, _ = self.fixed
        stored = self.links, self.content.integers, self.content.floats, self.content.digests
        cells: Any = [np.frombuffer(cell, kind) for cell, kind in zip(stored, "qqdQ", strict=True)]
        what = bits >> 24, op, structure, site, module, scalars, self.step, bits >> 16 & 0xFF, kernel, settings
        columns = np.array([*what, bits & 0xFFFF, *map(len, cells)], np.uint32)
        columns[list(TABLE_COLUMNS)] += OWN
        return Rows(self.row, columns[None], *cells)


class LiveWords(Words):
    """The words of A, and those of the program beside them."""

    def __init__(self, a: Words, own: Words) -> None:
        super().__init__({})
        self._a, self._own = a, own

    def payload(self, table: str, number: int) -> Any:
        if number == UNKNOWN:
            return NOT_IN_A if table == "ops" else None
        if number < OWN:
            return self._a.payload(table, number)
        payload: Any = json.loads(json.dumps(self._own.payload(table, number - OWN)))
        return [n + OWN for n in payload] if table in NESTED else payload


class LiveView(StreamView):
    """One stream of the program, at one row of it that is a row of A."""

    def __init__(
        self,
        a: StreamView,
        tables: Tables,
        partners: RowPartners,
        kept: Callable[[int], LiveRow | None],
        opening_digests: set[int],
        step_shift: int,
    ) -> None:
        """``kept``: rows before that A does not have, or that differ from A's, by number.

        ``step_shift``: from A's number of a step to the program's.
        """
        self.process, self.stream = a.process, a.stream
        self.words = LiveWords(a.words, tables.words)
        self.opening_digests = opening_digests
        self._a = a
        self._tables = tables
        self._partners = partners
        self._kept = kept
        self._step_shift = step_shift

    def row(self, index: int) -> tuple[Rows, int]:
        kept = self._kept(index)
        if kept is not None:
            return kept.rows(), 0
        partner = self._partners.of(index)
        if partner is None:
            columns = np.zeros((1, len(Column)), np.uint32)
            columns[0, Column.KIND] = Kind.OP
            columns[0, list(TABLE_COLUMNS)] = UNKNOWN
            none: Any = [np.empty(0, kind) for kind in "qqdQ"]
            return Rows(index, columns, *none), 0
        rows, place = self._a.row(partner)
        one = rows.cut(place, place + 1)
        columns = one.columns.copy()
        columns[:, Column.STEP] += np.uint32(self._step_shift % (1 << 32))
        # what it read in turn is so many rows back in A, not here
        links = np.where(one.links >> 12 > 0, one.links & LINK_BITS | pack_link(Origin.UNKNOWN, 0), one.links)
        return Rows(index, columns, links, one.integers, one.floats, one.digests), 0

    def read(self, start: int, stop: int) -> RowRange:
        raise HoleError(f"rows {start} to {stop - 1} of {self.name} are being recorded")

    def attempt_before(self, row: int) -> NDArray[np.uint64] | None:
        return None

    def attempt_after(self, row: int) -> NDArray[np.uint64] | None:
        return None

    def alignments(self, row: int) -> dict[int, int] | None:
        return None

    def keys(self, table: str, ids: NDArray[np.uint32]) -> Tokens:
        of_a = self.process.tables[table].keys
        return np.array([self._tables.key_of(table, n - OWN) if n >= OWN else of_a[n] for n in ids.tolist()], np.uint64)
