"""Which rows of a stretch a selector finds, decided for a whole column at a time.

Owns where the facts of a selector stand in a row; a name is matched once per table entry, never per row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rltrace.selectors import Condition, Key, Selector
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind, Phase, event_name
from rltrace.trace.read.names import Words

Mask = NDArray[np.bool_]


class RowMask:
    """A selector made ready for one stream; hand it the stream's stretches in order."""

    def __init__(self, selector: Selector, stream: str, words: Words) -> None:
        self._clauses = selector.given({Key.STREAM: stream}).clauses
        self._lookups: dict[Condition, Mask] = {}
        self._events: dict[Condition, Mask] = {}
        self._counts = Occurrences() if Key.NTH in selector.keys else None
        self._facts: dict[Key, tuple[Column, int, Callable[[int], object]]] = {
            Key.OP: (Column.OP, words.size("ops"), words.op),
            Key.MODULE: (Column.MODULE, words.size("modules"), words.module),
            Key.SITE: (Column.SITE, words.size("sites"), words.calls),
            Key.KERNEL: (Column.KERNEL, words.size("kernels"), words.kernels),
            Key.PHASE: (Column.PHASE, len(Phase), words.phase),
        }
        """Of each key whose fact is a name: the column of ids, how many there are, and the fact by id."""

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
        return found

    def of_ops(self, rows: Rows) -> NDArray[np.int64]:
        """Which rows are found that are ops, ascending."""
        return np.flatnonzero(self.of(rows) & (rows.column(Column.KIND) == Kind.OP))

    def _holds(self, condition: Condition, rows: Rows, nth: NDArray[np.int64] | None) -> Mask:
        if condition.key in (Key.STEP, Key.NTH):
            numbers: Mask = condition.holds(rows.column(Column.STEP) if condition.key is Key.STEP else nth)
            return numbers
        column, size, fact = self._facts[condition.key]
        if condition not in self._lookups:
            self._lookups[condition] = np.array([*(condition.holds(fact(i)) for i in range(size)), False], bool)
        held = self._lookups[condition][np.minimum(rows.column(column), size)]
        if column is not Column.OP:
            return held
        kinds = rows.column(Column.KIND)
        return np.where(kinds == Kind.OP, held, self._names_event(condition)[np.minimum(kinds, len(Kind))])

    def _names_event(self, condition: Condition) -> Mask:
        """By kind of row, whether an event of it is meant: ``op=environment-step``. ``op=*`` means every operator."""
        if condition not in self._events:
            events = [kind > Kind.OP and condition.holds(event_name(kind)) for kind in range(len(Kind))]
            self._events[condition] = np.array([*events, False], bool) & (not condition.holds(""))
        return self._events[condition]


class Occurrences:
    """Counts the occurrences of an op under its site in its step, across stretches; -1 where a hole hides it."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, ...], int] = {}
        """By step, site, op and kind of row: how many the last step has so far."""
        self._after_hole = False
        self._blind_step: int | None = None

    def skip(self) -> None:
        """A stretch could not be read."""
        self._seen.clear()
        self._after_hole = True

    def of(self, rows: Rows) -> NDArray[np.int64]:
        """Of each row, from 0. Shape [n]."""
        keys = rows.columns[:, [Column.STEP, Column.SITE, Column.OP, Column.KIND]]
        if not len(keys):
            return np.zeros(0, np.int64)
        first, last = int(keys[0, 0]), int(keys[-1, 0])
        if self._after_hole:
            self._after_hole, self._blind_step = False, first
        order = np.lexsort(keys.T)
        begins = np.flatnonzero(np.append(True, (np.diff(keys[order].astype(np.int64), axis=0) != 0).any(axis=1)))
        groups = list(map(tuple, keys[order[begins]].tolist()))
        sizes = np.diff(np.append(begins, len(keys)))
        before = np.array([self._seen.get(group, 0) for group in groups])
        counts = np.empty(len(keys), np.int64)
        counts[order] = np.arange(len(keys)) - np.repeat(begins - before, sizes)
        totals = self._seen | dict(zip(groups, (before + sizes).tolist(), strict=True))
        self._seen = {group: count for group, count in totals.items() if group[0] == last}
        if self._blind_step is not None:
            counts[keys[:, 0] == self._blind_step] = -1
        return counts
