"""Facts of machine, process and source that differ between two traces, the likeliest to change results first.

Owns the order, and which facts select kernels. Facts have flat names (see ``rltrace.fingerprint``); facts that are not
listed here come last.
"""

from collections.abc import Iterable, Mapping, Sequence

from rltrace.diff.base.coverage import (
    FINISHED,
    LAUNCHES_UNSEEN,
    MODULES_UNKNOWN,
    STACK_FULL,
    THREADS_BESIDE,
    THREADS_OF_RPC,
)
from rltrace.diff.base.model import NamedDifference
from rltrace.fingerprint.host import is_recorded
from rltrace.trace.format.schema import BOUNDARY_ONLY, CALLS_BACK, READS_WITHIN, SOURCE
from rltrace.trace.read.process import ProcessTrace

SELECTS_KERNELS = (
    "flag.",
    "cpu.",
    "env.ATEN_",
    "env.BLIS_",
    "env.CUBLASLT_",
    "env.CUBLAS_",
    "env.CUDA_",
    "env.CUDNN_",
    "env.DISABLE_ADDMM_",
    "env.DNNL_",
    "env.GLIBC_TUNABLES",
    "env.GOMP_",
    "env.HIPBLASLT_",
    "env.KMP_",
    "env.LD_PRELOAD",
    "env.MIOPEN_",
    "env.MKL_",
    "env.NCCL_",
    "env.NVIDIA_TF32_",
    "env.OMP_",
    "env.ONEDNN_",
    "env.OPENBLAS_",
    "env.PYTORCH_",
    "env.ROCBLAS_",
    "env.TORCH",
    "env.JAX_",
    "env.TRITON_",
    "env.XLA_",
    "jax.",
    "torch.",
    "cuda.",
    "gpu.",
    "host.cpu",
    "host.isa",
    "host.machine",
    "package.nvidia-",
    "package.jax",
    "package.mkl",
    "package.intel-openmp",
    "package.torch",
    "package.triton",
)
"""Prefixes of facts that can select another kernel."""

NO_KERNEL = (
    "flag.default_dtype",
    "flag.fill_uninitialized_memory",
    "flag.deterministic_warn_only",
    "torch.interop_threads",
)

NO_ENVIRONMENT = (
    THREADS_BESIDE,
    THREADS_OF_RPC,
    MODULES_UNKNOWN,
    STACK_FULL,
    LAUNCHES_UNSEEN,
    BOUNDARY_ONLY,
    CALLS_BACK,
    READS_WITHIN,
    "jax.code",
    "jax.failed",
    "jax.loops",
    "jax.values",
    "digest.device",
    "engine.",
)
"""Prefixes of facts of the recording: what it lacks, and how rows and digests were computed, which changes neither."""

ORDER = (
    *SELECTS_KERNELS,
    "env.",
    "python.hash_randomization",
    "package.",
    "numpy.",
    "python.",
    SOURCE,
    "git.",
    "host.",
)
"""Prefixes of facts, the likeliest to change results first."""


def selects_kernels(name: str) -> bool:
    """Whether a fact can select another kernel."""
    return name.startswith(SELECTS_KERNELS) and name not in NO_KERNEL and not name.startswith(NO_ENVIRONMENT)


def environment_differences(pairs: Iterable[tuple[ProcessTrace, ProcessTrace]]) -> tuple[NamedDifference, ...]:
    """Every fact that differs in a pair of processes, each difference once; of those that the first pair does not have,
    the name says which processes do."""
    found: dict[tuple[str, str | None, str | None], list[str]] = {}
    for number, (a, b) in enumerate(pairs):
        for own in fact_differences(a.facts, b.facts):
            lacking = a if own.a is None else b if own.b is None else None
            if lacking is not None and lacking.state not in FINISHED and not _is_of_the_start(own.name):
                continue  # it ended before that could be recorded
            found.setdefault((own.name, own.a, own.b), []).append(a.name if number else "")
    listed = (NamedDifference(name + _whose(names), a, b) for (name, a, b), names in found.items())
    return tuple(sorted(listed, key=_place))


def _whose(names: Sequence[str]) -> str:
    """`` (rank0/main and 3 more)``; "" where the first process is among them."""
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f" ({names[0]}{more})" if names[0] else ""


def _is_of_the_start(name: str) -> bool:
    """Whether a fact is recorded as soon as a process begins."""
    return name.startswith("env.") and is_recorded(name.removeprefix("env."))


def fact_differences(a: Mapping[str, object], b: Mapping[str, object]) -> tuple[NamedDifference, ...]:
    """Every fact that two processes do not share, the likeliest to change results first."""
    names = (name for name in {*a, *b} if not name.startswith(NO_ENVIRONMENT))
    pairs = (NamedDifference(name, fact_text(a, name), fact_text(b, name)) for name in names)
    return tuple(sorted((pair for pair in pairs if pair.a != pair.b), key=_place))


def fact_text(facts: Mapping[str, object], name: str) -> str | None:
    """A fact as text; None: not recorded."""
    value = facts.get(name)
    return None if value is None else str(value)


def _place(fact: NamedDifference) -> tuple[int, str]:
    return next((k for k, start in enumerate(ORDER) if fact.name.startswith(start)), len(ORDER)), fact.name
