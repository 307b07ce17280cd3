"""The ops of a module's call, and the first of them whose rows differ on the two sides, with the reason.

Owns which ops are a module's, which are the same on both sides, and what a reason is called.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from rltrace.diff.base.findings import RowAt
from rltrace.diff.base.kernels import kernel_differences
from rltrace.diff.base.model import Pair
from rltrace.diff.base.row_diff import call_text
from rltrace.diff.base.sequences import BudgetExceededError, SearchBudget, longest_common
from rltrace.diff.base.view import StreamView
from rltrace.errors import HoleError
from rltrace.extensions.parity.call_range import CallRange, inputs_of, point_of
from rltrace.extensions.parity.matching.forward_passes import INTEGERS
from rltrace.extensions.parity.matching.row_keying import Keyed, KeyedRows, Keying
from rltrace.extensions.parity.matching.row_pairs import pair, table_of
from rltrace.extensions.parity.model import ParityOp, Reason
from rltrace.extensions.parity.token_keys import Keys, Numbers
from rltrace.portable_keys import portable_key
from rltrace.trace.format.activation_rows import ActivationRows, ModuleCall, OpRows, Part
from rltrace.trace.format.rows import Link, Rows
from rltrace.trace.format.schema import Column, Kind, RowFlag
from rltrace.trace.kernels.evidence import Evidence, kernel_text
from rltrace.wording import counted

# --- ops of a call, without those of submodules -----------------------------------------------------------------------


ATTENTION = "attention"
"""Part of the names of ops that compute attention, and the name of its point."""

# fmt: off
MOVES = frozenset({
    "cat", "clone", "copy", "copy_", "stack", "index", "index_select", "select_scatter", "slice_scatter", "gather",
    "repeat", "repeat_interleave", "roll", "flip", "pad", "constant_pad_nd", "fill_", "zero_",
    "arange", "scalar_tensor", "full", "full_like", "zeros", "zeros_like", "ones", "ones_like",
})
# fmt: on
"""Ops that copy or create values: a difference in them is one of code, not of numbers."""

Layout = tuple[str, tuple[int, ...]]
"""dtype and shape."""

Known = tuple[str, int] | None
"""What was hashed (``read`` or ``written``), and the digest; None: unknown."""


@dataclass(frozen=True, eq=False)
class OwnOp:
    """One op of a module."""

    op: ParityOp
    inputs: tuple[Layout, ...]
    weights: tuple[Known, ...]
    """Identity of each input; None unless it was written before the forward pass."""
    floats: tuple[str, ...]
    """Floats among its other arguments."""
    call: str
    """All arguments: ``(T, [16], T, T, 1e-05)``."""
    draws: bool
    """From a random number generator."""
    evidence: Evidence
    rows: OpRows | None

    @property
    def name(self) -> str:
        return short_name(self.op.op)

    @property
    def shown(self) -> str:
        """The name in a sentence, without torch's leading underscores."""
        return self.name.lstrip("_")


def short_name(op: str) -> str:
    """``addmm`` of ``aten.addmm.default``; others keep their namespace: ``mylib.attention``."""
    parts = op.split(".")
    if len(parts) < 3:
        return op
    return parts[1] if parts[0] == "aten" else ".".join(parts[:2])


def own_ops(keying: Keying, call: ModuleCall) -> list[OwnOp]:
    """Ops of a call, without those of submodules that have a partner, views and allocations, in order. Raises
    HoleError."""
    return _ops_in(keying, call, (call.first_row, call.end_row), lambda module: keying.is_part(module, call.module))


def _ops_in(
    keying: Keying, call: ModuleCall, rows: tuple[int, int], belongs: Callable[[str], bool] = lambda module: True
) -> list[OwnOp]:
    """Ops of the stream of a call that compute something, between two rows, of modules that belong. Raises
    HoleError."""
    call_range = keying.call_range.rank_of(call)
    if call_range.recorded is None:
        return []
    view = StreamView(call_range.recorded.process, call_range.recorded.stream)
    read = view.read(rows[0], min(rows[1], view.rows)).rows
    outer = (call, *keying.call_range.around(call))[-1]
    found = []
    for i in range(len(read)):
        computes = not (read.has(i, int(RowFlag.VIEW)) or read.has(i, int(RowFlag.ALLOCATION)))
        if computes and read.columns[i, Column.KIND] == Kind.OP and belongs(view.module(read, i)):
            found.append(_own_op(call_range, view, read, i, call, outer))
    return found


