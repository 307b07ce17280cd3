"""A's rows at the side of a program that runs: which of them an op of the program is, and whether it gave the same.

Owns the matching of one thread's ops with A's, step by step, in memory that does not grow with the run. An op is found
by its identity (call site, operator, how-manieth in the step that follows the same attempt); where several calls of one
line changed places, whichever of them has the same content counts. No torch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rltrace.follow.plan import Attempt, following
from rltrace.trace.reader import ProcessTrace, StreamTrace
from rltrace.trace.rows import Rows
from rltrace.trace.schema import Column, Kind, RowFlag

MOST_MOVED = 256
"""Calls of one line and operator, not met yet, among which one with the same content is sought."""

NO_ROW = -1

_MARKED = int(RowFlag.MARKED)


TRANSLATED = ("ops", "structures", "sites", "scalars", "modules")


class Keys(Protocol):
    """Portable keys of a process that is being recorded."""

    def key_of(self, table: str, number: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Content:
    """What one row tells of itself, in A's ids."""

    called: tuple[int, int]
    """Structure and skeleton of the arguments; NO_ROW where A has no such entry."""
    integers: Sequence[int]
    floats: bytes
    digests: Sequence[int]
    """Of inputs that it read, the generator's state, its results."""


class Ids:
    """Ids of a process that is being recorded as ids of A."""

    def __init__(self, a: ProcessTrace, here: Keys) -> None:
        self._tables = a.tables
        self._here = here
        self._known: dict[str, dict[int, int]] = {name: {} for name in TRANSLATED}

    def of(self, table: str, number: int) -> int:
        known = self._known[table]
        found = known.get(number)
        if found is None:
            found = self._tables[table].ids.get(self._here.key_of(table, number), NO_ROW)
            known[number] = found
        return found


class StepRows:
    """The ops of one step of A's stream, taken out one by one as the program comes by."""

    def __init__(self, a: ProcessTrace, rows: Rows) -> None:
        self.rows = rows
        columns = [_firsts(a, name, rows, column) for name, column in _NAMED]
        ops, structures, sites, scalars = columns
        self._called = list(zip(structures, scalars, strict=True))
        self._left: dict[tuple[int, int], list[int]] = {}
        kinds = rows.column(Column.KIND).tolist()
        for i in [i for i, kind in enumerate(kinds) if kind == Kind.OP]:
            self._left.setdefault((ops[i], sites[i]), []).append(i)
        modules = _firsts(a, "modules", rows, Column.MODULE)
        opening = [i for i, kind in enumerate(kinds) if kind == Kind.WINDOW]
        self._opening = {(modules[i], scalars[i], structures[i]): i for i in opening}

    @property
    def left(self) -> int:
        """How many the program has not come by."""
        return sum(map(len, self._left.values()))

    def first_left(self) -> int | None:
        """The first of those, as a row of the stream."""
        found = [places[0] for places in self._left.values() if places]
        return self.rows.first + min(found) if found else None

    def take(self, op: int, site: int, content: Content) -> tuple[int, bool]:
        """The row (counted within the step) that this op is, NO_ROW if none; and whether the two tell the same."""
        places = self._left.get((op, site))
        if not places:
            return NO_ROW, False
        for k in range(min(len(places), MOST_MOVED)):
            if self._same(places[k], content):
                return places.pop(k), True
        return places.pop(0), False

    def opening(self, module: int, scalars: int, structure: int) -> int:
        """The row of what a window began with that stands for this tensor, or state; NO_ROW if none does."""
        return self._opening.get((module, scalars, structure), NO_ROW)

    def _same(self, i: int, content: Content) -> bool:
        """Whether a row tells the same in every cell; marked digests and inputs read on one side alone are for others
        to look at."""
        rows = self.rows
        return (
            self._called[i] == content.called
            and rows.digests[rows.digest_offsets[i] : rows.digest_offsets[i + 1]].tolist() == content.digests
            and rows.integers[rows.integer_offsets[i] : rows.integer_offsets[i + 1]].tolist() == content.integers
            and rows.floats[rows.float_offsets[i] : rows.float_offsets[i + 1]].tobytes() == content.floats
        )

    def called(self, i: int) -> tuple[int, int]:
        return self._called[i]


_NAMED = (
    ("ops", Column.OP),
    ("structures", Column.STRUCTURE),
    ("sites", Column.SITE),
    ("scalars", Column.SCALARS),
)


def _firsts(a: ProcessTrace, table: str, rows: Rows, column: Column) -> list[int]:
    """For each row the first id with the key of its own: several sites share one."""
    keys, ids = a.tables[table].keys, a.tables[table].ids
    return [ids[key] for key in keys[rows.column(column)].tolist()]


class Reference:
    """One stream of A."""

    def __init__(self, a: ProcessTrace, stream: StreamTrace) -> None:
        self.process = a
        self.stream = stream
        self._steps: Mapping[Attempt, int] = {attempt: step for step, attempt in following(a).items()}
        self._at = 0

    def step_after(self, attempt: Attempt) -> StepRows | None:
        """Its ops in the step that follows ``attempt``; None where it has no such step, or no row of it.

        Raises HoleError.
        """
        step = self._steps.get(attempt)
        if step is None:
            return None
        start = self._first_of(step, self._at)
        stop = self._first_of(step + 1, start)
        self._at = start
        return StepRows(self.process, self.stream.read(start, stop)) if stop > start else None

    def _first_of(self, step: int, start: int) -> int:
        """The first row, from ``start`` on, whose step is not before ``step``; steps never fall within a stream."""
        for segment in self.stream.segments:
            if segment.stop <= start:
                continue
            steps = self.stream.read_segment(segment).column(Column.STEP)
            if int(steps[-1]) >= step:
                return max(start, segment.first + int(np.searchsorted(steps, step)))
        return self.stream.rows


class Partners:
    """Which row of A each row of the program is: where the distance of the two changed, not row by row."""

    def __init__(self) -> None:
        self._rows = [0]
        self._shifts: list[int | None] = [None]

    def add(self, row: int, a: int | None) -> None:
        """``row`` of the program is row ``a`` of A; None: A has none. Rows are added in order; gaps have none."""
        shift = None if a is None else a - row
        if shift != self._shifts[-1]:
            self._rows.append(row)
            self._shifts.append(shift)

    def of(self, row: int) -> int | None:
        shift = self._shifts[bisect_right(self._rows, row) - 1]
        return None if shift is None else row + shift


def is_marked(rows: Rows, i: int) -> bool:
    """Whether row ``i`` of A may hold bytes that no op wrote."""
    return rows.has(i, _MARKED)
