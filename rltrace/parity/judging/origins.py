"""The modules whose inputs agree and whose outputs do not, the first one first.

Owns which of them count: a module that only hands on what a module in it made does not; one whose own work is what
parts does, though it has children (attention between its projections). Where rows differ and no module's outputs begin
it, the work of the module around the first inputs that differ did, or what the program handed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rltrace.diff.model import Pair
from rltrace.parity.judging.firstop import FirstOp, first_op
from rltrace.parity.measuring import row_words
from rltrace.parity.model import ModuleResult, Origin, Reason
from rltrace.parity.modules import PairedTensor
from rltrace.parity.results import Counted, calls_of
from rltrace.parity.rows.keying import Keying
from rltrace.parity.stretch import Stretch
from rltrace.row_keys import Keys, Numbers
from rltrace.trace.tensor_rows import Part

EPSILONS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Between 1 and the next number."""
ORDERS = 1000.0
"""Of these, how far the results of another order of the same sums may lie apart, by the largest number of a row …"""
MOST_OF_A_ROW = 0.1
"""… and at most, in dtypes of few digits."""


def origins_of(modules: Sequence[Counted], a: Keying, b: Keying, ranks: Numbers) -> list[Origin]:
    """``modules`` in the order in which they ended."""
    candidates = {counted.result.path.a: counted for counted in modules if len(counted.parting)}
    below = _below(a.stretch)
    found = []
    for path, counted in candidates.items():
        inside = below.get(str(path), frozenset())
        if not any(other in inside for other in candidates):
            found.append(_origin(counted, a, b, ranks, own=bool(inside)))
    return found or _before_a_module(modules, a, b, ranks)


def _below(stretch: Stretch) -> Mapping[str, frozenset[str]]:
    """Of each module, the modules that are called within its calls."""
    found: dict[str, set[str]] = {}
    for call in stretch.calls:
        for above in stretch.around(call):
            if above.module != call.module:
                found.setdefault(above.module, set()).add(call.module)
    return {path: frozenset(inside) for path, inside in found.items()}


def _origin(counted: Counted, a: Keying, b: Keying, ranks: Numbers, *, own: bool) -> Origin:
    tensor, at = _first_parting(counted)
    call = calls_of(tensor, at)
    parting = tensor.b.keys[tensor.pairs.b[np.isin(tensor.pairs.ids, counted.parting)]]
    first = _or_beside(_first_op(a, b, call, ranks, parting), counted.result)
    return Origin(
        path=counted.result.path,
        rows=len(counted.parting),
        of=counted.agreeing,
        call=call,
        row=row_words(tensor.b, int(tensor.pairs.b[at])),
        own=own,
        op=first.op,
        several=first.several,
        reason=first.reason,
        because=first.because,
    )


def _or_beside(first: FirstOp, result: ModuleResult) -> FirstOp:
    """Another shape explains another order of sums, and no more than that."""
    share = None if result.distance is None else result.distance.share
    dtype = result.outputs[0].dtype.b if result.outputs else None
    if first.reason is not Reason.SHAPE or result.inputs_differing or share is None or dtype not in EPSILONS:
        return first
    if share <= min(ORDERS * EPSILONS[dtype], MOST_OF_A_ROW):
        return first
    because = (
        f"{first.because}. {share:.0%} of the largest number is more than the order of sums explains: what else it "
        "computes with (a mask, a cache, other rows of the batch) probably differs"
    )
    return replace(first, reason=Reason.BESIDE, because=because)


def _first_op(a: Keying, b: Keying, call: Pair[int], ranks: Numbers, parting: Keys) -> FirstOp:
    assert call.a is not None and call.b is not None
    return first_op(a, a.stretch.by_number[call.a], b, b.stretch.by_number[call.b], ranks, parting)


def _first_parting(counted: Counted) -> tuple[PairedTensor, int]:
    """Of the rows that part, the first of B; its tensor, and its pair there."""
    places = []
    for tensor, equal in zip(counted.paired.tensors, counted.same, strict=True):
        at = np.flatnonzero(np.isin(tensor.pairs.ids, counted.parting) & ~equal)
        if tensor.part is Part.OUTPUT and len(at):
            places.append((tensor, int(at[0])))
    return places[0]  # a row parts because an output of it differs


# --- rows that differ before any module gives them --------------------------------------------------------------------


def _before_a_module(modules: Sequence[Counted], a: Keying, b: Keying, ranks: Numbers) -> list[Origin]:
    """The first inputs that differ, where no module's outputs do before them."""
    by_path = {str(counted.result.path.a): counted for counted in modules}
    for path in dict.fromkeys(call.module for call in a.stretch.calls):
        counted = by_path.get(path)
        if counted is None:
            continue
        for tensor, equal in zip(counted.paired.tensors, counted.same, strict=True):
            differing = np.flatnonzero(~equal)
            if tensor.part is Part.INPUT and len(differing):
                return [_before(counted, tensor, int(differing[0]), len(differing), a, b, ranks)]
    return []


def _before(counted: Counted, tensor: PairedTensor, at: int, rows: int, a: Keying, b: Keying, ranks: Numbers) -> Origin:
    call = calls_of(tensor, at)
    assert call.a is not None and call.b is not None
    around = [keying.stretch.parent(keying.stretch.by_number[number]) for keying, number in ((a, call.a), (b, call.b))]
    name, path = tensor.name.b or "its input", counted.result.path
    row = row_words(tensor.b, int(tensor.pairs.b[at]))
    if around[0] is None or around[1] is None:
        because = f"{name} of {path.b}, which the program passes in, differs between the two sides"
        return Origin(path, rows, len(tensor.pairs.ids), call, row, False, Pair(None, None), (), Reason.INPUTS, because)
    first = first_op(a, around[0], b, around[1], ranks, tensor.b.keys[tensor.pairs.b[at : at + 1]])
    because = f"{name}, which it passes to {path.b}, already differs: {first.because}"
    return Origin(
        path=Pair(around[0].module, around[1].module),
        rows=rows,
        of=len(tensor.pairs.ids),
        call=Pair(around[0].number, around[1].number),
        row=row,
        own=True,
        op=first.op,
        several=first.several,
        reason=first.reason,
        because=because,
    )
