"""Matches the ops of a running thread with A's rows, step by step, in memory that does not grow with the run.

An op is matched by call site, operator and occurrence within the step that follows the same attempt. Where calls of one
line were reordered, the one with the same content is its match. No torch.
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

MAX_MOVED = 256
"""Pending calls of one line and operator that are searched for the same content."""

MAX_PENDING = 1 << 20
"""Pending ops of a step; with more, an op that is not among them counts as one that A does not run."""

Place = tuple[int, int]
"""Operator and call site, in A's ids."""

NO_ROW = -1

TRANSLATED = ("ops", "structures", "sites", "scalars", "modules")


class Keys(Protocol):
    """Portable keys of a process that is being recorded."""

    def key_of(self, table: str, number: int) -> int: ...


class Content(NamedTuple):
    """The content of one row: A's ids, and cells as bytes."""

    call_ids: tuple[int, int]
    """Structure and skeleton of the arguments; NO_ROW where A has no such entry."""
    integers: bytes
    floats: bytes
    digests: bytes
    """Digests of inputs that it read, of the RNG state, and of its results."""


class MatchedRow(NamedTuple):
    """The row of A that matches a row of the program."""

    rows: Rows
    """Rows of A that include it."""
    i: int
    same: bool
    """All cells are equal."""
    only_digests: bool = False
    """Only its digests differ."""

    @property
    def row(self) -> int:
        return self.rows.first + self.i


class Ids:
    """Translates ids of the recorded process to ids of A."""

    def __init__(self, a: ProcessTrace, own_keys: Keys) -> None:
        self._tables = a.tables
        self._own_keys = own_keys
        self._known: dict[str, dict[int, int]] = {name: {} for name in TRANSLATED}

    def of(self, table: str, number: int) -> int:
        known = self._known[table]
        found = known.get(number)
        if found is None:
            found = self._tables[table].ids.get(self._own_keys.key_of(table, number), NO_ROW)
            known[number] = found
        return found


class StepRows:
    """The rows of one step of A's stream, removed as they are matched. They are read as needed, so a step may be as
    long as a run."""

    def __init__(self, reference: Reference, start: int, stop: int) -> None:
        self._reference = reference
        self._at = start
        self._stop = stop
        self._queues: dict[Place, deque[tuple[_Piece, int]]] = {}
        self._opening: dict[tuple[int, int, int], tuple[_Piece, int]] = {}
        self._events: dict[Place, deque[tuple[_Piece, int]]] = {}
        self._pending = 0
        """Number of ops that were read and not matched yet."""

    @property
    def pending(self) -> int:
        """Number of its ops that are not matched yet. Raises HoleError."""
        while self._read_more(None):
            pass
        return self._pending

    def pop(self, place: Place, content: Content, is_match: Callable[[MatchedRow], bool]) -> MatchedRow | None:
        """Remove and return the row that matches an op of this operator and site; None: none. Raises HoleError.

        A later row with the same content is preferred if ``is_match`` accepts it: if matched ops wrote its inputs. A
        race may give one of a few results in each iteration.
        """
        queue = self._queues.get(place)
        while not queue:
            if not self._read_more(MAX_PENDING):
                return None
            queue = self._queues.get(place)
        self._pending -= 1
        piece, i = queue[0]
        if piece.content(i) == content:
            queue.popleft()
            return MatchedRow(piece.rows, i, True)
        for k in range(1, min(len(queue), MAX_MOVED)):
            other, j = queue[k]
            if other.content(j) == content:
                found = MatchedRow(other.rows, j, True)
                if is_match(found):
                    del queue[k]
                    return found
        queue.popleft()
        return MatchedRow(piece.rows, i, False, piece.content(i)[:-1] == content[:-1])

    def opening(self, module: int, scalars: int, structure: int) -> MatchedRow | None:
        """The opening row of this tensor or RNG state; None: there is none."""
        while (found := self._opening.get((module, scalars, structure))) is None:
            if not self._read_more(MAX_PENDING):
                return None
        piece, i = found
        return MatchedRow(piece.rows, i, False)

    def event(self, scalars: int, site: int) -> MatchedRow | None:
        """Remove and return the next event with these scalars and call site; None: there is none."""
        while not (queue := self._events.get((scalars, site))):
            if not self._read_more(MAX_PENDING):
                return None
        piece, i = queue.popleft()
        return MatchedRow(piece.rows, i, False)

    def _read_more(self, limit: int | None) -> bool:
        """Read more of its rows, unless ``limit`` ops are pending; returns whether there were any."""
        if self._at >= self._stop or (limit is not None and self._pending >= limit):
            return False
        piece = _Piece(self._reference, self._reference.read_some(self._at, self._stop))
        self._at += len(piece.rows)
        for i, place in piece.ops():
            self._queues.setdefault(place, deque()).append((piece, i))
            self._pending += 1
        for i, place in piece.events():
            self._events.setdefault(place, deque()).append((piece, i))
        self._opening.update({key: (piece, i) for key, i in piece.opening()})
        return True


