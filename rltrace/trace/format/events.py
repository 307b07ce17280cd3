"""Events, decoded: their subject, and their cells by name.

Owns the meaning of an event's skeleton (table "scalars"). Cells that the skeleton does not name are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rltrace.trace.format.rows import Rows

COUNT, EVIDENCE, DIGEST, INTEGER, FLOAT = "n", "e", "d", "i", "f"
"""Letters of a skeleton: two kinds of evidence (a count, a digest), and three kinds of cell that are compared."""

NONE = 2**64 - 1
"""A count that is absent: no seed was passed."""


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
        return repr(self.value) if self.letter == FLOAT else f"{self.value}"


@dataclass(frozen=True)
class Event:
    """One event."""

    what: str
    """``environment 3``."""
    cells: tuple[Cell, ...]

    KEYS: ClassVar = ("what", "fields", "context")

    @property
    def fields(self) -> dict[str, int | float | str]:
        """Its fields by name; digests are text."""
        return {cell.name: cell.plain for cell in self.cells if not cell.is_evidence}

    @property
    def context(self) -> dict[str, int | float | str]:
        """Fields that are evidence only."""
        return {cell.name: cell.plain for cell in self.cells if cell.is_evidence}

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
    digests = iter(rows.digests[rows.digest_offsets[i] : rows.digest_offsets[i + 1]].tolist())
    integers = iter(rows.integers[rows.integer_offsets[i] : rows.integer_offsets[i + 1]].tolist())
    floats = iter(rows.floats[rows.float_offsets[i] : rows.float_offsets[i + 1]].tolist())
    sources = {COUNT: digests, EVIDENCE: digests, DIGEST: digests, INTEGER: integers, FLOAT: floats}
    cells = []
    for item in skeleton[1:]:
        match item:
            case [str(name), str(letter)] if letter in sources:
                value = next(sources[letter], None)
                if value is not None:
                    cells.append(Cell(name.removesuffix("="), letter, value))
    return Event(str(skeleton[0]), tuple(cells))
