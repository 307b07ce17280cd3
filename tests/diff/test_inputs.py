"""Inputs count as equal only where facts of both sides prove it."""

from pathlib import Path
from typing import Any

import pytest
from views import both, context_of, opened, view_of, views_in

from rltrace.diff.base.findings import row_at
from rltrace.diff.base.model import InputsMatch
from rltrace.diff.causes.inputs import combine, input_is_equal, match_inputs, origin_of
from rltrace.diff.causes.no_op_writes import ONES
from rltrace.digest import digest_buffer, seed_of
from rltrace.testing import In, TraceBuilder
from rltrace.trace.format.schema import SLOT_UNKNOWN, Origin, RowFlag

MM, ADD = "aten.mm.default", "aten.add_.Tensor"
SQUARE, TURNED = ("float32", (2, 2), (2, 1), "cpu"), ("float32", (2, 2), (1, 2), "cpu")
READ, INFERRED, UNKNOWN, DIFFER = InputsMatch.READ, InputsMatch.INFERRED, InputsMatch.UNKNOWN, InputsMatch.DIFFER

Op = tuple[str, dict[str, Any]]
"""An op and its fields; "step" ends a step."""


def op(name: str = MM, **fields: Any) -> Op:
    return name, fields


MAKE = op(outputs=["x"])
OTHER = op(outputs=["z"])
STEP = op("step")
SCALAR = ("float32", (), (), "cpu")
DIGEST_OF_ONE = digest_buffer(ONES["float32"], seed_of("float32", ()))
OVER = "overwritten"
ONE, ONE_READ = op(outputs=[DIGEST_OF_ONE]), ("outside", DIGEST_OF_ONE)
LAST = op(inputs=[1])
TWO = op(outputs=["x", "y"])
WHICH_OF_0, WHICH_OF_1 = (In(row, slot=SLOT_UNKNOWN) for row in (0, 1))
EMPTY = op("aten.empty.default", outputs=[], flags=RowFlag.ALLOCATION)
VIEW = op("aten.view.default", inputs=[0], outputs=[], flags=RowFlag.VIEW)


def alike(*ops: Op) -> tuple[list[Op], list[Op]]:
    return list(ops), list(ops)


