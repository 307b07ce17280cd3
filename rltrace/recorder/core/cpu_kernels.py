"""Kernel evidence of ops on a CPU: library, instruction set, thread count.

Owns which ops run in which library, and reads the process's settings. CUDA kernel names are in the same table
("names"); for other devices it holds only the device type so far.
"""

import os
from typing import Any

import torch

from rltrace.portable_keys import portable_key
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.core.regions import RegionName
from rltrace.trace.kernels.evidence import Evidence

_ONEDNN = ("convolution", "conv", "mkldnn", "gelu", "lstm", "gru_cell", "_thnn_fused")
_BLAS = ("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "linear", "addr", "ger", "matmul")
_LAPACK = (
    "linalg_",
    "_linalg_",
    "cholesky",
    "qr",
    "geqrf",
    "orgqr",
    "ormqr",
    "svd",
    "lu_",
    "triangular_solve",
    "lstsq",
)


class Kernels:
    """The kernel evidence of one process: one table entry per library and setting."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._onednn = torch.backends.mkldnn.is_available()
        self._blas = "MKL" if torch.backends.mkl.is_available() else "BLAS"
        self._made: dict[tuple[str, int], int] = {}
        self.payloads: dict[int, Evidence] = {}
        """Evidence by id."""

    def of(self, op_name: str, threads: int, device: str) -> int:
        """Id in table "kernels" of the kernel that runs ``op_name`` ("aten.addmm.default") on ``device`` now."""
        if isinstance(op_name, RegionName):
            return self._of_region(op_name, threads, device)
        library = self.library(op_name) if device == "cpu" else device
        key = (library, threads)
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._intern(self._describe(library, threads))
        return found

    def _of_region(self, name: RegionName, threads: int, device: str) -> int:
        payload = dict(name.evidence)
        if device == "cpu":
            known = {"isa": torch.backends.cpu.get_cpu_capability(), "threads": threads}
            payload |= {setting: known[setting] for setting in name.settings}
        return self._intern(payload)

    def _intern(self, payload: Evidence) -> int:
        number = self._tables.intern("kernels", portable_key("kernel", payload), payload)
        self.payloads[number] = payload
        return number

    def library(self, op_name: str) -> str:
        """The library that computes an op on a CPU, by the op's name."""
        name = op_name.split(".")[1] if op_name.count(".") >= 2 else op_name
        bare = name.removesuffix("_backward").removesuffix("_")
        if name.startswith(_LAPACK):
            return "LAPACK"
        if bare in _BLAS:
            return self._blas
        if self._onednn and (bare.startswith(_ONEDNN) or "convolution" in bare):
            return "oneDNN"
        return "ATen"

    def _describe(self, library: str, threads: int) -> dict[str, Any]:
        if library == "ATen":
            # read only after an op has run: read earlier, the program could no longer set ATEN_CPU_CAPABILITY
            isa = torch.backends.cpu.get_cpu_capability()
            return {"library": library, "isa": isa, "threads": threads}
        if library == "oneDNN":
            return {"library": library, "isa": _variable("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"), "threads": threads}
        if library in ("MKL", "LAPACK", "BLAS"):
            isa = _variable("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS")
            return {"library": library, "isa": isa, "threads": threads}
        return {"device": library}


def _variable(*names: str) -> str:
    """The setting that limits a library's instruction set; ``auto`` where it chooses by itself."""
    return next((os.environ[name] for name in names if os.environ.get(name)), "auto")
