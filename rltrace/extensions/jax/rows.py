"""The rows of one thread that are not committed yet: calls of compiled functions, and iterations of their loops.

Owns their interning and cells, and what is known of the arrays that they read and write. Digests are computed by the
caller, so every input that is an array was read. A result may be digested later: until then neither its row nor a later
one is committed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rltrace.extensions.jax.programs import ArrayLayout, Program
from rltrace.portable_keys import portable_key
from rltrace.recorder.base.intern_tables import Tables
from rltrace.trace.format.interleaving import START, Moment, runs_of
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import LINES, SLOT_UNKNOWN, WRITES, Column, Kind, Origin, Phase, pack_link

SEVERAL = -1
"""In place of a row: several rows wrote the bytes."""

BACK = pack_link(1, 0)
"""What a row further back adds to a link."""

_SLOTS = tuple(pack_link(0, slot, read=True) for slot in range(SLOT_UNKNOWN + 1))
_OUTSIDE, _MIXED, _UNKNOWN = (pack_link(o, read=True) for o in (Origin.OUTSIDE, Origin.MIXED, Origin.UNKNOWN))


class Producer(NamedTuple):
    """Where the bytes of an array were written."""

    stream: int
    row: int
    slot: int


UNKNOWN = Producer(-2, 0, 0)
"""Of an array that a recorded row may have written: its link is that to another stream."""


class Operand(NamedTuple):
    """An array that a row reads or writes."""

    layout: ArrayLayout
    digest: int
    producer: Producer | None = None
    """None: no recorded row wrote it."""


Cell = list[Any]
"""What is known of an array, as links and digests are made of it: digest, stream, origin, layout.

