"""A's rows at the side of a program that runs: which of them an op of the program is, and whether it gave the same.

Owns the matching of one thread's ops with A's, step by step, in memory that does not grow with the run. An op is found
by its identity (call site, operator, how-manieth in the step that follows the same attempt); where several calls of one
line changed places, whichever of them has the same content counts. No torch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from rltrace.diff.base.view import StreamView
from rltrace.replay.plan import Attempt, preceding_attempts
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.stream import StreamTrace

MOST_MOVED = 256
"""Calls of one line and operator, not met yet, among which one with the same content is sought."""

MOST_AHEAD = 1 << 20
"""Ops of a step that were read and not met yet, beyond which an op that is not among them counts as one that A does not
run."""

Place = tuple[int, int]
"""Operator and call site, in A's ids."""

NO_ROW = -1

TRANSLATED = ("ops", "structures", "sites", "scalars", "modules")


class Keys(Protocol):
    """Portable keys of a process that is being recorded."""

    def key_of(self, table: str, number: int) -> int: ...


class Content(NamedTuple):
    """What one row tells of itself: ids are A's, cells are bytes."""

    called: tuple[int, int]
    """Structure and skeleton of the arguments; NO_ROW where A has no such entry."""
    integers: bytes
    floats: bytes
    digests: bytes
    """Of inputs that it read, the generator's state, its results."""


class MatchedRow(NamedTuple):
    """The row of A that an op of the program is."""

    rows: Rows
    """Some of A's, this one among them."""
    i: int
    same: bool
    """It tells the same in every cell."""
    only_digests: bool = False
    """It tells the same but for its digests."""

    @property
    def row(self) -> int:
        return self.rows.first + self.i


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
    """The ops of one step of A's stream, taken out one by one as the program comes by. They are read as they are
    needed, so a step may be as long as a run."""

    def __init__(self, reference: Reference, start: int, stop: int) -> None:
        self._reference = reference
        self._at = start
        self._stop = stop
        self._left: dict[Place, deque[tuple[_Piece, int]]] = {}
        self._opening: dict[tuple[int, int, int], tuple[_Piece, int]] = {}
        self._events: dict[Place, deque[tuple[_Piece, int]]] = {}
        self._waiting = 0
        """Ops that were read and not met yet."""

    @property
    def left(self) -> int:
        """How many of its ops the program has not come by. Raises HoleError."""
        while self._read_on(None):
            pass
        return self._waiting

    def take(self, place: Place, content: Content, fits: Callable[[MatchedRow], bool]) -> MatchedRow | None:
        """The row that the op at this place is; None where A has none. Raises HoleError.

        One further on that tells the same is it where it ``fits``: where it also reads what matching ops wrote. A race
        gives one of a few results in each round.
        """
        waiting = self._left.get(place)
        while not waiting:
            if not self._read_on(MOST_AHEAD):
                return None
            waiting = self._left.get(place)
        self._waiting -= 1
        piece, i = waiting[0]
        if piece.content(i) == content:
            waiting.popleft()
            return MatchedRow(piece.rows, i, True)
        for k in range(1, min(len(waiting), MOST_MOVED)):
            other, j = waiting[k]
            if other.content(j) == content:
                found = MatchedRow(other.rows, j, True)
                if fits(found):
                    del waiting[k]
                    return found
        waiting.popleft()
        return MatchedRow(piece.rows, i, False, piece.content(i)[:-1] == content[:-1])

    def opening(self, module: int, scalars: int, structure: int) -> MatchedRow | None:
        """The row of what a window began with that stands for this tensor, or state; None if none does."""
        while (found := self._opening.get((module, scalars, structure))) is None:
            if not self._read_on(MOST_AHEAD):
                return None
        piece, i = found
        return MatchedRow(piece.rows, i, False)

    def event(self, scalars: int, site: int) -> MatchedRow | None:
        """The next row of what happened to whom, in words, and where; None where A has none."""
        while not (waiting := self._events.get((scalars, site))):
            if not self._read_on(MOST_AHEAD):
                return None
        piece, i = waiting.popleft()
        return MatchedRow(piece.rows, i, False)

    def _read_on(self, most: int | None) -> bool:
        """Read the next of its rows, unless ``most`` ops are waiting already; whether there were any."""
        if self._at >= self._stop or (most is not None and self._waiting >= most):
            return False
        piece = _Piece(self._reference, self._reference.some(self._at, self._stop))
        self._at += len(piece.rows)
        for i, place in piece.ops():
            self._left.setdefault(place, deque()).append((piece, i))
            self._waiting += 1
        for i, place in piece.events():
            self._events.setdefault(place, deque()).append((piece, i))
        self._opening.update({key: (piece, i) for key, i in piece.opening()})
        return True


