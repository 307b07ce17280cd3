"""The rows of one thread that are not committed yet: calls of compiled functions, and iterations of their loops.

Owns their interning and cells. Digests are computed by the caller, so every input that is an array was read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rltrace.jax_recorder.programs import ArrayLayout, Program
from rltrace.portable_keys import portable_key
from rltrace.recorder.base.intern_tables import Tables
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import SLOT_UNKNOWN, WRITES, Column, Kind, Origin, Phase, pack_link

SEVERAL = -1
"""In place of a row: several rows wrote the bytes."""


class Producer(NamedTuple):
    """Where the bytes of an array were written."""

    stream: int
    row: int
    slot: int


class Operand(NamedTuple):
    """An array that a row reads or writes."""

    layout: ArrayLayout
    digest: int
    producer: Producer | None = None
    """None: no recorded row wrote it."""


class RowTemplate(NamedTuple):
    """What rows of one program have in common: their cells, interned, and their numbers."""

    op: str
    columns: tuple[int, ...]
    floats: tuple[float, ...]
    names: tuple[str, ...]
    """Of what each writes, "" where there is none; empty: none has one."""


class RowPlace(NamedTuple):
    """What is known of the next row of a stream before it is computed, and what identifies it in another run."""

    stream: str
    number: int
    """Of the stream."""
    row: int
    step: int
    attempt: tuple[int, int] | None
    """(ordinal of the loop, its count of iterations) of the last iteration seen before; None: the first."""
    site: int
    key: tuple[str, int, int]
    """(operator, portable key of the call site, occurrence) within the step."""


class ArrayHook(Protocol):
    """What is done with the arrays of rows, besides digesting them. Both functions may replace items of the lists."""

    def begin(self, place: RowPlace, inputs: list[Operand], arrays: list[Any]) -> None:
        """A call is about to take these arrays, whose operands come first in ``inputs``."""

    def finish(
        self,
        place: RowPlace,
        template: RowTemplate,
        inputs: Sequence[Operand],
        outputs: list[Operand],
        arrays: list[Any],
    ) -> None:
        """A row has written these arrays, before anything else sees them; ``outputs``: their operands."""

    def records(self) -> Sequence[Mapping[str, Any]]:
        """Records for the journal, where the process ends."""


def row_template(
    tables: Tables,
    op: str,
    program: Program | None = None,
    kernel: Mapping[str, object] | None = None,
    kind: Kind = Kind.OP,
    module: str = "",
    phase: Phase = Phase.OTHER,
    names: Sequence[str] = (),
) -> RowTemplate:
    """``names``: of what a row writes, "" where there is none."""
    numbers = () if program is None else program.numbers
    words: list[object] = ["carry"] if kind is Kind.WINDOW else []
    words += [] if program is None else [f"program={program.fingerprint}"]
    words += [[f"{name}=", "f"] for name, _ in numbers]
    words += [{WRITES: list(names)}] if any(names) else []
    row = [0] * len(Column)
    row[Column.KIND] = kind
    row[Column.OP] = tables.intern_payload("ops", op)
    row[Column.MODULE] = tables.intern_payload("modules", module)
    row[Column.SCALARS] = tables.intern_payload("scalars", words)
    row[Column.PHASE] = phase
    row[Column.KERNEL] = tables.intern_payload("kernels", dict(kernel or {}))
    row[Column.FLOATS] = len(numbers)
    return RowTemplate(op, tuple(row), tuple(value for _, value in numbers), tuple(names) if any(names) else ())


class IterationBlock(NamedTuple):
    """The rows within one iteration of a loop, which are the same each time but for their steps and digests."""

    columns: NDArray[np.uint32]
    """Shape [rows, columns]."""
    links: NDArray[np.int64]
    cells: NDArray[np.intp]
    """Of each digest cell, where it is among the operands of the iteration and, after them, what its rows write."""
    written: int
    """How many digests its rows write."""


class JaxRows:
    """The rows of one thread, held until they are committed."""

    def __init__(self, number: int, name: str, tables: Tables) -> None:
        self.number, self.name = number, name
        self.row = 0
        """Rows so far, committed or not."""
        self._tables = tables
        self._first = self._taken = 0
        self._seen: Counter[tuple[str, int]] = Counter()
        self._seen_in = -1
        self._structures: dict[tuple[ArrayLayout, ...], int] = {}
        self._blocks: list[Rows] = []
        """Whole blocks of rows, which precede the others."""
        self._columns: list[list[int]] = []
        self._links: list[int] = []
        self._floats: list[float] = []
        self._digests: list[int] = []

    @property
    def held(self) -> int:
        """Rows that are not taken yet."""
        return self.row - self._taken

    def add(
        self, template: RowTemplate, site: int, step: int, inputs: Sequence[Operand], outputs: Sequence[Operand]
    ) -> int:
        """Add a row; returns its index in the stream."""
        row = list(template.columns)
        row[Column.STRUCTURE] = self.structure(tuple([operand.layout for operand in inputs]))
        row[Column.SITE] = site
        row[Column.STEP] = step
        row[Column.LINKS] = len(inputs)
        row[Column.DIGESTS] = len(inputs) + len(outputs)
        self._links += [self._link(operand.producer) for operand in inputs]
        self._floats += template.floats
        self._digests += [operand.digest for operand in inputs]
        self._digests += [operand.digest for operand in outputs]
        self._columns.append(row)
        self.row += 1
        return self.row - 1

    def place(self, op: str, site: int, step: int, attempt: tuple[int, int] | None) -> RowPlace:
        """Of the next row."""
        if step != self._seen_in:
            self._seen_in = step
            self._seen.clear()
        key = self._tables.key_of("sites", site)
        return RowPlace(self.name, self.number, self.row, step, attempt, site, (op, key, self._seen[op, key]))

    def count(self, place: RowPlace) -> None:
        """A row of this place is about to be added."""
        self._seen[place.key[:2]] += 1

    def repeat(self, steps: Sequence[int], fixed: Sequence[Operand], outputs: NDArray[np.uint64]) -> None:
        """Rows like the last one, each of which reads ``fixed``, then the first outputs of the one before it.

        ``steps``: theirs; ``outputs``: the digests of what each writes, after a row with those of the last one.
        """
        last, count = self._columns[-1], len(steps)
        self._close_block()
        columns = np.tile(np.array(last, np.uint32), (count, 1))
        columns[:, Column.STEP] = steps
        carried = last[Column.LINKS] - len(fixed)
        links = np.empty((count, last[Column.LINKS]), np.int64)
        for i, operand in enumerate(fixed):
            first = self._link(operand.producer)
            grows = operand.producer is not None and first >= 0
            links[:, i] = first + pack_link(1, 0) * np.arange(count) if grows else first
        links[:, len(fixed) :] = [pack_link(1, i, read=True) for i in range(carried)]
        read = np.array([operand.digest for operand in fixed], np.uint64)
        digests = [np.tile(read, (count, 1)), outputs[:-1, :carried], outputs[1:]]
        arrays = links.ravel(), np.zeros(0, np.int64), np.zeros(0, np.float64), np.concatenate(digests, 1).ravel()
        self._blocks.append(Rows(self._first, columns, *arrays))
        self.row += count
        self._first = self.row

    def add_blocks(self, block: IterationBlock, steps: Sequence[int], digests: NDArray[np.uint64]) -> None:
        """The rows within iterations, one step each.

        ``digests``: of what each iteration reads, and what its rows write; shape [iterations, digests].
        """
        self._close_block()
        count, size = len(steps), len(block.columns)
        columns = np.tile(block.columns, (count, 1))
        columns[:, Column.STEP] = np.repeat(steps, size)
        cells = digests[:, block.cells].ravel()
        empty = np.zeros(0, np.int64), np.zeros(0, np.float64)
        self._blocks.append(Rows(self._first, columns, np.tile(block.links, count), *empty, cells))
        self.row += count * size
        self._first = self.row

    def take(self) -> Rows | None:
        """Remove and return all rows; None: there are none."""
        self._close_block()
        self._taken = self.row
        blocks, self._blocks = self._blocks, []
        if len(blocks) < 2:
            return blocks[0] if blocks else None
        names = "columns", "links", "integers", "floats", "digests"
        return Rows(blocks[0].first, *(np.concatenate([getattr(each, name) for each in blocks]) for name in names))

    def _close_block(self) -> None:
        if not self._columns:
            return
        rows = Rows(
            self._first,
            np.array(self._columns, np.uint32),
            np.array(self._links, np.int64),
            np.zeros(0, np.int64),
            np.array(self._floats, np.float64),
            np.array(self._digests, np.uint64),
        )
        self._blocks.append(rows)
        self._first = self.row
        self._columns, self._links, self._floats, self._digests = [], [], [], []

    def structure(self, layouts: tuple[ArrayLayout, ...]) -> int:
        """Id of the layouts that a row reads."""
        found = self._structures.get(layouts)
        if found is None:
            payloads = list(map(layout_payload, layouts))
            ids = [self._tables.intern_payload("layouts", payload) for payload in payloads]
            key = portable_key("structure", payloads)
            found = self._structures[layouts] = self._tables.intern("structures", key, ids)
        return found

    def _link(self, producer: Producer | None) -> int:
        if producer is None:
            return pack_link(Origin.OUTSIDE, read=True)
        if producer.row == SEVERAL:
            return pack_link(Origin.MIXED, read=True)
        if producer.stream != self.number:
            return pack_link(Origin.UNKNOWN, read=True)
        slot = producer.slot if producer.slot < SLOT_UNKNOWN else SLOT_UNKNOWN
        return pack_link(self.row - producer.row, slot, read=True)


def layout_payload(layout: ArrayLayout) -> list[Any]:
    """Its entry in table "layouts"."""
    strides = [1] * len(layout.shape)
    for axis in range(len(strides) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * layout.shape[axis + 1]
    return [layout.dtype, list(layout.shape), strides, layout.device]
