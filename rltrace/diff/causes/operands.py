"""What an op was called on: the ops that wrote an input last on the two sides, which results of them, and which parts.

Says of an input that differs whether the op was called on another tensor, which both sides have, or on what only one
side wrote. Decides no verdict: that the input differs is known by then.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.findings import Judgement, RowAt
from rltrace.diff.base.model import Cause, InputsMatch
from rltrace.diff.base.row_diff import Difference, Element, elements_of, input_text
from rltrace.diff.base.view import EACH_BY_ITSELF
from rltrace.diff.causes.inputs import (
    Input,
    KnownBytes,
    StoragePart,
    StoredOutput,
    is_same_part,
    origin_of,
    parts_of,
    producer_of,
)
from rltrace.errors import HoleError
from rltrace.trace.format.schema import Column, Origin
from rltrace.trace.read.process import ProcessTrace
from rltrace.wording import ordinal

MAX_COUNTED = 1 << 16
"""Rows of a step that are read at most to count the calls of one line."""


@dataclass(frozen=True)
class ReadTensor:
    """An input of a row on one side."""

    side: str
    """``A`` or ``B``."""
    reader: RowAt
    producer: StoredOutput | None
    """The last op that wrote in its memory; None: no recorded op, or it is not known."""
    part: StoragePart | None
    origin: int
    """Distance of its link, or ``Origin``."""
    counterpart: int | None
    """The other side's row that is matched with ``producer``."""
    other_reader: int
    """The other side's row that is matched with ``reader``."""

    @property
    def is_known(self) -> bool:
        """Whether it is known which op wrote it since the comparison begins, or that none did."""
        if self.producer is None:
            return self.origin == Origin.OUTSIDE
        return self.producer.row.index >= self.reader.view.start

    @property
    def is_shared(self) -> bool:
        """Whether the other side has run the op that wrote it, too, by the time it reads."""
        return self.counterpart is not None and self.counterpart < self.other_reader

    def writer_text(self) -> str:
        """``aten.exp.default at train.py:12 (f) (row 5), which only A runs``."""
        assert self.producer is not None
        text = f"{self.producer.row} (row {self.producer.row.index:,})"
        if self.is_shared:
            return text
        if self.counterpart is None:
            return f"{text}, which only {self.side} runs"
        return f"{text}, which {'B' if self.side == 'A' else 'A'} runs only after it"


def another_operand(
    context: DiffContext, a: RowAt, b: RowAt, operand: Input, difference: Difference
) -> Judgement | None:
    """The cause where an input is another tensor than on the other side; None: it is the same one, or not known."""
    x, y, what = operand.a, operand.b, input_text(a, operand.place)
    producer_a, producer_b = producer_of(a, x), producer_of(b, y)
    partner = None if producer_a is None else context.matching.partner(producer_a.row.index)
    partner_in_a = None if producer_b is None else context.matching.partner_in_a(producer_b.row.index)
    part_a, part_b = parts_of(a, x, b, y, operand.place)
    on_a = ReadTensor("A", a, producer_a, part_a, origin_of(a, x), partner, b.index)
    on_b = ReadTensor("B", b, producer_b, part_b, origin_of(b, y), partner_in_a, a.index)
    written = [side for side in (on_a, on_b) if side.producer is not None]
    if not on_a.is_known or not on_b.is_known or not written:
        return None
    if producer_a and producer_b and (partner == producer_b.row.index or _wrote_equal(producer_a, producer_b)):
        if producer_a.row.index in context.permuted:
            wrote = f"what {producer_a.row} (row {producer_a.row.index:,}) wrote, which {PERMUTED}"
            seed = hash_seed_text(a.view.process, b.view.process)
            return Judgement(Cause.ARGUMENTS, operand.match, f"{ANOTHER}: {what} is {wrote}{seed}")
        if difference.structure:  # its shape or layout is another: the cause says so
            return None
        why = _of_one_op(on_a, on_b, same_part=is_same_part(a, x, b, y, operand.place))
        return None if why is None else Judgement(Cause.ARGUMENTS, operand.match, f"{ANOTHER}: {what} is {why}")
    if not all(side.is_shared for side in written):
        return Judgement(Cause.CONTROL_FLOW, operand.match, f"{what} {_written_text(on_a)}, and {_written_text(on_b)}")
    why = _of_one_side(*written) if len(written) == 1 else _calls_text(on_a, on_b)
    return Judgement(Cause.ARGUMENTS, operand.match, f"{ANOTHER}: {what} is {why}")


ANOTHER = "it was called on another tensor"

PERMUTED = "got the same tensors in another order"


def _written_text(given: ReadTensor) -> str:
    """``in A was last written by …``."""
    by = "came from outside" if given.producer is None else f"was last written by {given.writer_text()}"
    return f"in {given.side} {by}"


def _wrote_equal(a: StoredOutput, b: StoredOutput) -> bool:
    """Whether both are outputs of two ops that wrote the same: no matter which of them wrote it."""
    outputs = a.row.rows.outputs(a.row.place)
    return bool(outputs) and a.row.op == b.row.op and outputs == b.row.rows.outputs(b.row.place)


# --- one op -----------------------------------------------------------------------------------------------------------


