"""Rows that are no ops, read: what happened to whom, and the cells of each by name.

Owns the reading of an event's skeleton (table "scalars"). Pure; what a skeleton does not explain is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rltrace.trace.format.rows import Rows

COUNT, EVIDENCE, DIGEST, INTEGER, FLOAT = "n", "e", "d", "i", "f"
"""Letters of a skeleton: a number that is evidence, a digest that is, and three kinds of cell that are compared."""

NONE = 2**64 - 1
"""A count that there is none of: no seed was given."""


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
        """A digest as 16 hex digits, a number as it is."""
        if self.letter in (DIGEST, EVIDENCE):
            return f"{int(self.value):016x}"
        if self.letter == COUNT and self.value == NONE:
            return "none"
        return repr(self.value) if self.letter == FLOAT else f"{self.value}"


@dataclass(frozen=True)
class Event:
    """What an event tells."""

    what: str
    """What it happened to: ``environment 3``."""
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
    def told(self) -> dict[str, Cell]:
        """The cells that are compared."""
        return {cell.name: cell for cell in self.cells if not cell.is_evidence}


def event_of(rows: Rows, i: int, skeleton: object) -> Event:
    """Row ``i`` of ``rows``, which is an event; ``skeleton``: its entry in table "scalars"."""
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
