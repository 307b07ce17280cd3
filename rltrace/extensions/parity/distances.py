"""Distances between paired rows, where values were recorded, and the counts of each module.

Owns reading the values of the rows that differ, and aggregating what ``rltrace.diff.metrics.distances`` measures. Rows
of two dtypes are compared in the wider one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.metrics.distances import FLOATS, measure
from rltrace.extensions.parity.call_range import CallRange, flat_rows
from rltrace.extensions.parity.matching.row_keying import KeyedRows
from rltrace.extensions.parity.matching.row_pairs import LAST, KeyedTable
from rltrace.extensions.parity.matching.token_grids import UNKNOWN
from rltrace.extensions.parity.model import Distance, ModuleResult, TensorResult
from rltrace.extensions.parity.module_pairs import PairedModule, PairedTensor
from rltrace.extensions.parity.token_keys import Keys, Numbers
from rltrace.trace.format import dtypes
from rltrace.trace.format.activation_rows import ModuleCall, Part
from rltrace.trace.read.values import Value

CACHE_BYTES = 256 * 2**20
"""Size of the values of each side that are in memory at a time."""

BATCH = 1 << 16
"""Minimum of elements of one tensor's rows that are measured at a time, where there are as many."""


class RowValues:
    """The values of rows of one side."""

    def __init__(self, call_range: CallRange) -> None:
        self._call_range = call_range
        self._cache: OrderedDict[int, Value | None] = OrderedDict()
        self._size = 0

    def of(self, rows: KeyedRows, at: Numbers, *, raw: bool) -> NDArray[Any] | None:
        """[len(at), elements of a row], as stored or as numbers; None where they were not recorded."""
        value = self._value(rows)
        if value is None:
            return None
        whole = flat_rows(rows.tensor, value.raw if raw else value.numbers)
        return whole[rows.tensor_rows[at]].reshape(len(at), -1)

    def _value(self, rows: KeyedRows) -> Value | None:
        digest = rows.tensor.whole
        if digest not in self._cache:
            value = self._cache[digest] = self._call_range.value(rows.tensor)
            self._size += _size(value)
            while self._size > CACHE_BYTES and len(self._cache) > 1:
                self._size -= _size(self._cache.popitem(last=False)[1])
        self._cache.move_to_end(digest)
        return self._cache[digest]


def _size(value: Value | None) -> int:
    return 0 if value is None else len(value.data)


@dataclass(frozen=True, eq=False)
class Measured:
    """The rows of one tensor that differ, measured."""

    distance: Distance | None
    same: NDArray[np.bool_]
    """[pairs]: rows of two dtypes that hold the same numbers."""
    shares: NDArray[np.float64]
    """[pairs]: the largest difference in a row, divided by the largest number of the rows that were measured with it;
    NaN: not measured."""


def measure_tensors(a: RowValues, b: RowValues, tensors: Sequence[PairedTensor]) -> list[Measured]:
    """The distances of the differing rows of each tensor.

    A trace has values in the order of computation, and a step of a generator computes a few rows of every module. So
    all tensors are measured in one run through A's values, or in a few, each of as many tensors as fit B's cache.
    """
    found = [_Measurement(tensor) for tensor in tensors]
    pieces: list[_Piece] = []
    total = 0
    for one in found:
        own = list(_pieces(one))
        size = sum(tensor_size(rows) for rows in {id(piece.b): piece.b for piece in own}.values())
        if pieces and total + size > CACHE_BYTES:
            _measure(a, b, pieces)
            pieces, total = [], 0
        pieces += own
        total += size
    _measure(a, b, pieces)
    return [one.measured() for one in found]


@dataclass(frozen=True, eq=False)
class _Piece:
    """Rows of one call of each side that differ."""

    of: _Measurement
    call: int
    """Of A."""
    a: KeyedRows
    b: KeyedRows
    pairs: Numbers
    """Indices of the tensor's pairs."""


def _pieces(one: _Measurement) -> Iterator[_Piece]:
    tensor, differing = one.tensor, one.tensor.differing
    sources = tensor.a.source[tensor.pairs.a[differing]], tensor.b.source[tensor.pairs.b[differing]]
    order = np.lexsort((np.arange(len(differing)), *sources))
    changes = [source[order][1:] != source[order][:-1] for source in sources]
    for own in np.split(order, np.flatnonzero(changes[0] | changes[1]) + 1) if len(order) else ():
        (call, rows_a), (_, rows_b) = tensor.a.sources[sources[0][own[0]]], tensor.b.sources[sources[1][own[0]]]
        yield _Piece(one, call.number, rows_a, rows_b, differing[own])


