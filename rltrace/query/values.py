"""The recorded values of one op on both sides, compared; or why they are missing and the commands that record them.

Owns how an op's tensors are paired; ``diff.metrics.distances`` measures them. Decides no verdict. Never prints.
"""

from dataclasses import dataclass
from itertools import chain, repeat

from rltrace.command_lines import file_name, line, record_both, record_step
from rltrace.diff.base.findings import RowAt
from rltrace.diff.base.model import Pair
from rltrace.diff.metrics.distances import LISTED, Distances, ElementPair, first_elements, measure
from rltrace.errors import HoleError
from rltrace.selectors import escape
from rltrace.trace.format.schema import Column, is_within
from rltrace.trace.read.reader import Trace
from rltrace.trace.read.values import GENERATOR, Value


@dataclass(frozen=True)
class ValuePair:
    """One tensor that an op read, returned or wrote, on both sides."""

    what: str
    """``input 1``, ``output 0``."""
    layout: Pair[str]
    """``float32[64,4]`` of the recorded values."""
    equal: bool
    """Whether the digests are the same, or only one side is shown: there is one value."""
    distances: Distances | None
    """None: the values are equal, or cannot be measured."""
    elements: tuple[ElementPair, ...]
    """The first elements, where both sides are equal."""
    why: str
    """Why there are neither distances nor elements; "" otherwise."""


@dataclass(frozen=True)
class OpValues:
    """All tensors of one op with a known digest."""

    pairs: tuple[ValuePair, ...]
    requested: bool
    """Whether values were requested when the traces were recorded."""

    @property
    def any_recorded(self) -> bool:
        return any(pair.distances is not None or pair.elements for pair in self.pairs)


def op_values(a: RowAt | None, b: RowAt | None) -> OpValues:
    """Read the values of row ``a`` and row ``b``; either may be None."""
    rows = [row for row in (a, b) if row is not None]
    if not all(row.is_op for row in rows):
        return OpValues((), False)
    requested = any(bool(row.view.process.values) for row in rows)
    digests_by_name = [_digests(row) for row in rows]
    pairs = []
    for what in dict.fromkeys(name for known in digests_by_name for name in known):
        digests = [known.get(what) for known in digests_by_name]
        if requested or len(set(digests)) > 1:
            pairs.append(_pair(what, rows, digests))
    shown = [pair for pair in pairs if pair.elements or not pair.equal]  # equal and without a value adds nothing
    return OpValues(tuple(shown or pairs), requested)


def recording_commands(traces: tuple[Trace, ...], row: RowAt) -> tuple[str, ...]:
    """Commands that record one op's values, one for each trace, then one that shows them.

    None for an event, and for what is within calls of JAX, of which no values are recorded.
    """
    if not row.is_op or is_within(row.view.name):
        return ()
    words = ["--values", selector_of(row), "--values-inputs"]
    if len(traces) == 2:
        return record_both(*traces, row.step, row.step, "values", *words)
    file = file_name(traces[0], "values")
    return record_step(traces[0], row.step, file, *words), line("show", file)


def selector_of(row: RowAt) -> str:
    """A selector of the op at its call site: ``op=aten.mm.default,site=critic.py:Critic.forward``."""
    text = f"op={escape(row.op)}"
    stack = row.stack
    return f"{text},site={escape(stack[0].file)}:{escape(stack[0].function)}" if stack else text


def _digests(row: RowAt) -> dict[str, int]:
    """Digests of the tensors that the op read (where known), returned and wrote, by name."""
    inputs = {k: link.digest for k, link in enumerate(row.rows.inputs(row.place)) if link.digest is not None}
    values = row.view.process.values
    if values:
        inputs |= values.inputs(row.view.stream.index, row.index)
    named = {f"input {k}": digest for k, digest in sorted(inputs.items())}
    names = chain(row.view.words.written(int(row.rows.columns[row.place, Column.SCALARS])), repeat(""))
    outputs = enumerate(zip(row.rows.outputs(row.place), names, strict=False))
    return named | {f"output {k} {name}".rstrip(): digest for k, (digest, name) in outputs}


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
    recorded = [value for value in values if value is not None]
    if len(set(digests)) == 1:  # one value, whichever side recorded it
        return ValuePair(what, layout, True, None, _elements(recorded[0]) if recorded else (), "" if recorded else why)
    if len(recorded) < len(rows):
        return _unmeasured(what, layout, why)
    a, b = recorded
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return _unmeasured(what, layout, "their dtypes or shapes differ")
    if a.dtype == GENERATOR:
        return _unmeasured(what, layout, "RNG states: equal or not, there is no distance")
    return ValuePair(what, layout, False, measure(a.dtype, a.raw, b.raw), (), "")


def _unmeasured(what: str, layout: Pair[str], why: str) -> ValuePair:
    return ValuePair(what, layout, False, None, (), why)


def _missing(row: RowAt, digest: int | None) -> str:
    """Why a value was not recorded."""
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
