"""The modules whose inputs agree and whose outputs do not, the first one first.

Owns which of them count: a module that only hands on what a module in it made does not; one whose own work is what
parts does, though it has children (attention between its projections). Where rows differ and no module's outputs begin
it, the work of the module around the first inputs that differ did, or what the program handed in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from rltrace.parity.call_range import CallRange, inputs_of
from rltrace.parity.distances import Counted, calls_of, row_words
from rltrace.parity.matching.row_keying import Keyed, KeyedRows, Keying
from rltrace.parity.matching.row_pairs import pair, table_of
from rltrace.parity.model import ModuleOrigin, ModuleResult, ParityOp, Reason
from rltrace.parity.module_pairs import PairedTensor
from rltrace.portable_keys import portable_key
from rltrace.token_keys import Keys, Numbers
from rltrace.trace.format.activation_rows import ModuleCall, OpRows, Part
from rltrace.trace.format.rows import Link, Rows
from rltrace.trace.format.schema import Column, Kind, RowFlag
from rltrace.trace.kernels.evidence import Evidence, kernel_text

# --- ops --------------------------------------------------------------------------------------------------------------
#
# The ops of one module's own in one of its calls: what they were, what they were given, who ran them.
#
# Owns reading them. Ops of modules that the call calls are theirs, not its own; those that only make a view compute
# nothing.


# fmt: off
MOVES = frozenset({
    "cat", "clone", "copy", "copy_", "stack", "index", "index_select", "select_scatter", "slice_scatter", "gather",
    "repeat", "repeat_interleave", "roll", "flip", "pad", "constant_pad_nd", "fill_", "zero_",
    "arange", "scalar_tensor", "full", "full_like", "zeros", "zeros_like", "ones", "ones_like",
})
# fmt: on
"""Ops that hand numbers on as they are, or make some of nothing: which of them a side needs is how it is written."""

Layout = tuple[str, tuple[int, ...]]
"""dtype and shape."""

Known = tuple[str, int] | None
"""How a digest was taken, and the digest; None: none is known."""


@dataclass(frozen=True, eq=False)
class OwnOp:
    """One op of a module's own."""

    told: ParityOp
    inputs: tuple[Layout, ...]
    weights: tuple[Known, ...]
    """For each input that was there before the forward pass, what tells it from others."""
    floats: tuple[str, ...]
    """Numbers among its other arguments."""
    call: str
    """All its arguments in words: ``(T, [16], T, T, 1e-05)``."""
    draws: bool
    """From a generator."""
    evidence: Evidence
    rows: OpRows | None

    @property
    def name(self) -> str:
        return short_name(self.told.op)

    @property
    def shown(self) -> str:
        """The name in a sentence: torch's own underscores say nothing there."""
        return self.name.lstrip("_")


def short_name(op: str) -> str:
    """``addmm`` of ``aten.addmm.default``; others keep their namespace: ``mylib.attention``."""
    parts = op.split(".")
    if len(parts) < 3:
        return op
    return parts[1] if parts[0] == "aten" else ".".join(parts[:2])


def own_ops(call_range: CallRange, call: ModuleCall) -> list[OwnOp]:
    """Ops of a call that are the module's own and compute something, in order. Raises HoleError."""
    if call_range.recorded is None:
        return []
    view = StreamView(call_range.recorded.process, call_range.recorded.stream)
    rows = view.read(call.first_row, min(call.end_row, view.rows)).rows
    outer = (call, *call_range.around(call))[-1]
    found = []
    for i in range(len(rows)):
        passes_on = rows.has(i, int(RowFlag.VIEW)) or rows.has(i, int(RowFlag.ALLOCATION))
        if rows.columns[i, Column.KIND] == Kind.OP and not passes_on and view.module(rows, i) == call.module:
            found.append(_own_op(call_range, view, rows, i, call, outer))
    return found


def computing(ops: Sequence[OwnOp]) -> list[OwnOp]:
    """Without those that only move numbers, or make masks; all of them where none does anything else."""
    return [op for op in ops if op.name not in MOVES and any(map(_holds_numbers, op.inputs))] or list(ops)