class _Piece:
    """Adjacent rows of A, prepared for fast comparison."""

    def __init__(self, reference: Reference, rows: Rows) -> None:
        a = reference.process
        self.rows = rows
        self._columns = {name: _first_ids(a, name, rows, column) for name, column in _NAMED}
        self._call_ids = list(zip(self._columns["structures"], self._columns["scalars"], strict=True))
        cells = (
            (rows.integers, rows.integer_offsets),
            (rows.floats, rows.float_offsets),
            (rows.digests, rows.digest_offsets),
        )
        self._cells = [(array.tobytes(), (8 * offsets).tolist()) for array, offsets in cells]

    def content(self, i: int) -> Content:
        (integers, a), (floats, b), (digests, c) = self._cells
        k = i + 1
        return Content(self._call_ids[i], integers[a[i] : a[k]], floats[b[i] : b[k]], digests[c[i] : c[k]])

    def ops(self) -> Iterator[tuple[int, Place]]:
        ops, sites = self._columns["ops"], self._columns["sites"]
        for i in np.flatnonzero(self.rows.column(Column.KIND) == Kind.OP).tolist():
            yield i, (ops[i], sites[i])

    def events(self) -> Iterator[tuple[int, Place]]:
        """Events, with their scalars and call sites."""
        scalars, sites = self._columns["scalars"], self._columns["sites"]
        kinds = self.rows.column(Column.KIND)
        for i in np.flatnonzero((kinds != Kind.OP) & (kinds != Kind.WINDOW)).tolist():
            yield i, (scalars[i], sites[i])

    def opening(self) -> Iterator[tuple[tuple[int, int, int], int]]:
        for i in np.flatnonzero(self.rows.column(Column.KIND) == Kind.WINDOW).tolist():
            structure, scalars = self._call_ids[i]
            yield (self._columns["modules"][i], scalars, structure), i


_NAMED = (
    ("ops", Column.OP),
    ("structures", Column.STRUCTURE),
    ("sites", Column.SITE),
    ("scalars", Column.SCALARS),
    ("modules", Column.MODULE),
)


def _first_ids(a: ProcessTrace, table: str, rows: Rows, column: Column) -> list[int]:
    """For each row, the first id with the same key, as several sites may share one."""
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
        """Its rows in the step that follows ``attempt``; None: it has none. Raises HoleError."""
        step = self._steps.get(attempt)
        if step is None:
            return None
        start = self._first_of(step, self._at)
        stop = self._first_of(step + 1, start)
        self._at = start
        return StepRows(self, start, stop) if stop > start else None

    def read_some(self, start: int, stop: int) -> Rows:
        """Rows from ``start`` to the end of their segment, or to ``stop``. Raises HoleError."""
        segment = next((s for s in self.stream.segments if s.first <= start < s.stop), None)
        return self.stream.read(start, stop if segment is None else min(stop, segment.stop))

    def _first_of(self, step: int, start: int) -> int:
        """The first row from ``start`` on whose step is ``step`` or later; steps never decrease within a stream."""
        for segment in self.stream.segments:
            if segment.stop <= start:
                continue
            steps = self.stream.read_segment(segment).column(Column.STEP)
            if int(steps[-1]) >= step:
                return max(start, segment.first + int(np.searchsorted(steps, step)))
        return self.stream.rows


class RowPartners:
    """Matched rows of the program and A, stored as the rows at which their distance changes."""

    def __init__(self) -> None:
        self._rows = [0]
        self._shifts: list[int | None] = [None]

    def add(self, row: int, a: int | None) -> None:
        """Match ``row`` of the program with row ``a`` of A; None: unmatched. Rows are added in order."""
        shift = None if a is None else a - row
        if shift != self._shifts[-1]:
            self._rows.append(row)
            self._shifts.append(shift)

    def of(self, row: int) -> int | None:
        shift = self._shifts[bisect_right(self._rows, row) - 1]
        return None if shift is None else row + shift

    def partner(self, a: int) -> int | None:
        """The row of the program matched with row ``a`` of A; None: unmatched so far."""
        shifts = {shift for shift in self._shifts if shift is not None}
        return next((a - shift for shift in shifts if a >= shift and self.of(a - shift) == a), None)

    def partner_in_a(self, row: int) -> int | None:
        """The row of A matched with ``row`` of the program; None: unmatched."""
        return self.of(row)
