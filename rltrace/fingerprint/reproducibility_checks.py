"""Settings under which a second run on this machine, or a run on another machine, may compute other bits.

Owns the rules, from facts (``rltrace.fingerprint.facts``) to sentences: what it is, why, how to change it, what that
costs. Pure; unknown facts are skipped. Sources: PyTorch's notes on reproducibility and on CUDA semantics, the
documentation of oneMKL (conditional numerical reproducibility) and of oneDNN (run-time controls), and measurements of
this project (docs/guide/kernels.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

Fact = str | int | float | bool | None
Facts = Mapping[str, Fact]


class Scope(StrEnum):
    """Where the bits may differ."""

    HERE = "here"
    """In a second run on this machine."""
    ELSEWHERE = "elsewhere"
    """On another machine, even of the same kind."""


@dataclass(frozen=True)
class Obstacle:
    """One thing that may change bits."""

    scope: Scope
    what: str
    """The current fact: ``2 threads``."""
    why: str
    how: str
    """What to set: variables, lines of Python."""
    cost: str = ""
    """Its cost; empty: negligible."""


Rule = Callable[[Facts], Iterator[Obstacle]]


def obstacles(facts: Facts) -> tuple[Obstacle, ...]:
    """The obstacles of a process, those for a second run on this machine first."""
    found = [obstacle for rule in _RULES for obstacle in rule(facts)]
    return tuple(sorted(found, key=lambda obstacle: obstacle.scope is Scope.ELSEWHERE))


def _hashes(facts: Facts) -> Iterator[Obstacle]:
    if facts.get("python.hash_randomization"):
        yield Obstacle(
            Scope.HERE,
            "PYTHONHASHSEED is not set",
            "sets of strings have another order in every run: code that iterates over one runs its ops, or draws, "
            "in another order",
            "PYTHONHASHSEED=0",
        )


def _threads(facts: Facts) -> Iterator[Obstacle]:
    count = facts.get("torch.threads")
    deterministic = facts.get("flag.deterministic_algorithms")
    if isinstance(count, int) and count > 1 and deterministic is False:
        yield Obstacle(
            Scope.HERE,
            f"{count} threads, and deterministic algorithms are off",
            "some ops sum in the order in which their threads arrive: index_put_(accumulate=True), the gradient of "
            "x[index]",
            "torch.use_deterministic_algorithms(True), or OMP_NUM_THREADS=1",
            "these ops are slower, those without a deterministic form raise an error; one thread slows all large ops",
        )
    if isinstance(count, int) and "env.OMP_NUM_THREADS" not in facts:
        yield Obstacle(
            Scope.ELSEWHERE,
            f"the number of threads ({count}) follows from the number of cores",
            "sums are split among threads: with another number of them batch norm, products and convolutions differ "
            "in their last bits",
            f"OMP_NUM_THREADS={count}",
        )


def _cpu_kernels(facts: Facts) -> Iterator[Obstacle]:
    capability = facts.get("cpu.capability")
    if isinstance(capability, str) and "env.ATEN_CPU_CAPABILITY" not in facts:
        yield Obstacle(
            Scope.ELSEWHERE,
            f"ATen's kernels are chosen by the processor: {capability} here",
            "another instruction set has other vector widths: softmax, layer norm, sigmoid, pow, Adam and random "
            "numbers get other bits",
            "ATEN_CPU_CAPABILITY=avx2 on every machine",
            "slower where the processor supports more",
        )
    if facts.get("torch.mkl") and "env.MKL_CBWR" not in facts:
        yield Obstacle(
            Scope.ELSEWHERE,
            "MKL chooses its code path by the processor (MKL_CBWR is not set)",
            "products, exp, tanh, sqrt and decompositions get other bits on another processor, whatever "
            "ATEN_CPU_CAPABILITY is",
            "MKL_CBWR=AVX2 on every machine; MKL_CBWR=COMPATIBLE with processors of several makers",
            "slower products; COMPATIBLE much slower",
        )
    if facts.get("torch.onednn") and not {"env.ONEDNN_MAX_CPU_ISA", "env.DNNL_MAX_CPU_ISA"} & facts.keys():
        yield Obstacle(
            Scope.ELSEWHERE,
            "oneDNN chooses its kernels by the processor (ONEDNN_MAX_CPU_ISA is not set)",
            "convolutions, gelu, recurrent layers and products in bfloat16 get other bits on another processor",
            "ONEDNN_MAX_CPU_ISA=AVX2 on every machine",
            "slower where the processor supports more",
        )


def _cuda(facts: Facts) -> Iterator[Obstacle]:
    if not facts.get("cuda.devices"):
        return
    deterministic = facts.get("flag.deterministic_algorithms")
    if deterministic is False:
        yield Obstacle(
            Scope.HERE,
            "deterministic algorithms are off",
            "scatter_add, index_add, many backward passes and some reductions sum with atomic operations, in any "
            "order; kernels of compiled code are chosen by timing them",
            "torch.use_deterministic_algorithms(True)"
            + (", and CUBLAS_WORKSPACE_CONFIG=:4096:8" if _wants_workspace(facts) else ""),
            "these ops are slower; ops without a deterministic form raise an error",
        )
    if deterministic and "env.CUBLAS_WORKSPACE_CONFIG" not in facts and _wants_workspace(facts):
        yield Obstacle(
            Scope.HERE,
            "CUBLAS_WORKSPACE_CONFIG is not set",
            "cuBLAS may choose another algorithm where several streams share its workspace",
            "CUBLAS_WORKSPACE_CONFIG=:4096:8",
            "24 MiB of device memory",
        )
    if facts.get("flag.cudnn.benchmark"):
        yield Obstacle(
            Scope.HERE,
            "cuDNN's benchmark is on",
            "it times several algorithms and takes the fastest, which may be another one in the next run",
            "torch.backends.cudnn.benchmark = False",
            "convolutions may be slower",
        )
    if facts.get("flag.cudnn.deterministic") is False and not deterministic:
        yield Obstacle(
            Scope.HERE,
            "cuDNN may use nondeterministic algorithms",
            "some of its backward convolutions sum with atomic operations",
            "torch.backends.cudnn.deterministic = True",
            "convolutions may be slower",
        )
    yield from _autotuning(facts)
    yield from _precision(facts)
    if str(facts.get("env.WORLD_SIZE", "1")) != "1" and not {"env.NCCL_ALGO", "env.NCCL_PROTO"} <= facts.keys():
        yield Obstacle(
            Scope.ELSEWHERE,
            "NCCL chooses its reduction order by the machine (NCCL_ALGO and NCCL_PROTO are not set)",
            "rings and trees sum over ranks in other orders, and the choice depends on how GPUs are connected",
            "NCCL_ALGO=Ring and NCCL_PROTO=Simple on every machine, with as many GPUs",
            "collectives may be slower",
        )
    yield Obstacle(
        Scope.ELSEWHERE,
        f"kernels are chosen for this GPU ({facts['cuda.devices']}), cuDNN {facts.get('cuda.cudnn')} and cuBLAS of CUDA"
        f" {facts.get('torch.cuda')}",
        "another GPU, or another version of a library, has other kernels, tile sizes and summation orders; no "
        "setting makes two kinds of GPU agree bit for bit",
        "the same GPU, driver, CUDA, cuDNN and PyTorch on both machines",
    )


def _wants_workspace(facts: Facts) -> bool:
    """Whether this torch needs a setting for deterministic cuBLAS: from 2.10 on it gives each stream its own workspace,
    as cuBLAS requires (pytorch#161749).
    """
    major, minor, *_ = [*str(facts.get("torch.version") or "").split("."), "", ""]
    return not (major.isdecimal() and minor.isdecimal()) or (int(major), int(minor)) < (2, 10)


def _autotuning(facts: Facts) -> Iterator[Obstacle]:
    """Settings that measure several kernels and take the fastest, besides cuDNN."""
    if str(facts.get("env.PYTORCH_TUNABLEOP_ENABLED", "0")) == "1":
        yield Obstacle(
            Scope.HERE,
            "TunableOp is on",
            "it times the products' kernels and takes the fastest, which may be another one in the next run",
            "PYTORCH_TUNABLEOP_ENABLED=0, or PYTORCH_TUNABLEOP_TUNING=0 with a file of results that all runs read",
            "products may be slower",
        )
    if str(facts.get("env.TORCHINDUCTOR_MAX_AUTOTUNE", "0")) == "1":
        yield Obstacle(
            Scope.HERE,
            "Inductor's max-autotune is on",
            "compiled code uses the kernel that was fastest at compile time, which may be another one in the next "
            "compilation",
            "TORCHINDUCTOR_MAX_AUTOTUNE=0, or one cache for all runs (TORCHINDUCTOR_CACHE_DIR)",
            "compiled products may be slower",
        )


_TF32 = {
    "products": ("flag.cuda.matmul.tf32", "flag.cuda.matmul.precision"),
    "convolutions": ("flag.cudnn.tf32", "flag.cuda.conv.precision"),
}
"""Flags that allow it: the older one, or the newer one where torch refuses to read the older after both were used."""


def _precision(facts: Facts) -> Iterator[Obstacle]:
    allowed = [what for what, names in _TF32.items() if any(facts.get(name) in (True, "tf32") for name in names)]
    if allowed and facts.get("env.NVIDIA_TF32_OVERRIDE") != "0":
        yield Obstacle(
            Scope.ELSEWHERE,
            f"TF32 is allowed ({' and '.join(allowed)})",
            "GPUs that have it round inputs to 10 bits, others do not",
            "torch.backends.cuda.matmul.allow_tf32 = False; torch.backends.cudnn.allow_tf32 = False",
            "products and convolutions in float32 are several times slower",
        )
    if facts.get("flag.cuda.matmul.fp16_accumulation") is True:
        yield Obstacle(
            Scope.ELSEWHERE,
            "products in float16 may be summed in float16 throughout",
            "only some kinds of GPU have such kernels, and the rounding depends on the order of summation",
            "torch.backends.cuda.matmul.allow_fp16_accumulation = False",
            "products in float16 are slower",
        )
    for kind in ("fp16", "bf16"):
        if facts.get(f"flag.cuda.matmul.{kind}_reduced") is True:
            yield Obstacle(
                Scope.ELSEWHERE,
                f"products in {kind} may be summed in {kind}",
                "which products do depends on the kernel that cuBLAS chooses for shape and GPU",
                f"torch.backends.cuda.matmul.allow_{kind}_reduced_precision_reduction = False",
                "some products are slower",
            )


def _products_on_cpu(facts: Facts) -> Iterator[Obstacle]:
    precision = facts.get("flag.matmul_precision")
    if precision == "medium" and facts.get("torch.onednn"):
        yield Obstacle(
            Scope.ELSEWHERE,
            "products in float32 may be computed in bfloat16 (float32_matmul_precision is medium)",
            "oneDNN does so on processors that have instructions for it, others compute in float32",
            "torch.set_float32_matmul_precision('highest')",
            "products are slower where the processor has them",
        )


def _memory(facts: Facts) -> Iterator[Obstacle]:
    if facts.get("flag.deterministic_algorithms") is False and facts.get("flag.fill_uninitialized_memory") is True:
        yield Obstacle(
            Scope.HERE,
            "torch.empty returns uninitialised memory",
            "a program that reads it before writing computes with arbitrary values",
            "torch.use_deterministic_algorithms(True) fills it; rltrace diff names such reads as uninitialised",
            "every torch.empty is written once more",
        )


_RULES: tuple[Rule, ...] = (_hashes, _threads, _memory, _cuda, _cpu_kernels, _products_on_cpu)
