"""Facts of the machine, the interpreter and the environment variables.

Owns which variables are read: those on a list that can change numerics, and those that the program's sources name.
Starts no process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from rltrace.masking import MASK, home_as_tilde, masked_value

VARIABLE_PREFIXES = (
    "ATEN_",
    "CUBLASLT_",
    "CUBLAS_",
    "CUDA_",
    "CUDNN_",
    "DISABLE_ADDMM_",
    "DNNL_",
    "GOMP_",
    "HIPBLASLT_",
    "HIP_",
    "HSA_",
    "JAX_",
    "KMP_",
    "MALLOC_",
    "MIOPEN_",
    "MKL_",
    "MUJOCO_",
    "NCCL_",
    "NUMEXPR_",
    "NVIDIA_TF32_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTORCH_",
    "ROCBLAS_",
    "ROCM_",
    "TORCHINDUCTOR_",
    "TORCH_",
    "TRITON_",
    "VECLIB_",
    "XLA_",
)
VARIABLES = frozenset(
    {"BLIS_NUM_THREADS", "GLIBC_TUNABLES", "NPROC", "NPY_DISABLE_CPU_FEATURES", "PYTHONHASHSEED", "WORLD_SIZE"}
)
PLACES = ("_DIR", "_HOME", "_PATH", "_ROOT", "_CACHE", "_FILENAME")
"""Suffixes of variables that hold a path."""

INSTRUCTIONS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "ATEN_CPU_CAPABILITY": (("default", ""), ("avx2", "avx2"), ("avx512", "avx512f")),
    "MKL_CBWR": (("COMPATIBLE", ""), ("AVX2", "avx2"), ("AVX512", "avx512f")),
    "ONEDNN_MAX_CPU_ISA": (("SSE41", ""), ("AVX2", "avx2"), ("AVX512_CORE", "avx512f")),
}
"""Values of each variable, with the processor feature that each needs."""

OF_THE_PLACE = ("GROUP_", "LOCAL_", "LSB_", "MASTER_", "OMPI_", "PBS_", "PMI_", "RLTRACE_", "ROLE_", "SLURM_", "SSH_")
"""Prefixes of variables that say where a program runs, and are others in every run."""

NAMES_OF_THE_PLACE = frozenset(
    {*("DISPLAY", "HOSTNAME", "LOGNAME", "PATH", "PWD", "PYTHONPATH", "RANK", "SHELL", "TERM", "TMPDIR", "USER")}
)

FILE_LISTS = frozenset({"LD_PRELOAD", "DYLD_INSERT_LIBRARIES"})
"""Lists of files, of which only the names are recorded."""

ACTING = (
    "ATEN_",
    "CUBLASLT_",
    "CUBLAS_",
    "CUDNN_",
    "DISABLE_ADDMM_",
    "DNNL_",
    "GOMP_",
    "HIPBLASLT_",
    "KMP_",
    "MIOPEN_",
    "MKL_",
    "NVIDIA_TF32_",
    "OMP_",
    "ONEDNN_",
    "OPENBLAS_",
    "PYTORCH_TUNABLEOP_",
    "ROCBLAS_",
    "TORCH_ALLOW_TF32_",
    "TORCH_BLAS_PREFER_",
    "TORCH_CUBLASLT_",
    "TORCH_CUDNN_",
    "TORCH_LINALG_PREFER_",
    "TORCH_ROCM_",
)
"""Prefixes of variables that choose kernels."""

_ISA_FLAGS = ("avx", "avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_tile", "asimd", "sve")


def machine() -> dict[str, str | int | float | bool | None]:
    """Processor, cores and system library; never the host's name."""
    system = os.uname()
    model, isa = _processor()
    return {
        "host.system": f"{system.sysname} {system.release}",
        "host.machine": system.machine,
        "host.cpu": model,
        "host.isa": isa,
        "host.cores": os.cpu_count(),
        "host.cores_allowed": _allowed_cores(),
        "host.libc": _libc(),
    }


def python() -> dict[str, str | int | float | bool | None]:
    """The interpreter, and whether its string hashes are the same in every run."""
    return {
        "python.version": ".".join(map(str, sys.version_info[:3])),
        "python.build": " ".join(sys.version.split()),
        "python.implementation": sys.implementation.name,
        "python.hash_randomization": bool(sys.flags.hash_randomization)
        and not os.environ.get("PYTHONHASHSEED", "").isdigit(),
        "python.optimize": sys.flags.optimize,
    }


def environment() -> dict[str, str | int | float | bool | None]:
    """The allowed environment variables, as ``env.NAME``; secrets and the home folder masked."""
    found: dict[str, str | int | float | bool | None] = {}
    for name in sorted(os.environ):
        if name in FILE_LISTS:
            found[f"env.{name}"] = ":".join(Path(path).name for path in os.environ[name].replace(" ", ":").split(":"))
        elif is_recorded(name):
            found[f"env.{name}"] = home_as_tilde(masked_value(name, os.environ[name]))
    return found


def named_variables(names: Iterable[str]) -> dict[str, str | int | float | bool | None]:
    """Those of these variables that the program was started with, as ``environment`` has them; of a path, no text."""
    first = _started_with()
    found = {name: first[name] for name in names if name in first and not _is_of_the_place(name)}
    masked = ((name, MASK if value.startswith("/") else masked_value(name, value)) for name, value in found.items())
    return {f"env.{name}": home_as_tilde(value) for name, value in masked}


def _is_of_the_place(name: str) -> bool:
    return name.startswith(OF_THE_PLACE) or name.endswith(PLACES) or name in NAMES_OF_THE_PLACE or is_recorded(name)


def _started_with() -> Mapping[str, str]:
    """The variables that the program was started with, whatever it has set since, where the bootstrap has seen them."""
    return getattr(sys.modules.get("_rltrace_bootstrap"), "STARTED_WITH", os.environ)


def is_recorded(name: str) -> bool:
    """Whether a variable can change numerics, and so is recorded."""
    if name in VARIABLES or name in FILE_LISTS:
        return True
    return name.startswith(VARIABLE_PREFIXES) and not name.endswith(PLACES)


def _processor() -> tuple[str | None, str | None]:
    """Model name and the vector instruction sets, of the first processor."""
    fields: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123  read to the first blank
            for line in lines:
                if not line.strip():
                    break
                name, _, value = line.partition(":")
                fields[name.strip()] = value.strip()
    except OSError:
        return None, None
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    model = fields.get("model name") or fields.get("CPU part")
    return model, " ".join(flag for flag in _ISA_FLAGS if flag in flags) or None


def _allowed_cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _libc() -> str | None:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        return None
