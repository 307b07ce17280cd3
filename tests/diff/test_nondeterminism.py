"""What PyTorch says of an op stands beside the verdict as advice: where it holds, and nowhere else."""

from dataclasses import replace

import pytest
import torch
from views import both, compare_in

from rltrace.diff.base.model import Cause, Finding, Pair
from rltrace.diff.causes.nondeterminism import SETTING, TABLE, advice_text, known_of


@pytest.fixture(scope="module")
def finding(tmp_path_factory: pytest.TempPathFactory) -> Finding:
    """``index_put_`` that gave something else, on two threads of a CPU."""
    folder = tmp_path_factory.mktemp("traces")
    for builder, name in both(folder):
        builder.op("aten.zeros.default", outputs=["zeros"])
        builder.op("aten.index_put_.default", outputs=[f"sum {name}"])
    found = compare_in(folder).decisive
    assert found is not None
    return replace(found, cause=Cause.SAME_KERNEL, kernel=Pair("ATen AVX2, 2 threads", "ATen AVX2, 2 threads"))


def test_every_operator_is_one_of_torch() -> None:
    """No name in the table is a slip: torch has the operator, or it is known under that name of its backward pass."""
    others = {"repeat_interleave_backward", "_ctc_loss_backward"}
    for name in TABLE:
        found = hasattr(torch.ops.aten, name) or hasattr(torch.ops.aten, f"{name}_")
        assert found or name in others, name


def test_advice_on_a_cpu(finding: Finding) -> None:
    """It says why, names the setting, and gives one thread as the other way."""
    text = str(advice_text(finding))
    assert "aten.index_put_.default" in text
    assert SETTING in text
    assert "OMP_NUM_THREADS=1" in text


def test_first_call_of_a_vector_function(finding: Finding) -> None:
    """Under equal kernels MKL's first call may be why; other kernels have other bits without it."""
    tanh = replace(finding, op="aten.tanh.default")
    text = str(advice_text(tanh))
    assert "first call in a process" in text
    assert "with one element" in text
    assert SETTING not in text
    assert advice_text(replace(tanh, cause=Cause.KERNEL)) is None


def test_one_thread_needs_none(finding: Finding) -> None:
    """On one thread of a CPU there is no order to be lost."""
    assert advice_text(replace(finding, kernel=Pair("ATen AVX2, 1 thread", "ATen AVX512, 1 thread"))) is None
    assert advice_text(replace(finding, kernel=Pair("ATen AVX2, 1 thread", "ATen AVX2, 2 threads"))) is not None


@pytest.mark.parametrize("cause", [Cause.OUTSIDE, Cause.RNG, Cause.ARGUMENTS, Cause.CONTROL_FLOW, Cause.UNKNOWN])
def test_other_causes_need_none(finding: Finding, cause: Cause) -> None:
    """Where the difference came from elsewhere, the op is not to blame."""
    assert advice_text(replace(finding, cause=cause)) is None


def test_on_a_gpu(finding: Finding) -> None:
    """Another device has other ops; one without a deterministic form is reported so."""
    cuda = replace(finding, op="aten.cumsum.default", kernel=Pair("cuda", "cuda"))
    text = str(advice_text(cuda))
    assert "no deterministic form" in text
    assert "OMP_NUM_THREADS" not in text
    assert known_of("aten.cumsum.default", "cpu") is None


def test_on_a_gpu_by_the_names_of_its_kernels(finding: Finding) -> None:
    """A kernel's name is no count of threads: the table of GPUs is asked."""
    names = Pair("DeviceScanKernel<float>", "DeviceScanKernel<float>")
    assert "no deterministic form" in str(advice_text(replace(finding, op="aten.cumsum.default", kernel=names)))
    flash = replace(finding, op="aten._flash_attention_backward.default", kernel=names)
    assert f"{SETTING} chooses a deterministic form" in str(advice_text(flash))
    moved = replace(finding, op="aten.cumsum.default", kernel=replace(names, a="ATen AVX2, 2 threads"))
    assert "no deterministic form" in str(advice_text(moved))  # on one side it ran on a CPU
    recurrent = replace(finding, op="aten._cudnn_rnn_backward.default", kernel=names)
    assert "CUBLAS_WORKSPACE_CONFIG=:4096:2" in str(advice_text(recurrent))


def test_unknown_operators() -> None:
    """Custom operators and unknown names have none."""
    assert known_of("mine.cumsum.default", "cuda") is None
    assert known_of("aten.add.Tensor", "cuda") is None
    assert known_of("window", "cpu") is None
    assert known_of("aten.cumsum", "cuda") is known_of("aten.cumsum.default", "cuda") is not None
    assert known_of("aten", "cuda") is None
