"""Kernel evidence: what selects the kernel of an op on a CPU."""

from __future__ import annotations

import pytest
import torch
from recorded import Record
from torch import nn

from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.core.cpu_kernels import Kernels


def test_ops_name_their_library(record: Record) -> None:
    """Matrix products, convolutions, factorisations, and all the rest."""
    with record.block() as got:
        x = torch.randn(4, 4)
        x @ x
        nn.functional.conv1d(x.view(1, 4, 4), torch.ones(2, 4, 3))
        torch.linalg.qr(x)
        x + 1
    assert got.one("mm").kernel["library"] in ("MKL", "BLAS")
    assert got.one("convolution").kernel["library"] in ("oneDNN", "ATen")
    assert got.one("linalg_qr").kernel["library"] == "LAPACK"
    assert got.one("add").kernel == {
        "library": "ATen",
        "isa": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def test_views_and_allocations_run_no_kernel(record: Record) -> None:
    """Nothing is computed."""
    with record.block() as got:
        torch.ones(4).view(2, 2)
        torch.empty(3)
    assert got.one("view").kernel == got.one("empty").kernel == {}


def test_threads_changed_in_the_middle_show(record: Record) -> None:
    """From the very next op on, and back again."""
    before = torch.get_num_threads()

    def program() -> None:
        x = torch.ones(3)
        for threads in (1, 2, 3, 1):
            torch.set_num_threads(threads)
            x + 1
            x @ x

    try:
        got = record(program)
    finally:
        torch.set_num_threads(before)
    assert [row.kernel["threads"] for row in got.named("add")] == [1, 2, 3, 1]
    assert [row.kernel["threads"] for row in got.named("dot")] == [1, 2, 3, 1]


@pytest.mark.parametrize(
    ("op", "library"),
    [
        ("aten.addmm.default", "BLAS"),
        ("aten.bmm.out", "BLAS"),
        ("aten.addmv_.default", "BLAS"),
        ("aten.convolution_backward.default", "oneDNN"),
        ("aten._linalg_svd.default", "LAPACK"),
        ("aten.cholesky_inverse.default", "LAPACK"),
        ("aten.add.Tensor", "ATen"),
        ("aten.max_pool2d_with_indices.default", "ATen"),
        ("mine.op.default", "ATen"),
        ("flex_attention", "ATen"),
    ],
)
def test_the_table_of_libraries(op: str, library: str) -> None:
    """By the op's name, custom and higher-order ops included."""
    found = Kernels(Tables()).library(op)
    assert found in ({"MKL", "BLAS"} if library == "BLAS" else {library, "ATen"} if library == "oneDNN" else {library})
