"""Within a module that parts: the first op on each side whose rows differ.

Owns the alignment of the two short sequences of ops, by their names, and what may be said where the rows of ops were
not kept, or cannot be held against each other: then it is one of several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rltrace.diff.aligning.sequences import Budget, BudgetExceededError, longest_common
from rltrace.diff.model import Pair
from rltrace.errors import HoleError
from rltrace.identity import portable_key
from rltrace.parity.judging.because import judged
from rltrace.parity.judging.ops import OwnOp, computing, own_ops
from rltrace.parity.model import ParityOp, Reason
from rltrace.parity.rows.keying import Keyed, KeyedRows, Keying
from rltrace.parity.rows.pairing import pair, table_of
from rltrace.row_keys import Keys, Numbers
from rltrace.trace.tensor_rows import ModuleCall, Part

ALIGN_BUDGET = 4_000_000
"""Steps that aligning two modules' ops may take."""


@dataclass(frozen=True)
class FirstOp:
    """What became of the search within a module."""

    op: Pair[ParityOp]
    several: tuple[Pair[ParityOp], ...]
    reason: Reason
    because: str


@dataclass(frozen=True, eq=False)
class _Item:
    """An op that both sides ran, or a run of ops between two such that the sides have otherwise."""

    a: tuple[OwnOp, ...]
    b: tuple[OwnOp, ...]
    both: bool
    differs: bool | None = None
    """Whether a row that both gave differs; None: it is not known."""


def first_op(a: Keying, call_a: ModuleCall, b: Keying, call_b: ModuleCall, ranks: Numbers, parting: Keys) -> FirstOp:
    """The first of the module's own ops whose rows differ, in a call of A and one of B that computed the same row.

    ``parting``: keys of the rows that part there though their inputs agree; an op's other rows may differ anyhow.
    """
    try:
        every = own_ops(a.stretch, call_a), own_ops(b.stretch, call_b)
    except HoleError as error:
        return _unknown(f"its ops cannot be read: {error}")
    if not any(every):
        return _unknown("none of its own ops was recorded")
    items = list(_aligned(*map(computing, every)))
    for item in items:
        if item.both and _other_weights(item.a[0], item.b[0]):
            name = item.a[0].shown
            return _found(item, Reason.WEIGHTS, f"{name} uses different weights on the two sides")
    items = [_compared(item, a, call_a, b, call_b, ranks, parting) for item in items]
    return _first_of(_suspects(items), any(item.differs is not None for item in items))


def _unknown(because: str) -> FirstOp:
    return FirstOp(Pair(None, None), (), Reason.UNKNOWN, because)


def _found(item: _Item, reason: Reason, because: str) -> FirstOp:
    return FirstOp(_told(item), (), reason, because)


def _told(item: _Item) -> Pair[ParityOp]:
    return Pair(item.a[0].told if item.a else None, item.b[0].told if item.b else None)


def _suspects(items: Sequence[_Item]) -> list[_Item]:
    """Those after the last one before the first difference whose rows are equal, that difference included."""
    end = next((k for k, item in enumerate(items) if item.differs), len(items) - 1)
    start = max((k + 1 for k in range(end) if items[k].differs is False), default=0)
    suspects = list(items[start : end + 1])
    return suspects if any(item.differs is not False for item in suspects) else list(items)


def _first_of(suspects: Sequence[_Item], rows_known: bool) -> FirstOp:
    if len(suspects) == 1 and suspects[0].both:
        return _found(suspects[0], *judged(suspects[0].a[0], suspects[0].b[0]))
    reasons = [judged(item.a[0], item.b[0]) for item in suspects if item.both]
    other = next((item for item in suspects if not item.both and not _only_casts(item)), None)
    cast = next((one for one in reasons if one[0] is Reason.DTYPE), None)
    if other is None and cast is not None:
        at = [item for item in suspects if item.both][reasons.index(cast)]
        return _found(at, *cast)
    if other is not None or not reasons:
        other = other or suspects[0]
        because = f"{_chain(other.a)} in A, {_chain(other.b)} in B"
        drawing = next((op.shown for op in (*other.a, *other.b) if op.draws), None)
        if drawing is not None:
            return _found(other, Reason.RNG, f"{because}: {drawing} draws random numbers")
        return _found(other, Reason.OPERATOR, because)
    suspects = [item for item in suspects if item.both]
    order = (Reason.RNG, Reason.DTYPE, Reason.ARGUMENTS, Reason.KERNEL, Reason.SHAPE)
    chosen = next((one for wanted in order for one in reasons if one[0] is wanted), (Reason.UNKNOWN, ""))
    names = ", ".join(dict.fromkeys(item.a[0].shown for item in suspects))
    why = "their rows have other lengths" if rows_known else "record rows of ops to find which"
    because = f"one of {len(suspects)} ops ({names}; {why}){': ' if chosen[1] else ''}{chosen[1]}"
    return FirstOp(Pair(None, None), tuple(map(_told, suspects)), chosen[0], because)


