"""The logical bytes of a tensor, copied out: what its digest was made of.

Owns which tensors have plain bytes to keep, and the word for why another has none. Outside of autograd and of any mode,
like a digest; never changes the tensor or its version.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_char, string_at

import torch

from rltrace.record.layouts import Layout, dtype_name
from rltrace.record.logical import is_compound, logical_bytes
from rltrace.record.overrides import unasked
from rltrace.record.readback.gate import is_captured
from rltrace.record.readback.ways import waiting_allowed
from rltrace.trace import dtypes

COMPOUND = "a tensor made of several (sparse, nested, quantized, a subclass) has no plain bytes"
NO_MEMORY = "the tensor has no memory (meta, or its storage was given back)"
CAPTURED = "the program was being captured into a graph of a device"
NO_DTYPE = "its dtype has no bytes of its own"


KEPT = frozenset(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and dtypes.itemsize(dtype_name(dtype)) is not None
)


class NoBytesError(Exception):
    """A tensor whose value cannot be kept; the text says why."""


def bytes_of(tensor: torch.Tensor, layout: Layout) -> bytes:
    """The logical bytes of ``tensor``, wherever it lives. Raises NoBytesError."""
    address = _address(tensor, layout)
    if address:
        return string_at(address, layout.nbytes)
    with unasked(), torch.no_grad():
        found = _of_unusual(tensor, layout)
        return string_at(found.data_ptr(), layout.nbytes) if isinstance(found, torch.Tensor) else found


@contextmanager
def read_in_place(tensor: torch.Tensor, layout: Layout) -> Iterator[memoryview]:
    """The same without a copy that is not needed: for tensors too large to be held twice. Raises NoBytesError."""
    found: torch.Tensor | bytes = tensor
    address = _address(tensor, layout)
    if not address:
        with unasked(), torch.no_grad():
            found = _of_unusual(tensor, layout)
            address = found.data_ptr() if isinstance(found, torch.Tensor) else 0
    yield memoryview((c_char * layout.nbytes).from_address(address)) if address else memoryview(bytes(found))
    del found  # until here the memory was its own


def _address(tensor: torch.Tensor, layout: Layout) -> int:
    """Where the logical bytes lie in this process's memory as they are; 0: nowhere. Raises NoBytesError."""
    if tensor.dtype not in KEPT:
        raise NoBytesError(COMPOUND if tensor.is_quantized else NO_DTYPE)
    kind = type(tensor)
    if layout.dense and (kind is torch.Tensor or kind is torch.nn.Parameter) and not tensor.is_neg():
        try:
            return tensor.data_ptr()
        except RuntimeError:  # a sparse scalar looks like a dense one until it is asked for its memory
            pass
    return 0


def _of_unusual(tensor: torch.Tensor, layout: Layout) -> torch.Tensor | bytes:
    """The bytes, or a contiguous tensor of them in this process's memory."""
    if is_compound(tensor):
        raise NoBytesError(COMPOUND)
    if tensor.device.type == "meta":
        raise NoBytesError(NO_MEMORY)
    if is_captured(tensor.device):
        raise NoBytesError(CAPTURED)
    if not layout.nbytes:
        return b""
    if tensor._is_zerotensor():
        return bytes(layout.nbytes)
    plain = logical_bytes(tensor)
    if not plain.data_ptr():
        raise NoBytesError(NO_MEMORY)
    with waiting_allowed(plain.device):
        return plain.cpu()
