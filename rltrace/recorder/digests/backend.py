"""The backend that condenses tensors of a device: Triton kernels where available, else torch operations.

Owns the choice, made once for each device when a tensor on it is first condensed, and its entry in the trace. Kernels
are used once they have returned the same words as the torch operations. Their dependencies are imported only then.
"""

from __future__ import annotations

import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch

from rltrace.digest import PAGE_BYTES, SECRET
from rltrace.digest.gpu import CHUNK_BYTES, WARPS
from rltrace.masking import masked_text
from rltrace.recorder.base.isolation import exclude_new_modules
from rltrace.recorder.digests import torch_backend
from rltrace.recorder.digests.layouts import is_plain, logical_bytes, slabs
from rltrace.recorder.digests.torch_backend import (
    PAGES_AT_ONCE,
    START,
    WORD,
    bytes_of,
    condensed_words,
    signed,
    to_device,
)

if TYPE_CHECKING:
    from rltrace.digest.gpu.compiler import Binaries, Binary

FACT = "digest.device"
"""The fact with the choice; no difference between two runs."""

Condense = Callable[[Sequence[torch.Tensor], Sequence[int], torch.Tensor, int], None]

_backends: dict[torch.device, Condense] = {}
_descriptions: dict[torch.device, str] = {}
_lock = threading.Lock()


def condense(tensors: Sequence[torch.Tensor], seeds: Sequence[int], into: torch.Tensor, at: int) -> None:
    """Condense tensors one after the other into ``into``, on the current stream, without waiting.

    ``tensors``: as ``as_condensed`` returns them, on one device, each under its seed. ``into``: int64 [words],
    contiguous, on that device; written from word ``at`` on. Padding bytes of a last word are not written. Not while a
    stream is being captured. On a CUDA device the first call waits, for seconds where the kernels have to be compiled.
    """
    condense = _backends.get(into.device) or _choose(into.device)
    if all(map(is_plain, tensors)):
        condense(tensors, seeds, into, at)
        return
    for tensor, seed in zip(tensors, seeds, strict=True):
        for part in (tensor,) if is_plain(tensor) else _in_pages(tensor):
            condense([part], [seed], into, at)
            at += condensed_words(part.numel() * part.element_size())


