"""Adjacent rows of a stream in memory, as the recorder passes them to the writer and the reader returns them.

Owns the columns of rows and their ragged cells. NumPy only; no I/O, no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.format.files import UnreadableError
from rltrace.trace.format.schema import (
    GENERATOR_NUMBERS,
    GENERATOR_SHIFT,
    MARK_ROWS,
    SLOT_UNKNOWN,
    VALUE_FLAGS,
    Column,
    Kind,
    LinkNote,
    Origin,
    RowFlag,
)

Offsets = NDArray[np.int64]

FLAGS, RNG = int(Column.FLAGS), int(RowFlag.RNG)

FLAG_BITS = (1 << GENERATOR_SHIFT) - 1
"""The bits of ``Column.FLAGS`` that are flags; the higher ones are the number of a generator."""


class Link(NamedTuple):
    """The producer of one tensor input of a row, unpacked."""

    distance: int
    """Rows back to the target row where > 0, else a ``schema.Origin``."""
    slot: int | None
    """Output of the target row (input, where ``known``) that holds the bytes; None: unknown."""
    known: bool
    """Whether the target row read the same view instead of writing it."""
    digest: int | None
    """Digest of the bytes; None: this row did not digest them."""
    offset: int = 0
    """Elements in the storage before the tensor's first one (``Tensor.storage_offset()``); 0 for a view's input."""
    last_writer: int = 0
    """Of ``Origin.MIXED``: rows back to the op that wrote in the storage last; 0: not known."""
    from_outside: bool = False
    """Of ``Origin.MIXED``: whether the elements that no op wrote came from outside."""


def noted(link: Link, kind: int, value: int) -> Link:
    """A link with what a note says of it; as it is, where the note is of a newer format."""
    if kind == LinkNote.STORAGE_OFFSET:
        return link._replace(offset=value)
    if kind == LinkNote.LAST_WRITER:
        return link._replace(last_writer=value >> 1, from_outside=bool(value & 1))
    return link


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows ``first`` to ``first + len(self)`` of one stream, with their cells."""

    first: int
    """Index in the stream of the first row."""
    columns: NDArray[np.uint32]
    """Shape [n, len(Column)]."""
    links: NDArray[np.int64]
    integers: NDArray[np.int64]
    floats: NDArray[np.float64]
    digests: NDArray[np.uint64]
    link_notes: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), np.int64))
    """Shape [m, 3]: place among ``links``, ascending; ``LinkNote``; value."""

    def __len__(self) -> int:
        return len(self.columns)

    def column(self, column: Column) -> NDArray[np.uint32]:
        """One column, shape [n]."""
        return self.columns[:, column]

    @cached_property
    def link_offsets(self) -> Offsets:
        return _offsets(self.column(Column.LINKS))

    @cached_property
    def integer_offsets(self) -> Offsets:
        return _offsets(self.column(Column.INTEGERS))

    @cached_property
    def float_offsets(self) -> Offsets:
        return _offsets(self.column(Column.FLOATS))

    @cached_property
    def digest_offsets(self) -> Offsets:
        return _offsets(self.column(Column.DIGESTS))

    @cached_property
    def evidence(self) -> NDArray[np.int64] | None:
        """Number of each row's first digest cells that are evidence (0 for ops), shape [n]; None: all are 0."""
        events = self.column(Column.KIND) != Kind.OP
        if not events.any():
            return None
        counts = np.where(events, self.generators, 0)
        return counts if counts.any() else None

    @cached_property
    def hashed(self) -> tuple[NDArray[np.uint64], Offsets]:
        """The digest cells without evidence, and the offset of each row's."""
        if self.evidence is None:
            return self.digests, self.digest_offsets
        keep = self.is_hashed
        return self.digests[keep], np.concatenate([[0], np.cumsum(keep)])[self.digest_offsets]

    @property
    def is_hashed(self) -> NDArray[np.bool_]:
        """Mask of the digest cells that are not evidence."""
        counts = np.diff(self.digest_offsets)
        place = np.arange(len(self.digests)) - np.repeat(self.digest_offsets[:-1], counts)
        hashed: NDArray[np.bool_] = place >= (0 if self.evidence is None else np.repeat(self.evidence, counts))
        return hashed

    @cached_property
    def reads(self) -> NDArray[np.int64]:
        """Number of each row's digest cells that are input reads, shape [n]."""
        read: Offsets = np.concatenate([[0], np.cumsum(self.links & 1)])
        return read[self.link_offsets[1:]] - read[self.link_offsets[:-1]]

    def has(self, i: int, flag: int) -> bool:
        """Whether row ``i`` has a flag. Plain integers: IntFlag arithmetic costs as much as the rest."""
        return bool(int(self.columns[i, FLAGS]) & flag)

    def flags(self, i: int) -> RowFlag:
        return RowFlag(int(self.columns[i, Column.FLAGS]) & FLAG_BITS)

    @cached_property
    def generators(self) -> NDArray[np.int64]:
        """The ``schema.Generator`` that each row drew from, shape [n]."""
        numbers: NDArray[np.int64] = (self.column(Column.FLAGS) >> np.uint32(GENERATOR_SHIFT)).astype(np.int64)
        return numbers & (GENERATOR_NUMBERS - 1)

    def inputs(self, i: int) -> Iterator[Link]:
        """The tensor inputs of row ``i`` (counted from ``first``), in argument order."""
        read_at = int(self.digest_offsets[i])
        first, stop = self.link_offsets[i : i + 2].tolist()
        notes: Mapping[int, list[tuple[int, int]]] = self._notes_between(first, stop) if len(self.link_notes) else {}
        for at, cell in enumerate(self.links[first:stop].tolist(), first):
            slot = (cell >> 2) & SLOT_UNKNOWN
            digest = None
            if cell & 1:
                digest = int(self.digests[read_at])
                read_at += 1
            link = Link(cell >> 12, None if slot == SLOT_UNKNOWN else slot, bool(cell & 2), digest)
            for kind, value in notes.get(at, ()):
                link = noted(link, kind, value)
            yield link

    def _notes_between(self, first: int, stop: int) -> dict[int, list[tuple[int, int]]]:
        """(``LinkNote``, value) of each note, by place among ``links``."""
        own = slice(*np.searchsorted(self.link_notes[:, 0], (first, stop)))
        found: dict[int, list[tuple[int, int]]] = {}
        for at, kind, value in self.link_notes[own].tolist():
            found.setdefault(at, []).append((kind, value))
        return found

    def rng(self, i: int) -> int | None:
        """Digest of the RNG state before row ``i``; None where it drew nothing."""
        if not self.has(i, RNG):
            return None
        return int(self.digests[self.digest_offsets[i] + self.reads[i]])

    def outputs(self, i: int) -> list[int]:
        """Digests of the tensors that row ``i`` returned and wrote, in order; empty for views and allocations."""
        start = int(self.digest_offsets[i] + self.reads[i])
        start += self.has(i, RNG)
        if self.evidence is not None:
            start += int(self.evidence[i])
        digests: list[int] = self.digests[start : self.digest_offsets[i + 1]].tolist()
        return digests

    def value(self, i: int) -> bool | int | float | complex | None:
        """The Python number that row ``i`` returned (``_local_scalar_dense``), else None."""
        flags = self.flags(i)
        if not flags & VALUE_FLAGS:
            return None
        if flags & (RowFlag.VALUE_BOOL | RowFlag.VALUE_INTEGER):
            number = int(self.integers[self.integer_offsets[i + 1] - 1])
            return bool(number) if flags & RowFlag.VALUE_BOOL else number
        end = int(self.float_offsets[i + 1])
        if flags & RowFlag.VALUE_FLOAT:
            return float(self.floats[end - 1])
        return complex(self.floats[end - 2], self.floats[end - 1])

    def cut(self, start: int, stop: int) -> Rows:
        """Rows ``start`` to ``stop``, counted from ``first``."""
        cut = self.link_offsets[start], self.link_offsets[stop]
        own = slice(*np.searchsorted(self.link_notes[:, 0], cut))
        return Rows(
            first=self.first + start,
            columns=self.columns[start:stop],
            links=self.links[self.link_offsets[start] : self.link_offsets[stop]],
            integers=self.integers[self.integer_offsets[start] : self.integer_offsets[stop]],
            floats=self.floats[self.float_offsets[start] : self.float_offsets[stop]],
            digests=self.digests[self.digest_offsets[start] : self.digest_offsets[stop]],
            link_notes=self.link_notes[own] - np.array((cut[0], 0, 0)),
        )

    @staticmethod
    def join(parts: list[Rows]) -> Rows:
        """Concatenate adjacent rows."""
        shifts = [np.array((n, 0, 0)) for n in accumulate((len(p.links) for p in parts[:-1]), initial=0)]
        return Rows(
            first=parts[0].first,
            columns=np.concatenate([p.columns for p in parts]),
            links=np.concatenate([p.links for p in parts]),
            integers=np.concatenate([p.integers for p in parts]),
            floats=np.concatenate([p.floats for p in parts]),
            digests=np.concatenate([p.digests for p in parts]),
            link_notes=np.concatenate([p.link_notes + shift for p, shift in zip(parts, shifts, strict=True)]),
        )


