"""The ops of one module's own, in one call of each side, and which of them is the first that parts.

Owns the alignment of two short sequences of ops that claim to compute the same, and the sentence about because of what
their results differ. Ops of modules that the call calls are theirs, not its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from rltrace.diff.judging.kernels import kernel_differences, kernel_text
from rltrace.diff.model import Pair
from rltrace.diff.view import StreamView
from rltrace.errors import HoleError
from rltrace.parity.keying import Keyed, KeyedRows, Keying
from rltrace.parity.model import ParityOp, Reason
from rltrace.parity.pairing import pair, table_of
from rltrace.parity.stretch import Stretch, inputs_of
from rltrace.row_keys import Numbers
from rltrace.trace.evidence import Evidence
from rltrace.trace.rows import Rows
from rltrace.trace.schema import Column, Kind, RowFlag
from rltrace.trace.tensor_rows import ModuleCall, OpRows, Part

Layout = tuple[str, tuple[int, ...]]
"""dtype and shape."""


@dataclass(frozen=True, eq=False)
class OwnOp:
    """One op of a module's own."""

    told: ParityOp
    inputs: tuple[Layout, ...]
    weights: tuple[int | None, ...]
    """For each input that was there before the forward pass, its digest where it is known; else None."""
    evidence: Evidence
    rows: OpRows | None

    @property
    def name(self) -> str:
        return short_name(self.told.op)


@dataclass(frozen=True)
class FirstOp:
    """What became of the search within a module."""

    op: Pair[ParityOp]
    several: tuple[Pair[ParityOp], ...]
    reason: Reason
    because: str


def short_name(op: str) -> str:
    """``addmm`` of ``aten.addmm.default``; others keep their namespace: ``mylib.attention``."""
    parts = op.split(".")
    if len(parts) < 3:
        return op
    return parts[1] if parts[0] == "aten" else ".".join(parts[:2])


def own_ops(stretch: Stretch, call: ModuleCall) -> list[OwnOp]:
    """Ops of a call that are the module's own and compute something, in order. Raises HoleError."""
    if stretch.recorded is None:
        return []
    view = StreamView(stretch.recorded.process, stretch.recorded.stream)
    rows = view.read(call.first_row, min(call.end_row, view.rows)).rows
    outer = (call, *stretch.around(call))[-1]
    found = []
    for i in range(len(rows)):
        passes_on = rows.has(i, int(RowFlag.VIEW)) or rows.has(i, int(RowFlag.ALLOCATION))
        if rows.columns[i, Column.KIND] == Kind.OP and not passes_on and view.module(rows, i) == call.module:
            found.append(_own_op(stretch, view, rows, i, call, outer))
    return found


def _own_op(stretch: Stretch, view: StreamView, rows: Rows, i: int, call: ModuleCall, outer: ModuleCall) -> OwnOp:
    row = rows.first + i
    layouts = [_layout(view, number) for number in _numbers(view, int(rows.columns[i, Column.STRUCTURE]))]
    given = {_flattened(tensor.shape) for tensor in inputs_of(call)}
    weights: list[int | None] = []
    for (dtype, shape), link in zip(layouts, rows.inputs(i), strict=False):
        before = link.distance <= 0 or row - link.distance < outer.first_row
        is_weight = before and "float" in dtype and _flattened(shape) not in given
        weights.append(_digest(view, row, link.distance, link.slot, link.digest) if is_weight else None)
    stack = view.stack(rows, i)
    evidence = view.kernel(rows, i)
    told = ParityOp(
        row=row,
        op=view.op(rows, i),
        layouts=tuple(f"{dtype}[{','.join(map(str, shape))}]" for dtype, shape in layouts),
        kernel=kernel_text(evidence) or "",
        site=stack[0] if stack else None,
    )
    return OwnOp(told, tuple(layouts), tuple(weights), evidence, stretch.ops.get(row))


def _numbers(view: StreamView, structure: int) -> Sequence[int]:
    payload = view.payload("structures", structure)
    return payload if isinstance(payload, list) else []


def _layout(view: StreamView, number: int) -> Layout:
    payload = view.payload("layouts", number)
    if not isinstance(payload, list) or len(payload) < 2:
        return "?", ()
    return str(payload[0]), tuple(payload[1])