@pytest.mark.parametrize(
    ("a", "b", "match", "equal"),
    [
        # read on both sides
        (*alike(MAKE, op(inputs=[In(0, "x")])), READ, True),
        ([MAKE, op(inputs=[In(0, "x")])], [OTHER, op(inputs=[In(0, "z")])], DIFFER, False),
        (*alike(op(inputs=[("outside", "o")])), READ, True),
        ([op(inputs=[("outside", "o")])], [op(inputs=[("outside", "p")])], DIFFER, False),
        # read by an earlier row of the same view
        (*alike(op(inputs=[("outside", "o")]), op(inputs=[In(0, known=True)])), INFERRED, True),
        ([op(inputs=[("outside", "o")]), op(inputs=[In(0, known=True)])],
         [op(inputs=[("outside", "p")]), op(inputs=[In(0, known=True)])], DIFFER, False),
        ([op(inputs=["unknown", ("outside", "o")]), op(inputs=[In(0, slot=1, known=True)])],
         [op(inputs=["unknown", ("outside", "o")]), op(inputs=[In(0, slot=1, known=True)])], INFERRED, True),
        (*alike(op(inputs=[("outside", "o")]), op(inputs=[In(0, slot=1, known=True)])), UNKNOWN, False),
        (*alike(op(inputs=["unknown"], outputs=["x"]), op(inputs=[In(0, known=True)])), UNKNOWN, False),
        # by links to what was written
        (*alike(MAKE, op(inputs=[0])), INFERRED, True),
        ([MAKE, op(inputs=[0])], [OTHER, op(inputs=[0])], DIFFER, False),
        (*alike(TWO, op(inputs=[In(0, slot=1)])), INFERRED, True),
        ([TWO, op(inputs=[In(0, slot=1)])], [op(outputs=["z", "y"]), op(inputs=[In(0, slot=1)])], INFERRED, True),
        ([TWO, op(inputs=[In(0, slot=1)])], [op(outputs=["x", "z"]), op(inputs=[In(0, slot=1)])], DIFFER, False),
        ([TWO, op(inputs=[In(0, slot=1)])], [TWO, op(inputs=[In(0)])], DIFFER, False),
        (*alike(MAKE, op(inputs=[In(0, slot=1)])), INFERRED, True),
        ([TWO, op(inputs=[In(0, slot=1)])], [MAKE, op(inputs=[In(0, slot=1)])], DIFFER, False),
        ([MAKE, op(inputs=[In(0, slot=1)])], [TWO, op(inputs=[In(0, slot=1)])], DIFFER, False),
        # one side alone read it
        ([MAKE, op(inputs=[In(0, "x")])], [MAKE, op(inputs=[0])], INFERRED, True),
        ([MAKE, op(inputs=[In(0, "w")])], [MAKE, op(inputs=[0])], UNKNOWN, True),
        ([MAKE, op(inputs=[0])], [MAKE, op(inputs=[In(0, "w")])], UNKNOWN, True),
        # no facts
        (*alike(op(inputs=["unknown"])), UNKNOWN, False),
        (*alike(op(inputs=["mixed"])), UNKNOWN, False),
        ([MAKE, op(inputs=[0])], [MAKE, op(inputs=["unknown"])], UNKNOWN, False),
        # written in an earlier step: memory may have been written since
        (*alike(MAKE, STEP, op(inputs=[0])), UNKNOWN, True),
        # which output it is, is known only of a writer with one
        ([MAKE, OTHER, op(inputs=[WHICH_OF_0])], [OTHER, MAKE, op(inputs=[WHICH_OF_1])], INFERRED, True),
        ([TWO, OTHER, op(inputs=[WHICH_OF_0])], [OTHER, TWO, op(inputs=[WHICH_OF_1])], INFERRED, False),
        # a writer without digests is no proof, unless matched
        (*alike(EMPTY, op(inputs=[0])), INFERRED, False),
    ],
)  # fmt: skip
def test_inputs(tmp_path: Path, a: list[Op], b: list[Op], match: InputsMatch, equal: bool) -> None:
    """How the input of the last op of each side is known to match; and whether it is proven equal whatever wrote it."""
    for trace, ops in both(tmp_path, a, b):
        for name, fields in ops:
            trace.end_step() if name == "step" else trace.op(name, **fields)
    sides = views_in(tmp_path)
    last = [row_at(view, view.rows - 1) for view in sides]
    rows = min(view.rows for view in sides)
    context = context_of(*sides, [(row, row) for row in range(rows)])
    (found,) = match_inputs(context, *last)
    assert (found.place, found.match) == (0, match)
    assert input_is_equal(context, *last, 0) is equal


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ([MAKE, op(inputs=[0])], [MAKE, op(inputs=[0])], True),
        ([MAKE, op(inputs=[0])], [OTHER, op(inputs=[0])], False),
        ([MAKE, op(inputs=[0])], [op(outputs=["w"]), MAKE, op(inputs=[1])], True),
        ([op(outputs=["p", "x"]), op(inputs=[In(0, slot=1)])], [MAKE, op(inputs=[0])], True),
        ([op(outputs=["p", "x"]), op(inputs=[In(0, slot=0)])], [MAKE, op(inputs=[0])], False),
        # written through a view that is turned: the same digest, but other bytes
        ([MAKE, op(ADD, inputs=[0], layouts=[TURNED], outputs=["y"]), op(inputs=[1])],
         [op(outputs=["y"]), op(inputs=[0])], False),
        ([MAKE, op(ADD, inputs=[0], layouts=[SQUARE], outputs=["y"]), op(inputs=[1])],
         [op(outputs=["y"]), op(inputs=[0])], True),
        ([MAKE, op(ADD, inputs=[0], layouts=[TURNED], outputs=["y"]), op(inputs=[1])],
         [OTHER, op(ADD, inputs=[0], layouts=[TURNED], outputs=["y"]), op(inputs=[1])], True),
        ([MAKE, op(ADD, inputs=[0], layouts=[TURNED], outputs=["y"]), op(inputs=[1])],
         [OTHER, op(ADD, inputs=[0], layouts=[SQUARE], outputs=["y"]), op(inputs=[1])], False),
        # an op that changed nothing
        ([MAKE, op(ADD, inputs=[In(0, "x")], layouts=[SQUARE], outputs=["x"]), LAST], [MAKE, op(inputs=[0])], True),
        ([MAKE, op(ADD, inputs=[0], layouts=[SQUARE], outputs=["x"]), op(inputs=[1])], [MAKE, op(inputs=[0])], True),
        ([MAKE, op("aten.mul_.Scalar", inputs=["unknown"], layouts=[SQUARE], outputs=["y"], integers=[1]), LAST],
         [MAKE, op(inputs=[0])], False),
        ([MAKE, op(ADD, inputs=[In(0, "x")], layouts=[TURNED], outputs=["x"]), LAST], [MAKE, op(inputs=[0])], True),
        ([MAKE, op(ADD, inputs=[In(0, "w")], layouts=[TURNED], outputs=["x"]), LAST], [MAKE, op(inputs=[0])], False),
        ([MAKE, op("aten.mul_.Scalar", inputs=[0], layouts=[TURNED], outputs=["y"], integers=[1]), LAST],
         [MAKE, op(inputs=[0])], True),
        ([MAKE, op("aten.mul_.Scalar", inputs=[0], layouts=[TURNED], outputs=["y"], integers=[2]), LAST],
         [MAKE, op(inputs=[0])], False),
        ([ONE, MAKE, op("aten.mul_.Tensor", inputs=[1, 0], layouts=[TURNED, SCALAR], outputs=["y"]), op(inputs=[2])],
         [MAKE, op(inputs=[0])], True),
        ([MAKE, op("aten.mul_.Tensor", inputs=[0, ONE_READ], layouts=[TURNED, SCALAR], outputs=["y"]), LAST],
         [MAKE, op(inputs=[0])], True),
        ([MAKE, op("aten.mul_.Tensor", inputs=[OVER, ONE_READ], layouts=[TURNED, SCALAR], outputs=["y"]), LAST],
         [MAKE, op(inputs=[0])], False),
        # a library's workspace has no digest
        ([op(outputs=[0]), op(inputs=[0])], [op(outputs=[0]), op(inputs=[0])], False),
        ([MAKE, op(inputs=["overwritten"])], [OTHER, op(inputs=["overwritten"])], True),
        ([MAKE, op(inputs=[])], [MAKE, op(inputs=[0])], True),
        # read at its use on one side, left by an op on the other
        ([op(inputs=[("outside", "x")], layouts=[SQUARE])], [MAKE, op(inputs=[0])], True),
        ([op(inputs=[("outside", "x")], layouts=[TURNED])], [MAKE, op(inputs=[0])], False),
        ([op(inputs=[("outside", "x")], layouts=[])], [MAKE, op(inputs=[0])], False),
    ],
)  # fmt: skip
def test_equal_bytes_whatever_wrote_them(tmp_path: Path, a: list[Op], b: list[Op], equal: bool) -> None:
    """Where no ops are matched: equal digests in equal or plain layouts, and nothing written since."""
    for trace, ops in both(tmp_path, a, b):
        for name, fields in ops:
            trace.op(name, **fields)
    sides = views_in(tmp_path)
    last = [row_at(view, view.rows - 1) for view in sides]
    assert input_is_equal(context_of(*sides, []), *last, 0) is equal


