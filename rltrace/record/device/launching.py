"""The kernels on one GPU: loaded, and launched on whatever stream is the current one.

Owns the handles. Loads and launches through torch's own launcher for what Triton has compiled (the one that Inductor
uses): it needs neither triton nor a C compiler in this process, calls nobody's hooks, and costs the least of any.
"""

from __future__ import annotations

import struct
import tempfile
from typing import Any

import torch

from rltrace.digest.definition import SECRET
from rltrace.digest.gpu import CHUNK_BYTES, WARPS
from rltrace.digest.gpu.compiling import SIGNATURES, Binaries, Binary
from rltrace.record.device.by_operations import START
from rltrace.record.device.condensed import signed

LETTERS = {"i32": "i", "i64": "l"}
"""The launcher's letters for Triton's types."""

POINTER = "O"


class Launcher:
    """Launches the kernels on one device."""

    def __init__(self, index: int, constants: torch.Tensor, binaries: Binaries) -> None:
        """``index``: of the device. ``constants``: on it. Raises what torch raises where it cannot load them."""
        self._constants = constants
        self._at = constants.data_ptr()
        with torch.cuda.device(index):
            self._one = _Kernel(index, binaries.kernels["rltrace_condense_one"], SIGNATURES["rltrace_condense_one"])
            self._many = _Kernel(index, binaries.kernels["rltrace_condense_many"], SIGNATURES["rltrace_condense_many"])

    def one(self, address: int, pages: int, rest: int, seed: int, into: int) -> None:
        """As ``by_kernel.Launches``."""
        programs = pages + -(-rest // CHUNK_BYTES)
        self._one.launch(programs, (address, pages, rest, seed, into, self._at))

    def many(self, table: torch.Tensor) -> None:
        """As ``by_kernel.Launches``."""
        self._many.launch(len(table), (table.data_ptr(), self._at))


def constants(device: torch.device) -> torch.Tensor:
    """What the kernels read besides the tensors: the words of the secret, then the lanes' start values."""
    with torch.inference_mode(mode=False), torch._C._DisableTorchDispatch():
        return torch.tensor([*struct.unpack("<24q", SECRET), *map(signed, START)], dtype=torch.int64, device=device)


class _Kernel:
    """One kernel, on one device."""

    def __init__(self, index: int, binary: Binary, signature: tuple[str, ...]) -> None:
        self._device = index
        self._shared = binary.shared
        self._types = "".join(LETTERS[each] for each in signature) + POINTER * binary.nulls
        self._nulls = (None,) * binary.nulls
        launcher: Any = torch._C._StaticCudaLauncher
        self._call = launcher._launch_kernel
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(binary.code)
            file.flush()
            loaded = launcher._load_kernel(file.name, binary.name, binary.shared, index)
        self._function = loaded[-3]  # behind the module's handle, where torch gives one; then registers and spills
        self.registers, self.spills = loaded[-2:]

    def launch(self, programs: int, arguments: tuple[int, ...]) -> None:
        if torch._C._cuda_getDevice() == self._device:
            self._enqueue(programs, arguments)
        else:
            with torch.cuda.device(self._device):
                self._enqueue(programs, arguments)

    def _enqueue(self, programs: int, arguments: tuple[int, ...]) -> None:
        stream = torch._C._cuda_getCurrentRawStream(self._device)
        self._call(self._function, programs, 1, 1, WARPS, self._shared, self._types, arguments + self._nulls, stream)
