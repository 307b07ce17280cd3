"""What a selector asks of a row of a recorded trace, read only when it does.

Owns the way from a row's ids to the words that selectors match. No torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.selectors import Key, Range, Selector
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind, Phase
from rltrace.trace.kernels.evidence import kernel_names
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.stream import StreamTrace


class Facts:
    """What a selector asks of a row, read only when it does."""

    def __init__(self, process: ProcessTrace, stream: StreamTrace, selector: Selector) -> None:
        self.stream = stream.name
        self._tables = process.tables
        self._selector = selector
        self._rows: Rows | None = None
        self._i = 0
        self._seen: dict[tuple[int, int, int], int] = {}
        names = [str(name) for name in self._tables["ops"].payloads]
        clauses = selector.clauses
        self._may = np.array(
            [any(all(c.matches_name(n) for c in clause if c.key is Key.OP) for clause in clauses) for n in names], bool
        )
        self._steps = [steps_of(clause) for clause in clauses]
        self._nth = 0

    def candidates(self, rows: Rows) -> NDArray[np.int64]:
        """Rows that may be selected, by operator and step; every row that counts for an occurrence is among them."""
        ops = rows.column(Column.OP)
        may = np.append(self._may, False)[np.minimum(ops, len(self._may))] & (rows.column(Column.KIND) == Kind.OP)
        steps = rows.column(Column.STEP)
        within = np.zeros(len(rows), bool)
        for wanted in self._steps:
            within |= (steps >= wanted.start) & (steps < (wanted.stop if wanted.stop is not None else 1 << 32))
        return np.flatnonzero(may & within)

    def asks_only(self, steps: Range) -> bool:
        """Whether no row outside of these steps can be selected."""
        return all(lies_in(wanted, steps) for wanted in self._steps)

    def selects(self, rows: Rows, i: int) -> bool:
        """Whether the row is selected; asked of every candidate in order, as occurrences are counted here."""
        self._rows, self._i = rows, i
        key = (int(rows.columns[i, Column.STEP]), int(rows.columns[i, Column.SITE]), int(rows.columns[i, Column.OP]))
        self._nth = self._seen.get(key, 0)
        if self._nth == 0 and len(self._seen) > 1 << 16:
            self._seen = {known: count for known, count in self._seen.items() if known[0] == key[0]}
        self._seen[key] = self._nth + 1
        return self._selector.matches(self)

    @property
    def op(self) -> str:
        return str(self._payload("ops", Column.OP))

    @property
    def module(self) -> str:
        return str(self._payload("modules", Column.MODULE))

    @property
    def frames(self) -> list[tuple[str, str]]:
        found: Any = self._payload("sites", Column.SITE)
        frames: list[Any] = [self._tables["frames"].payloads[number] for number in found]
        return [(frame["file"], frame["function"]) for frame in frames if frame and not frame.get("internal")]

    @property
    def phase(self) -> str:
        return Phase(self._cell(Column.PHASE)).name.lower()

    @property
    def step(self) -> int:
        return self._cell(Column.STEP)

    @property
    def nth(self) -> int:
        return self._nth

    @property
    def kernels(self) -> list[str]:
        found: Any = self._payload("kernels", Column.KERNEL)
        return kernel_names(found)

    def _cell(self, column: Column) -> int:
        assert self._rows is not None
        return int(self._rows.columns[self._i, column])

    def _payload(self, table: str, column: Column) -> object:
        return self._tables[table].payloads[self._cell(column)]


def lies_in(inner: Range, outer: Range) -> bool:
    """Whether every number of one range is in the other."""
    if inner.start < outer.start:
        return False
    return outer.stop is None or (inner.stop is not None and inner.stop <= outer.stop)


def steps_of(clause: Sequence[Any]) -> Range:
    """The steps that one clause allows."""
    ranges = [condition.value for condition in clause if condition.key is Key.STEP]
    stops = [r.stop for r in ranges if r.stop is not None]
    return Range(max((r.start for r in ranges), default=0), min(stops) if stops else None)