def _offsets(counts: NDArray[np.uint32]) -> Offsets:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


class TableEntry(NamedTuple):
    """One newly interned entry of a table."""

    table: str
    """One of ``schema.TABLES``."""
    id: int
    key: int
    """Portable 64-bit key (see ``rltrace.portable_keys``)."""
    payload: object
    """JSON-able."""


class StepRecord(NamedTuple):
    """One finished optimizer attempt; the writer adds the digests over its rows."""

    step: int
    stream: int
    optimizer: int
    """Id in table "optimizers"."""
    own_count: int
    """Attempts of this optimizer before this one."""
    skipped: int
    """0 no, 1 yes, 2 not known."""
    backwards: int
    environment_steps: int
    end_row: int
    """Rows of the stream at the end of the attempt."""
    recorded: bool
    """Whether every op of the step is a row."""
    parameters: int | None
    gradients: int | None
    generators: tuple[int, int, int, int] | None
    """In the order of ``schema.GENERATORS``. This and the two above are digests; None: not computed."""


# --- segments ---------------------------------------------------------------------------------------------------------


class ChunkFile(NamedTuple):
    """A chunk as the journal describes it."""

    key: str
    length: int
    digest: str
    """XXH3-64 of the encoded bytes, 16 hex digits."""


class Segment(NamedTuple):
    """The rows that one commit wrote of a stream."""

    chunk: int
    """Number in ``rows`` and ``cells``."""
    first: int
    rows: int
    sections: tuple[int, int, int, int]
    """Counts of cells: links, integers, floats, digests."""
    marks: tuple[tuple[int, int, int, int], ...]
    """(row, structure, values, marked), ascending, including the end of the segment."""
    files: tuple[ChunkFile, ...]
    """Of ``rows`` and ``cells``."""
    link_notes: int = 0
    """Their number."""

    @property
    def stop(self) -> int:
        return self.first + self.rows