def _holds_numbers(layout: Layout) -> bool:
    dtype, shape = layout
    return bool(shape) and ("float" in dtype or "complex" in dtype)


def _own_op(call_range: CallRange, view: StreamView, rows: Rows, i: int, call: ModuleCall, outer: ModuleCall) -> OwnOp:
    row = rows.first + i
    layouts = [_layout(view, number) for number in _numbers(view, int(rows.columns[i, Column.STRUCTURE]))]
    given = {_flattened(tensor.shape) for tensor in inputs_of(call)}
    kept = [t.whole for t in op.tensors if t.part is Part.INPUT] if (op := call_range.ops.get(row)) is not None else []
    weights: list[Known] = []
    for place, ((dtype, shape), link) in enumerate(zip(layouts, rows.inputs(i), strict=False)):
        before = link.distance <= 0 or row - link.distance < outer.first_row
        is_weight = before and "float" in dtype and _flattened(shape) not in given
        read: Known = ("read", kept[place]) if len(kept) == len(layouts) else None
        weights.append(read or _told_apart(view, row, link) if is_weight else None)
    stack = view.stack(rows, i)
    evidence = view.kernel(rows, i)
    told = ParityOp(
        row=row,
        op=view.op(rows, i),
        layouts=tuple(f"{dtype}[{','.join(map(str, shape))}]" for dtype, shape in layouts),
        kernel=kernel_text(evidence) or "",
        site=stack[0] if stack else None,
    )
    floats = tuple(map(repr, rows.floats[rows.float_offsets[i] : rows.float_offsets[i + 1]].tolist()))
    called = call_text(RowAt(view, rows, i))
    draws = rows.has(i, int(RowFlag.RNG)) and not _is_without_dropout(told.op, view, rows, i)
    return OwnOp(told, tuple(layouts), tuple(weights), floats, called, draws, evidence, op)


def _is_without_dropout(op: str, view: StreamView, rows: Rows, i: int) -> bool:
    """Whether it is attention that drops nothing out: torch marks it as one that draws all the same. The only number
    among its positional arguments is dropout's probability, which is left out where it is 0."""
    if "scaled_dot_product" not in op:
        return False
    scalars = view.payload("scalars", int(rows.columns[i, Column.SCALARS]))
    floats = rows.floats[rows.float_offsets[i] : rows.float_offsets[i + 1]]
    return not (isinstance(scalars, list) and "f" in scalars and len(floats) and float(floats[0]) > 0)


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


def _told_apart(view: StreamView, row: int, link: Link, followed: int = 4) -> Known:
    """What tells the bytes of an input from others: the digest of the view that was read, or of the memory as the op
    that wrote it gave it. Two of the same kind alone can be compared.
    """
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
        return _told_apart(view, row - link.distance, before[link.slot], followed - 1) if known else None
    outputs = rows.outputs(i)
    return ("written", outputs[link.slot]) if link.slot < len(outputs) else None


# --- because ----------------------------------------------------------------------------------------------------------
#
# Because of what two ops of the same name give other rows from the same ones: the sentence, and its word.
#
# Owns the order in which explanations count: random numbers, another dtype, other arguments, another kernel, another
# shape, nothing that is known.


def judged(own: OwnOp, other: OwnOp) -> tuple[Reason, str]:
    """Two ops of the same name."""
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
    """``4 rows`` and ``80 rows``; whole shapes where it is not the rows alone."""
    if max(len(a), len(b)) <= 2 and a[-1:] == b[-1:]:
        return _counted(prod(a[:-1])), _counted(prod(b[:-1]))
    return f"[{','.join(map(str, a))}]", f"[{','.join(map(str, b))}]"


def _counted(rows: int) -> str:
    return "1 row" if rows == 1 else f"{rows:,} rows"


# --- firstop ----------------------------------------------------------------------------------------------------------
#
# Within a module that parts: the first op on each side whose rows differ.
#
# Owns the alignment of the two short sequences of ops, by their names, and what may be said where the rows of ops were
# not kept, or cannot be held against each other: then it is one of several.


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
        every = own_ops(a.call_range, call_a), own_ops(b.call_range, call_b)
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


