"""Which ops exchange data with other processes is known by their names."""

import pytest

from rltrace.trace.format.collectives import brings_data


@pytest.mark.parametrize(
    ("op", "brings"),
    [
        ("c10d.allreduce_.default", True),
        ("_c10d_functional.all_reduce.default", True),
        ("_c10d_functional_autograd.all_to_all_single.default", True),
        ("_c10d_functional.wait_tensor.default", True),
        ("_c10d_functional_autograd._wrap_tensor_autograd.default", False),
        ("c10d.check_for_nan.default", False),
        ("aten.add.Tensor", False),
    ],
)
def test_collectives(op: str, brings: bool) -> None:
    """An op that waits brings data, too; some ops of these namespaces do not."""
    assert brings_data(op) == brings
