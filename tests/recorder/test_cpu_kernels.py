"""Kernel evidence: what selects the kernel of an op on a CPU."""

import pytest
import torch
from recorded import Record
from torch import nn

from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.core.cpu_kernels import Kernels


def test_ops_name_their_library(record: Record) -> None:
    """Matrix products, convolutions, factorisations, and all the rest; views and allocations run no kernel."""
    with record.block() as got:
        x = torch.randn(4, 4)
        x @ x
        nn.functional.conv1d(x.view(1, 4, 4), torch.ones(2, 4, 3))
        torch.linalg.qr(x)
        x + 1
        torch.empty(3)
    assert got.named("view")[0].kernel == got.one("empty").kernel == {}
    assert got.one("mm").kernel["library"] in ("MKL", "BLAS")
    assert got.one("convolution").kernel["library"] in ("oneDNN", "ATen")
    assert got.one("linalg_qr").kernel["library"] == "LAPACK"
    assert got.one("add").kernel == {
        "library": "ATen",
        "isa": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def test_threads_changed_in_the_middle_show(record: Record) -> None:
    """From the very next op on, and back again."""
    before = torch.get_num_threads()
    try:
        with record.block() as got:
            x = torch.ones(3)
            for threads in (1, 2, 3, 1):
                torch.set_num_threads(threads)
                x + 1
                x @ x
    finally:
        torch.set_num_threads(before)
    assert [row.kernel["threads"] for row in got.named("add")] == [1, 2, 3, 1]
    assert [row.kernel["threads"] for row in got.named("dot")] == [1, 2, 3, 1]


OPS = {
    ("MKL", "BLAS"): ("aten.addmm.default", "aten.bmm.out", "aten.addmv_.default"),
    ("oneDNN", "ATen"): ("aten.convolution_backward.default",),
    ("LAPACK",): ("aten._linalg_svd.default", "aten.cholesky_inverse.default"),
    ("ATen",): ("aten.add.Tensor", "aten.max_pool2d_with_indices.default", "mine.op.default", "flex_attention"),
}
"""By the libraries of which one, that of this build of torch, runs them."""


@pytest.mark.parametrize("libraries", OPS, ids=str)
def test_the_table_of_libraries(libraries: tuple[str, ...]) -> None:
    """By the op's name, custom and higher-order ops included."""
    for op in OPS[libraries]:
        assert Kernels(Tables()).library(op) in libraries, op
