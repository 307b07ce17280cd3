"""Facts of the machine, its GPUs, the interpreter and the environment variables.

Owns which variables are read: those on a list that can change numerics, and those that the program's sources name.
Starts no process, and no GPU: where the program has not initialised CUDA, only the driver's files in /proc are read.
Versions of cuBLAS are those of the loaded library, which may differ from the installed package; reading them needs
neither a handle nor a context. What cannot be read is left out.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rltrace.masking import MASK, home_as_tilde, masked_value

Facts = dict[str, str | int | float | bool | None]

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


def machine() -> Facts:
    """Processor, cores and system library; never the host's name."""
    system = os.uname()
    model, isa = _processor()
    return {
        "host.system": f"{system.sysname} {system.release}",
        "host.machine": system.machine,
        "host.cpu": model,
        "host.isa": isa,
        "host.cores": os.cpu_count(),
        "host.cores_allowed": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "host.libc": _libc(),
    }


def python() -> Facts:
    """The interpreter, and whether its string hashes are the same in every run."""
    return {
        "python.version": ".".join(map(str, sys.version_info[:3])),
        "python.build": " ".join(sys.version.split()),
        "python.implementation": sys.implementation.name,
        "python.hash_randomization": bool(sys.flags.hash_randomization)
        and not os.environ.get("PYTHONHASHSEED", "").isdigit(),
        "python.optimize": sys.flags.optimize,
    }


def environment() -> Facts:
    """The allowed environment variables, as ``env.NAME``; secrets and the home folder masked."""
    found: Facts = {}
    for name in sorted(os.environ):
        if name in FILE_LISTS:
            found[f"env.{name}"] = ":".join(Path(path).name for path in os.environ[name].replace(" ", ":").split(":"))
        elif is_recorded(name):
            found[f"env.{name}"] = home_as_tilde(masked_value(name, os.environ[name]))
    return found


def named_variables(names: Iterable[str]) -> Facts:
    """Those of these variables that the program was started with, as ``environment`` has them; of a path, no text."""
    # what the program was started with, whatever it has set since, where the bootstrap has seen it
    first: Mapping[str, str] = getattr(sys.modules.get("_rltrace_bootstrap"), "STARTED_WITH", os.environ)
    found = {name: first[name] for name in names if name in first and not _is_of_the_place(name)}
    masked = ((name, MASK if value.startswith("/") else masked_value(name, value)) for name, value in found.items())
    return {f"env.{name}": home_as_tilde(value) for name, value in masked}


def acting_variables(facts: Mapping[str, object]) -> dict[str, str]:
    """Of recorded facts, the variables that choose kernels, by name."""
    named = {name.removeprefix("env."): value for name, value in sorted(facts.items()) if name.startswith("env.")}
    return {name: str(value) for name, value in named.items() if name.startswith(ACTING) and value is not None}


def _is_of_the_place(name: str) -> bool:
    return name.startswith(OF_THE_PLACE) or name.endswith(PLACES) or name in NAMES_OF_THE_PLACE or is_recorded(name)


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


def _libc() -> str | None:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError):
        return None


def cuda() -> Facts:
    """GPUs, driver, and loaded libraries."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "version") or not torch.cuda.is_initialized():
        return driver_facts()
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    found = driver_facts()
    found["cuda.devices"] = "; ".join(f"{gpu.name} (sm_{gpu.major}{gpu.minor})" for gpu in gpus)
    found["cuda.multiprocessors"] = "; ".join(str(gpu.multi_processor_count) for gpu in gpus)
    for name, read in _FACTS.items():
        with suppress(Exception):  # of another version, or of a build without that library
            value = read(torch, gpus)
            if value is not None:
                found[f"cuda.{name}"] = value
    return found


_FACTS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "cudnn": lambda torch, gpus: torch.backends.cudnn.version(),
    "driver_api": lambda torch, gpus: _number("libcuda.so", "cuDriverGetVersion"),
    "runtime": lambda torch, gpus: torch._C._cuda_getCompiledVersion(),
    "threads_per_multiprocessor": lambda torch, gpus: "; ".join(str(g.max_threads_per_multi_processor) for g in gpus),
    "nccl": lambda torch, gpus: ".".join(map(str, torch.cuda.nccl.version())),
    "cublas": lambda torch, gpus: library_version("libcublas.so", "cublasGetProperty"),
    "cusolver": lambda torch, gpus: library_version("libcusolver.so", "cusolverGetProperty"),
    "cublaslt": lambda torch, gpus: _size("libcublasLt.so", "cublasLtGetVersion"),
    "cublas_workspace": lambda torch, gpus: torch._C._cuda_getCublasWorkspaceSize(),
    "cublaslt_workspace": lambda torch, gpus: torch._C._cuda_getCublasLtWorkspaceSize(),
}


def library_version(name: str, property_of: str) -> str | None:
    """Version of a loaded NVIDIA library, ``12.8.4``; None where it is not loaded, or has no such function."""
    read = _function(name, property_of)
    if read is None:
        return None
    numbers = []
    for index in range(3):  # major, minor, patch
        value = ctypes.c_int(-1)
        if read(ctypes.c_int(index), ctypes.byref(value)) != 0:
            return None
        numbers.append(str(value.value))
    return ".".join(numbers)


def _number(name: str, function: str) -> int | None:
    """The int that a function of a loaded library writes to its argument."""
    read, value = _function(name, function), ctypes.c_int(-1)
    return None if read is None or read(ctypes.byref(value)) != 0 else value.value


def _size(name: str, function: str) -> int | None:
    """The size_t that a function without arguments returns."""
    read = _function(name, function)
    if read is None:
        return None
    read.restype = ctypes.c_size_t
    return int(read())


def _function(name: str, function: str) -> Any:
    """A function of a loaded library; None where that is not loaded, or has no such function."""
    path = loaded(name)
    try:
        return None if path is None else getattr(ctypes.CDLL(path), function)
    except (OSError, AttributeError):
        return None


def loaded(name: str) -> str | None:
    """Path of the loaded shared library whose file name begins with ``name``; None: there is none."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123
            for line in lines:
                path = line.rstrip("\n").partition("/")[2]
                if path.rpartition("/")[2].startswith(name):
                    return f"/{path}"
    except OSError:
        pass
    return None


DRIVER = Path("/proc/driver/nvidia")


def driver_facts(root: Path = DRIVER) -> Facts:
    """What the driver writes to ``/proc``, of which a container may have a part or nothing."""
    version = " ".join(_value_of("NVRM version", root / "version").split())
    models = [_value_of("Model", information) for information in sorted(root.glob("gpus/*/information"))]
    facts = {"cuda.driver": version, "cuda.gpus": "; ".join(filter(None, models))}
    return {name: value for name, value in facts.items() if value}


def _value_of(name: str, file: Path) -> str:
    """The value of ``name: value`` in a file; "" where there is none, or no file."""
    try:
        pairs = (line.partition(":") for line in file.read_text(errors="replace").splitlines())
        return next((value.strip() for key, _, value in pairs if key.strip() == name), "")
    except OSError:
        return ""
