"""Facts of the GPUs of a machine, their driver, and the libraries for them that the process has loaded.

Starts nothing: where the program has not initialised CUDA, only the driver's files in /proc are read. Versions of
cuBLAS are those of the loaded library, which may differ from the installed package; reading them needs neither a handle
nor a context. Written from the documentation of CUDA and cuBLAS; what cannot be read is left out.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

Facts = dict[str, str | int | float | bool | None]


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
    "cublaslt": lambda torch, gpus: _size(loaded("libcublasLt.so"), "cublasLtGetVersion"),
    "cublas_workspace": lambda torch, gpus: torch._C._cuda_getCublasWorkspaceSize(),
    "cublaslt_workspace": lambda torch, gpus: torch._C._cuda_getCublasLtWorkspaceSize(),
}


def library_version(name: str, property_of: str) -> str | None:
    """Version of a loaded NVIDIA library, ``12.8.4``; None where it is not loaded, or has no such function."""
    path = loaded(name)
    if path is None:
        return None
    try:
        read = getattr(ctypes.CDLL(path), property_of)  # already loaded
    except (OSError, AttributeError):
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
    path, value = loaded(name), ctypes.c_int(-1)
    if path is None:
        return None
    try:
        return None if getattr(ctypes.CDLL(path), function)(ctypes.byref(value)) != 0 else value.value
    except (OSError, AttributeError):
        return None


def _size(path: str | None, function: str) -> int | None:
    """The size_t that a function without arguments returns."""
    if path is None:
        return None
    try:
        read = getattr(ctypes.CDLL(path), function)
    except (OSError, AttributeError):
        return None
    read.restype = ctypes.c_size_t
    return int(read())


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
