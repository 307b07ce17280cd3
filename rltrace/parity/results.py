"""What the paired rows of the modules come to: counts, distances, and which rows part though their inputs agree.

Owns the counting, and the rule when inputs of a row agree: its own rows of the module's inputs are equal, and so are
those of all rows before it in its sequence, as attention may look at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.model import Pair
from rltrace.parity.measuring import Measured, Rows, larger, measure_tensors
from rltrace.parity.model import Distance, ModuleResult, TensorResult
from rltrace.parity.modules import PairedModule, PairedTensor
from rltrace.parity.rows.pairing import LAST
from rltrace.row_keys import Keys, Numbers
from rltrace.trace.tensor_rows import Part


@dataclass(frozen=True, eq=False)
class Counted:
    """A paired module, its rows counted."""

    paired: PairedModule
    result: ModuleResult
    parting: Keys
    """Ids of rows (``Pairs.ids``) whose inputs agree and of which an output differs."""
    agreeing: int
    """Rows with an output whose inputs agree."""
    same: tuple[NDArray[np.bool_], ...]
    """For each tensor, [pairs]: whether the row is the same on both sides."""


def count(modules: Sequence[PairedModule], a: Rows, b: Rows) -> list[Counted]:
    """Count the rows of modules, and measure those that differ."""
    measured = iter(measure_tensors(a, b, [tensor for paired in modules for tensor in paired.tensors]))
    return [_count(paired, [next(measured) for _ in paired.tensors]) for paired in modules]


def _count(paired: PairedModule, measured: Sequence[Measured]) -> Counted:
    same = tuple(tensor.equal | one.same for tensor, one in zip(paired.tensors, measured, strict=True))
    rows = _Rows(paired.tensors, same)
    tensors = tuple(
        _tensor(tensor, equal, one.distance) for tensor, equal, one in zip(paired.tensors, same, measured, strict=True)
    )
    outputs = [tensor for tensor in paired.tensors if tensor.part is Part.OUTPUT]
    parting = rows.output_differs & ~rows.input_differs
    result = ModuleResult(
        path=paired.path,
        kind=paired.kind,
        calls=paired.calls,
        rows=int(rows.has_output.sum()),
        equal=int((rows.has_output & ~rows.output_differs).sum()),
        differing=int(rows.output_differs.sum()),
        inputs_differing=int((rows.has_output & rows.input_differs).sum()),
        missing_a=max((len(tensor.pairs.only_b) for tensor in outputs), default=0),
        missing_b=max((len(tensor.pairs.only_a) for tensor in outputs), default=0),
        tensors=tensors,
        apart=paired.apart,
        distance=_furthest([tensor.distance for tensor in tensors if tensor.part == "output"]),
        dtype=next((t.dtype for t in tensors if t.part == "output" and t.dtype.a != t.dtype.b), None),
    )
    agreeing = int((rows.has_output & ~rows.input_differs).sum())
    return Counted(paired, result, rows.ids[parting], agreeing, same)


class _Rows:
    """All rows of a module that were paired, over its tensors; [n] each."""

    def __init__(self, tensors: Sequence[PairedTensor], same: Sequence[NDArray[np.bool_]]) -> None:
        self.ids: Keys = np.unique(np.concatenate([np.zeros(0, np.uint64), *(t.pairs.ids for t in tensors)]))
        own_differs, self.output_differs, self.has_output = (np.zeros(len(self.ids), bool) for _ in range(3))
        sequences, places = np.full(len(self.ids), -1), np.full(len(self.ids), -1)
        for tensor, equal in zip(tensors, same, strict=True):
            at = np.searchsorted(self.ids, tensor.pairs.ids)
            sequences[at], places[at] = tensor.b.sequences[tensor.pairs.b], tensor.b.places[tensor.pairs.b]
            if tensor.part is Part.OUTPUT:
                self.has_output[at] = True
                self.output_differs[at] |= ~equal
            else:
                own_differs[at] |= ~equal
        self.input_differs: NDArray[np.bool_] = own_differs | _after_a_difference(own_differs, sequences, places)


def _after_a_difference(differs: NDArray[np.bool_], sequences: Numbers, places: Numbers) -> NDArray[np.bool_]:
    """Which rows come after one that differs, in their sequences."""
    if not len(differs):
        return differs
    first = np.full(int(sequences.max()) + 2, LAST)
    known = differs & (sequences >= 0)
    np.minimum.at(first, sequences[known], places[known])
    after: NDArray[np.bool_] = (sequences >= 0) & (places > first[sequences])
    return after


def _tensor(tensor: PairedTensor, equal: NDArray[np.bool_], distance: Distance | None) -> TensorResult:
    rows, alike = len(equal), int(equal.sum())
    return TensorResult(
        part=tensor.part.name.lower(),
        name=tensor.name,
        dtype=tensor.dtype,
        rows=rows,
        equal=alike,
        differing=rows - alike,
        distance=distance,
    )


def _furthest(distances: Sequence[Distance | None]) -> Distance | None:
    known = [one for one in distances if one is not None]
    if not known:
        return None
    worst = max(known, key=lambda one: one.absolute or 0.0)
    names = ("absolute", "relative", "ulp", "share")
    largest = {name: reduce(larger, (getattr(one, name) for one in known)) for name in names}
    return replace(worst, **largest, measured=max(one.measured for one in known))


def calls_of(tensor: PairedTensor, at: int) -> Pair[int]:
    """Numbers of the calls that computed pair ``at`` of a tensor."""
    own_a, own_b = int(tensor.pairs.a[at]), int(tensor.pairs.b[at])
    call_a = tensor.a.sources[int(tensor.a.source[own_a])][0]
    call_b = tensor.b.sources[int(tensor.b.source[own_b])][0]
    return Pair(call_a.number, call_b.number)
