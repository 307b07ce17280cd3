"""What a selector finds of a stretch: results of ops and of module calls whose rows were kept.

Owns the look-up, in the words that a recording's ``--rows`` uses: a selector that asks for an operator, a call site, an
occurrence or a kernel finds ops alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from rltrace.errors import HoleError
from rltrace.parity.call_range import CallRange
from rltrace.selectors import Key, Selector
from rltrace.trace.format.activation_rows import ActivationRows, ModuleCall, Part
from rltrace.trace.format.schema import Column
from rltrace.trace.read.selector_mask import RowMask

FLOATS = ("float64", "float32", "bfloat16", "float16")


@dataclass(frozen=True, eq=False)
class Selected:
    """One tensor that was found."""

    row: int
    """Of the stream: where it was computed, or the call that gave it ended."""
    name: str
    """Of the op or the module."""
    call: ModuleCall | None
    """The call that gave it; None: an op did."""
    tensor: ActivationRows


def selected_in(stretch: CallRange, selector: Selector) -> list[Selected]:
    """Floating-point results that the selector finds, in the order in which they were computed."""
    calls = [(call.end_row, call.module, call) for call in stretch.calls if finds_call(selector, stretch, call)]
    ops = [(row, name, None) for row, name in ops_in(stretch, selector)]
    return [
        Selected(row, name, call, tensor)
        for row, name, call in sorted([*calls, *ops], key=lambda found: found[0])
        for tensor in (stretch.ops[row] if call is None else call).tensors
        if tensor.part is Part.OUTPUT and tensor.dtype in FLOATS
    ]


def finds_call(selector: Selector, stretch: CallRange, call: ModuleCall) -> bool:
    """Whether a selector that asks nothing that only ops have finds a module's call."""
    return selector.call_clauses.matches(
        {Key.MODULE: call.module, Key.PHASE: call.phase, Key.STREAM: stretch.stream, Key.STEP: call.step}
    )


def ops_in(stretch: CallRange, selector: Selector) -> Iterator[tuple[int, str]]:
    """(row, operator) of each op whose rows were kept that the selector finds."""
    if stretch.recorded is None or not stretch.ops:
        return
    process, stream = stretch.recorded.process, stretch.recorded.stream
    mask = RowMask(selector, stream.name, process.words)
    for segment in stream.segments if mask.is_possible else ():
        try:
            rows = stream.read_segment(segment)
        except HoleError as error:
            mask.skip()
            stretch.holes.append(str(error))
            continue
        for i in mask.op_indices(rows).tolist():
            if rows.first + i in stretch.ops:
                yield rows.first + i, process.words.op(int(rows.columns[i, Column.OP]))


def around(stretch: CallRange, row: int) -> ModuleCall | None:
    """The innermost call of the stretch that a row of the stream was computed in; None: it was computed in none."""
    at = bisect_right(stretch.calls, row, key=lambda call: call.first_row) - 1
    call = stretch.calls[at] if at >= 0 else None
    while call is not None and row >= call.end_row:
        call = stretch.parent(call)
    return call
