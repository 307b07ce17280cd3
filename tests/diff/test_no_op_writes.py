"""A write that changes no byte is known by its arguments, and nothing else is taken for one."""

from pathlib import Path
from typing import Any

import pytest
from views import rows_of

from rltrace.diff.causes.no_op_writes import (
    ONES,
    is_plain,
    layouts_of,
    numbers_of,
    scales_by_one,
    writes_in_place,
    written_layout,
)
from rltrace.digest import digest_buffer, seed_of
from rltrace.testing import TraceBuilder

X = ("float32", (4,), (1,), "cpu")
ONE = ("float32", (), (), "cpu")


def one(shape: tuple[int, ...] = (), dtype: str = "float32") -> int:
    return digest_buffer(ONES[dtype], seed_of(dtype, shape))


@pytest.mark.parametrize(
    ("shape", "strides", "plain"),
    [
        ((), (), True),
        ((4,), (1,), True),
        ((4,), (2,), False),
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), False),
        ((2, 3), (4, 1), False),
        ((2, 1, 3), (3, 77, 1), True),
        ((1, 3), (5, 1), True),
        ((2, 3), None, False),
    ],
)
def test_contiguous_tensors(shape: tuple[int, ...], strides: tuple[int, ...] | None, plain: bool) -> None:
    """Elements in memory in row-major order; the stride of a dimension of one element is no matter."""
    assert is_plain(("float32", shape, strides)) is plain


@pytest.mark.parametrize(
    ("op", "layouts", "outputs", "numbers", "factor", "scales"),
    [
        ("aten.mul_.Scalar", [X], 1, [1], None, True),
        ("aten.mul_.Scalar", [X], 1, [1.0], None, True),
        ("aten.div_.Scalar", [X], 1, [2], None, False),
        ("aten.mul_.Scalar", [X], 1, [], None, False),
        ("aten.mul_.Scalar", [X], 1, [1, 1], None, False),
        ("aten.add_.Scalar", [X], 1, [1], None, False),
        ("aten.mul.Scalar", [X], 1, [1], None, False),
        ("aten.mul_.Scalar", [X], 0, [1], None, False),
        ("aten.mul_.Scalar", [], 1, [1], None, False),
        ("aten._foreach_mul_.Scalar", [X, X], 2, [1], None, True),
        ("aten.mul_.Scalar", [("complex64", (4,), (1,), "cpu")], 1, [1], None, False),
        ("aten._foreach_mul_.Scalar", [X, ("complex64", (4,), (1,), "cpu")], 2, [1], None, False),
        ("aten.mul_.Tensor", [X, ONE], 1, [], one(), True),
        ("aten.mul_.Tensor", [X, ONE], 1, [], 5, False),
        ("aten.mul_.Tensor", [X, ONE], 1, [], None, False),
        ("aten.mul_.Tensor", [X, ONE], 1, [1], one(), False),
        ("aten.mul_.Tensor", [X, ("float32", (1, 1), (1, 1), "cpu")], 1, [], one((1, 1)), True),
        ("aten.mul_.Tensor", [X, X], 1, [], one((4,)), False),
        ("aten.mul_.Tensor", [X, ("float64", (), (), "cpu")], 1, [], one(dtype="float64"), True),
        ("aten.mul_.Tensor", [X, ("int8", (), (), "cpu")], 1, [], one(), False),
        ("aten._foreach_mul_.Tensor", [X, X, ONE], 2, [], one(), True),
        ("aten._foreach_mul_.Tensor", [X, X, ONE, ONE], 2, [], one(), False),
        ("aten.mul_.Tensor", [X, ONE], 1, [], one(), True),
    ],
)
def test_scaling_by_one(
    tmp_path: Path, op: str, layouts: list[Any], outputs: int, numbers: list[Any], factor: int | None, scales: bool
) -> None:
    """One number that is one, or one tensor of a single element that is; not for complex numbers."""

    def build(trace: TraceBuilder) -> None:
        trace.op("aten.add.Scalar", integers=[7], floats=[0.5], outputs=["before"])
        integers, floats = ([n for n in numbers if type(n) is kind] for kind in (int, float))
        inputs = ["unknown"] * len(layouts)
        trace.op(op, inputs=inputs, layouts=layouts, outputs=["y"] * outputs, integers=integers, floats=floats)
        trace.op("aten.add.Scalar", integers=[8], floats=[2.5], outputs=["after"])

    row = rows_of(tmp_path / "a.zarr", build)[1]
    assert numbers_of(row) == numbers
    assert scales_by_one(row, factor) is scales


@pytest.mark.parametrize(
    ("op", "in_place"),
    [("aten.add_.Tensor", True), ("aten.add.Tensor", False), ("aten.add_", False), ("mylib.my.add_.x", False)],
)
def test_writing_in_place(tmp_path: Path, op: str, in_place: bool) -> None:
    """The operator's name shows it; the layout of an output is then that of the argument."""
    sparse = ("float32", (2, 3), "sparse_coo", "cpu")
    build = lambda trace: trace.op(op, inputs=["unknown", "unknown"], layouts=[X, sparse], outputs=["y"])  # noqa: E731
    (row,) = rows_of(tmp_path / "a.zarr", build)
    assert writes_in_place(row) is in_place
    known = [("float32", (4,), (1,)), ("float32", (2, 3), None)]
    assert layouts_of(row) == known
    assert [written_layout(row, slot) for slot in (0, 1, 2)] == ([*known, None] if in_place else [None] * 3)