The digest is None until it is computed. The origin is what is subtracted from ``BACK`` times the number of a row of
that stream that reads the array, for its link; in stream FIXED, the link itself. A list is made in half the time of an
object."""

FIXED = -1
"""In place of a stream: no row, or none alone, wrote the array."""


def slot_of(slot: int) -> int:
    """What a slot adds to a link."""
    return _SLOTS[min(slot, SLOT_UNKNOWN)]


def cell_of(operand: Operand) -> Cell:
    layout, digest, producer = operand
    if producer is None:
        return [digest, FIXED, _OUTSIDE, layout]
    if producer.row == SEVERAL:
        return [digest, FIXED, _MIXED, layout]
    return [digest, producer.stream, BACK * producer.row - slot_of(producer.slot), layout]


def unread_cell(layout: ArrayLayout) -> Cell:
    """Of a result of a call that has no row, not digested yet."""
    return [None, FIXED, _OUTSIDE, layout]


def operand_of(cell: Cell) -> Operand:
    digest, stream, origin, layout = cell
    if stream == FIXED:
        return Operand(layout, digest, None if origin == _OUTSIDE else Producer(0, SEVERAL, 0))
    row = -(-origin // BACK)
    return Operand(layout, digest, Producer(stream, row, _SLOTS.index(BACK * row - origin)))


class RowTemplate(NamedTuple):
    """What rows of one program have in common: their cells, interned, and their numbers."""

    op: str
    columns: tuple[int, ...]
    floats: tuple[float, ...]
    names: tuple[str, ...]
    """Of what each writes, "" where there is none; empty: none has one."""
    module: str = ""
    phase: Phase = Phase.OTHER


class RowColumns(NamedTuple):
    """What rows of one program have in common that take and return arrays of the same layouts."""

    columns: tuple[int, ...]
    floats: tuple[float, ...]


NewRow = list[Any]
"""A row that is not in a block yet: what it has in common with others, site, step, the cells of what it reads and of
what it writes, and what the caller needs to digest its results, None once they are."""

_DIGEST, _STREAM, _ORIGIN = map(itemgetter, range(3))
"""Of a cell."""


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
    module: str = ""
    phase: Phase = Phase.OTHER


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
        """Records for the journal, as of ``RecordingPart.accounts``."""


def digests_of(operands: Sequence[Operand]) -> NDArray[np.uint64]:
    """Their digests: a list of numbers alone could become floating-point numbers beside other digests."""
    return np.array([operand.digest for operand in operands], np.uint64)


def row_template(
    tables: Tables,
    op: str,
    program: Program | None = None,
    kernel: Mapping[str, object] | None = None,
    module: str = "",
    phase: Phase = Phase.OTHER,
    names: Sequence[str] = (),
) -> RowTemplate:
    """``op``: "" for what a window begins with. ``names``: of what a row writes, "" where there is none."""
    kind = Kind.OP if op else Kind.WINDOW
    numbers = () if program is None else program.numbers
    words: list[object] = ["carry"] if kind is Kind.WINDOW else []
    words += [] if program is None else [f"program={program.fingerprint}"]
    words += [[f"{name}=", "f"] for name, _ in numbers]
    words += [] if program is None else [{LINES: [list(line) for line in program.lines]}]
    words += [{WRITES: list(names)}] if any(names) else []
    row = [0] * len(Column)
    row[Column.KIND] = kind
    row[Column.OP] = tables.intern_payload("ops", op)
    row[Column.MODULE] = tables.intern_payload("modules", module)
    row[Column.SCALARS] = tables.intern_payload("scalars", words)
    row[Column.PHASE] = phase
    row[Column.KERNEL] = tables.intern_payload("kernels", dict(kernel or {}))
    row[Column.FLOATS] = len(numbers)
    floats, named = tuple(value for _, value in numbers), tuple(names) if any(names) else ()
    return RowTemplate(op, tuple(row), floats, named, module, phase)


class InnerBlock(NamedTuple):
    """The rows within one call of a program, which are the same each time but for their steps and digests."""

    columns: NDArray[np.uint32]
    """Shape [rows, columns]."""
    links: NDArray[np.int64]
    cells: NDArray[np.intp]
    """Of each digest cell, where it is among the operands of the call, its results that are rows, and what is read."""
    written: int
    """How many values are read."""
    returned: NDArray[np.intp]
    """Values read that the program returns: (which of them, which of its results), shape [values, 2]."""


class OpStream(Protocol):
    """The stream of the torch ops of a thread."""

    number: int
    row: int
    """Its rows so far."""


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
        self._rows: list[NewRow] = []
        """Appended to by the thread alone, and shortened at its start with the recording's lock."""
        self.torch: OpStream | None = None
        """That of the same thread; None: it has none, as far as is known."""
        self._moments = [START]
        """The last one that was taken, and those since."""
        self._begun = 0
        """Rows of torch as the call began whose row comes next."""

    @property
    def held(self) -> int:
        """Rows that are not taken yet."""
        return self.row - self._taken

    def add(
        self, template: RowTemplate, site: int, step: int, inputs: Sequence[Operand], outputs: Sequence[Operand]
    ) -> int:
        """Add a row; returns its index in the stream."""
        common = self.common(template, [operand.layout for operand in inputs], len(outputs))
        return self.append([common, site, step, list(map(cell_of, inputs)), list(map(cell_of, outputs)), None])

    def append(self, row: NewRow) -> int:
        """Add a row with its cells; returns its index in the stream."""
        if self.torch is not None:
            moment, self._begun = Moment(self.row, self._begun, self.torch.row), self.torch.row
            if moment[1:] != self._moments[-1][1:]:
                self._moments.append(moment)
        self._rows.append(row)
        self.row += 1
        return self.row - 1

    def follow(self, torch: OpStream) -> None:
        """From now on note where rows are among those of torch; the earlier ones are at any place so far."""
        self.torch = torch
        if self.row and torch.row:
            self._moments.append(Moment(0, 0, torch.row))

    def begin_call(self) -> None:
        """A call begins whose row comes next."""
        if self.torch is not None:
            self._begun = self.torch.row

    def take_moments(self) -> dict[str, Any] | None:
        """The fields of record "interleaving" since the last one; None: there is nothing new."""
        moments = self._moments[:]
        if len(moments) < 2 or self.torch is None:
            return None
        del self._moments[: len(moments) - 1]
        return {"stream": self.number, "other": self.torch.number, "runs": runs_of(moments)}

    def common(self, template: RowTemplate, inputs: Sequence[ArrayLayout], count: int) -> RowColumns:
        """Of rows of a program that read arrays of these layouts and write ``count``."""
        row = list(template.columns)
        row[Column.STRUCTURE] = self.structure(tuple(inputs))
        row[Column.LINKS] = len(inputs)
        row[Column.DIGESTS] = len(inputs) + count
        return RowColumns(tuple(row), template.floats)

    def place(
        self,
        op: str,
        site: int,
        step: int,
        attempt: tuple[int, int] | None,
        module: str = "",
        phase: Phase = Phase.OTHER,
    ) -> RowPlace:
        """Of the next row."""
        if step != self._seen_in:
            self._seen_in = step
            self._seen.clear()
        key = self._tables.key_of("sites", site)
        nth = self._seen[op, key]
        return RowPlace(self.name, self.number, self.row, step, attempt, site, (op, key, nth), module, phase)

    def count(self, place: RowPlace) -> None:
        """A row of this place is about to be added."""
        self._seen[place.key[:2]] += 1

    def repeat(self, steps: Sequence[int], fixed: Sequence[Operand], outputs: NDArray[np.uint64]) -> None:
        """Rows like the last one, each of which reads ``fixed``, then the first outputs of the one before it.

        ``steps``: theirs; ``outputs``: the digests of what each writes, after a row with those of the last one.
        """
        self.close_block()
        assert not self._rows, "all results have been digested"
        last, count = self._blocks[-1].columns[-1].tolist(), len(steps)
        columns = np.tile(np.array(last, np.uint32), (count, 1))
        columns[:, Column.STEP] = steps
        carried = last[Column.LINKS] - len(fixed)
        links = np.empty((count, last[Column.LINKS]), np.int64)
        for i, operand in enumerate(fixed):
            [first] = self._links([cell_of(operand)], self.row)
            grows = operand.producer is not None and first >= 0
            links[:, i] = first + BACK * np.arange(count) if grows else first
        links[:, len(fixed) :] = [pack_link(1, i, read=True) for i in range(carried)]
        digests = [np.tile(digests_of(fixed), (count, 1)), outputs[:-1, :carried], outputs[1:]]
        arrays = links.ravel(), np.zeros(0, np.int64), np.zeros(0, np.float64), np.concatenate(digests, 1).ravel()
        self._blocks.append(Rows(self._first, columns, *arrays))
        self.row += count
        self._first = self.row

    def add_blocks(self, block: InnerBlock, steps: Sequence[int], digests: NDArray[np.uint64]) -> None:
        """The rows within calls; ``steps``: those of the calls.

        ``digests``: what the cells of the block are chosen from; shape [calls, digests].

        Raises TypeError for digests that have been other numbers.
        """
        if digests.dtype != np.uint64:
            raise TypeError(f"digests of {digests.dtype}")
        self.close_block()
        count, size = len(steps), len(block.columns)
        columns = np.tile(block.columns, (count, 1))
        columns[:, Column.STEP] = np.repeat(steps, size)
        cells = digests[:, block.cells].ravel()
        empty = np.zeros(0, np.int64), np.zeros(0, np.float64)
        self._blocks.append(Rows(self._first, columns, np.tile(block.links, count), *empty, cells))
        self.row += count * size
        self._first = self.row

    def take(self) -> Rows | None:
        """Remove and return the rows up to the first that has a result to digest; None: there are none."""
        self.close_block()
        self._taken = self._first
        blocks, self._blocks = self._blocks, []
        if len(blocks) < 2:
            return blocks[0] if blocks else None
        names = "columns", "links", "integers", "floats", "digests"
        return Rows(blocks[0].first, *(np.concatenate([getattr(each, name) for each in blocks]) for name in names))

    def close_block(self) -> None:
        """Make arrays of the rows up to the first that has a result to digest."""
        rows = self._rows[:]
        rows = rows[: next((i for i, row in enumerate(rows) if row[-1] is not None), len(rows))]
        if not rows:
            return
        commons, sites, steps, read, written, _ = zip(*rows, strict=True)
        kinds = {id(common): common for common in commons}
        places = {number: place for place, number in enumerate(kinds)}
        table = np.array([common.columns for common in kinds.values()], np.uint32)
        columns = table[[places[id(common)] for common in commons]]
        columns[:, Column.SITE] = sites
        columns[:, Column.STEP] = steps
        numbers = self._first + np.repeat(np.arange(len(rows)), columns[:, Column.LINKS])
        links = self._links(list(chain.from_iterable(read)), numbers)
        floats = np.array([number for common in commons for number in common.floats], np.float64)
        cells = list(chain.from_iterable(chain.from_iterable(zip(read, written, strict=True))))
        digests = np.fromiter(map(_DIGEST, cells), np.uint64, len(cells))
        self._blocks.append(Rows(self._first, columns, links, np.zeros(0, np.int64), floats, digests))
        del self._rows[: len(rows)]
        self._first += len(rows)

    def structure(self, layouts: tuple[ArrayLayout, ...]) -> int:
        """Id of the layouts that a row reads."""
        found = self._structures.get(layouts)
        if found is None:
            payloads = list(map(layout_payload, layouts))
            ids = [self._tables.intern_payload("layouts", payload) for payload in payloads]
            key = portable_key("structure", payloads)
            found = self._structures[layouts] = self._tables.intern("structures", key, ids)
        return found

    def _links(self, cells: Sequence[Cell], rows: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """The link cells of arrays that rows read; ``rows``: the row that reads each."""
        streams, origins = (np.fromiter(map(of, cells), np.int64, len(cells)) for of in (_STREAM, _ORIGIN))
        others = np.where(streams == FIXED, origins, _UNKNOWN)
        return np.where(streams == self.number, BACK * np.asarray(rows) - origins, others)


def layout_payload(layout: ArrayLayout) -> list[Any]:
    """Its entry in table "layouts"."""
    strides = [1] * len(layout.shape)
    for axis in range(len(strides) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * layout.shape[axis + 1]
    plain = [layout.dtype, list(layout.shape), strides, layout.device]
    if layout.mesh is None:
        return plain
    return [*plain, {name: list(getattr(layout.mesh, name)) for name in ("names", "sizes", "placements")}]
