"""Masks of the rows that a selector matches, computed a column at a time.

Owns which column holds each fact of a selector. A name is matched once per table entry, never per row.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from rltrace.selectors import Condition, Key, Selector
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind, Phase, event_name
from rltrace.trace.read.names import Words

Mask = NDArray[np.bool_]


class RowMask:
    """A selector compiled for one stream; takes the stream's rows in order, a piece at a time."""

    def __init__(self, selector: Selector, stream: str, words: Words) -> None:
        self._clauses = selector.simplify({Key.STREAM: stream}).clauses
        self._lookups: dict[Condition, Mask] = {}
        self._events: dict[Condition, Mask] = {}
        self._counts = Occurrences() if Key.NTH in selector.keys else None
        self._facts: dict[Key, tuple[Column, int, Callable[[int], object]]] = {
            Key.OP: (Column.OP, words.size("ops"), words.op),
            Key.MODULE: (Column.MODULE, words.size("modules"), words.module),
            Key.SITE: (Column.SITE, words.size("sites"), words.calls),
            Key.KERNEL: (Column.KERNEL, words.size("kernels"), words.kernels),
            Key.PHASE: (Column.PHASE, len(Phase), words.phase),
            Key.ARRAY: (Column.SCALARS, words.size("scalars"), words.written),
        }
        """For each key whose fact is a name: the column of ids, their number, and the fact by id."""

    @property
    def is_possible(self) -> bool:
        """False if no row of the stream can match."""
        return bool(self._clauses)

    def skip(self) -> None:
        """Note that rows could not be read."""
        if self._counts:
            self._counts.skip()

    def compute(self, rows: Rows) -> Mask:
        """Shape [n]: which rows match."""
        nth = self._counts.count(rows) if self._counts else None
        found = np.zeros(len(rows), bool)
        for clause in self._clauses:
            matched = np.ones(len(rows), bool)
            for condition in clause:
                matched &= self._matches(condition, rows, nth)
            found |= matched
        return found

    def op_indices(self, rows: Rows) -> NDArray[np.int64]:
        """Indices of the ops that match, ascending."""
        return np.flatnonzero(self.compute(rows) & (rows.column(Column.KIND) == Kind.OP))

    def _matches(self, condition: Condition, rows: Rows, nth: NDArray[np.int64] | None) -> Mask:
        if condition.key in (Key.STEP, Key.NTH):
            numbers: Mask = condition.holds(rows.column(Column.STEP) if condition.key is Key.STEP else nth)
            return numbers
        column, size, fact = self._facts[condition.key]
        if condition not in self._lookups:
            self._lookups[condition] = np.array([*(condition.holds(fact(i)) for i in range(size)), False], bool)
        matched = self._lookups[condition][np.minimum(rows.column(column), size)]
        if column is not Column.OP:
            return matched
        kinds = rows.column(Column.KIND)
        return np.where(kinds == Kind.OP, matched, self._event_kinds(condition)[np.minimum(kinds, len(Kind))])

    def _event_kinds(self, condition: Condition) -> Mask:
        """Which kinds of event match, as in ``op=environment-step``; ``op=*`` matches operators only."""
        if condition not in self._events:
            events = [kind > Kind.OP and condition.holds(event_name(kind)) for kind in range(len(Kind))]
            self._events[condition] = np.array([*events, False], bool) & (not condition.holds(""))
        return self._events[condition]


class Occurrences:
    """Counts the occurrences of an op under its call site within a step; -1 where a hole makes the count unknown."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, ...], int] = {}
        """Occurrences so far in the last step, by step, site, op and kind of row."""
        self._after_hole = False
        self._uncounted_step: int | None = None

    def skip(self) -> None:
        """Note that rows could not be read."""
        self._seen.clear()
        self._after_hole = True

    def count(self, rows: Rows) -> NDArray[np.int64]:
        """Shape [n]: the occurrence of each row, from 0."""
        keys = rows.columns[:, [Column.STEP, Column.SITE, Column.OP, Column.KIND]]
        if not len(keys):
            return np.zeros(0, np.int64)
        first, last = int(keys[0, 0]), int(keys[-1, 0])
        if self._after_hole:
            self._after_hole, self._uncounted_step = False, first
        order = np.lexsort(keys.T)
        begins = np.flatnonzero(np.append(True, (np.diff(keys[order].astype(np.int64), axis=0) != 0).any(axis=1)))
        groups = list(map(tuple, keys[order[begins]].tolist()))
        sizes = np.diff(np.append(begins, len(keys)))
        before = np.array([self._seen.get(group, 0) for group in groups])
        counts = np.empty(len(keys), np.int64)
        counts[order] = np.arange(len(keys)) - np.repeat(begins - before, sizes)
        totals = self._seen | dict(zip(groups, (before + sizes).tolist(), strict=True))
        self._seen = {group: count for group, count in totals.items() if group[0] == last}
        if self._uncounted_step is not None:
            counts[keys[:, 0] == self._uncounted_step] = -1
        return counts
