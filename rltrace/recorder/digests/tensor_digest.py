"""The digest of a tensor of any device and layout.

Owns the way from a tensor to its logical bytes. A dense tensor on the CPU is read in place; any other is first copied
to contiguous memory, outside of autograd and of any mode. Never changes the tensor or its version.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from ctypes import c_char
from typing import Any

import torch
from torch._C import TensorBase
from torch._C._dynamo.guards import TensorGuards
from torch._C._profiler import _RecordFunctionFast
from xxhash import xxh3_64_intdigest

from rltrace.digest import digest_address, digest_buffer, digest_pages
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.digests.accelerator import waiting_allowed
from rltrace.recorder.digests.backend import condense
from rltrace.recorder.digests.cuda_graphs import is_captured
from rltrace.recorder.digests.layouts import (
    OWN_WORK,
    Layout,
    Layouts,
    as_condensed,
    data_address,
    is_compound,
    is_subclass,
    own_work,
)
from rltrace.recorder.digests.torch_backend import condensed_words, finished

# --- device reading ---------------------------------------------------------------------------------------------------
#
# Digests of tensors on a device, waited for: condensed there, and read back together. All work is enqueued on the
# current stream, after the tensors are written and before they are overwritten; the host waits once, at the end.


_array: Any = TensorBase.numpy
"""The original method: its patch follows the program's arrays."""


def digests_on_device(tensors: Sequence[torch.Tensor], seeds: Sequence[int]) -> list[int]:
    """Digests of such tensors of one device, each under its seed."""
    if not tensors:
        return []
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    counts = [condensed_words(size) for size in sizes]
    into = torch.empty(sum(counts), dtype=torch.int64, device=tensors[0].device)
    condense(tensors, seeds, into, 0)
    words = _array(into.cpu())
    digests, at = [], 0
    for size, count, seed in zip(sizes, counts, seeds, strict=True):
        digests.append(finished(words[at : at + count], size, seed))
        at += count
    return digests


# --- digests ----------------------------------------------------------------------------------------------------------


class TensorDigests:
    """Digests tensors; shares the interned layouts of the process."""

    def __init__(self, layouts: Layouts, library: Any = None) -> None:
        """``library``: of the native engine, which digests host memory faster."""
        self._layouts = layouts
        self._library = library

    def of(self, tensor: torch.Tensor) -> int:
        """Digest of any tensor. One without bytes (meta, fake) has the digest of no bytes; 0 while the program captures
        a graph of the tensor's device."""
        if type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter:
            return self.with_layout(tensor, self._layouts.of(tensor))
        with torch_function_disabled():  # a subclass's own __torch_function__ is the program's
            return self.with_layout(tensor, self._layouts.of(tensor))

    def repeated(self) -> RepeatedDigests:
        return RepeatedDigests(self._layouts, self._library)

    def several(self, tensors: Iterable[torch.Tensor | None]) -> list[int]:
        """Digests of several tensors, 0 for None. Those on a device are read back together: the program waits once."""
        digests: list[int] = []
        batches: _Batches | None = None
        for tensor in tensors:
            if tensor is None:
                digests.append(0)
            elif tensor.is_cpu:
                digests.append(self.of(tensor))
            else:
                batches = batches or _Batches()
                digests.append(self._digest_or_batch(tensor, len(digests), batches))
        for place, digest in batches.read() if batches is not None else ():
            digests[place] = digest
        return digests

    def _digest_or_batch(self, tensor: torch.Tensor, place: int, batches: _Batches) -> int:
        """Its digest; 0 where it was added to ``batches``."""
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_meta:
            return self.of(tensor)
        if is_captured(tensor.device):
            return 0
        with own_work():
            if is_compound(tensor) or not data_address(plain := as_condensed(tensor)):
                return self.of(tensor)
            batches.add(place, plain, self._layouts.of(tensor).seed)
        return 0

    def with_layout(self, tensor: torch.Tensor, layout: Layout) -> int:
        """The digest of a tensor with this layout."""
        kind = type(tensor)
        if layout.dense and (kind is torch.Tensor or kind is torch.nn.Parameter) and not tensor.is_neg():
            try:
                address = data_address(tensor)
                if not address:
                    return _without_memory(tensor, layout)
                if layout.small is not None:
                    return xxh3_64_intdigest(layout.small(address), layout.seed)
                return digest_address(address, layout.nbytes, layout.seed)
            except RuntimeError:  # a sparse scalar looks dense until its address is read
                pass
        if tensor.is_cpu:  # common in programs, so that the cost of ``own_work`` matters
            with torch_function_disabled(), torch.no_grad(), _RecordFunctionFast(OWN_WORK):
                return self._digest_copied(tensor, layout)
        if is_captured(tensor.device):
            return 0
        with own_work():
            return self._digest_copied(tensor, layout)

    def _digest_copied(self, tensor: torch.Tensor, layout: Layout) -> int:
        components = _components(tensor)
        if components is not None:
            digests = [self.of(component) for component in components]
            return digest_pages(digests, layout.seed)
        if tensor.device.type == "meta":
            return digest_buffer(b"", layout.seed)
        plain = as_condensed(tensor)
        if not data_address(plain):
            return _without_memory(tensor, layout)
        if plain.device.type == "cpu":
            return digest_address(data_address(plain), layout.nbytes, layout.seed)
        with waiting_allowed(plain.device):
            return digests_on_device([plain], [layout.seed])[0]