def _measure(a: RowValues, b: RowValues, pieces: list[_Piece]) -> None:
    for piece in sorted(pieces, key=lambda piece: piece.call):
        tensor = piece.of.tensor
        dtype = piece.a.tensor.dtype
        same = dtype == piece.b.tensor.dtype
        x = a.of(piece.a, tensor.a.at[tensor.pairs.a[piece.pairs]], raw=same)
        y = None if x is None else b.of(piece.b, tensor.b.at[tensor.pairs.b[piece.pairs]], raw=same)
        if x is not None and y is not None:
            piece.of.add(x, y, dtype if same else None, piece.pairs)
    for one in {id(piece.of): piece.of for piece in pieces}.values():
        one.join()


class _Measurement:
    """The distance of the differing rows of one tensor, so far."""

    def __init__(self, tensor: PairedTensor) -> None:
        self.tensor = tensor
        self._found = Distance(None, None, None, 0)
        self._same = np.zeros(len(tensor.pairs.ids), bool)
        self._shares = np.full(len(tensor.pairs.ids), np.nan)
        self._queue: list[tuple[NDArray[Any], NDArray[Any], Numbers]] = []
        self._kind: tuple[str, int] = ("", 0)
        self._elements = 0

    def add(self, x: NDArray[Any], y: NDArray[Any], dtype: str | None, pairs: Numbers) -> None:
        """Add rows, [n, elements] of each side: as stored where both have ``dtype``; None: as numbers."""
        if dtype is None:
            wide = np.result_type(x, y)
            x, y, dtype = x.astype(wide), y.astype(wide), str(wide)
            self._same[pairs] = (x == y).all(axis=1)
        kind = dtype, x.shape[1]
        if kind != self._kind or self._elements >= BATCH:
            self.join()
            self._kind = kind
        self._queue.append((x, y, pairs))
        self._elements += x.size

    def join(self) -> None:
        """Measure the queued rows."""
        if not self._queue:
            return
        x, y, pairs = (np.concatenate(parts) for parts in zip(*self._queue, strict=True))
        self._queue, self._elements = [], 0
        before, dtype = self._found, self._kind[0]
        found = measure(dtype, x, y, listed=1)
        worst = before.worst
        if found.worst and _is_larger(found.largest_absolute, before.absolute):
            table = self.tensor.b
            worst = describe_row(table, int(self.tensor.pairs.b[pairs[found.worst[0].index[0]]]))
        share = None
        if dtype in FLOATS:
            numbers = [dtypes.numbers(dtype, side).astype(np.float64) for side in (x, y)]
            largest = largest_magnitude(*numbers)
            apart = np.abs(numbers[0] - numbers[1]).max(axis=1)
            self._shares[pairs] = np.where(np.isfinite(apart), apart / (largest or 1.0), np.inf)
            share = found.largest_absolute / largest if largest and found.largest_absolute is not None else None
        self._found = replace(
            before,
            absolute=larger(found.largest_absolute, before.absolute),
            relative=larger(found.largest_relative, before.relative),
            ulp=larger(found.largest, before.ulp),
            share=larger(share, before.share),
            measured=before.measured + len(pairs),
            worst=worst,
        )

    def measured(self) -> Measured:
        return Measured(self._found if self._found.measured else None, self._same, self._shares)


def tensor_size(rows: KeyedRows) -> int:
    """Bytes of the value of a tensor."""
    return (dtypes.itemsize(rows.tensor.dtype) or 1) * prod(rows.tensor.shape)


def largest_magnitude(*sides: NDArray[np.float64]) -> float:
    """The largest one that is finite."""
    return max(float(np.max(np.abs(side), initial=0.0, where=np.isfinite(side))) for side in sides)


def larger(x: Any, y: Any) -> Any:
    """The larger of two numbers; None is unknown."""
    return y if x is None else x if y is None else max(x, y)


def _is_larger(x: float | None, y: float | None) -> bool:
    return y is None or (x is not None and x > y)


def describe_row(table: KeyedTable, at: int) -> str:
    """A row in words: ``token 12 of sequence 3``, or ``row 5 of call 8`` where it has no sequence."""
    sequence, place = int(table.sequences[at]), int(table.places[at])
    if sequence == UNKNOWN or place == UNKNOWN:
        call, rows = table.sources[int(table.source[at])]
        return f"row {int(rows.tokens[int(table.at[at])])} of call {call.number}"
    return f"token {place} of sequence {sequence}"


# --- results ----------------------------------------------------------------------------------------------------------
#
# The inputs of a row agree where its rows of the module's inputs are equal, and those of all earlier rows of its
# sequence, which attention may read.


@dataclass(frozen=True, eq=False)
class Counted:
    """A paired module, its rows counted."""

    paired: PairedModule
    result: ModuleResult
    diverging: Keys
    """Ids of rows (``Pairs.ids``) whose inputs agree and of which an output differs."""
    agreeing: int
    """Rows with an output whose inputs agree."""
    same: tuple[NDArray[np.bool_], ...]
    """For each tensor, [pairs]: whether the row is the same on both sides."""
    share: float | None
    """The largest of ``Measured.shares`` among the diverging rows of its outputs; None: none was measured."""