def ops_of_module(keying: Keying, call: ModuleCall, path: str | None) -> list[OwnOp]:
    """Those of a module, split where attention is a point within the call: its ops, or those up to it."""
    ops = own_ops(keying, call)
    at = next((k for k, op in enumerate(ops) if ATTENTION in op.name), None)
    if at is None or f"{call.module}.{ATTENTION}" not in (keying.compared or ()):
        return ops
    return ops[:at] if path == call.module else ops[at:]


def ops_leading_to(keying: Keying, call: ModuleCall, since: ModuleCall | None, tensor: ActivationRows) -> list[OwnOp]:
    """The ops, of whatever module, that ran since a call up to the one that made an input of another call. Raises
    HoleError."""
    outer = (call, *keying.call_range.around(call))[-1]
    declared = point_of(tensor) is not None  # and so perhaps made within the call, from its arguments
    first = outer.first_row if since is None else since.end_row
    ops = _ops_in(keying, call, (first, call.end_row if declared else call.first_row))
    written = (Part.OUTPUT, tensor.whole)
    made = (k for k, op in enumerate(ops, 1) if op.rows and written in ((x.part, x.whole) for x in op.rows.tensors))
    return ops[: next(made, len(ops))]


def computing(ops: Sequence[OwnOp]) -> list[OwnOp]:
    """Without ops that only copy values or make masks; all of them where there are no others."""
    return [op for op in ops if op.name not in MOVES and any(map(_holds_numbers, op.inputs))] or list(ops)


def _holds_numbers(layout: Layout) -> bool:
    dtype, shape = layout
    return bool(shape) and ("float" in dtype or "complex" in dtype)


def _own_op(call_range: CallRange, view: StreamView, rows: Rows, i: int, call: ModuleCall, outer: ModuleCall) -> OwnOp:
    row = rows.first + i
    layouts = [(dtype, tuple(shape)) for dtype, shape, *_ in view.tensors(rows, i)]
    shapes = {_flattened(tensor.shape) for tensor in inputs_of(call)}
    op = call_range.ops.get(row)
    recorded = [] if op is None else [t.whole for t in op.tensors if t.part is Part.INPUT]
    weights: list[Known] = []
    for place, ((dtype, shape), link) in enumerate(zip(layouts, rows.inputs(i), strict=False)):
        before = link.distance <= 0 or row - link.distance < outer.first_row
        is_weight = before and "float" in dtype and _flattened(shape) not in shapes
        read: Known = ("read", recorded[place]) if len(recorded) == len(layouts) else None
        weights.append(read or _identity(view, row, link) if is_weight else None)
    stack = view.stack(rows, i)
    evidence = view.kernel(rows, i)
    parity_op = ParityOp(
        row=row,
        op=view.op(rows, i),
        layouts=tuple(f"{dtype}[{','.join(map(str, shape))}]" for dtype, shape in layouts),
        kernel=kernel_text(evidence) or "",
        site=stack[0] if stack else None,
    )
    floats = tuple(map(repr, rows.floats[rows.float_offsets[i] : rows.float_offsets[i + 1]].tolist()))
    called = call_text(RowAt(view, rows, i))
    draws = rows.has(i, int(RowFlag.RNG)) and not _is_without_dropout(parity_op.op, view, rows, i)
    return OwnOp(parity_op, tuple(layouts), tuple(weights), floats, called, draws, evidence, op)


def _is_without_dropout(op: str, view: StreamView, rows: Rows, i: int) -> bool:
    """Whether it is attention without dropout, which torch marks as drawing: the only float among its positional
    arguments is the probability of dropout, omitted where it is 0."""
    if "scaled_dot_product" not in op:
        return False
    floats = rows.floats[rows.float_offsets[i] : rows.float_offsets[i + 1]]
    return not ("f" in view.skeleton(rows, i) and len(floats) and float(floats[0]) > 0)