NOTE_BITS: Final = 40
"""Bits of the value of a note."""
NOTE_KIND_BITS: Final = 2


def pack_notes(rows: Rows) -> NDArray[np.uint64]:
    """The cells of the notes on links. What a training loop repeats has the same cells each time."""
    places, kinds, values = rows.link_notes.T
    cells: NDArray[np.int64] = (np.diff(places, prepend=0) << NOTE_KIND_BITS | kinds) << NOTE_BITS | values
    return cells.view(np.uint64)


def unpack_notes(cells: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The inverse of ``pack_notes``, shape [m, 3]."""
    heads, values = cells.view(np.int64) >> NOTE_BITS, cells.view(np.int64) & ((1 << NOTE_BITS) - 1)
    kinds = heads & ((1 << NOTE_KIND_BITS) - 1)
    return np.stack([np.cumsum(heads >> NOTE_KIND_BITS), kinds, values], axis=1)


def expected_marks(first: int, rows: int) -> list[int]:
    """Rows of a segment that have marks: the multiples of MARK_ROWS within it, and its end."""
    return [*range(first // MARK_ROWS * MARK_ROWS + MARK_ROWS, first + rows, MARK_ROWS), first + rows]


def empty_rows(first: int) -> Rows:
    """No rows."""
    return Rows(
        first,
        np.zeros((0, len(Column)), np.uint32),
        np.zeros(0, np.int64),
        np.zeros(0, np.int64),
        np.zeros(0, np.float64),
        np.zeros(0, np.uint64),
    )


def assemble(segment: Segment, columns: NDArray[np.uint32], cells: NDArray[np.uint64]) -> Rows:
    """The rows of decoded chunks. Raises UnreadableError where they do not match the journal, or each other."""
    used = sum(segment.sections) + segment.link_notes
    if segment.rows * 2 < columns.shape[1]:
        columns = columns[:, : segment.rows].copy()
    if used * 2 < len(cells):
        cells = cells[:used].copy()
    links, integers, floats, digests, notes = np.split(cells[:used], np.cumsum(segment.sections))
    rows = Rows(
        segment.first,
        columns[:, : segment.rows].T,
        links.view(np.int64),
        integers.view(np.int64),
        floats.view(np.float64),
        digests,
        unpack_notes(notes),
    )
    if not _notes_ascend(rows):
        raise UnreadableError("its notes on links are of no link")
    for column, count in zip(
        (Column.LINKS, Column.INTEGERS, Column.FLOATS, Column.DIGESTS), segment.sections, strict=True
    ):
        if int(rows.column(column).sum(dtype=np.uint64)) != count:
            raise UnreadableError("its rows and its cells do not match")
    if not rows.column(Column.KIND).all() or not _has_own_cells(rows) or not _links_lead_back(rows):
        raise UnreadableError("its rows are inconsistent")
    return rows


def _links_lead_back(rows: Rows) -> bool:
    """Whether the target of every link is an earlier row of the stream, or an Origin."""
    if not len(rows.links):
        return True
    distances = rows.links >> 12
    if distances.min() < min(Origin):
        return False
    far = np.flatnonzero(distances > rows.first)  # the others cannot reach before row 0
    if not len(far):
        return True
    owners = np.searchsorted(rows.link_offsets, far, side="right") - 1
    return bool((distances[far] <= rows.first + owners).all())


def _notes_ascend(rows: Rows) -> bool:
    """Whether the notes are of links of these rows, in their order."""
    at = rows.link_notes[:, 0]
    return not len(at) or bool(at[0] >= 0 and at[-1] < len(rows.links) and (np.diff(at) >= 0).all())


def _has_own_cells(rows: Rows) -> bool:
    """Whether every row has the cells that its links and flags require."""
    flags = rows.column(Column.FLAGS)
    digests = rows.reads + ((flags & np.uint32(RowFlag.RNG)) != 0)
    integers = (flags & np.uint32(RowFlag.VALUE_BOOL | RowFlag.VALUE_INTEGER)) != 0
    floats = ((flags & np.uint32(RowFlag.VALUE_FLOAT)) != 0) + 2 * ((flags & np.uint32(RowFlag.VALUE_COMPLEX)) != 0)
    if rows.evidence is not None:
        digests = digests + rows.evidence
    if not (digests <= rows.column(Column.DIGESTS)).all():
        return False
    if not (flags & np.uint32(VALUE_FLAGS)).any():
        return True
    return bool((integers <= rows.column(Column.INTEGERS)).all() and (floats <= rows.column(Column.FLOATS)).all())
