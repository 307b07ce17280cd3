"""What an op was called on: the ops that wrote an input last on the two sides, which results of them, and which parts.

Says of an input that differs whether the op was called on another tensor, which both sides have, or on what only one
side wrote. Decides no verdict: that the input differs is known by then.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.findings import Judgement, RowAt
from rltrace.diff.base.model import Cause, InputsMatch
from rltrace.diff.base.row_diff import Difference, input_text
from rltrace.diff.causes.inputs import Input, StoragePart, StoredOutput, is_same_part, origin_of, parts_of, source_of
from rltrace.errors import HoleError
from rltrace.trace.format.schema import Column, Origin
from rltrace.wording import ordinal

MAX_COUNTED = 1 << 16
"""Rows of a step that are read at most to count the calls of one line."""


@dataclass(frozen=True)
class ReadTensor:
    """An input of a row on one side."""

    row: RowAt
    source: StoredOutput | None
    """The last op that wrote in its memory; None: no recorded op, or it is not known."""
    part: StoragePart | None
    origin: int
    """Distance of its link, or ``Origin``."""
    counterpart: int | None
    """The other side's row that is matched with ``source``, where it precedes the other side's reader."""

    @property
    def is_known(self) -> bool:
        """Whether it is known which op wrote it, or that none did."""
        return self.source is not None or self.origin == Origin.OUTSIDE


def another_operand(
    context: DiffContext, a: RowAt, b: RowAt, operand: Input, difference: Difference
) -> Judgement | None:
    """The cause where an input is another tensor than on the other side; None: it is the same one, or not known."""
    x, y, what = operand.a, operand.b, input_text(a, operand.place)
    source_a, source_b = source_of(a, x), source_of(b, y)
    partner = None if source_a is None else context.matching.partner(source_a.row.index)
    partner_in_a = None if source_b is None else context.matching.partner_in_a(source_b.row.index)
    part_a, part_b = parts_of(a, x, b, y, operand.place)
    on_a = ReadTensor(a, source_a, part_a, origin_of(a, x), _before(partner, b))
    on_b = ReadTensor(b, source_b, part_b, origin_of(b, y), _before(partner_in_a, a))
    if not on_a.is_known or not on_b.is_known or (source_a is None and source_b is None):
        return None
    if source_a is None or source_b is None:
        return _of_one_side(what, on_a, on_b, operand.match)
    if partner == source_b.row.index or _wrote_equal(source_a, source_b):
        if difference.structure:  # its shape or layout is another: the cause says so
            return None
        return _of_one_op(what, on_a, on_b, operand, same_part=is_same_part(a, x, b, y, operand.place))
    missing = [side for side, own in (("A", on_a), ("B", on_b)) if own.counterpart is None]
    if missing:
        return Judgement(
            Cause.CONTROL_FLOW, operand.match, f"{what} was last written by {_writers_text(on_a, on_b, missing)}"
        )
    why = f"it was called on another tensor: {what} is {_calls_text(on_a, on_b)}"
    return Judgement(Cause.ARGUMENTS, operand.match, why)


def _before(row: int | None, reader: RowAt) -> int | None:
    return row if row is not None and row < reader.index else None


def _wrote_equal(a: StoredOutput, b: StoredOutput) -> bool:
    """Whether both are outputs of two ops that wrote the same: no matter which of them wrote it."""
    outputs = a.row.rows.outputs(a.row.place)
    return bool(outputs) and a.row.op == b.row.op and outputs == b.row.rows.outputs(b.row.place)


# --- one op -----------------------------------------------------------------------------------------------------------


def _of_one_op(what: str, a: ReadTensor, b: ReadTensor, operand: Input, *, same_part: bool) -> Judgement | None:
    """The cause where the same op wrote what both sides read, but they read another result or part of it."""
    assert a.source is not None and b.source is not None
    writer = f"{a.source.row} (row {a.source.row.index:,})"
    if a.source.slot != b.source.slot and None not in (a.source.slot, b.source.slot):
        why = f"{what} is {_result_text(a.source)} of {writer} in A, {_result_text(b.source)} in B"
    elif not same_part:
        parts = [_part_text(side.part) for side in (a, b)]
        if parts[0] == parts[1]:
            return None
        several = Origin.MIXED in (a.origin, b.origin)
        wrote = f"what several ops wrote in, the last of them {writer}" if several else f"what {writer} wrote"
        why = f"{what} is {parts[0]} of {wrote} in A, {parts[1]} in B"
    else:
        return None
    return Judgement(Cause.ARGUMENTS, operand.match, f"it was called on another tensor: {why}")


def _result_text(output: StoredOutput) -> str:
    """``result 1 (indices)``; the name is that of the operator's schema."""
    row, slot = output.row, output.slot or 0
    names = row.view.words.results(int(row.rows.columns[row.place, Column.OP]))
    known = len(names) == len(row.rows.outputs(row.place)) and names[slot]
    return f"result {slot} ({names[slot]})" if known else f"result {slot}"


