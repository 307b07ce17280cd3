"""Ops that compute with data from outside torch that differs, where no step of an optimizer depends on it.

A clock that is logged, or an environment that is reset before it is seeded, differs in every run and comes before the
difference that training follows from. Followed through tensors alone: Python may act on a number that it reads.
"""

from dataclasses import dataclass, field, replace

from rltrace.diff.align.window import unequal_pairs
from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.findings import RowAt, writer_of
from rltrace.diff.base.model import Cause, Finding, InputsMatch
from rltrace.diff.base.row_diff import Difference
from rltrace.diff.base.sequences import Indices
from rltrace.diff.base.view import RowRange
from rltrace.diff.causes.exchanged_objects import carries_equal_objects
from rltrace.diff.causes.inputs import Input, match_inputs, same_bytes
from rltrace.diff.causes.uninitialised import ATEN, garbage_writers
from rltrace.trace.format.schema import Column, Origin, Phase
from rltrace.wording import counted

MAX_FOLLOWED = 4_096
"""Pairs that differ and are examined at most."""

OPTIMIZER = Phase.OPTIMIZER.name.lower()


@dataclass
class OutsideData:
    """The rows that compute with it, as far as a walk has come."""

    rows: set[int] = field(default_factory=set)
    """Rows of A."""
    passed: int = 0
    """How many of them come before the first difference for another reason."""
    read_number: RowAt | None = None
    """The first of them that returns another number to Python."""
    stop: str | None = None
    """Why the walk ends without a result; None: it does not."""
    _examined: int = 0

    def first_other(
        self, context: DiffContext, a: RowRange, at_a: Indices, b: RowRange, at_b: Indices, step_ends: bool
    ) -> int | None:
        """Number of the first of these pairs that differs for another reason, where the step of an optimizer that ends
        with the last pair depends on none of this data; None: there is none, or that is not known."""
        other = None
        for k, differs in unequal_pairs(a, at_a, b, at_b):
            pair = RowAt(a.view, a.rows, int(at_a[k])), RowAt(b.view, b.rows, int(at_b[k]))
            self._examined += 1
            if carries_equal_objects(*pair):
                context.exchanged.add(pair[0].index)
                continue
            if self._depends_on_it(context, *pair, differs):
                self._add(pair[0], differs, is_before=other is None)
            elif other is None:
                other = k
            if self._examined > MAX_FOLLOWED:
                self.stop = "too many ops compute with data from outside"
            if self.stop is not None:
                return None
        in_optimizer = a.rows.column(Column.PHASE)[at_a] == Phase.OPTIMIZER
        if other is not None and not (step_ends and in_optimizer.any()):
            self.stop = "the step of no optimizer ends with these rows"
            return None
        return other

    def _depends_on_it(self, context: DiffContext, a: RowAt, b: RowAt, differs: Difference) -> bool:
        known = InputsMatch.READ, InputsMatch.INFERRED
        unequal = [operand for operand in match_inputs(context, a, b) if operand.match not in known]
        if not a.is_op:
            self.stop = "an event differs"
        return any(self._is_of_it(context, a, b, operand) for operand in unequal)

    def _is_of_it(self, context: DiffContext, a: RowAt, b: RowAt, operand: Input) -> bool:
        if Origin.OUTSIDE in (operand.a.distance, operand.b.distance):
            return True
        writers = garbage_writers(context, a, b, operand, self.rows)
        if writers is not None and writers[0].index not in self.rows:
            self.stop = "an op computes with uninitialised memory"
        if writers is None and operand.match is InputsMatch.DIFFER and not _has_writer(context, a, b, operand):
            self.stop = "what wrote an input is not known, or another op on the two sides"
        return writers is not None

    def _add(self, row: RowAt, differs: Difference, is_before: bool) -> None:
        if differs.structure or differs.arguments or differs.rng or not row.op.startswith(ATEN):
            self.stop = "an op does more than compute with data from outside"
        if row.phase == OPTIMIZER:
            self.stop = "an optimizer computes with data from outside"
        self.rows.add(row.index)
        if is_before:
            self.passed += 1
            if differs.value and self.read_number is None:
                self.read_number = row

    # --- the finding that leads -------------------------------------------------------------------------------

    def leading(self, first: Finding, other: Finding) -> Finding:
        """The one of two findings to report, with the other in its explanation. ``first``: at the first op that
        computes with this data; ``other``: at the first that differs for another reason."""
        if other.is_local or (other.cause is Cause.ARGUMENTS and self.read_number is None):
            ops = f"{counted(self.passed, 'op')}, {'' if self.passed == 1 else 'the first of them '}{_place(first)}"
            text = f"before it, {ops}, computed with other data from outside"
            if self.read_number is not None:
                text += f", of which Python read a number (row {self.read_number.index:,})"
            why = f"{other.explanation}; {text}; no op of this optimizer step depends on it"
            return replace(other, explanation=why, unused_outside=self.passed)
        if other.cause not in (Cause.ARGUMENTS, Cause.RNG):
            return first
        why = f"{_place(other)}, which computes with none of it, differs too: {other.explanation}"
        return replace(first, explanation=f"{first.explanation}; later, {why}")


def _has_writer(context: DiffContext, a: RowAt, b: RowAt, operand: Input) -> bool:
    """Whether an input that differs was written last by matched ops that wrote different bytes, or by several ops."""
    if operand.a.distance == operand.b.distance == Origin.MIXED:
        return True
    writer_a, writer_b = writer_of(a, operand.a), writer_of(b, operand.b)
    if writer_a is None or writer_b is None or context.matching.partner(writer_a.index) != writer_b.index:
        return False
    return not same_bytes(writer_a, None, writer_b, None)


def _place(finding: Finding) -> str:
    site = "" if finding.site is None else f" at {finding.site.file}:{finding.site.line}"
    return f"{finding.op}{site} (row {finding.a_index:,})"
