"""The kernels of a GPU run by Triton's interpreter, in a process of its own: whether it is used shows at their import.

Owns that process and the replacement of torch's launcher in it, so that all of ``recorder.digests`` is run but the
two calls into the driver: loading code, and starting it.
"""

import contextlib
import ctypes
import importlib.util
import mmap
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

HERE = importlib.util.find_spec("triton") is not None
"""Whether there is a Triton to interpret with."""


@contextlib.contextmanager
def interpreter() -> Iterator[Executor]:
    """A process in which ``condensed`` and ``agrees`` can be called."""
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            yield pool
    finally:
        del os.environ["TRITON_INTERPRET"]
        if before is not None:
            os.environ["TRITON_INTERPRET"] = before


def condensed(buffers: Sequence[bytes], offset: int, seeds: Sequence[int]) -> list[int]:
    """In that process: the digests of these bytes, as tensors that lie ``offset`` bytes behind a word's begin."""
    import torch

    from rltrace.recorder.digests import backend
    from rltrace.recorder.digests.torch_backend import condensed_words, finished

    tensors = []
    for data in buffers:
        room = torch.empty(len(data) + offset + 1, dtype=torch.uint8)
        tensors.append(room[offset : offset + len(data)])
        tensors[-1].copy_(torch.frombuffer(bytearray(data or b"-"), dtype=torch.uint8)[: len(data)])
    counts = [condensed_words(len(data)) for data in buffers]
    into = torch.full((sum(counts) + 2,), -1)
    backend.condense_by_kernel(_launcher(), tensors, seeds, into, 1)
    if into[0] != -1 or into[-1] != -1:
        raise AssertionError("something was written beside what is condensed")
    words = into[1:-1].split(counts)
    return [finished(mine.numpy(), len(data), seed) for mine, data, seed in zip(words, buffers, seeds, strict=True)]


def agrees() -> bool:
    """In that process: whether the kernels pass for what the torch operations come to."""
    from functools import partial

    import torch

    from rltrace.recorder.digests import backend

    return backend.agrees(partial(backend.condense_by_kernel, _launcher()), torch.device("cpu"))


def condensed_at_the_end(data: bytes, seed: int) -> int:
    """In that process: the digest of a tensor that ends where the memory of the process does."""
    import torch

    from rltrace.recorder.digests import backend
    from rltrace.recorder.digests.torch_backend import condensed_words, finished

    room = -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, room + mmap.PAGESIZE)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)[room - len(data) : room]
    tensor.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    end = ctypes.c_void_p(tensor.data_ptr() + len(data))
    if ctypes.CDLL(None).mprotect(end, ctypes.c_size_t(mmap.PAGESIZE), 0):
        raise AssertionError("the memory behind the tensor can still be read")
    into = torch.zeros(condensed_words(len(data)), dtype=torch.int64)
    backend.condense_by_kernel(_launcher(), [tensor], [seed], into, 0)
    return finished(into.numpy(), len(data), seed)


def _launcher() -> Any:
    import torch

    from rltrace.digest.gpu.compiler import SIGNATURES, Binaries, Binary
    from rltrace.recorder.digests.backend import Launcher, constants

    torch._C._StaticCudaLauncher = StandIn  # type: ignore[misc, assignment]
    torch._C._cuda_getDevice = lambda: 0
    torch._C._cuda_getCurrentRawStream = lambda index: 7 + index
    torch.cuda.device = lambda index: contextlib.nullcontext()  # type: ignore[assignment, misc]
    binaries = Binaries("", {name: Binary(name, name.encode(), 0, 2) for name in SIGNATURES})
    return Launcher(0, constants(torch.device("cpu")), binaries)


def _pages(kernel: str, programs: int, given: Sequence[int]) -> list[int]:
    """Addresses of the pages that a launch digests."""
    if kernel == "rltrace_condense_one":
        return list(given[:1]) if given[1] else []
    rows = (ctypes.c_int64 * 4 * programs).from_address(given[0])
    return [address for address, _, rest, _ in rows if not rest]


class StandIn:
    """Where ``torch._C._StaticCudaLauncher`` would load a kernel and start it, it is interpreted."""

    kernels: ClassVar[list[str]] = []

    @classmethod
    def _load_kernel(cls, path: str, name: str, shared: int, device: int) -> tuple[int, int, int, int]:
        if Path(path).read_text() != name or (shared, device) != (0, 0):
            raise AssertionError("what is loaded is not what was compiled")
        cls.kernels.append(name)
        return 0, len(cls.kernels) - 1, 126, 0

    @classmethod
    def _launch_kernel(
        cls,
        function: int,
        x: int,
        y: int,
        z: int,
        warps: int,
        shared: int,
        types: str,
        given: tuple[Any, ...],
        stream: int,
    ) -> None:
        from rltrace.digest.gpu import kernels

        if (y, z, warps, shared, stream) != (1, 1, 1, 0, 7) or len(types) != len(given):
            raise AssertionError("launched in another way than compiled")
        own = given[: len(types.rstrip("O"))]
        if set(given[len(own) :]) != {None} or not all(isinstance(each, int) for each in own):
            raise AssertionError("a launch's parameters are not what their letters say")
        if any(address % 8 for address in _pages(cls.kernels[function], x, own)):
            raise AssertionError("a page that begins in the midst of a word, of which a device reads none")
        getattr(kernels, cls.kernels[function])[(x,)](*own)