def _part_text(part: StoragePart | None) -> str:
    """``elements 16 to 31``, ``columns 2 to 3``; counted from 0."""
    if part is None:
        return "another part"
    dimensions, first = part.dimensions, part.offset
    if not dimensions:
        return f"element {first:,}"
    (count, stride), rest = dimensions[-1], dimensions[:-1]
    if stride == 1 and not rest:
        return f"elements {first:,} to {first + count - 1:,}"
    if stride != 1 and not rest:
        rest, count = dimensions, 1
    if len(rest) == 1 and count < rest[0][1] and first % rest[0][1] + count <= rest[0][1]:
        row, column = divmod(first, rest[0][1])
        columns = f"column {column:,}" if count == 1 else f"columns {column:,} to {column + count - 1:,}"
        return columns + (f" of rows {row:,} to {row + rest[0][0] - 1:,}" if row else "")
    return f"the elements from {first:,} on with strides {tuple(stride for _, stride in dimensions)}"


# --- several ops ------------------------------------------------------------------------------------------------------


def _of_one_side(what: str, a: ReadTensor, b: ReadTensor, match: InputsMatch) -> Judgement:
    """The cause where a recorded op wrote an input on one side only."""
    own, side, opposite = (a, "A", "B") if a.source is not None else (b, "B", "A")
    assert own.source is not None
    writer = f"{own.source.row} (row {own.source.row.index:,})"
    if own.counterpart is None:
        why = f"{what} was last written by {writer}, which only {side} runs, and came from outside in {opposite}"
        return Judgement(Cause.CONTROL_FLOW, match, why)
    why = (
        f"it was called on another tensor: {what} is what {writer} wrote in {side}, and came from outside in {opposite}"
    )
    return Judgement(Cause.ARGUMENTS, match, why)


def _writers_text(a: ReadTensor, b: ReadTensor, missing: list[str]) -> str:
    """The writers of an input, at least one of which the other side does not run."""
    texts = []
    for side, own in (("A", a), ("B", b)):
        assert own.source is not None
        only = f", which only {side} runs" if missing == [side] else ""
        texts.append(f"{own.source.row} in {side} (row {own.source.row.index:,}){only}")
    return f"{texts[0]}{',' if missing == ['A'] else ''} and by {texts[1]}"


def _calls_text(a: ReadTensor, b: ReadTensor) -> str:
    """The calls that wrote an input, both of which both sides run; what they have in common is said once."""
    assert a.source is not None and b.source is not None
    rows = a.source.row, b.source.row
    numbers = [_call_number(row) for row in rows]
    modules = [f" in {row.module}" if row.module and rows[0].module != rows[1].module else "" for row in rows]
    places = [f"{module} (row {row.index:,})" for row, module in zip(rows, modules, strict=True)]
    if str(rows[0]) != str(rows[1]):
        return f"what {rows[0]} wrote{places[0]} in A, and what {rows[1]} wrote{places[1]} in B"
    if None in numbers or numbers[0] == numbers[1]:
        return f"what {rows[0]} wrote{places[0]} in A, and what it wrote{places[1]} in B"
    calls = [f"the {ordinal(number)} call" for number in numbers if number is not None]
    text = f"what {calls[0]} of {rows[0]} wrote{places[0]} in A, and what {calls[1]} wrote{places[1]} in B"
    return text + _hash_seed_text(*rows)


HASH_SEED = "env.PYTHONHASHSEED"


def _hash_seed_text(a: RowAt, b: RowAt) -> str:
    """A clause on what orders a set of strings, over which one line may be called; "" where it is the same."""
    seeds = [str(row.view.process.facts.get(HASH_SEED) or "") for row in (a, b)]
    if seeds[0] != seeds[1]:
        a_is, b_is = (seed or "not set" for seed in seeds)
        return f"; PYTHONHASHSEED, which orders a set of strings, is {a_is} in A, {b_is} in B"
    return (
        ""
        if seeds[0].isdigit()
        else "; PYTHONHASHSEED is not set, so a set of strings has another order in each process"
    )


def _call_number(row: RowAt) -> int | None:
    """Which call of this op from this stack it is within its step, from 1; None: not known."""
    start = max(row.index - MAX_COUNTED, row.view.start)
    try:
        before = row.view.read(start, row.index + 1).rows
    except HoleError:
        return None
    same = np.ones(len(before), dtype=bool)
    for column in (Column.OP, Column.SITE, Column.STEP):
        same &= before.column(column) == before.column(column)[-1]
    in_step = before.column(Column.STEP) == before.column(Column.STEP)[-1]
    if in_step.all() and start > row.view.start:
        return None  # the step begins earlier
    return int(same.sum())