class RepeatedDigests:
    """Digests of a list of tensors that is digested again and again, as an optimizer's parameters are.

    Layouts are read once, and again where the guard of torch's compiler finds them changed. Holds no tensor.
    """

    def __init__(self, layouts: Layouts, library: Any = None) -> None:
        self._layouts = layouts
        self._in_library = None if library is None else library.digest_tensors
        self._known: tuple[Callable[..., bool] | None, list[Layout]] = None, []
        """Whether tensors have these layouts; None: the last list cannot be read in place."""
        self._words = b""
        """Of the layouts, as the library takes them: the size in bytes and the seed of each."""
        self._memory: tuple[list[int], list[tuple[Callable[[Any, int], int], Any, int]]] = [], []
        """By address: the digest's function and its arguments."""

    def of(self, tensors: list[Any]) -> int | None:
        """Digest of the digests of these tensors; None where they have to be read one by one."""
        is_unchanged, layouts = self._known
        if is_unchanged is None or len(tensors) != len(layouts) or not is_unchanged(*tensors):
            self._known = self._read_layouts(tensors)
            self._words = array("Q", (word for at in self._known[1] for word in (at.nbytes, at.seed))).tobytes()
            self._memory = [], []
            return None
        if self._in_library is not None:
            return self._in_library(tensors, self._words)  # type: ignore[no-any-return]
        addresses = list(map(data_address, tensors))
        known, memory = self._memory
        if addresses != known:
            if not all(addresses):
                return None
            memory = [
                (xxh3_64_intdigest, layout.small(at), layout.seed)
                if layout.small is not None
                else (digest_buffer, (c_char * layout.nbytes).from_address(at), layout.seed)
                for layout, at in zip(layouts, addresses, strict=True)
            ]
            self._memory = addresses, memory
        return digest_pages([digest(place, seed) for digest, place, seed in memory], 0)

    def _read_layouts(self, tensors: Sequence[Any]) -> tuple[Callable[..., bool] | None, list[Layout]]:
        layouts = []
        for tensor in tensors:
            plain = type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter
            if not plain or not tensor.is_cpu or tensor.is_neg() or tensor.layout is not torch.strided:
                return None, []
            layouts.append(self._layouts.of(tensor))
        if not layouts or not all(layout.dense and layout.nbytes for layout in layouts):
            return None, []
        return TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None).check, layouts


class _Batches:
    """Tensors that are read back together, device by device."""

    def __init__(self) -> None:
        self._tensors: dict[torch.device, list[tuple[int, torch.Tensor, int]]] = {}

    def add(self, place: int, plain: torch.Tensor, seed: int) -> None:
        """``plain``: as ``as_condensed`` returns it."""
        self._tensors.setdefault(plain.device, []).append((place, plain, seed))

    def read(self) -> Iterator[tuple[int, int]]:
        """(place, digest) of all tensors."""
        for device, entries in self._tensors.items():
            with own_work(), waiting_allowed(device):
                found = digests_on_device([plain for _, plain, _ in entries], [seed for _, _, seed in entries])
            yield from zip((place for place, _, _ in entries), found, strict=True)


def _without_memory(tensor: torch.Tensor, layout: Layout) -> int:
    """The digest of an empty tensor, of a zero tensor of autograd, or of a tensor with a freed storage (FSDP)."""
    zeros = tensor._is_zerotensor()
    return digest_buffer(bytes(layout.nbytes) if zeros else b"", layout.seed)


def _has_memory(raw: torch.UntypedStorage) -> bool:
    try:
        return bool(raw.data_ptr())
    except RuntimeError:  # a wrapper without memory
        return False


_SPARSE: dict[torch.layout, tuple[Callable[[torch.Tensor], torch.Tensor], ...]] = {
    torch.sparse_coo: (torch.Tensor._indices, torch.Tensor._values),
    torch.sparse_csr: (torch.Tensor.crow_indices, torch.Tensor.col_indices, torch.Tensor.values),
    torch.sparse_bsr: (torch.Tensor.crow_indices, torch.Tensor.col_indices, torch.Tensor.values),
    torch.sparse_csc: (torch.Tensor.ccol_indices, torch.Tensor.row_indices, torch.Tensor.values),
    torch.sparse_bsc: (torch.Tensor.ccol_indices, torch.Tensor.row_indices, torch.Tensor.values),
}


def _components(tensor: torch.Tensor) -> list[torch.Tensor] | None:
    """The dense tensors that make up a compound one; None for an ordinary tensor."""
    if is_subclass(tensor):
        return _inside(tensor)
    if tensor.is_nested:
        return list(tensor.unbind())
    if tensor.layout in _SPARSE:
        return [take(tensor) for take in _SPARSE[tensor.layout]]
    if tensor.layout is not torch.strided:
        return [tensor.detach().to_dense()] if tensor.is_mkldnn else []
    if tensor.is_quantized:
        return [tensor.detach().int_repr(), tensor.detach().dequantize()]
    return None


def _inside(tensor: Any) -> list[torch.Tensor]:
    """The tensors that a subclass with a ``__torch_dispatch__`` wraps, or a plain tensor of its own memory."""
    if hasattr(tensor, "trigger_wait"):  # the result of a collective, maybe still in flight
        tensor.wait()  # unlike that method, leaves the program's own wait to its next op
    names = getattr(tensor, "__tensor_flatten__", None)
    if names is not None:
        inner = [getattr(tensor, name) for name in names()[0]]
        return [component for component in inner if isinstance(component, torch.Tensor)]
    raw = tensor.untyped_storage()
    if raw.device.type == "meta" or not tensor.numel() or not _has_memory(raw):
        return []
    plain = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return [plain.set_(raw, tensor.storage_offset(), tensor.shape, tensor.stride())]