def _of_one_op(a: ReadTensor, b: ReadTensor, *, same_part: bool) -> str | None:
    """What the same op wrote that both sides read; None where it is the same result, and the same part of it."""
    assert a.producer is not None and b.producer is not None
    writer = f"{a.producer.row} (row {a.producer.row.index:,})"
    if a.producer.slot != b.producer.slot and None not in (a.producer.slot, b.producer.slot):
        return f"{_result_text(a.producer)} of {writer} in A, {_result_text(b.producer)} in B"
    parts = [_part_text(side.part) for side in (a, b)]
    if same_part or parts[0] == parts[1]:
        return None
    several = Origin.MIXED in (a.origin, b.origin)
    wrote = f"what several ops wrote in, the last of them {writer}" if several else f"what {writer} wrote"
    return f"{parts[0]} of {wrote} in A, {parts[1]} in B"


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


def _of_one_side(written: ReadTensor) -> str:
    """What a recorded op wrote on one side, and none on the other."""
    opposite = "B" if written.side == "A" else "A"
    return f"what {written.writer_text()} wrote in {written.side}, and came from outside in {opposite}"


def _calls_text(a: ReadTensor, b: ReadTensor) -> str:
    """The calls that wrote an input, both of which both sides run; what they have in common is said once."""
    assert a.producer is not None and b.producer is not None
    rows = a.producer.row, b.producer.row
    numbers = [_call_number(row) for row in rows]
    modules = [f" in {row.module}" if row.module and rows[0].module != rows[1].module else "" for row in rows]
    places = [f"{module} (row {row.index:,})" for row, module in zip(rows, modules, strict=True)]
    if str(rows[0]) != str(rows[1]):
        return f"what {rows[0]} wrote{places[0]} in A, and what {rows[1]} wrote{places[1]} in B"
    calls = [f"the {ordinal(number)} call" for number in numbers if number is not None]
    if len(set(calls)) < 2:
        same = f", which is A's row {b.counterpart:,}" if b.counterpart is not None else ""
        text = f"what {rows[0]} wrote{places[0]} in A, and what it wrote{places[1]} in B{same}"
    else:
        text = f"what {calls[0]} of {rows[0]} wrote{places[0]} in A, and what {calls[1]} wrote{places[1]} in B"
    return text + hash_seed_text(rows[0].view.process, rows[1].view.process)


def permuted_text(a: RowAt, b: RowAt, inputs: Sequence[Input]) -> str:
    """A clause where the inputs of a pair are the same tensors in another order; "" where they are not, or one is not
    known."""
    known = [
        (KnownBytes.of(a, each.a, each.place).digest, KnownBytes.of(b, each.b, each.place).digest) for each in inputs
    ]
    on_a, on_b = [x for x, _ in known], [y for _, y in known]
    if (
        None in (*on_a, *on_b)
        or on_a == on_b
        or sorted(map(int, filter(None, on_a))) != sorted(map(int, filter(None, on_b)))
    ):
        return ""
    moved = [(each.place, inputs[on_b.index(x)].place) for each, x, y in zip(inputs, on_a, on_b, strict=True) if x != y]
    named = [f"input {place} of A is input {other} of B" for place, other in moved[:MAX_MOVED]]
    more = f" and {len(moved) - MAX_MOVED} more" if len(moved) > MAX_MOVED else ""
    return f"it {PERMUTED}: {', '.join(named)}{more}"


def changed_in_another_order(a: RowAt, b: RowAt) -> list[Input]:
    """The inputs that differ where an op that treats each tensor by itself got all others in another order.

    Each is paired with the one of B that has its layouts; empty where none has them, or several have.
    """
    on_a, on_b = elements_of(a.view, a.rows, a.place), elements_of(b.view, b.rows, b.place)
    if not a.op.startswith(EACH_BY_ITSELF) or a.op != b.op or len(on_a) != len(on_b):
        return []
    same = Counter(on_a) & Counter(on_b)
    changed_a, changed_b = _others(on_a, same), _others(on_b, same)
    partners = {on_b[k][0]: k for k in changed_b}
    layouts = {on_a[k][0] for k in changed_a}
    in_order = [k for k, (x, y) in enumerate(zip(on_a, on_b, strict=True)) if x != y] == changed_a == changed_b
    if in_order or partners.keys() != layouts or len(changed_a) != len(layouts):
        return []
    links_a, links_b = list(a.rows.inputs(a.place)), list(b.rows.inputs(b.place))
    places = [
        (k, partners[on_a[first][0]] + k - first) for first in changed_a for k in range(first, len(links_a), len(on_a))
    ]
    return [
        Input(k, links_a[k], links_b[j], InputsMatch.DIFFER)
        for k, j in places
        if None not in (links_a[k].digest, links_b[j].digest) and links_a[k].digest != links_b[j].digest
    ]


def _others(elements: Sequence[Element], same: Counter[Element]) -> list[int]:
    """Which elements are left without these."""
    left = same.copy()
    others = []
    for k, element in enumerate(elements):
        if left[element]:
            left[element] -= 1
        else:
            others.append(k)
    return others


MAX_MOVED = 3
"""Inputs with another place that are named."""

HASH_SEED = "PYTHONHASHSEED"


def hash_seed_text(a: ProcessTrace, b: ProcessTrace) -> str:
    """A clause on what orders a set of strings, over which one line may be called; "" where it is the same."""
    seeds = [str(process.facts.get(f"env.{HASH_SEED}") or "") for process in (a, b)]
    if seeds[0] != seeds[1]:
        a_is, b_is = (seed or "not set" for seed in seeds)
        return f"; PYTHONHASHSEED, which orders a set of strings, is {a_is} in A, {b_is} in B"
    if seeds[0].isdigit():
        return ""
    return "; PYTHONHASHSEED is not set, so a set of strings has another order in each process"


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