def _in_pages(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The logical bytes in parts, uint8 [n]: each of whole pages but the last."""
    rest: torch.Tensor | None = None
    for slab in slabs(tensor):
        data = bytes_of(logical_bytes(slab))
        if rest is not None and len(rest):
            data = torch.cat([rest, data])
        whole = len(data) - len(data) % PAGE_BYTES
        if whole:
            yield data[:whole]
        rest = data[whole:]
    if rest is not None and len(rest):
        yield rest


def facts() -> Mapping[str, str]:
    """The backends used so far; empty without any."""
    return {FACT: "; ".join(sorted(set(_descriptions.values())))} if _descriptions else {}


def _choose(device: torch.device) -> Condense:
    with _lock:
        if device not in _backends:
            condense: Condense = torch_backend.condense
            try:
                if device.type != "cpu":
                    condense, _descriptions[device] = _kernel_backend(device)
            except Exception as error:  # torch operations work without the kernels
                first_line = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
                _descriptions[device] = f"torch operations: {masked_text(first_line)}"
            _backends[device] = condense
        return _backends[device]


def _kernel_backend(device: torch.device) -> tuple[Condense, str]:
    from rltrace.digest.gpu.compiler import UnavailableError, compiled

    exclude_new_modules()
    if device.type != "cuda" or torch.version.hip is not None:
        raise UnavailableError("the kernels are for CUDA")
    major, minor = torch.cuda.get_device_capability(device)
    binaries = compiled(10 * major + minor)
    condense = partial(condense_by_kernel, Launcher(device.index, constants(device), binaries))
    if not agrees(condense, device):
        raise UnavailableError(f"kernels of {binaries.compiler} give wrong results")
    return condense, binaries.compiler


def agrees(condense: Condense, device: torch.device) -> bool:
    """Whether it returns the same words as the torch operations, for one tensor and for several."""
    with torch.inference_mode(mode=False), torch._C._DisableTorchDispatch():
        words = torch.arange(5 * PAGE_BYTES // 8, device=device) * 0x1E3779B97F4A7C15  # all different
        data = words.view(torch.uint8)
        ends = ((8, 3 * PAGE_BYTES + 1_777), (0, 9), (1, PAGE_BYTES + 2), (0, PAGE_BYTES), (16, 5_000)) * 3
        tensors = [data[start:end] for start, end in ends]
        seeds = [0x123456789ABCDEF1 * k % 2**64 for k in range(len(tensors))]
        for count in (1, len(tensors)):  # in a separate launch, and together
            expected = torch.full((sum(condensed_words(len(each)) for each in tensors[:count]),), -1, device=device)
            found = expected.clone()
            torch_backend.condense(tensors[:count], seeds[:count], expected, 0)
            condense(tensors[:count], seeds[:count], found, 0)
            if not torch.equal(found, expected):
                return False
    return True


# --- by kernel --------------------------------------------------------------------------------------------------------
#
# Tensors condensed by the kernels of ``rltrace.digest.gpu``: one launch for one tensor, or for many. Kernels are
# launched on a GPU (``Launcher``), or by Triton's interpreter in a test.


MAX_SEPARATE_LAUNCHES = 12
"""Up to so many tensors have a launch each. More share one, whose table costs the host about as much as so many
launches (docs/internals/benchmarks.md)."""

SEPARATE_PAGES = 256
"""From so many pages on a tensor has a separate launch: a table of its pages would be long, and saves nothing."""


class Launches(Protocol):
    """Launches kernels on the current stream. Addresses are bytes on the device."""

    def one(self, address: int, pages: int, rest: int, seed: int, into: int) -> None:
        """``rltrace_condense_one``: whole pages from a word-aligned address on, then less than a page of bytes."""

    def many(self, table: torch.Tensor) -> None:
        """``rltrace_condense_many``: a table on the device, int64 [programs, 4]."""


class KernelJob(NamedTuple):
    """One tensor of a launch."""

    address: int
    pages: int
    rest: int
    seed: int
    """Signed."""
    into: int
    """Address of its first word."""


def condense_by_kernel(
    launches: Launches, tensors: Sequence[torch.Tensor], seeds: Sequence[int], into: torch.Tensor, at: int
) -> None:
    """As ``condense``, by kernels."""
    jobs = []
    few = len(tensors) <= MAX_SEPARATE_LAUNCHES
    place = into.data_ptr() + WORD * at
    for tensor, seed in zip(tensors, seeds, strict=True):
        size = tensor.numel() * tensor.element_size()
        pages, rest = divmod(size, PAGE_BYTES)
        address = tensor.data_ptr()
        if pages and address % WORD:
            _condense_copied(launches, tensor, KernelJob(address, pages, rest, signed(seed), place))
        elif few or pages >= SEPARATE_PAGES:
            if size:
                launches.one(address, pages, rest, signed(seed), place)
        elif size:
            jobs.append(KernelJob(address, pages, rest, signed(seed), place))
        place += WORD * condensed_words(size)
    if jobs:
        launches.many(to_device(torch.from_numpy(programs(jobs)), into.device))


def programs(jobs: Sequence[KernelJob]) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """The table of one launch, int64 [programs, 4]: address, seed, bytes to copy (0: digest a page), destination."""
    address, pages, rest, seed, into = np.array(jobs, np.int64).T
    counts = pages + -(-rest // CHUNK_BYTES)
    starts = np.cumsum(counts) - counts
    job = np.repeat(np.arange(len(jobs)), counts)
    page = np.arange(len(job)) - starts[job]
    chunk = page - pages[job]
    is_page = chunk < 0
    done = pages[job] * PAGE_BYTES + chunk * CHUNK_BYTES
    return np.stack(
        [
            address[job] + np.where(is_page, page * PAGE_BYTES, done),
            seed[job],
            np.where(is_page, 0, np.minimum(rest[job] - chunk * CHUNK_BYTES, CHUNK_BYTES)),
            into[job] + np.where(is_page, page * WORD, pages[job] * WORD + chunk * CHUNK_BYTES),
        ],
        axis=1,
    )


def _condense_copied(launches: Launches, tensor: torch.Tensor, job: KernelJob) -> None:
    """One that begins in the midst of a word, as slices of bytes may: its pages are copied to where they do not.

    So much at a time, and each copy goes back to the allocator as soon as the launch that reads it is enqueued: what
    the allocator gives out next on this stream is written behind it.
    """
    data = bytes_of(tensor)
    for first in range(0, job.pages, PAGES_AT_ONCE):
        pages = min(PAGES_AT_ONCE, job.pages - first)
        copy = data[first * PAGE_BYTES : (first + pages) * PAGE_BYTES].clone()
        launches.one(copy.data_ptr(), pages, 0, job.seed, job.into + WORD * first)
    if job.rest:
        whole = job.pages * PAGE_BYTES
        launches.one(job.address + whole, 0, job.rest, job.seed, job.into + WORD * job.pages)


# --- launching --------------------------------------------------------------------------------------------------------
#
# The kernels on one GPU. They are loaded and launched by torch's static launcher for Triton kernels (Inductor's): it
# needs neither triton nor a C compiler in this process, calls no hooks, and is the cheapest.


LETTERS = {"i32": "i", "i64": "l"}
"""The launcher's letters for Triton's types."""

POINTER = "O"


class Launcher:
    """Launches the kernels on one device."""

    def __init__(self, index: int, constants: torch.Tensor, binaries: Binaries) -> None:
        """``index``: of the device. ``constants``: on it. Raises torch's errors where the kernels cannot be loaded."""
        from rltrace.digest.gpu.compiler import SIGNATURES

        self._constants = constants
        self._at = constants.data_ptr()
        with torch.cuda.device(index):
            self._one = _Kernel(index, binaries.kernels["rltrace_condense_one"], SIGNATURES["rltrace_condense_one"])
            self._many = _Kernel(index, binaries.kernels["rltrace_condense_many"], SIGNATURES["rltrace_condense_many"])

    def one(self, address: int, pages: int, rest: int, seed: int, into: int) -> None:
        programs = pages + -(-rest // CHUNK_BYTES)
        self._one.launch(programs, (address, pages, rest, seed, into, self._at))

    def many(self, table: torch.Tensor) -> None:
        self._many.launch(len(table), (table.data_ptr(), self._at))


def constants(device: torch.device) -> torch.Tensor:
    """The kernels' constants, int64: the words of the secret, then the lanes' start values."""
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
        self._function = loaded[-3]  # after the module's handle, where torch returns one; then registers and spills
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