def _flattened(shape: Sequence[int]) -> tuple[int, int]:
    return (prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def _identity(view: StreamView, row: int, link: Link, followed: int = 4) -> Known:
    """The digest of an input as it was read, or else as the op that wrote it returned it."""
    if link.digest is not None:
        return "read", link.digest
    if link.distance <= 0 or link.slot is None:
        return None
    try:
        rows, i = view.row(row - link.distance)
    except HoleError:
        return None
    if link.known:
        before = list(rows.inputs(i))
        known = followed > 0 and link.slot < len(before)
        return _identity(view, row - link.distance, before[link.slot], followed - 1) if known else None
    outputs = rows.outputs(i)
    return ("written", outputs[link.slot]) if link.slot < len(outputs) else None


# --- reasons ----------------------------------------------------------------------------------------------------------


def reason_of(own: OwnOp, other: OwnOp) -> tuple[Reason, str]:
    """Why two ops of the same name return different rows from equal ones, and one sentence; the first that holds."""
    if own.draws or other.draws:
        return Reason.RNG, f"{own.shown} draws random numbers"
    places = list(zip(own.inputs, other.inputs, strict=False))
    dtypes = next(((x[0], y[0]) for x, y in places if x[0] != y[0]), None)
    shapes = next(((x[1], y[1]) for x, y in places if x[1] != y[1]), None)
    over = "" if shapes is None else f" over {' against '.join(_extents(*shapes))}"
    if dtypes is not None:
        return Reason.DTYPE, f"{own.shown}{over} in {dtypes[0]} against {dtypes[1]}"
    if own.floats != other.floats or (shapes is None and own.call != other.call):
        return Reason.ARGUMENTS, f"{own.shown}{over} called with {own.call} against {other.call}"
    kernels = kernel_differences(own.evidence, other.evidence)
    if kernels:
        return Reason.KERNEL, f"{own.shown}{over}, run by another kernel: {kernels[0]}"
    if shapes is not None:
        return Reason.SHAPE, f"{own.shown}{over}"
    return (
        Reason.COMPUTATION,
        f"{own.shown} over the same shapes, by the same kernel as far as known, gave different bits",
    )


def _extents(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[str, str]:
    """``4 rows`` and ``80 rows``; whole shapes where more than the rows differ."""
    if max(len(a), len(b)) <= 2 and a[-1:] == b[-1:]:
        return counted(prod(a[:-1]), "row"), counted(prod(b[:-1]), "row")
    return f"[{','.join(map(str, a))}]", f"[{','.join(map(str, b))}]"


# --- the first op that diverges within a module -----------------------------------------------------------------------


ALIGN_BUDGET = 4_000_000
"""Steps that aligning two modules' ops may take."""


@dataclass(frozen=True)
class FirstOp:
    """The first op of a module that diverges."""

    op: Pair[ParityOp]
    several: tuple[Pair[ParityOp], ...]
    reason: Reason
    explanation: str


@dataclass(frozen=True, eq=False)
class _Item:
    """An op that both sides ran, or the unmatched ops between two of them."""

    a: tuple[OwnOp, ...]
    b: tuple[OwnOp, ...]
    both: bool
    differs: bool | None = None
    """Whether a row of both differs; None: unknown."""


OpsOf = Callable[[Keying, ModuleCall], list[OwnOp]]


def first_op(
    a: Keying,
    call_a: ModuleCall,
    b: Keying,
    call_b: ModuleCall,
    ranks: Numbers,
    diverging: Keys,
    ops_of: OpsOf = own_ops,
) -> FirstOp:
    """The first of the ops whose rows differ, in a call of A and one of B that computed the same row.

    ``diverging``: keys of the rows whose inputs agree; other rows of an op may differ. ``ops_of``: the ops of a side.
    """
    try:
        every = ops_of(a, call_a), ops_of(b, call_b)
    except HoleError as error:
        return _unknown(f"its ops cannot be read: {error}")
    if not any(every):
        return _unknown("none of its own ops was recorded")
    items = list(_aligned(*map(computing, every)))
    for item in items:
        if item.both and _other_weights(item.a[0], item.b[0]):
            name = item.a[0].shown
            return _found(item, Reason.WEIGHTS, f"{name} uses different weights on the two sides")
    items = [_compared(item, a, call_a, b, call_b, ranks, diverging) for item in items]
    return _first_of(_suspects(items), any(item.differs is not None for item in items))


def _unknown(because: str) -> FirstOp:
    return FirstOp(Pair(None, None), (), Reason.UNKNOWN, because)


def _found(item: _Item, reason: Reason, because: str) -> FirstOp:
    return FirstOp(_ops(item), (), reason, because)


def _ops(item: _Item) -> Pair[ParityOp]:
    return Pair(item.a[0].op if item.a else None, item.b[0].op if item.b else None)


def _suspects(items: Sequence[_Item]) -> list[_Item]:
    """From the last op with equal rows before the first difference, without it, up to that difference."""
    end = next((k for k, item in enumerate(items) if item.differs), len(items) - 1)
    start = max((k + 1 for k in range(end) if items[k].differs is False), default=0)
    suspects = list(items[start : end + 1])
    return suspects if any(item.differs is not False for item in suspects) else list(items)


def _first_of(suspects: Sequence[_Item], rows_known: bool) -> FirstOp:
    if len(suspects) == 1 and suspects[0].both:
        return _found(suspects[0], *reason_of(suspects[0].a[0], suspects[0].b[0]))
    reasons = [reason_of(item.a[0], item.b[0]) for item in suspects if item.both]
    other = next((item for item in suspects if not item.both and not _only_casts(item)), None)
    cast = next((one for one in reasons if one[0] is Reason.DTYPE), None)
    if other is None and cast is not None:
        at = [item for item in suspects if item.both][reasons.index(cast)]
        return _found(at, *cast)
    others = [item for item in suspects if not item.both and not _only_casts(item)]
    if len(others) > 1 and not any(op.draws for item in others for op in (*item.a, *item.b)):
        places = "; ".join(f"{_chain(item.a)} in A, {_chain(item.b)} in B" for item in others)
        return FirstOp(Pair(None, None), tuple(map(_ops, others)), Reason.OPERATOR, f"at one of these: {places}")
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
    return FirstOp(Pair(None, None), tuple(map(_ops, suspects)), chosen[0], because)


def _only_casts(item: _Item) -> bool:
    """Whether all ops only convert dtypes."""
    return all(op.name in ("_to_copy", "to") for op in (*item.a, *item.b))


def _chain(ops: Sequence[OwnOp], limit: int = 4) -> str:
    names = [op.shown for op in ops]
    return ", ".join(names[:limit]) + (", …" if len(names) > limit else "") or "nothing"


def _aligned(ops_a: Sequence[OwnOp], ops_b: Sequence[OwnOp]) -> Iterator[_Item]:
    try:
        in_a, in_b = longest_common(_names(ops_a), _names(ops_b), SearchBudget(ALIGN_BUDGET))
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
    return np.array([portable_key("op", op.op.op) for op in ops], np.uint64)


def _other_weights(own: OwnOp, other: OwnOp) -> bool:
    """Whether a weight in the same place and of the same shape differs."""
    return any(
        x is not None and y is not None and x[0] == y[0] and x != y and own.inputs[k] == other.inputs[k]
        for k, (x, y) in enumerate(zip(own.weights, other.weights, strict=False))
    )


# --- rows of ops ------------------------------------------------------------------------------------------------------


def _compared(
    item: _Item, a: Keying, call_a: ModuleCall, b: Keying, call_b: ModuleCall, ranks: Numbers, diverging: Keys
) -> _Item:
    if not item.both or item.a[0].rows is None or item.b[0].rows is None:
        return item
    rows_a, rows_b = _outputs(a.of_op(call_a, item.a[0].rows)), _outputs(b.of_op(call_b, item.b[0].rows))
    return replace(item, differs=_differs(rows_a, rows_b, call_a, call_b, ranks, diverging))


def _outputs(tensors: Sequence[Keyed]) -> list[Keyed]:
    return [one for one in tensors if one.tensor.part is Part.OUTPUT]


def _differs(
    of_a: Sequence[Keyed],
    of_b: Sequence[Keyed],
    call_a: ModuleCall,
    call_b: ModuleCall,
    ranks: Numbers,
    diverging: Keys,
) -> bool | None:
    compared = False
    for rows_a, rows_b in zip(of_a, of_b, strict=False):
        if not (isinstance(rows_a, KeyedRows) and isinstance(rows_b, KeyedRows)) or rows_a.width != rows_b.width:
            return None
        table_a, table_b = table_of([(call_a, rows_a)], ranks), table_of([(call_b, rows_b)])
        found = pair(table_a, table_b)
        own = np.isin(table_b.keys[found.b], diverging)
        compared = compared or bool(own.any())
        if np.any(own & (table_a.digests[found.a] != table_b.digests[found.b])):
            return True
    return False if compared else None


WHOLE_NUMBERS = (*INTEGERS, "bool")