def count(modules: Sequence[PairedModule], a: RowValues, b: RowValues) -> list[Counted]:
    """Count the rows of modules, and measure those that differ."""
    measured = iter(measure_tensors(a, b, [tensor for paired in modules for tensor in paired.tensors]))
    return [_count(paired, [next(measured) for _ in paired.tensors]) for paired in modules]


def _count(paired: PairedModule, measured: Sequence[Measured]) -> Counted:
    same = tuple(tensor.equal | one.same for tensor, one in zip(paired.tensors, measured, strict=True))
    rows = _Rows(paired.tensors, same)
    tensors = tuple(
        _tensor(tensor, equal, one.distance) for tensor, equal, one in zip(paired.tensors, same, measured, strict=True)
    )
    agree = (rows.has_input | (not any(tensor.part is Part.INPUT for tensor in paired.tensors))) & ~rows.input_differs
    diverging = rows.output_differs & agree
    result = ModuleResult(
        path=paired.path,
        kind=paired.kind,
        calls=paired.calls,
        rows=int(rows.has_output.sum()),
        equal=int((rows.has_output & ~rows.output_differs).sum()),
        differing=int(rows.output_differs.sum()),
        tensors=tensors,
        uncompared=paired.uncompared,
        distance=_largest_distance([tensor.distance for tensor in tensors if tensor.part == "output"]),
        dtype=next((t.dtype for t in tensors if t.part == "output" and t.dtype.a != t.dtype.b), None),
    )
    agreeing = int((rows.has_output & agree).sum())
    share = None
    for tensor, one in zip(paired.tensors, measured, strict=True):
        if tensor.part is Part.OUTPUT:
            own = one.shares[np.isin(tensor.pairs.ids, rows.ids[diverging])]
            known = own[~np.isnan(own)]
            share = larger(share, float(known.max()) if len(known) else None)
    return Counted(paired, result, rows.ids[diverging], agreeing, same, share)


class _Rows:
    """All paired rows of a module, over its tensors; [n] each."""

    def __init__(self, tensors: Sequence[PairedTensor], same: Sequence[NDArray[np.bool_]]) -> None:
        self.ids: Keys = np.unique(np.concatenate([np.zeros(0, np.uint64), *(t.pairs.ids for t in tensors)]))
        shape = len(self.ids)
        own_differs, self.output_differs, self.has_output, self.has_input = (np.zeros(shape, bool) for _ in range(4))
        sequences, places = np.full(len(self.ids), -1), np.full(len(self.ids), -1)
        for tensor, equal in zip(tensors, same, strict=True):
            at = np.searchsorted(self.ids, tensor.pairs.ids)
            sequences[at], places[at] = tensor.b.sequences[tensor.pairs.b], tensor.b.places[tensor.pairs.b]
            if tensor.part is Part.OUTPUT:
                self.has_output[at] = True
                self.output_differs[at] |= ~equal
            else:
                self.has_input[at] = True
                own_differs[at] |= ~equal
        self.input_differs: NDArray[np.bool_] = own_differs | _follows_difference(own_differs, sequences, places)


def _follows_difference(differs: NDArray[np.bool_], sequences: Numbers, places: Numbers) -> NDArray[np.bool_]:
    """Which rows come after one that differs, in their sequences."""
    if not len(differs):
        return differs
    first = np.full(int(sequences.max()) + 2, LAST)
    known = differs & (sequences >= 0)
    np.minimum.at(first, sequences[known], places[known])
    after: NDArray[np.bool_] = (sequences >= 0) & (places > first[sequences])
    return after


def _tensor(tensor: PairedTensor, equal: NDArray[np.bool_], distance: Distance | None) -> TensorResult:
    rows, same = len(equal), int(equal.sum())
    return TensorResult(tensor.part.name.lower(), tensor.name, tensor.dtype, rows, same, rows - same, distance)


def _largest_distance(distances: Sequence[Distance | None]) -> Distance | None:
    known = [one for one in distances if one is not None]
    if not known:
        return None
    worst = max(known, key=lambda one: one.absolute or 0.0)
    names = ("absolute", "relative", "ulp", "share")
    largest = {name: reduce(larger, (getattr(one, name) for one in known)) for name in names}
    return replace(worst, **largest, measured=max(one.measured for one in known))


def calls_of(tensor: PairedTensor, at: int) -> tuple[ModuleCall, ModuleCall]:
    """The calls of A and B that computed pair ``at`` of a tensor."""
    own_a, own_b = int(tensor.pairs.a[at]), int(tensor.pairs.b[at])
    return tensor.a.sources[int(tensor.a.source[own_a])][0], tensor.b.sources[int(tensor.b.source[own_b])][0]
