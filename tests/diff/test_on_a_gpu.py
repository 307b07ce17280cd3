"""Stories of GPUs, from traces with the names that their kernels have: what is blamed, and on what evidence.

Names and grids are those of PyTorch's kernels on the GPUs of the reports (pytorch#75240, pytorch#194676,
mujoco_playground#86); the grid of ``randn`` is what ``calc_execution_policy`` makes of a T4 and an L4.
"""

from typing import Any

from programs import Do, Record

from rltrace.diff import Comparison, compare
from rltrace.diff.base.model import Cause, Finding, InputsMatch
from rltrace.report.brief import brief_comparison
from rltrace.report.diff import verdict_document

Kernel = tuple[tuple[str, object], ...]

TF32 = (
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x6_tn_align4>"
    "(cutlass_80_tensorop_s1688gemm_128x128_16x6_tn_align4::Params)"
)
FP32 = (
    "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x64_8x4_tn_align1>"
    "(cutlass_80_simt_sgemm_256x64_8x4_tn_align1::Params)"
)
SCAN = (
    "void at_cuda_detail::cub::DeviceScanInitKernel<at_cuda_detail::cub::ScanTileState<float, true> >"
    "(at_cuda_detail::cub::ScanTileState<float, true>, int)",
    "void at_cuda_detail::cub::DeviceScanKernel<at_cuda_detail::cub::DeviceScanPolicy<float, std::plus<float> >::"
    "Policy800, float const*, float*, at_cuda_detail::cub::ScanTileState<float, true>, std::plus<float>,"
    " at_cuda_detail::cub::NullType, int, float, false>(float const*, float*, int)",
)
NORMAL = (
    "void at::native::(anonymous namespace)::distribution_elementwise_grid_stride_kernel<float, 4,"
    " at::native::templates::cuda::normal_and_transform<float, float>(at::TensorIteratorBase&)::{lambda(float)#1}>"
    "(long, at::PhiloxCudaState, float)"
)
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)


def on_gpu(*names: str, blocks: int = 8, threads: int = 256) -> Kernel:
    """Evidence as a profiler saw it."""
    grids = [[[blocks, 1, 1], [threads, 1, 1]] for _ in names]
    return (("device", "cuda"), ("names", list(names)), ("launches", grids))


def program(op: str, kernel: Kernel, noise: str = "", then: str = "aten.argmax.default") -> list[Do]:
    """Weights drawn and two steps; in the second, ``op`` computes what ``then`` turns into an action."""
    steps: list[Do] = []
    reads = () if "rand" in op else ("h", "w")
    for step in range(2):
        last = step == 1
        ran = kernel if last else on_gpu(ADD)
        steps += [
            Do("outside", (), "o", noise=str(step)),
            Do("aten.mul.Tensor", ("o", "w"), "h", 10, kernel=on_gpu(ADD), module="policy"),
            Do(op, reads, "y", 11, kernel=ran, noise=noise if last else "", module="critic"),
            Do(then, ("y",), "action", 12, kernel=on_gpu(ADD)),
            Do("aten.add_.Tensor", ("w", "y"), "w", 13, kernel=on_gpu(ADD), floats=(1e-3,)),
            Do("step"),
        ]
    return [Do("aten.randn.default", (), "w", 1, kernel=on_gpu(NORMAL)), *steps]


def first_of(comparison: Comparison) -> Finding:
    assert comparison.first_value is not None
    return comparison.first_value


def compared(record: Record, op: str, a: Kernel, b: Kernel, **how: Any) -> Comparison:
    """The same program on two GPUs; it computes something else in B."""
    noise, then = how.get("noise", "B"), how.get("then", "aten.argmax.default")
    one = record(program(op, a, then=then), facts=how.get("facts_a"))
    return compare(one.path, record(program(op, b, noise, then), facts=how.get("facts_b")).path)


def test_the_critic_on_two_machines(record: Record) -> None:
    """Story 1: what is installed chose another kernel for the critic; both are named, and so is what differs."""
    facts = {"package.nvidia-cublas-cu12": "12.8.4.1", "cuda.devices": "NVIDIA GeForce RTX 4090 (sm_89)"}
    found = compared(
        record,
        "aten.addmm.default",
        on_gpu(TF32),
        on_gpu(TF32.replace("128x128_16x6", "64x128_16x6")),
        facts_a=facts,
        facts_b={**facts, "package.nvidia-cublas-cu12": "12.6.4.1"},
    )
    first = first_of(found)
    assert (first.cause, first.op, first.module) == (Cause.KERNEL, "aten.addmm.default", "critic")
    assert first.inputs_match in (InputsMatch.READ, InputsMatch.INFERRED)
    names = [f"cutlass_80_tensorop_s1688gemm_{tile}_16x6_tn_align4" for tile in ("128x128", "64x128")]
    assert (first.kernel.a, first.kernel.b) == (names[0], names[1])
    assert f"another kernel ran (kernels {names[0]} against {names[1]})" in first.explanation
    assert first.explanation.endswith("which package.nvidia-cublas-cu12 chooses: 12.8.4.1 against 12.6.4.1")
    assert [d.name for d in found.system] == ["package.nvidia-cublas-cu12"]