def _only_casts(item: _Item) -> bool:
    """Ops that one side alone has, and that only make another dtype of what they are given."""
    return all(op.name in ("_to_copy", "to") for op in (*item.a, *item.b))


def _chain(ops: Sequence[OwnOp], most: int = 4) -> str:
    names = [op.shown for op in ops]
    return ", ".join(names[:most]) + (", …" if len(names) > most else "") or "nothing"


def _aligned(ops_a: Sequence[OwnOp], ops_b: Sequence[OwnOp]) -> Iterator[_Item]:
    try:
        in_a, in_b = longest_common(_names(ops_a), _names(ops_b), Budget(ALIGN_BUDGET))
    except BudgetExceededError:
        yield _Item(tuple(ops_a), tuple(ops_b), both=False)
        return
    at_a = at_b = 0
    for i, j in [*zip(in_a.tolist(), in_b.tolist(), strict=True), (len(ops_a), len(ops_b))]:
        if i > at_a or j > at_b:
            yield _Item(tuple(ops_a[at_a:i]), tuple(ops_b[at_b:j]), both=False)
        if i < len(ops_a):
            yield _Item((ops_a[i],), (ops_b[j],), both=True)
        at_a, at_b = i + 1, j + 1


def _names(ops: Sequence[OwnOp]) -> Keys:
    return np.array([portable_key("op", op.told.op) for op in ops], np.uint64)


def _other_weights(own: OwnOp, other: OwnOp) -> bool:
    """Whether a number that both were given before the forward pass, in the same place and shape, is another."""
    return any(
        x is not None and y is not None and x[0] == y[0] and x != y and own.inputs[k] == other.inputs[k]
        for k, (x, y) in enumerate(zip(own.weights, other.weights, strict=False))
    )


# --- rows of ops ------------------------------------------------------------------------------------------------------


def _compared(
    item: _Item, a: Keying, call_a: ModuleCall, b: Keying, call_b: ModuleCall, ranks: Numbers, parting: Keys
) -> _Item:
    if not item.both or item.a[0].rows is None or item.b[0].rows is None:
        return item
    given = a.of_op(call_a, item.a[0].rows), b.of_op(call_b, item.b[0].rows)
    return _Item(item.a, item.b, True, _differs(_outputs(given[0]), _outputs(given[1]), call_a, call_b, ranks, parting))


def _outputs(tensors: Sequence[Keyed]) -> list[Keyed]:
    return [one for one in tensors if one.tensor.part is Part.OUTPUT]


def _differs(
    of_a: Sequence[Keyed],
    of_b: Sequence[Keyed],
    call_a: ModuleCall,
    call_b: ModuleCall,
    ranks: Numbers,
    parting: Keys,
) -> bool | None:
    compared = False
    for rows_a, rows_b in zip(of_a, of_b, strict=False):
        if not (isinstance(rows_a, KeyedRows) and isinstance(rows_b, KeyedRows)) or rows_a.width != rows_b.width:
            return None
        table_a, table_b = table_of([(call_a, rows_a)], ranks), table_of([(call_b, rows_b)])
        found = pair(table_a, table_b)
        own = np.isin(table_b.keys[found.b], parting)
        compared = compared or bool(own.any())
        if np.any(own & (table_a.digests[found.a] != table_b.digests[found.b])):
            return True
    return False if compared else None
