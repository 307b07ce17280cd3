"""How calls are put into words: tensors without strides have a name of what they are made of instead."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from views import opened

import rltrace
from rltrace.diff.base.findings import RowAt, row_at
from rltrace.diff.base.row_diff import Difference, arguments_text


def nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4)], layout=layout)


MADE = {
    "float32[2,3]": lambda: torch.ones(2, 3),
    "float32[2,3] strides [1, 2]": lambda: torch.ones(3, 2).t(),
    "float32[3,3] sparse_coo": lambda: torch.eye(3).to_sparse(),
    "float32[nested] jagged": lambda: nested(torch.jagged),
    "float32[nested] strided": lambda: nested(torch.strided),
}


def last_row(path: Path, program: Callable[[], object]) -> RowAt:
    with rltrace.record(path):
        program()
    view = opened(path)
    return row_at(view, view.rows - 1)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(("a", "b"), pairwise(MADE))
def test_other_tensors_are_named(tmp_path: Path, a: str, b: str) -> None:
    """Contiguous ones, strided ones, sparse and nested ones: what each side was called with, and no crash."""
    rows = [last_row(tmp_path / name, MADE[name]().sin) for name in (a, b)]
    assert arguments_text(*rows, Difference(structure=True)) == (
        f"it was called with different tensors: {a} in A, {b} in B"
    )


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
    rows = [last_row(tmp_path / str(number), partial(call, torch.ones(3), number)) for number in (2.0, 3.0)]
    assert arguments_text(*rows, Difference(arguments=True)) == f"it was called with {text}"
