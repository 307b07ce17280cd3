"""Which rows of a stretch a selector finds, decided for a whole column at a time.

Owns the translation of a selector into look-ups over table ids: a name is matched once per table entry, never per row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from rltrace.query.names import Words
from rltrace.selectors import Condition, Key, Range, Selector
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind, Phase, event_name

Mask = NDArray[np.bool_]


def step_bounds(selector: Selector, steps: Range | None) -> Range:
    """The smallest range of steps that holds every step the selector and ``steps`` allow."""
    ranges = [_clause_steps(clause) for clause in selector.clauses]
    stops = [r.stop for r in ranges]
    hull = Range(min(r.start for r in ranges), None if None in stops else max(s for s in stops if s is not None))
    return _intersection([hull, steps] if steps else [hull])


def _clause_steps(clause: Iterable[Condition]) -> Range:
    return _intersection([c.value for c in clause if c.key is Key.STEP and isinstance(c.value, Range)])


def _intersection(ranges: list[Range]) -> Range:
    stops = [r.stop for r in ranges if r.stop is not None]
    return Range(max((r.start for r in ranges), default=0), min(stops) if stops else None)


class RowMask:
    """A selector made ready for one stream; hand it the stream's stretches in order."""

    def __init__(self, selector: Selector, steps: Range | None, stream: str, words: Words) -> None:
        self._words = words
        self._steps = steps
        self._lookups: dict[Condition, Mask] = {}
        self._events: dict[Condition, Mask] = {}
        self._clauses = [
            [condition for condition in clause if condition.key is not Key.STREAM]
            for clause in selector.clauses
            if all(c.matches_name(stream) for c in clause if c.key is Key.STREAM)
        ]
        self._counts = _Occurrences() if any(c.key is Key.NTH for clause in self._clauses for c in clause) else None

    @property
    def possible(self) -> bool:
        """False where no row of the stream can be found."""
        return bool(self._clauses)

    def skip(self) -> None:
        """A stretch could not be read."""
        if self._counts:
            self._counts.skip()

    def of(self, rows: Rows) -> Mask:
        """Shape [n]: which rows are found."""
        nth = self._counts.of(rows) if self._counts else None
        found = np.zeros(len(rows), bool)
        for clause in self._clauses:
            held = np.ones(len(rows), bool)
            for condition in clause:
                held &= self._holds(condition, rows, nth)
            found |= held
        return found & _in_range(rows.column(Column.STEP), self._steps) if self._steps else found

    def _holds(self, condition: Condition, rows: Rows, nth: NDArray[np.int64] | None) -> Mask:
        if condition.key in (Key.STEP, Key.NTH):
            assert isinstance(condition.value, Range)
            numbers = rows.column(Column.STEP) if condition.key is Key.STEP else nth
            assert numbers is not None
            return _in_range(numbers, condition.value)
        column, size, matches = self._source(condition)
        if condition not in self._lookups:
            self._lookups[condition] = np.array([matches(i) for i in range(size)] + [False], bool)
        lookup = self._lookups[condition]
        held = lookup[np.minimum(rows.column(column), size)]
        if column is not Column.OP:
            return held
        kinds = rows.column(Column.KIND)
        return np.where(kinds == Kind.OP, held, self._names_event(condition)[np.minimum(kinds, len(Kind))])

    def _names_event(self, condition: Condition) -> Mask:
        """By kind of row, whether an event of it is meant: ``op=environment-step``. ``op=*`` means every operator."""
        if condition not in self._events:
            any_name = condition.matches_name("")
            named = [
                kind > Kind.OP and not any_name and condition.matches_name(event_name(kind))
                for kind in range(len(Kind))
            ]
            self._events[condition] = np.array([*named, False], bool)
        return self._events[condition]

    def _source(self, condition: Condition) -> tuple[Column, int, Callable[[int], bool]]:
        """Where a condition's names stand: the column, how many entries, and whether entry ``i`` meets it."""
        words = self._words
        match condition.key:
            case Key.OP:
                return Column.OP, words.size("ops"), lambda i: condition.matches_name(words.op(i))
            case Key.MODULE:
                return Column.MODULE, words.size("modules"), lambda i: condition.matches_name(words.module(i))
            case Key.SITE:
                return Column.SITE, words.size("sites"), lambda i: condition.matches_frames(words.frames(i))
            case Key.KERNEL:
                return (
                    Column.KERNEL,
                    words.size("kernels"),
                    lambda i: any(map(condition.matches_name, words.kernels(i))),
                )
            case Key.PHASE:
                return Column.PHASE, len(Phase), lambda i: condition.matches_name(Phase(i).name.lower())
            case key:
                raise AssertionError(f"{key} is no column")


def _in_range(numbers: NDArray[np.uint32] | NDArray[np.int64], wanted: Range) -> Mask:
    held: Mask = numbers >= wanted.start
    return held if wanted.stop is None else held & (numbers < wanted.stop)


class _Occurrences:
    """Counts how manieth an op is under its site in its step, across stretches; -1 where a hole hides it."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int, int], int] = {}
        self._after_hole = False
        self._blind_step: int | None = None

    def skip(self) -> None:
        self._seen.clear()
        self._after_hole = True

    def of(self, rows: Rows) -> NDArray[np.int64]:
        keys = rows.columns[:, [Column.STEP, Column.SITE, Column.OP]]
        if self._after_hole and len(rows):
            self._after_hole, self._blind_step = False, int(keys[0, 0])
        counts = np.empty(len(rows), np.int64)
        step = None
        for i, (now, site, op) in enumerate(keys.tolist()):
            if now != step:
                step = now
                self._seen = {key: count for key, count in self._seen.items() if key[0] == now}
            key = (now, site, op)
            counts[i] = self._seen.get(key, 0)
            self._seen[key] = int(counts[i]) + 1
        if self._blind_step is not None:
            counts[keys[:, 0] == self._blind_step] = -1
        return counts
