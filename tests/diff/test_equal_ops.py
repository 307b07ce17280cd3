"""Ops that are equal in all that is recorded: whichever is taken for the extra one, the answer is the same."""

from __future__ import annotations

from collections.abc import Callable

from programs import Do, Machine, training

from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Verdict

Record = Callable[..., Machine]

ONE = Do("aten.mul.Tensor", ("w1",), "h", 40)
MORE = Do("aten.mul.Tensor", ("w1",), "again", 40)
"""The same line once more: which of the two is the extra one cannot be known."""


def test_bytes_that_changed_unseen_are_no_business_of_equal_writers(record: Record) -> None:
    """Two equal ops wrote the same: where other bytes are read, these were changed, whichever of them was the last."""
    rest = [Do("step"), Do("aten.add.Tensor", ("h", "w2"), "y", 50), Do("step")]
    unseen = Do("alias", (), "h", noise="numpy")
    a = record([*training(2), MORE, ONE, rest[0], unseen, *rest[1:]])
    b = record([*training(2), ONE, *rest])
    value = compare(a.path, b.path).first_value
    assert value.cause is Cause.UNTRACKED_WRITE
    assert "changed without any recorded op: in A its bytes are not those" in value.explanation


def test_moved_ops_that_read_first_are_moved_once(record: Record) -> None:
    """Which op is the first to read a tensor in a step is a matter of order; the fewest moves that explain it count."""
    one, other = Do("aten.view.default", ("w1",), "", 41), Do("aten.mul.Tensor", ("w2",), "", 42)
    third = Do("aten.mm.default", ("w2",), "", 43)
    a = record([*training(2), other, third, other, one, third, one, other, one, third, Do("step")])
    b = record([*training(2), other, one, third, other, one, third, other, one, third, Do("step")])
    comparison = compare(a.path, b.path)
    assert comparison.verdict is Verdict.SAME_VALUES
    assert (comparison.structure.only_a, comparison.structure.only_b, comparison.structure.reordered) == (0, 0, 1)
