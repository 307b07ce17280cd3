"""Selection of recorded results of ops and module calls in a call range.

Owns the look-up, by the selectors of ``--rows``: conditions on an operator, a call site, an occurrence or a kernel
select ops only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from rltrace.errors import HoleError
from rltrace.extensions.parity.call_range import CallRange
from rltrace.selectors import Key, Selector
from rltrace.trace.format.activation_rows import ActivationRows, ModuleCall, Part
from rltrace.trace.format.schema import Column
from rltrace.trace.read.selector_mask import RowMask

FLOATS = ("float64", "float32", "bfloat16", "float16")


@dataclass(frozen=True, eq=False)
class Selected:
    """One selected tensor."""

    row: int
    """Of the stream: of its op, or of the end of its call."""
    name: str
    """Of the op or the module."""
    call: ModuleCall | None
    """The call that returned it; None: an op did."""
    tensor: ActivationRows


def selected_in(call_range: CallRange, selector: Selector) -> list[Selected]:
    """Floating-point results that the selector finds, in execution order."""
    calls = [(call.end_row, call.module, call) for call in call_range.calls if finds_call(selector, call_range, call)]
    ops = [(row, name, None) for row, name in ops_in(call_range, selector)]
    return [
        Selected(row, name, call, tensor)
        for row, name, call in sorted([*calls, *ops], key=lambda found: found[0])
        for tensor in (call_range.ops[row] if call is None else call).tensors
        if tensor.part is Part.OUTPUT and tensor.dtype in FLOATS
    ]


def finds_call(selector: Selector, call_range: CallRange, call: ModuleCall) -> bool:
    """Whether a clause without conditions of ops selects a module call."""
    return selector.call_clauses.matches(
        {Key.MODULE: call.module, Key.PHASE: call.phase, Key.STREAM: call_range.stream, Key.STEP: call.step}
    )


def ops_in(call_range: CallRange, selector: Selector) -> Iterator[tuple[int, str]]:
    """(row, operator) of each recorded op that the selector finds."""
    if call_range.recorded is None or not call_range.ops:
        return
    process, stream = call_range.recorded.process, call_range.recorded.stream
    mask = RowMask(selector, stream.name, process.words)
    for segment in stream.segments if mask.is_possible else ():
        try:
            rows = stream.read_segment(segment)
        except HoleError as error:
            mask.skip()
            call_range.holes.append(str(error))
            continue
        for i in mask.op_indices(rows).tolist():
            if rows.first + i in call_range.ops:
                yield rows.first + i, process.words.op(int(rows.columns[i, Column.OP]))


def around(call_range: CallRange, row: int) -> ModuleCall | None:
    """The innermost call of the call range around a row of the stream; None: there is none."""
    at = bisect_right(call_range.calls, row, key=lambda call: call.first_row) - 1
    call = call_range.calls[at] if at >= 0 else None
    while call is not None and row >= call.end_row:
        call = call_range.parent(call)
    return call
