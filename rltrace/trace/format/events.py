"""Events, decoded: their subject, their cells by name, and the values of their small fields.

Owns the meaning of an event's skeleton (table "scalars"), and of the evidence cells that it does not name.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import ClassVar, NamedTuple

import numpy as np

from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import FIELD_DTYPES, MAX_FIELD_DIMENSIONS, MAX_FIELD_ELEMENTS

COUNT, EVIDENCE, DIGEST, INTEGER, FLOAT = "n", "e", "d", "i", "f"
"""Letters of a skeleton: two kinds of evidence (a count, a digest), and three kinds of cell that are compared."""

TEXTS = "texts"
"""Key of the facts in words of an event, by name, in its skeleton; they are in no key."""

WRAPPERS, SEPARATOR = "wrappers", " > "
"""The fact of a reset that names the wrappers of its environment, and what stands between them, the outermost first."""

NONE = 2**64 - 1
"""A count that is absent: no seed was passed."""

GENERATOR = "generator"
"""What is seeded where a program makes a generator for itself."""

SENT_OBJECT, RECEIVED_OBJECT = "sent object", "received object"
"""What an event of kind OBJECT is of."""

OBJECT_CONTENT = "content"
"""Its digest of the object's pickle without addresses."""

POSITION_BITS = 10
"""The last bits of the state of Python's or NumPy's generator: how many of the 624 words that it makes at a time were
drawn. The other bits are a digest of these words."""


def words_further(a: int, b: int) -> int | None:
    """How many words one such generator was drawn beyond the other, in B if positive; None: other words were made."""
    places = (1 << POSITION_BITS) - 1
    return (b & places) - (a & places) if a >> POSITION_BITS == b >> POSITION_BITS else None


class Cell(NamedTuple):
    """One named cell of an event."""

    name: str
    letter: str
    value: int | float

    @property
    def is_evidence(self) -> bool:
        return self.letter in (COUNT, EVIDENCE)

    @property
    def plain(self) -> int | float | str:
        return self.value if self.letter in (COUNT, INTEGER, FLOAT) else self.text

    @property
    def text(self) -> str:
        """16 hex digits of a digest, or the number."""
        if self.letter in (DIGEST, EVIDENCE):
            return f"{int(self.value):016x}"
        if self.letter == COUNT and self.value == NONE:
            return "none"
        return str(self.value)


class FieldValue(NamedTuple):
    """What a small field of an event was."""

    shape: tuple[int, ...]
    elements: tuple[bool | int | float, ...]
    """In row-major order; of a narrow float the number with the shortest text that it has."""


@dataclass(frozen=True)
class Event:
    """One event."""

    what: str
    """``environment 3``."""
    cells: tuple[Cell, ...]
    recorded: Mapping[str, FieldValue] = field(default_factory=dict)
    """Values of its small fields, by name."""

    texts: Mapping[str, str] = field(default_factory=dict)
    """Facts in words, by name: the arguments of a constructor, the wrappers of an environment."""

    KEYS: ClassVar = ("what", "fields", "context", "values", "texts")

    @property
    def fields(self) -> dict[str, int | float | str]:
        """Its fields by name; digests are text."""
        return {cell.name: cell.plain for cell in self.cells if not cell.is_evidence}

    @property
    def context(self) -> dict[str, int | float | str]:
        """Fields that are evidence only."""
        return {cell.name: cell.plain for cell in self.cells if cell.is_evidence}

    @property
    def values(self) -> dict[str, tuple[bool | int | float, ...]]:
        """Elements of its small fields by name, as far as they were recorded."""
        return {name: value.elements for name, value in self.recorded.items()}

    def text(self, cell: Cell) -> str:
        """A cell in words: the numbers of a field whose value was recorded, ``0.03, 0.19``, else as ``Cell.text``."""
        value = None if cell.is_evidence else self.recorded.get(cell.name)
        return cell.text if value is None else ", ".join(map(repr, value.elements))

    def evidence(self, name: str) -> int | None:
        return next((int(cell.value) for cell in self.cells if cell.name == name and cell.is_evidence), None)

    @property
    def compared(self) -> dict[str, Cell]:
        """The cells that are compared, by name."""
        return {cell.name: cell for cell in self.cells if not cell.is_evidence}