def test_the_weakest_knowledge_counts(tmp_path: Path) -> None:
    """The weakest knowledge of all inputs counts, those that the op overwrites left out."""
    inputs = [("outside", "o"), "overwritten", 0, "unknown"]
    sides = [
        view_of(tmp_path / f"{side}.zarr", lambda t: (t.op(MM, outputs=["x"]), t.op(MM, inputs=inputs)))
        for side in "ab"
    ]
    rows = [row_at(view, 1) for view in sides]
    found = match_inputs(context_of(*sides, [(0, 0), (1, 1)]), *rows)
    assert [(one.place, one.match) for one in found] == [(0, READ), (2, INFERRED), (3, UNKNOWN)]
    assert [combine(found[:count]) for count in range(4)] == [READ, READ, INFERRED, UNKNOWN]


def test_origins(tmp_path: Path) -> None:
    """The origin of an input, through rows that only read the same view."""
    trace = TraceBuilder(tmp_path / "a.zarr")
    trace.op(MM, outputs=["x"])
    trace.op(MM, inputs=[("outside", "o"), In(0)])
    trace.op(MM, inputs=[In(1, known=True), In(1, slot=1, known=True), In(1, slot=1), In(1, slot=7, known=True)])
    row = row_at(opened(trace.finish()), 2)
    assert [origin_of(row, link) for link in row.rows.inputs(2)] == [Origin.OUTSIDE, 1, 1, 1]


def test_equal_bytes_of_matched_ops_in_other_layouts(tmp_path: Path) -> None:
    """Matched ops wrote them, into memory that is laid out otherwise; not where another output is read."""
    sides = []
    for side, layout, slot in (("a", SQUARE, 1), ("b", TURNED, 1), ("c", TURNED, 0)):

        def build(trace: TraceBuilder, layout: Any = layout, slot: int = slot) -> None:
            trace.op("aten._foreach_add_.Scalar", inputs=["unknown"] * 2, layouts=[layout] * 2, outputs=["x", "x"])
            trace.op(MM, inputs=[In(0, slot=slot)])

        sides.append(view_of(tmp_path / f"{side}.zarr", build))
    a, b, c = (row_at(view, 1) for view in sides)
    matched = [(0, 0), (1, 1)]
    assert input_is_equal(context_of(sides[0], sides[1], matched), a, b, 0)
    assert not input_is_equal(context_of(sides[0], sides[1], []), a, b, 0)
    assert not input_is_equal(context_of(sides[0], sides[2], matched), a, c, 0)
