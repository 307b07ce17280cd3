"""The recorded values of one op on both sides, compared; and where there are none, why, and how to record them.

Owns which of an op's tensors stand beside each other. The distances are measured in ``diff.numbers.distances``. Decides
no verdict. Never prints.
"""

from __future__ import annotations

from dataclasses import dataclass

from rltrace.command_lines import file_name, line, record_both, record_step
from rltrace.diff.base.findings import RowAt
from rltrace.diff.base.model import Pair
from rltrace.diff.metrics.distances import LISTED, Distances, ElementPair, first_elements, measure
from rltrace.errors import HoleError
from rltrace.selectors import escape
from rltrace.trace.read.reader import Trace
from rltrace.trace.read.values import GENERATOR, Value


@dataclass(frozen=True)
class ValuePair:
    """One tensor that an op read, returned or wrote, on both sides."""

    what: str
    """``input 1``, ``output 0``."""
    layout: Pair[str]
    """``float32[64,4]`` of what was kept."""
    equal: bool
    """The digests are the same (or one side alone is looked at): there is one value to show."""
    distances: Distances | None
    """How far they are apart; None: they are equal, or cannot be measured."""
    elements: tuple[ElementPair, ...]
    """Where they are equal: the first elements."""
    why: str
    """Why there is neither; "" where there is."""


@dataclass(frozen=True)
class OpValues:
    """All tensors of one op of which something is known."""

    pairs: tuple[ValuePair, ...]
    asked: bool
    """Somebody asked for values when the traces were recorded."""

    @property
    def any_kept(self) -> bool:
        return any(pair.distances is not None or pair.elements for pair in self.pairs)


def op_values(a: RowAt | None, b: RowAt | None) -> OpValues:
    """The values of row ``a`` and row ``b``; one of them may be None: then the other's alone. Reads them."""
    rows = [row for row in (a, b) if row is not None]
    if not all(row.is_op for row in rows):
        return OpValues((), False)
    asked = any(bool(row.view.process.values) for row in rows)
    wanted = [_wanted(row) for row in rows]
    pairs = []
    for what in dict.fromkeys(name for known in wanted for name in known):
        digests = [known.get(what) for known in wanted]
        if asked or len(set(digests)) > 1:
            pairs.append(_pair(what, rows, digests))
    told = [pair for pair in pairs if pair.elements or not pair.equal]  # what is equal and was not kept is no news
    return OpValues(tuple(told or pairs), asked)


def how_to_record(traces: tuple[Trace, ...], row: RowAt) -> tuple[str, ...]:
    """Commands that record one op's values, ready to paste: one a trace, then how to look at them. None of an event."""
    if not row.is_op:
        return ()
    words = ["--values", selector_of(row), "--values-inputs"]
    if len(traces) == 2:
        return record_both(*traces, row.step, row.step, "values", *words)
    file = file_name(traces[0], "values")
    return record_step(traces[0], row.step, file, *words), line("show", file)


def selector_of(row: RowAt) -> str:
    """What finds the op of a row at its place in the code: ``op=aten.mm.default,site=critic.py:Critic.forward``."""
    text = f"op={escape(row.op)}"
    stack = row.stack
    return f"{text},site={escape(stack[0].file)}:{escape(stack[0].function)}" if stack else text


def _wanted(row: RowAt) -> dict[str, int]:
    """Digests of what the op read (where that is known), returned and wrote, by name."""
    inputs = {k: link.digest for k, link in enumerate(row.rows.inputs(row.place)) if link.digest is not None}
    values = row.view.process.values
    if values:
        inputs |= values.inputs(row.view.stream.index, row.index)
    found = {f"input {k}": digest for k, digest in sorted(inputs.items())}
    return found | {f"output {k}": digest for k, digest in enumerate(row.rows.outputs(row.place))}


def _pair(what: str, rows: list[RowAt], digests: list[int | None]) -> ValuePair:
    values: list[Value | None] = []
    why = ""
    for row, digest in zip(rows, digests, strict=True):
        try:
            value = None if digest is None else row.view.process.values.get(digest)
            missing = "" if value is not None else _missing(row, digest)
        except HoleError as error:
            value, missing = None, str(error)
        values.append(value)
        side = "" if len(rows) < 2 else "A: " if row is rows[0] else "B: "
        why = why or (missing and f"{side}{missing}")
    layouts = [None if value is None else _layout(value) for value in values]
    layout = Pair(layouts[0], layouts[-1])
    kept = [value for value in values if value is not None]
    if len(set(digests)) == 1:  # one value, whichever side kept it
        return ValuePair(what, layout, True, None, _elements(kept[0]), "") if kept else _none(what, layout, True, why)
    if len(kept) < len(rows):
        return _none(what, layout, False, why)
    a, b = kept
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return _none(what, layout, False, "their dtypes or shapes differ")
    if a.dtype == GENERATOR:
        return _none(what, layout, False, "RNG states: equal or not, there is no distance")
    return ValuePair(what, layout, False, measure(a.dtype, a.raw, b.raw), (), "")


def _none(what: str, layout: Pair[str], equal: bool, why: str) -> ValuePair:
    return ValuePair(what, layout, equal, None, (), why)


def _missing(row: RowAt, digest: int | None) -> str:
    """Why a value is not there."""
    if digest is None:
        return "this side has no such tensor, or no digest of it"
    values = row.view.process.values
    if not values:
        return "its values were not recorded"
    return values.why_missing(row.view.stream.index, row.index) or "no selector of --values found it"


def _layout(value: Value) -> str:
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def _elements(value: Value) -> tuple[ElementPair, ...]:
    return () if value.dtype == GENERATOR else first_elements(value.dtype, value.raw, LISTED)