def test_a_scan_that_is_seen_as_another_action(record: Record) -> None:
    """Story 9: ``cumsum`` on one GPU gives other sums; it is named, the sampled action only receives them."""
    scan = on_gpu(*SCAN)
    found = compared(record, "aten.cumsum.default", scan, scan, then="aten.searchsorted.Tensor")
    first = first_of(found)
    assert (first.cause, first.op) == (Cause.SAME_KERNEL, "aten.cumsum.default")
    assert first.kernel.a == first.kernel.b == "DeviceScanInitKernel<float>, DeviceScanKernel<plus float>"
    assert first.kernel_names.a == SCAN
    assert found.first == first and not found.unordered
    (said,) = [fact.value for fact in verdict_document(found).findings[0].facts if fact.label == "known"]
    assert "does not guarantee that aten.cumsum.default" in said and "no deterministic form" in said
    assert "; PyTorch does not guarantee that" in brief_comparison(found, 1).finding.explanation


def test_random_numbers_on_another_grid(record: Record) -> None:
    """Story 10: the same kernel on more blocks draws other numbers from the same state: ``kernel``, not ``rng``."""
    found = compared(
        record,
        "aten.randn.default",
        on_gpu(NORMAL, blocks=160),
        on_gpu(NORMAL, blocks=348),
        noise="",
        facts_a={"cuda.devices": "Tesla T4 (sm_75)", "cuda.multiprocessors": "40"},
        facts_b={"cuda.devices": "NVIDIA L4 (sm_89)", "cuda.multiprocessors": "58"},
    )
    first = first_of(found)
    assert (first.cause, first.op, first.step) == (Cause.KERNEL, "aten.randn.default", 1)
    assert "the RNG state is the same" in first.explanation
    assert "the same kernel ran on another grid" in first.explanation
    assert "160 blocks of 256 threads against 348 blocks of 256 threads" in first.explanation
    assert first.explanation.endswith("which cuda.multiprocessors chooses: 40 against 58")
    assert first.kernel.a.endswith("in 160 blocks of 256 threads")
    assert first.kernel.b.endswith("in 348 blocks of 256 threads")
    assert first.kernel_names.a == first.kernel_names.b == (NORMAL,)


def test_blocks_of_another_size_are_not_chosen_by_the_number_of_multiprocessors(record: Record) -> None:
    """That chooses how many blocks there are; a warp of 64 threads makes other blocks, as on GPUs of AMD."""
    found = compared(
        record,
        "aten.native_layer_norm.default",
        on_gpu(NORMAL, threads=128),
        on_gpu(NORMAL, threads=256),
        noise="",
        facts_a={"cuda.devices": "NVIDIA H100 (sm_90)", "cuda.multiprocessors": "132"},
        facts_b={"cuda.devices": "AMD Instinct MI300X (sm_94)", "cuda.multiprocessors": "304"},
    )
    first = first_of(found)
    assert first.cause is Cause.KERNEL
    assert "the same kernel ran in blocks of another size" in first.explanation
    assert "multiprocessors" not in first.explanation and "which cuda.devices chooses" in first.explanation


def test_tf32_by_its_flag(record: Record) -> None:
    """Story 11: the names give the precision, and the flag that chose it is named with them."""
    found = compared(
        record,
        "aten.mm.default",
        on_gpu(FP32),
        on_gpu(TF32),
        facts_a={"flag.cuda.matmul.tf32": False, "flag.matmul_precision": "highest", "flag.cudnn.tf32": False},
        facts_b={"flag.cuda.matmul.tf32": True, "flag.matmul_precision": "high", "flag.cudnn.tf32": True},
    )
    first = first_of(found)
    assert first.cause is Cause.KERNEL
    kernels = "cutlass_80_simt_sgemm_256x64_8x4_tn_align1", "cutlass_80_tensorop_s1688gemm_128x128_16x6_tn_align4"
    assert f"kernels {kernels[0]} against {kernels[1]}" in first.explanation
    assert first.explanation.endswith("which flag.cuda.matmul.tf32 chooses: False against True")
    names = [d.name for d in found.system]
    assert names == ["flag.cuda.matmul.tf32", "flag.cudnn.tf32", "flag.matmul_precision"]


def test_kernels_that_were_seen_to_be_the_same(record: Record) -> None:
    """A flag that differs has then chosen nothing here; another build of torch can have other code of that name."""
    scatter = on_gpu("void at::native::_scatter_gather_elementwise_kernel<128, 8>(int)")
    facts = {"flag.cuda.matmul.tf32": False, "env.CUBLAS_WORKSPACE_CONFIG": ":4096:8", "torch.version": "2.11.0"}
    other = {**facts, "flag.cuda.matmul.tf32": True, "env.CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    first = first_of(compared(record, "aten.scatter_add.default", scatter, scatter, facts_a=facts, facts_b=other))
    assert first.cause is Cause.SAME_KERNEL
    assert first.explanation.endswith(
        "(_scatter_gather_elementwise_kernel<128 8>); whether it is deterministic was not tried"
    )
    newer = {**other, "torch.version": "2.12.0"}
    first = first_of(compared(record, "aten.scatter_add.default", scatter, scatter, facts_a=facts, facts_b=newer))
    assert first.cause is Cause.KERNEL
    assert first.explanation.endswith(
        "kernels of the same name ran, but the code behind the name may differ (torch.version 2.11.0 against 2.12.0)"
    )
