"""How calls are put into words: tensors without strides have a name of what they are made of instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from programs import Do, Machine

import rltrace
from rltrace.diff.base.findings import row_at
from rltrace.diff.base.row_diff import Difference, arguments_text
from rltrace.diff.base.view import StreamView
from rltrace.trace.read.reader import open_trace


def nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4)], layout=layout)


MADE = {
    "float32[2,3]": lambda: torch.ones(2, 3),
    "float32[2,3] strides [1, 2]": lambda: torch.ones(3, 2).t(),
    "float32[3,3] sparse_coo": lambda: torch.eye(3).to_sparse(),
    "float32[nested] jagged": lambda: nested(torch.jagged),
    "float32[nested] strided": lambda: nested(torch.strided),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(("a", "b"), pairwise(MADE))
def test_other_tensors_are_named(tmp_path: Path, a: str, b: str) -> None:
    """Contiguous ones, strided ones, sparse and nested ones: what each side was called with, and no crash."""
    rows = []
    for name, tensor in (("a", MADE[a]()), ("b", MADE[b]())):
        with rltrace.record(tmp_path / name):
            tensor.sin()
        process = open_trace(tmp_path / name).processes[0]
        rows.append(row_at(StreamView(process, process.streams[0]), 0))
    found = arguments_text(rows[0], rows[1], Difference(structure=True))
    assert found == f"it was called with different tensors: {a} in A, {b} in B"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x, n: x * n, "other=2.0 in A, 3.0 in B"),
        (lambda x, n: x.clamp(-n, n), "min=-2.0 in A, -3.0 in B, and max=2.0 in A, 3.0 in B"),
        (lambda x, n: torch.addcdiv(x, x, x, value=n), "value=2.0 in A, 3.0 in B"),
    ],
)
def test_numbers_have_the_names_of_the_schema(
    tmp_path: Path, call: Callable[[torch.Tensor, float], torch.Tensor], text: str
) -> None:
    """Whether they were positional or not, and only those that differ."""
    rows = []
    for name, number in (("a", 2.0), ("b", 3.0)):
        with rltrace.record(tmp_path / name):
            call(torch.ones(3), number)
        process = open_trace(tmp_path / name).processes[0]
        view = StreamView(process, process.streams[0])
        rows.append(row_at(view, view.rows - 1))
    assert arguments_text(rows[0], rows[1], Difference(arguments=True)) == f"it was called with {text}"


def test_numbers_without_a_recorded_schema(record: Callable[..., Machine]) -> None:
    """A trace of an older version has no schemas: the numbers are shown in order."""
    program = [Do("aten.ones.default", (), "x", 9), Do("aten.mul.Scalar", ("x",), "y", 10)]
    rows = []
    for floats in ((2.0,), (3.0,)):
        process = open_trace(record([program[0], replace(program[1], floats=floats)]).path).processes[0]
        rows.append(row_at(StreamView(process, process.streams[0]), 1))
    text = arguments_text(rows[0], rows[1], Difference(arguments=True))
    assert text == "it was called with different numbers: 2.0 in A, 3.0 in B"
