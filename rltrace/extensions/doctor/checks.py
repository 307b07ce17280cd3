"""Settings under which a second run on this machine, or a run on another machine, may compute other bits.

Owns the rules, from facts (``rltrace.fingerprint.facts``) to sentences: what it is, why, how to change it, what that
costs. Pure; unknown facts are skipped. Sources: PyTorch's notes on reproducibility and on CUDA semantics, the
documentation of oneMKL (conditional numerical reproducibility) and of oneDNN (run-time controls), XLA's pages on
determinism and on persisted autotuning with the texts of its flags, the documentation of ``jax.random`` and of
``jax.lax.Precision``, and measurements of this project (docs/guide/kernels.md). None of them was made on a GPU.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from rltrace.fingerprint.libraries import is_on, xla_flags

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


_here, _elsewhere = partial(Obstacle, Scope.HERE), partial(Obstacle, Scope.ELSEWHERE)

Rule = Callable[[Facts], Iterator[Obstacle]]


def obstacles(facts: Facts) -> tuple[Obstacle, ...]:
    """The obstacles of a process, those for a second run on this machine first."""
    found = [obstacle for rule in _RULES for obstacle in rule(facts)]
    return tuple(sorted(found, key=lambda obstacle: obstacle.scope is Scope.ELSEWHERE))


def _hashes(facts: Facts) -> Iterator[Obstacle]:
    if facts.get("python.hash_randomization"):
        yield _here(
            "PYTHONHASHSEED is not set",
            "sets of strings have another order in every run: code that iterates over one runs its ops, or draws, "
            "in another order",
            "PYTHONHASHSEED=0",
        )


def _threads(facts: Facts) -> Iterator[Obstacle]:
    count = facts.get("torch.threads")
    deterministic = facts.get("flag.deterministic_algorithms")
    if isinstance(count, int) and count > 1 and deterministic is False:
        yield _here(
            f"{count} threads, and deterministic algorithms are off",
            "some ops sum in the order in which their threads arrive: index_put_(accumulate=True), the gradient of "
            "x[index]; rltrace record --repeat names those of a run",
            "torch.use_deterministic_algorithms(True), or OMP_NUM_THREADS=1",
            "these ops are slower, those without a deterministic form raise an error; one thread slows all large ops",
        )
    if isinstance(count, int) and count > 1 and _chooses_in_first_call(facts.get("torch.mkl")):
        yield _here(
            "MKL chooses the code of a vector function in its first call",
            "threads that make this call at once may get values of low precision from tanh, exp, sqrt and the like "
            "(pytorch#188792)",
            "torch.tanh(torch.zeros(1)) before other calls of tanh, and so for the others; or OMP_NUM_THREADS=1",
        )
    if isinstance(count, int) and "env.OMP_NUM_THREADS" not in facts:
        yield _elsewhere(
            f"the number of threads ({count}) follows from the number of cores",
            "sums are split among threads: with another number of them batch norm, products and convolutions differ "
            "in their last bits",
            f"OMP_NUM_THREADS={count}",
        )


def _chooses_in_first_call(mkl: Fact) -> bool:
    """Whether a version of MKL has that race: by the report, 2024.2 has it and 2025.0 does not."""
    found = re.search(r"Version (\d{4})\.", str(mkl))
    return found is not None and int(found[1]) < 2025


def _cpu_kernels(facts: Facts) -> Iterator[Obstacle]:
    capability = facts.get("cpu.capability")
    if isinstance(capability, str) and "env.ATEN_CPU_CAPABILITY" not in facts:
        yield _elsewhere(
            f"ATen's kernels are chosen by the processor: {capability} here",
            "another instruction set has other vector widths: softmax, layer norm, sigmoid, pow, Adam and random "
            "numbers get other bits",
            "ATEN_CPU_CAPABILITY=avx2 on every machine",
            "slower where the processor supports more",
        )
    if facts.get("torch.mkl") and "env.MKL_CBWR" not in facts:
        yield _elsewhere(
            "MKL chooses its code path by the processor (MKL_CBWR is not set)",
            "products, exp, tanh, sqrt and decompositions get other bits on another processor, whatever "
            "ATEN_CPU_CAPABILITY is",
            "MKL_CBWR=AVX2 on every machine; MKL_CBWR=COMPATIBLE with processors of several makers",
            "slower products; COMPATIBLE much slower",
        )
    if facts.get("torch.onednn") and not {"env.ONEDNN_MAX_CPU_ISA", "env.DNNL_MAX_CPU_ISA"} & facts.keys():
        yield _elsewhere(
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
        yield _here(
            "deterministic algorithms are off",
            "scatter_add, index_add, many backward passes and some reductions sum with atomic operations, in any "
            "order; kernels of compiled code are chosen by timing them",
            "torch.use_deterministic_algorithms(True)"
            + (", and CUBLAS_WORKSPACE_CONFIG=:4096:8" if _wants_workspace(facts) else ""),
            "these ops are slower; ops without a deterministic form raise an error",
        )
    if deterministic and "env.CUBLAS_WORKSPACE_CONFIG" not in facts and _wants_workspace(facts):
        yield _here(
            "CUBLAS_WORKSPACE_CONFIG is not set",
            "cuBLAS may choose another algorithm where several streams share its workspace",
            "CUBLAS_WORKSPACE_CONFIG=:4096:8",
            "24 MiB of device memory",
        )
    if facts.get("flag.cudnn.benchmark"):
        yield _here(
            "cuDNN's benchmark is on",
            "it times several algorithms and takes the fastest, which may be another one in the next run",
            "torch.backends.cudnn.benchmark = False",
            "convolutions may be slower",
        )
    if facts.get("flag.cudnn.deterministic") is False and not deterministic:
        yield _here(
            "cuDNN may use nondeterministic algorithms",
            "some of its backward convolutions sum with atomic operations",
            "torch.backends.cudnn.deterministic = True",
            "convolutions may be slower",
        )
    yield from _autotuning(facts)
    yield from _precision(facts)
    if str(facts.get("env.WORLD_SIZE", "1")) != "1" and not {"env.NCCL_ALGO", "env.NCCL_PROTO"} <= facts.keys():
        yield _elsewhere(
            "NCCL chooses its reduction order by the machine (NCCL_ALGO and NCCL_PROTO are not set)",
            "rings and trees sum over ranks in other orders, and the choice depends on how GPUs are connected",
            "NCCL_ALGO=Ring and NCCL_PROTO=Simple on every machine, with as many GPUs",
            "collectives may be slower",
        )
    yield _elsewhere(
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
        yield _here(
            "TunableOp is on",
            "it times the products' kernels and takes the fastest, which may be another one in the next run",
            "PYTORCH_TUNABLEOP_ENABLED=0, or PYTORCH_TUNABLEOP_TUNING=0 with a file of results that all runs read",
            "products may be slower",
        )
    if str(facts.get("env.TORCHINDUCTOR_MAX_AUTOTUNE", "0")) == "1":
        yield _here(
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
        yield _elsewhere(
            f"TF32 is allowed ({' and '.join(allowed)})",
            "GPUs that have it round inputs to 10 bits, others do not",
            "torch.backends.cuda.matmul.allow_tf32 = False; torch.backends.cudnn.allow_tf32 = False",
            "products and convolutions in float32 are several times slower",
        )
    if facts.get("flag.cuda.matmul.fp16_accumulation") is True:
        yield _elsewhere(
            "products in float16 may be summed in float16 throughout",
            "only some kinds of GPU have such kernels, and the rounding depends on the order of summation",
            "torch.backends.cuda.matmul.allow_fp16_accumulation = False",
            "products in float16 are slower",
        )
    for kind in ("fp16", "bf16"):
        if facts.get(f"flag.cuda.matmul.{kind}_reduced") is True:
            yield _elsewhere(
                f"products in {kind} may be summed in {kind}",
                "which products do depends on the kernel that cuBLAS chooses for shape and GPU",
                f"torch.backends.cuda.matmul.allow_{kind}_reduced_precision_reduction = False",
                "some products are slower",
            )


def _products_on_cpu(facts: Facts) -> Iterator[Obstacle]:
    precision = facts.get("flag.matmul_precision")
    if precision == "medium" and facts.get("torch.onednn"):
        yield _elsewhere(
            "products in float32 may be computed in bfloat16 (float32_matmul_precision is medium)",
            "oneDNN does so on processors that have instructions for it, others compute in float32",
            "torch.set_float32_matmul_precision('highest')",
            "products are slower where the processor has them",
        )


def _memory(facts: Facts) -> Iterator[Obstacle]:
    if facts.get("flag.deterministic_algorithms") is False and facts.get("flag.fill_uninitialized_memory") is True:
        yield _here(
            "torch.empty returns uninitialised memory",
            "a program that reads it before writing computes with arbitrary values",
            "torch.use_deterministic_algorithms(True) fills it; rltrace diff names such reads as uninitialised",
            "every torch.empty is written once more",
        )


def _xla_on_cpu(facts: Facts) -> Iterator[Obstacle]:
    flags = xla_flags(facts)
    if facts.get("jax.platform") != "cpu" or flags is None:
        return
    if "xla_cpu_max_isa" not in flags:
        yield _elsewhere(
            "XLA compiles for the instructions of this processor (xla_cpu_max_isa is not set)",
            "without fused multiplication, say, tanh, exp, gelu and random numbers from a normal distribution get "
            "other bits",
            "XLA_FLAGS=--xla_cpu_max_isa=AVX2 on every machine",
            "slower where the processor supports more: a small PPO takes 1.04 × as long in place of AVX-512",
        )
    cores = facts.get("host.cores_allowed") or facts.get("host.cores")
    if cores is not None and "env.NPROC" not in facts:
        yield _elsewhere(
            f"XLA has a thread for each core ({cores})",
            "sums of large arrays, and products with few results, are split among threads: on one core they get "
            "other bits than on two",
            f"as many cores for every run: taskset -c 0-{int(cores) - 1}" if int(cores) > 1 else "taskset -c 0",
        )
    if is_on(flags, "xla_cpu_enable_fast_math"):
        yield _elsewhere(
            "fast math is on (xla_cpu_enable_fast_math)",
            "the compiler may reorder sums, as suits the processor and its own version",
            "no --xla_cpu_enable_fast_math in XLA_FLAGS",
            "none measured, for a small PPO",
        )


def _xla_on_gpu(facts: Facts) -> Iterator[Obstacle]:
    flags = xla_flags(facts)
    if facts.get("jax.platform") != "gpu" or flags is None:
        return
    deterministic = is_on(flags, "xla_gpu_deterministic_ops")
    if not deterministic and not is_on(flags, "xla_gpu_exclude_nondeterministic_ops"):
        yield _here(
            "XLA may use nondeterministic kernels",
            "scatter and select-and-scatter sum with atomic operations, in any order, and such kernels may be chosen "
            "for products, convolutions and attention",
            "XLA_FLAGS=--xla_gpu_exclude_nondeterministic_ops=true, or --xla_gpu_deterministic_ops=true, which also "
            "stops the timing of kernels",
            "these ops are slower; a program with an op that has no deterministic kernel is not compiled",
        )
    is_tuned = flags.get("xla_gpu_autotune_level") != "0" and not deterministic
    if is_tuned and not flags.get("xla_gpu_load_autotune_results_from"):
        yield _here(
            "XLA times several kernels and takes the fastest",
            "another one may be the fastest when the program is compiled again",
            "one run with XLA_FLAGS=--xla_gpu_dump_autotune_results_to=FILE.txt, all others with "
            "--xla_gpu_load_autotune_results_from=FILE.txt --xla_gpu_require_complete_aot_autotune_results=true; or "
            "--xla_gpu_autotune_level=0",
            "none with a file of results; without timing, products and convolutions may be slower",
        )
    precision = str(facts.get("jax.default_matmul_precision"))
    allowed = precision in _JAX_TF32 or precision.startswith("TF32")
    if allowed and facts.get("env.NVIDIA_TF32_OVERRIDE") != "0":
        yield _elsewhere(
            "products and convolutions in float32 may be computed in TF32",
            "GPUs that have it round inputs to 10 bits, others do not",
            "JAX_DEFAULT_MATMUL_PRECISION=highest",
            "products and convolutions in float32 are several times slower",
        )
    yield _elsewhere(
        f"kernels are compiled and chosen for this GPU ({facts.get('jax.devices')}) by jaxlib "
        f"{facts.get('jax.jaxlib')}",
        "another GPU, or another version of jaxlib, CUDA or cuDNN, has other kernels, fusions and summation orders; "
        "no setting makes two kinds of GPU agree bit for bit",
        "the same GPU, driver, CUDA, cuDNN and jaxlib on both machines",
    )


_JAX_TF32 = ("None", "default", "fastest", "high", "tensorfloat32")
"""Precisions of JAX (None: not set) with which products in float32 are computed in TF32 where the GPU has it."""


def _jax_settings(facts: Facts) -> Iterator[Obstacle]:
    generator = facts.get("jax.default_prng_impl")
    if generator in ("rbg", "unsafe_rbg"):
        yield _elsewhere(
            f"random numbers come from XLA's generator ({generator})",
            "on another platform (a CPU, a GPU, a TPU) it draws other numbers from the same key",
            "JAX_DEFAULT_PRNG_IMPL=threefry2x32",
            "random numbers take longer on a TPU",
        )
    if facts.get("jax.threefry_partitionable") is False:
        yield _elsewhere(
            "jax_threefry_partitionable is off",
            "with it, the default from JAX 0.5 on, the same key gives other random numbers",
            "JAX_THREEFRY_PARTITIONABLE=true for every run",
        )
    if facts.get("jax.compilation_cache"):
        yield _elsewhere(
            "compiled programs are taken from a cache (jax_compilation_cache_dir)",
            "what is in it was compiled earlier, perhaps on another machine, on a GPU with the kernels that were the "
            "fastest then: a run with another cache, or with none, may have others",
            "the same cache for every run that is compared, or JAX_ENABLE_COMPILATION_CACHE=false for each",
            "without it every run compiles",
        )


_RULES: tuple[Rule, ...] = (
    _hashes,
    _threads,
    _memory,
    _cuda,
    _xla_on_gpu,
    _cpu_kernels,
    _products_on_cpu,
    _xla_on_cpu,
    _jax_settings,
)