# --- origins ----------------------------------------------------------------------------------------------------------


EPSILONS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Between 1 and the next number."""
ORDERS = 1000.0
"""Of these, how far the results of another order of the same sums may lie apart, by the largest number of a row …"""
MOST_OF_A_ROW = 0.1
"""… and at most, in dtypes of few digits."""


def origins_of(modules: Sequence[Counted], a: Keying, b: Keying, ranks: Numbers) -> list[ModuleOrigin]:
    """``modules`` in the order in which they ended."""
    candidates = {counted.result.path.a: counted for counted in modules if len(counted.parting)}
    below = _below(a.call_range)
    found = []
    for path, counted in candidates.items():
        inside = below.get(str(path), frozenset())
        if not any(other in inside for other in candidates):
            found.append(_origin(counted, a, b, ranks, own=bool(inside)))
    return found or _before_a_module(modules, a, b, ranks)


def _below(call_range: CallRange) -> Mapping[str, frozenset[str]]:
    """Of each module, the modules that are called within its calls."""
    found: dict[str, set[str]] = {}
    for call in call_range.calls:
        for above in call_range.around(call):
            if above.module != call.module:
                found.setdefault(above.module, set()).add(call.module)
    return {path: frozenset(inside) for path, inside in found.items()}


def _origin(counted: Counted, a: Keying, b: Keying, ranks: Numbers, *, own: bool) -> ModuleOrigin:
    tensor, at = _first_parting(counted)
    call = calls_of(tensor, at)
    parting = tensor.b.keys[tensor.pairs.b[np.isin(tensor.pairs.ids, counted.parting)]]
    first = _or_beside(_first_op(a, b, call, ranks, parting), counted.result)
    return ModuleOrigin(
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
    return first_op(a, a.call_range.by_number[call.a], b, b.call_range.by_number[call.b], ranks, parting)


def _first_parting(counted: Counted) -> tuple[PairedTensor, int]:
    """Of the rows that part, the first of B; its tensor, and its pair there."""
    places = []
    for tensor, equal in zip(counted.paired.tensors, counted.same, strict=True):
        at = np.flatnonzero(np.isin(tensor.pairs.ids, counted.parting) & ~equal)
        if tensor.part is Part.OUTPUT and len(at):
            places.append((tensor, int(at[0])))
    return places[0]  # a row parts because an output of it differs


# --- rows that differ before any module gives them --------------------------------------------------------------------


def _before_a_module(modules: Sequence[Counted], a: Keying, b: Keying, ranks: Numbers) -> list[ModuleOrigin]:
    """The first inputs that differ, where no module's outputs do before them."""
    by_path = {str(counted.result.path.a): counted for counted in modules}
    for path in dict.fromkeys(call.module for call in a.call_range.calls):
        counted = by_path.get(path)
        if counted is None:
            continue
        for tensor, equal in zip(counted.paired.tensors, counted.same, strict=True):
            differing = np.flatnonzero(~equal)
            if tensor.part is Part.INPUT and len(differing):
                return [_before(counted, tensor, int(differing[0]), len(differing), a, b, ranks)]
    return []


def _before(
    counted: Counted, tensor: PairedTensor, at: int, rows: int, a: Keying, b: Keying, ranks: Numbers
) -> ModuleOrigin:
    call = calls_of(tensor, at)
    assert call.a is not None and call.b is not None
    around = [
        keying.call_range.parent(keying.call_range.by_number[number]) for keying, number in ((a, call.a), (b, call.b))
    ]
    name, path = tensor.name.b or "its input", counted.result.path
    row = row_words(tensor.b, int(tensor.pairs.b[at]))
    if around[0] is None or around[1] is None:
        because = f"{name} of {path.b}, which the program passes in, differs between the two sides"
        return ModuleOrigin(
            path, rows, len(tensor.pairs.ids), call, row, False, Pair(None, None), (), Reason.INPUTS, because
        )
    first = first_op(a, around[0], b, around[1], ranks, tensor.b.keys[tensor.pairs.b[at : at + 1]])
    because = f"{name}, which it passes to {path.b}, already differs: {first.because}"
    return ModuleOrigin(
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
