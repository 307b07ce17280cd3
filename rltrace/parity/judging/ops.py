"""The ops of one module's own in one of its calls: what they were, what they were given, who ran them.

Owns reading them. Ops of modules that the call calls are theirs, not its own; those that only make a view compute
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from rltrace.diff.calls import call_text
from rltrace.diff.findings import RowAt
from rltrace.diff.view import StreamView
from rltrace.errors import HoleError
from rltrace.parity.model import ParityOp
from rltrace.parity.stretch import Stretch, inputs_of
from rltrace.trace.evidence import Evidence, kernel_text
from rltrace.trace.rows import Link, Rows
from rltrace.trace.schema import Column, Kind, RowFlag
from rltrace.trace.tensor_rows import ModuleCall, OpRows, Part

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


def computing(ops: Sequence[OwnOp]) -> list[OwnOp]:
    """Without those that only move numbers, or make masks; all of them where none does anything else."""
    return [op for op in ops if op.name not in MOVES and any(map(_holds_numbers, op.inputs))] or list(ops)


def _holds_numbers(layout: Layout) -> bool:
    dtype, shape = layout
    return bool(shape) and ("float" in dtype or "complex" in dtype)


def _own_op(stretch: Stretch, view: StreamView, rows: Rows, i: int, call: ModuleCall, outer: ModuleCall) -> OwnOp:
    row = rows.first + i
    layouts = [_layout(view, number) for number in _numbers(view, int(rows.columns[i, Column.STRUCTURE]))]
    given = {_flattened(tensor.shape) for tensor in inputs_of(call)}
    kept = [t.whole for t in op.tensors if t.part is Part.INPUT] if (op := stretch.ops.get(row)) is not None else []
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
