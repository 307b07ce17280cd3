"""How far rows of two sides lie apart, where their values were kept.

Owns fetching the values of the rows that differ and joining what ``rltrace.diff.numbers.distances`` measures of them.
Rows of two dtypes are compared in the wider of the two.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.numbers.bits import FLOATS
from rltrace.diff.numbers.distances import measure
from rltrace.parity.grids import UNKNOWN
from rltrace.parity.keying import KeyedRows
from rltrace.parity.model import Distance
from rltrace.parity.modules import PairedTensor
from rltrace.parity.pairing import Table
from rltrace.parity.stretch import Stretch, flat_rows
from rltrace.row_keys import Numbers
from rltrace.trace import dtypes
from rltrace.trace.values import Value

HELD = 6
"""Whole tensors of each side that are held in memory at a time."""


class Rows:
    """The values of rows of one side."""

    def __init__(self, stretch: Stretch) -> None:
        self._stretch = stretch
        self._held: OrderedDict[int, Value | None] = OrderedDict()

    def of(self, rows: KeyedRows, at: Numbers, *, raw: bool) -> NDArray[Any] | None:
        """[len(at), elements of a row], as stored or as numbers; None where they were not kept."""
        value = self._value(rows)
        if value is None:
            return None
        whole = flat_rows(rows.tensor, value.raw if raw else value.numbers)
        return whole[rows.parts[at]].reshape(len(at), -1)

    def _value(self, rows: KeyedRows) -> Value | None:
        digest = rows.tensor.whole
        if digest not in self._held:
            self._held[digest] = self._stretch.value(rows.tensor)
            if len(self._held) > HELD:
                self._held.popitem(last=False)
        self._held.move_to_end(digest)
        return self._held[digest]


@dataclass(frozen=True, eq=False)
class Measured:
    """The rows of one tensor that differ, measured."""

    distance: Distance | None
    same: NDArray[np.bool_]
    """[pairs]: rows of two dtypes that hold the same numbers."""


def measure_tensor(a: Rows, b: Rows, tensor: PairedTensor) -> Measured:
    """How far its differing rows lie apart."""
    found = Distance(None, None, None, 0)
    same = np.zeros(len(tensor.pairs.ids), bool)
    differing = tensor.differing
    at_a, at_b = tensor.pairs.a[differing], tensor.pairs.b[differing]
    groups = np.stack([tensor.b.source[at_b], tensor.a.source[at_a]], axis=1)
    for group in np.unique(groups, axis=0).tolist():
        own = np.flatnonzero((groups == group).all(axis=1))
        rows_a, rows_b = tensor.a.sources[group[1]][1], tensor.b.sources[group[0]][1]
        found, equal = _joined(
            found, a, rows_a, tensor.a.at[at_a[own]], b, rows_b, tensor.b.at[at_b[own]], tensor.b, at_b[own]
        )
        same[differing[own]] = equal
    return Measured(found if found.measured else None, same)


def _joined(
    before: Distance,
    a: Rows,
    rows_a: KeyedRows,
    at_a: Numbers,
    b: Rows,
    rows_b: KeyedRows,
    at_b: Numbers,
    table: Table,
    places: Numbers,
) -> tuple[Distance, NDArray[np.bool_]]:
    """``before`` and the rows of one call of each side; which of those hold the same numbers."""
    dtypes = rows_a.tensor.dtype, rows_b.tensor.dtype
    alike = dtypes[0] == dtypes[1]
    x, y = a.of(rows_a, at_a, raw=alike), b.of(rows_b, at_b, raw=alike)
    equal = np.zeros(len(at_a), bool)
    if x is None or y is None:
        return before, equal
    dtype = dtypes[0]
    if not alike:
        wide = np.result_type(x, y)
        x, y, dtype = x.astype(wide), y.astype(wide), str(wide)
        equal = np.array((x == y).all(axis=1), bool)
    found = measure(dtype, x, y, listed=1)
    share = _share(found.largest_absolute, dtype, x, y)
    now = Distance(found.largest_absolute, found.largest_relative, found.largest, before.measured + len(at_a), share)
    if found.worst and _is_larger(now.absolute, before.absolute):
        now = replace(now, worst=row_words(table, int(places[found.worst[0].index[0]])))
    elif before.worst:
        now = replace(now, worst=before.worst)
    return (
        replace(
            now,
            absolute=larger(now.absolute, before.absolute),
            relative=larger(now.relative, before.relative),
            ulp=larger(now.ulp, before.ulp),
            share=larger(now.share, before.share),
        ),
        equal,
    )


def _share(absolute: float | None, dtype: str, *sides: NDArray[Any]) -> float | None:
    """A distance by the largest finite number of the rows that it was found in."""
    if absolute is None or dtype not in FLOATS:
        return None
    numbers = [np.abs(dtypes.numbers(dtype, side)).astype(np.float64) for side in sides]
    largest = max(float(np.max(side, initial=0.0, where=np.isfinite(side))) for side in numbers)
    return absolute / largest if largest > 0 else None


def larger(x: Any, y: Any) -> Any:
    """Of two numbers of which either may be unknown."""
    return y if x is None else x if y is None else max(x, y)


def _is_larger(x: float | None, y: float | None) -> bool:
    return y is None or (x is not None and x > y)


def row_words(table: Table, at: int) -> str:
    """Which row of B it is: ``token 12 of sequence 3``; ``row 5`` where it has no place in a sequence."""
    sequence, place = int(table.sequences[at]), int(table.places[at])
    if sequence == UNKNOWN or place == UNKNOWN:
        call, rows = table.sources[int(table.source[at])]
        return f"row {int(rows.rows[int(table.at[at])])} of call {call.number}"
    return f"token {place} of sequence {sequence}"