def event_of(rows: Rows, i: int, skeleton: object) -> Event:
    """The event in row ``i`` of ``rows``; ``skeleton``: its entry in table "scalars"."""
    if not isinstance(skeleton, list) or not skeleton:
        return Event("", ())
    named = [(str(item[0]).removesuffix("="), item[1]) for item in skeleton[1:] if _is_named_cell(item)]
    digests = rows.digests[rows.digest_offsets[i] : rows.digest_offsets[i + 1]].tolist()
    end = 0 if rows.evidence is None else int(rows.evidence[i])
    start = min(sum(letter in (COUNT, EVIDENCE) for _, letter in named), end)
    names = [name for name, letter in named if letter == DIGEST]
    recorded = dict(field_values(digests[start:end], names))
    del digests[start:end]
    cells_of = {
        DIGEST: iter(digests),
        INTEGER: iter(rows.integers[rows.integer_offsets[i] : rows.integer_offsets[i + 1]].tolist()),
        FLOAT: iter(rows.floats[rows.float_offsets[i] : rows.float_offsets[i + 1]].tolist()),
    }
    cells = []
    for name, letter in named:
        value = next(cells_of[DIGEST if letter in (COUNT, EVIDENCE) else letter], None)
        if value is not None:
            cells.append(Cell(name, letter, value))
    words: object = next((item[TEXTS] for item in skeleton if isinstance(item, dict) and TEXTS in item), {})
    texts = {str(name): str(text) for name, text in words.items()} if isinstance(words, dict) else {}
    return Event(str(skeleton[0]), tuple(cells), recorded, texts)


def _is_named_cell(item: object) -> bool:
    match item:
        case [str(), str(letter)]:
            return letter in (COUNT, EVIDENCE, DIGEST, INTEGER, FLOAT)
    return False


# --- values of small fields -------------------------------------------------------------------------------------------


def value_header(dtype: str, shape: Sequence[int]) -> int | None:
    """The header of a value, for field 0; None: such a value is not recorded."""
    if dtype not in FIELD_DTYPES or len(shape) > MAX_FIELD_DIMENSIONS:
        return None
    if not 0 < int(np.prod(shape)) <= MAX_FIELD_ELEMENTS:
        return None
    return sum(size << 16 + 8 * place for place, size in enumerate(shape)) | FIELD_DTYPES.index(dtype) << 8


def field_values(cells: Sequence[int], names: Sequence[str]) -> Iterator[tuple[str, FieldValue]]:
    """The values in the cells of an event whose digests have these names; stops at what it cannot read."""
    at = 0
    while at < len(cells):
        known = _layout(cells[at] >> 8)
        place = cells[at] & 0xFF
        if known is None or place >= len(names) or at + 1 + known.cells > len(cells):
            return
        data = np.array(cells[at + 1 : at + 1 + known.cells], "<u8").tobytes()
        elements = np.frombuffer(data, known.dtype, known.elements)
        yield names[place], FieldValue(known.shape, tuple(map(_number, elements)))
        at += 1 + known.cells


class _Layout(NamedTuple):
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    elements: int
    cells: int


@lru_cache(256)
def _layout(header: int) -> _Layout | None:
    """Of a header without its field; None: no value has it."""
    sizes = [header >> 8 + 8 * place & 0xFF for place in range(MAX_FIELD_DIMENSIONS)]
    shape = tuple(size for size in sizes if size)
    count = int(np.prod(shape, dtype=np.int64))
    if header & 0xFF >= len(FIELD_DTYPES) or count > MAX_FIELD_ELEMENTS or any(b and not a for a, b in pairwise(sizes)):
        return None
    dtype = np.dtype(FIELD_DTYPES[header & 0xFF]).newbyteorder("<")
    return _Layout(dtype, shape, count, -(-count * dtype.itemsize // 8))


def _number(element: np.generic) -> bool | int | float:
    return float(str(element)) if isinstance(element, np.floating) else element.item()