class _Piece:
    """Some rows of A, one after the other, quick to compare with."""

    def __init__(self, reference: Reference, rows: Rows) -> None:
        a = reference.process
        self.rows = rows
        self._columns = {name: _firsts(a, name, rows, column) for name, column in _NAMED}
        self._called = list(zip(self._columns["structures"], self._columns["scalars"], strict=True))
        cells = (
            (rows.integers, rows.integer_offsets),
            (rows.floats, rows.float_offsets),
            (rows.digests, rows.digest_offsets),
        )
        self._cells = [(array.tobytes(), (8 * offsets).tolist()) for array, offsets in cells]

    def content(self, i: int) -> Content:
        (integers, a), (floats, b), (digests, c) = self._cells
        k = i + 1
        return Content(self._called[i], integers[a[i] : a[k]], floats[b[i] : b[k]], digests[c[i] : c[k]])

    def ops(self) -> Iterator[tuple[int, Place]]:
        ops, sites = self._columns["ops"], self._columns["sites"]
        for i in np.flatnonzero(self.rows.column(Column.KIND) == Kind.OP).tolist():
            yield i, (ops[i], sites[i])

    def events(self) -> Iterator[tuple[int, Place]]:
        """By what happened to whom, in words, and where."""
        scalars, sites = self._columns["scalars"], self._columns["sites"]
        kinds = self.rows.column(Column.KIND)
        for i in np.flatnonzero((kinds != Kind.OP) & (kinds != Kind.WINDOW)).tolist():
            yield i, (scalars[i], sites[i])

    def opening(self) -> Iterator[tuple[tuple[int, int, int], int]]:
        for i in np.flatnonzero(self.rows.column(Column.KIND) == Kind.WINDOW).tolist():
            structure, scalars = self._called[i]
            yield (self._columns["modules"][i], scalars, structure), i


_NAMED = (
    ("ops", Column.OP),
    ("structures", Column.STRUCTURE),
    ("sites", Column.SITE),
    ("scalars", Column.SCALARS),
    ("modules", Column.MODULE),
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
        self.view = StreamView(a, stream)
        self._steps: Mapping[Attempt, int] = {attempt: step for step, attempt in preceding_attempts(a).items()}
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
        return StepRows(self, start, stop) if stop > start else None

    def some(self, start: int, stop: int) -> Rows:
        """Rows from ``start`` on, as many of them as stand together, none from ``stop`` on. Raises HoleError."""
        segment = next((s for s in self.stream.segments if s.first <= start < s.stop), None)
        return self.stream.read(start, stop if segment is None else min(stop, segment.stop))

    def _first_of(self, step: int, start: int) -> int:
        """The first row, from ``start`` on, whose step is not before ``step``; steps never fall within a stream."""
        for segment in self.stream.segments:
            if segment.stop <= start:
                continue
            steps = self.stream.read_segment(segment).column(Column.STEP)
            if int(steps[-1]) >= step:
                return max(start, segment.first + int(np.searchsorted(steps, step)))
        return self.stream.rows


class RowPartners:
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

    def partner(self, a: int) -> int | None:
        """The row of the program that is row ``a`` of A; None: it was not met."""
        shifts = {shift for shift in self._shifts if shift is not None}
        return next((a - shift for shift in shifts if a >= shift and self.of(a - shift) == a), None)