def _flattened(shape: Sequence[int]) -> tuple[int, int]:
    return (prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def _digest(view: StreamView, row: int, distance: int, slot: int | None, read: int | None) -> int | None:
    """Of the whole memory that an input looks at: read here, or as the op that wrote it gave it."""
    if read is not None or distance <= 0 or slot is None:
        return read
    try:
        rows, i = view.row(row - distance)
    except HoleError:
        return None
    outputs = rows.outputs(i)
    return outputs[slot] if slot < len(outputs) else None


# --- the first op that parts ------------------------------------------------------------------------------------------


def first_op(a: Keying, call_a: ModuleCall, b: Keying, call_b: ModuleCall, ranks: Numbers) -> FirstOp:
    """The first of the module's own ops whose rows differ, in a call of A and one of B that computed the same row."""
    try:
        ops_a, ops_b = own_ops(a.stretch, call_a), own_ops(b.stretch, call_b)
    except HoleError as error:
        return _unknown(f"its ops cannot be read: {error}")
    if not ops_a or not ops_b:
        which = " and ".join(side for side, ops in (("A", ops_a), ("B", ops_b)) if not ops)
        return _unknown(f"no op of its own was recorded in {which}")
    pairs = list(zip(ops_a, ops_b, strict=False))
    for own, other in pairs:
        if _other_weights(own, other):
            return _found(own, other, Reason.WEIGHTS, f"{own.name} works with other weights: the two sides' differ")
    same = next((k for k, (own, other) in enumerate(pairs) if own.name != other.name), len(pairs))
    known = [_rows_differ(a, call_a, own, b, call_b, other, ranks) for own, other in pairs[:same]]
    at = next((k for k, differs in enumerate(known) if differs), None)
    if at is not None and all(differs is False for differs in known[:at]):
        return judged(*pairs[at])
    if same < len(pairs) or len(ops_a) != len(ops_b):
        return _other_ops(ops_a, ops_b, same)
    if same == 1:
        return judged(*pairs[0])
    return _one_of_several(pairs)


def _unknown(because: str) -> FirstOp:
    return FirstOp(Pair(None, None), (), Reason.UNKNOWN, because)


def _found(own: OwnOp, other: OwnOp, reason: Reason, because: str) -> FirstOp:
    return FirstOp(Pair(own.told, other.told), (), reason, because)


def _other_weights(own: OwnOp, other: OwnOp) -> bool:
    """Whether a number that both were given before the forward pass, in the same place and shape, is another."""
    return any(
        x is not None and y is not None and x != y and own.inputs[k] == other.inputs[k]
        for k, (x, y) in enumerate(zip(own.weights, other.weights, strict=False))
    )


def _other_ops(ops_a: Sequence[OwnOp], ops_b: Sequence[OwnOp], same: int) -> FirstOp:
    own, other = (ops[same] if same < len(ops) else None for ops in (ops_a, ops_b))
    words = [_chain(ops[same:]) for ops in (ops_a, ops_b)]
    after = f", after {same} ops of the same names" if same else ""
    because = f"the sides run other operators{after}: {words[0]} against {words[1]}"
    op = Pair(own.told if own else None, other.told if other else None)
    return FirstOp(op, (), Reason.OPERATOR, because)


def _chain(ops: Sequence[OwnOp], most: int = 4) -> str:
    names = [op.name for op in ops]
    return ", ".join(names[:most]) + (", …" if len(names) > most else "") or "nothing"


def _rows_differ(
    a: Keying, call_a: ModuleCall, own: OwnOp, b: Keying, call_b: ModuleCall, other: OwnOp, ranks: Numbers
) -> bool | None:
    """Whether a row that both ops gave differs; None: it is not known."""
    if own.rows is None or other.rows is None:
        return None
    given_a, given_b = _given(a.of_op(call_a, own.rows)), _given(b.of_op(call_b, other.rows))
    compared = False
    for rows_a, rows_b in zip(given_a, given_b, strict=False):
        if not (isinstance(rows_a, KeyedRows) and isinstance(rows_b, KeyedRows)):
            return None
        table_a, table_b = table_of([(call_a, rows_a)], ranks), table_of([(call_b, rows_b)])
        found = pair(table_a, table_b)
        compared = compared or len(found.ids) > 0
        if np.any(table_a.digests[found.a] != table_b.digests[found.b]):
            return True
    return False if compared else None


def _given(tensors: Sequence[Keyed]) -> list[Keyed]:
    return [one for one in tensors if one.tensor.part is Part.OUTPUT]


# --- because of what --------------------------------------------------------------------------------------------------


def judged(own: OwnOp, other: OwnOp) -> FirstOp:
    """Two ops of the same name that give other rows from the same ones."""
    places = list(zip(own.inputs, other.inputs, strict=False))
    dtypes = next(((x[0], y[0]) for x, y in places if x[0] != y[0]), None)
    shapes = next(((x[1], y[1]) for x, y in places if x[1] != y[1]), None)
    over = "" if shapes is None else f" over {_extent(*shapes)[0]} against {_extent(*shapes)[1]}"
    if dtypes is not None:
        return _found(own, other, Reason.DTYPE, f"{own.name}{over} in {dtypes[0]} against {dtypes[1]}")
    kernels = kernel_differences(own.evidence, other.evidence)
    if kernels:
        return _found(own, other, Reason.KERNEL, f"{own.name}{over}, run by another kernel: {kernels[0]}")
    if shapes is not None:
        return _found(own, other, Reason.SHAPE, f"{own.name}{over}")
    because = f"{own.name} over the same shapes, as far as is known by the same kernel, gave other bits"
    return _found(own, other, Reason.COMPUTATION, because)


def _extent(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[str, str]:
    """``4 rows`` and ``80 rows``; whole shapes where it is not the rows alone."""
    plain = len(a) <= 2 and len(b) <= 2 and a[-1:] == b[-1:]
    if plain:
        rows_a, rows_b = prod(a[:-1]), prod(b[:-1])
        return _counted(rows_a), _counted(rows_b)
    return str(list(a)), str(list(b))


def _counted(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows:,} rows"


def _one_of_several(pairs: Sequence[tuple[OwnOp, OwnOp]]) -> FirstOp:
    """Which it is, is not known; one that ran in another dtype or by another kernel is the likeliest."""
    verdicts = [judged(own, other) for own, other in pairs]
    likely = next((v for v in verdicts if v.reason in (Reason.DTYPE, Reason.KERNEL)), None)
    shaped = next((v for v in verdicts if v.reason is Reason.SHAPE), None)
    chosen = likely or shaped
    names = ", ".join(dict.fromkeys(own.name for own, _ in pairs))
    because = f"one of its {len(pairs)} ops ({names}); rows of ops, recorded with --rows all, tell which"
    told = tuple(Pair(own.told, other.told) for own, other in pairs)
    if chosen is None:
        return FirstOp(Pair(None, None), told, Reason.UNKNOWN, because)
    return FirstOp(Pair(None, None), told, chosen.reason, f"{because}. Among them {chosen.because}")
