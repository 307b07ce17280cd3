"""Which ops exchange data with other processes is known by their names."""

from __future__ import annotations

import pytest

from rltrace.trace.format.collectives import brings_data, is_collective


@pytest.mark.parametrize(
    ("op", "exchanges", "brings"),
    [
        ("c10d.allreduce_.default", True, True),
        ("_c10d_functional.all_reduce.default", True, True),
        ("_c10d_functional_autograd.all_to_all_single.default", True, True),
        ("_c10d_functional.wait_tensor.default", False, True),
        ("_c10d_functional_autograd._wrap_tensor_autograd.default", False, False),
        ("c10d.check_for_nan.default", False, False),
        ("aten.add.Tensor", False, False),
    ],
)
def test_collectives(op: str, exchanges: bool, brings: bool) -> None:
    """An op that waits brings data, and exchanges none; some ops of these namespaces do neither."""
    assert (is_collective(op), brings_data(op)) == (exchanges, brings)
