"""Which settings are known to choose the kernel of an op: what a verdict names of all that differs between two runs.

Owns the rules, from library or kind of operator to facts. Sources: the run-time controls of oneDNN, the documentation
of oneMKL (conditional numerical reproducibility), PyTorch's notes on reproducibility and on CUDA semantics, and
measurements of this project on a CPU (docs/guide/kernels.md). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rltrace.diff.judging.kernels import is_another_grid
from rltrace.diff.model import EnvironmentDifference
from rltrace.trace.evidence import Evidence, whole_names

THREADS = ("env.OMP_NUM_THREADS", "env.MKL_NUM_THREADS", "torch.threads")

BY_LIBRARY = {
    "oneDNN": ("env.ONEDNN_", "env.DNNL_", "flag.mkldnn.", "flag.matmul_precision", "torch.onednn"),
    "MKL": ("env.MKL_CBWR", "env.MKL_ENABLE_INSTRUCTIONS", "env.MKL_", "torch.mkl"),
    "LAPACK": ("env.MKL_CBWR", "env.MKL_ENABLE_INSTRUCTIONS", "env.MKL_", "torch.mkl"),
    "ATen": ("env.ATEN_CPU_CAPABILITY", "cpu.capability"),
    "Inductor": ("env.TORCHINDUCTOR_", "env.ATEN_CPU_CAPABILITY", "cpu.capability", "torch.version"),
}
"""Starts of names of facts, those that can be set before those that follow."""

PRODUCTS = (
    "mm", "bmm", "addmm", "baddbmm", "addbmm", "addmv", "mv", "linear", "dot", "vdot", "_scaled_mm", "_int_mm",
    "_grouped_mm", "_scaled_grouped_mm", "_addmm_activation",
)  # fmt: skip
CONVOLUTIONS = (
    "convolution", "cudnn_", "native_batch_norm", "_native_batch_norm", "_batch_norm", "_cudnn_rnn", "miopen_",
    "_slow_conv", "slow_conv", "_conv_", "conv_",
)  # fmt: skip
DECOMPOSITIONS = ("linalg_", "_linalg_", "cholesky", "_cholesky", "geqrf", "ormqr", "lu_", "triangular_solve", "svd")

ON_A_GPU = (
    (
        PRODUCTS,
        (
            "flag.cuda.matmul.",
            "flag.matmul_precision",
            "flag.cuda.precision",
            "flag.precision",
            "env.NVIDIA_TF32_",
            "env.TORCH_ALLOW_TF32_",
            "flag.cuda.blas",
            "env.TORCH_BLAS_PREFER_",
            "env.DISABLE_ADDMM_",
            "env.CUBLAS",
            "env.TORCH_CUBLASLT_",
            "env.PYTORCH_TUNABLEOP_",
            "cuda.cublas",
            "package.nvidia-cublas",
        ),
    ),
    (
        CONVOLUTIONS,
        (
            "flag.cudnn.",
            "flag.cuda.conv.",
            "flag.cuda.rnn.",
            "flag.cuda.precision",
            "flag.precision",
            "env.NVIDIA_TF32_",
            "env.CUDNN_",
            "env.TORCH_CUDNN_",
            "env.MIOPEN_",
            "cuda.cudnn",
            "package.nvidia-cudnn",
        ),
    ),
    (("_scaled_dot_product_", "_efficient_attention", "_flash_attention", "_cudnn_attention"), ("flag.sdp.",)),
    (
        DECOMPOSITIONS,
        ("flag.cuda.linalg", "env.TORCH_LINALG_PREFER_", "cuda.cusolver", "package.nvidia-cusolver", "cuda.cublas"),
    ),
)
"""Starts of operators' names, and what chooses their kernels."""

ANY_GPU = ("flag.deterministic_algorithms", "cuda.devices", "cuda.multiprocessors", "torch.cuda", "cuda.driver")

RESTATED = ("cpu.capability", "torch.threads")
"""What the kernels' evidence says itself."""

PROCESSOR = ("host.cpu", "host.isa")

BY_MULTIPROCESSORS = ("cuda.multiprocessors", "cuda.devices")
"""What chooses the grid of one and the same kernel."""

BEHIND_A_NAME = (
    "torch.version",
    "torch.git",
    "torch.cuda",
    "torch.hip",
    "cuda.devices",
    "cuda.driver",
    "cuda.cu",
    "package.",
)
"""What can make a GPU kernel of the same name another code, or another code's compilation."""


def choosing(
    op: str, a: Evidence, b: Evidence, settings: Sequence[EnvironmentDifference]
) -> tuple[EnvironmentDifference, ...]:
    """Those of the settings that differ which are known to choose the kernel of ``op``, the first one first."""
    starts = tuple(dict.fromkeys(_starts(op, a, b)))
    ranked = [(rank, setting) for setting in settings if (rank := _rank(setting.name, starts)) is not None]
    return tuple(setting for _, setting in sorted(ranked, key=lambda pair: pair[0]))


def chosen_text(op: str, a: Evidence, b: Evidence, settings: Sequence[EnvironmentDifference]) -> str:
    """``, which env.MKL_CBWR chooses: unset against AVX2``; "" where no rule links what differs with this op."""
    first = next((setting for setting in choosing(op, a, b, settings) if setting.name not in RESTATED), None)
    if first is None:
        return ""
    return f", which {first.name.removeprefix('env.')} chooses: {first.a or 'unset'} against {first.b or 'unset'}"


def behind_a_name(settings: Sequence[EnvironmentDifference]) -> tuple[EnvironmentDifference, ...]:
    """Those of the settings that differ which can change what a GPU kernel does whose name is the same."""
    return tuple(setting for setting in settings if setting.name.startswith(BEHIND_A_NAME))


def _starts(op: str, a: Evidence, b: Evidence) -> Iterable[str]:
    devices = {str(evidence["device"]) for evidence in (a, b) if evidence.get("device")}
    if devices:
        name = op.split(".")[1] if op.count(".") >= 2 else op
        if is_another_grid(a, b):
            yield from BY_MULTIPROCESSORS
        for operators, starts in ON_A_GPU:
            if name.startswith(operators):
                yield from starts
        yield from ANY_GPU
        return
    if a.get("threads") != b.get("threads"):
        yield from THREADS
    for library in (*_libraries(a), *_libraries(b)):
        yield from BY_LIBRARY.get(library, ())
    yield from PROCESSOR


def _libraries(evidence: Evidence) -> list[str]:
    """Those that said what they ran, or that a region's code calls; else the one that the operator's name suggests."""
    if evidence.get("library") == "Inductor":
        return list(dict.fromkeys(map(_called, whole_names(evidence) or ())))
    said = dict.fromkeys(name.split(" ")[0] for name in whole_names(evidence) or ())
    return list(said) or [str(evidence.get("library") or "")]


def _called(name: str) -> str:
    """The library of a kernel of Inductor's on a CPU: ``extern_kernels.addmm``, ``cpp_fused_tanh_0``."""
    if "mkldnn" in name or "convolution" in name:
        return "oneDNN"
    if "mkl" in name or name.startswith("extern_kernels."):
        return "MKL"
    return "ATen" if name.startswith(("aten.", "torch.ops.")) else "Inductor"


def _rank(name: str, starts: Sequence[str]) -> int | None:
    bare = name.partition(" (")[0]  # of another process, said behind it
    return next((rank for rank, start in enumerate(starts) if bare.startswith(start)), None)
