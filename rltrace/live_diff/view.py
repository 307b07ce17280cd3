"""The stream of a running program as a comparison sees it: the current row, and what is known of earlier ones.

Facts that are not available while a program runs are unknown, as in a hole. An earlier row that matches a row of A is
read from A, as all rows before the first difference are equal. No torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
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
from rltrace.recorder.core.row_buffer import NOTE_CELLS
from rltrace.trace.format.records import LinkFault
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind, LinkNote, Origin, RowFlag, pack_link
from rltrace.trace.read.names import Words
from rltrace.trace.read.stream import TABLE_COLUMNS

PAYLOADS = (*TABLE_COLUMNS.values(), "frames", "layouts", "schemas")
"""Tables of the program whose payloads are looked up."""

OWN_IDS = 1 << 31
"""First id of the program's tables; lower ones are of A's."""

UNKNOWN = (1 << 32) - 1
NOT_IN_A = "an op that A does not run"

NESTED = ("sites", "structures")
"""Tables whose payloads are ids."""

LINK_BITS = (1 << 12) - 1
"""Bits of a link other than its distance."""


class LiveRow(NamedTuple):
    """A row of the program."""

    row: int
    step: int
    fixed: FixedCells
    links: bytes
    notes: bytes
    """Of its links: cells of ``RowBuffer.link_notes``."""
    content: Content

    def harmless_difference(self, rows: Rows, i: int) -> Difference | None:
        """The difference from a row of A of which only the digests differ; None where it may count.

        A fast path of ``difference`` for most rows that are not equal: it takes a tenth of the time.
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
        columns[list(TABLE_COLUMNS)] += OWN_IDS
        notes = np.frombuffer(self.notes, np.int64).reshape(-1, NOTE_CELLS)[:, 1:]
        links, integers, floats, digests = cells
        return Rows(self.row, columns[None], links, integers, floats, digests, notes)


class LiveWords(Words):
    """The names of A's ids and of the program's."""

    def __init__(self, a: Words, own: Words) -> None:
        super().__init__({})
        self._a, self._own = a, own

    def payload(self, table: str, number: int) -> Any:
        if number == UNKNOWN:
            return NOT_IN_A if table == "ops" else None
        if number < OWN_IDS:
            return self._a.payload(table, number)
        payload: Any = json.loads(json.dumps(self._own.payload(table, number - OWN_IDS)))
        return [n + OWN_IDS for n in payload] if table in NESTED else payload

    def arguments(self, op: int) -> list[str]:
        return self._a.arguments(op) if op < OWN_IDS else self._own.arguments(op - OWN_IDS)

    def results(self, op: int) -> list[str]:
        return self._a.results(op) if op < OWN_IDS else self._own.results(op - OWN_IDS)


class LiveView(StreamView):
    """One stream of the program, at a row that matches a row of A."""

    def __init__(
        self,
        a: StreamView,
        tables: Tables,
        partners: RowPartners,
        unmatched: Callable[[int], LiveRow | None],
        opening_digests: set[int],
        step_shift: int,
    ) -> None:
        """``unmatched``: returns an earlier row that A does not have, or that differs from A's, by number.

        ``step_shift``: the program's number of a step minus A's.
        """
        self.process, self.stream = a.process, a.stream
        self.start = 0
        self.words = LiveWords(a.words, tables.words)
        self.opening_digests = opening_digests
        self._a = a
        self._tables = tables
        self._partners = partners
        self._unmatched = unmatched
        self._step_shift = step_shift

    def row(self, index: int) -> tuple[Rows, int]:
        unmatched = self._unmatched(index)
        if unmatched is not None:
            return unmatched.rows(), 0
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
        # the distances of its links count rows of A, not of the program
        links = np.where(one.links >> 12 > 0, one.links & LINK_BITS | pack_link(Origin.UNKNOWN, 0), one.links)
        notes = one.link_notes[one.link_notes[:, 1] == LinkNote.STORAGE_OFFSET]  # the others count rows of A, too
        return Rows(index, columns, links, one.integers, one.floats, one.digests, notes), 0

    def read(self, start: int, stop: int) -> RowRange:
        raise HoleError(f"rows {start} to {stop - 1} of {self.name} are being recorded")

    @property
    def checks_links(self) -> bool:
        return False

    @property
    def link_faults(self) -> Sequence[LinkFault]:
        return ()

    def attempt_before(self, row: int) -> NDArray[np.uint64] | None:
        return None

    def attempt_after(self, row: int) -> NDArray[np.uint64] | None:
        return None

    def alignments(self, row: int) -> dict[int, int] | None:
        return None

    def keys(self, table: str, ids: NDArray[np.uint32]) -> Tokens:
        of_a = self.process.tables[table].keys
        return np.array(
            [self._tables.key_of(table, n - OWN_IDS) if n >= OWN_IDS else of_a[n] for n in ids.tolist()], np.uint64
        )
