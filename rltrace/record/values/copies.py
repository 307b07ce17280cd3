"""The logical bytes of a tensor, copied out: what its digest was made of.

Owns which tensors have plain bytes to keep, and the word for why another has none. Outside of autograd and of any mode,
like a digest; never changes the tensor or its version.
"""

from __future__ import annotations

from ctypes import string_at

import torch

from rltrace.record.digests import is_compound, logical_bytes
from rltrace.record.layouts import Layout, dtype_name
from rltrace.trace import dtypes

COMPOUND = "a tensor made of several (sparse, nested, quantized, a subclass) has no plain bytes"
NO_MEMORY = "the tensor has no memory (meta, or its storage was given back)"
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
    if tensor.dtype not in KEPT:
        raise NoBytesError(COMPOUND if tensor.is_quantized else NO_DTYPE)
    kind = type(tensor)
    if layout.dense and (kind is torch.Tensor or kind is torch.nn.Parameter) and not tensor.is_neg():
        try:
            address = tensor.data_ptr()
        except RuntimeError:  # a sparse scalar looks like a dense one until it is asked for its memory
            address = 0
        if address:
            return string_at(address, layout.nbytes)
    with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
        return _of_unusual(tensor, layout)


def _of_unusual(tensor: torch.Tensor, layout: Layout) -> bytes:
    if is_compound(tensor):
        raise NoBytesError(COMPOUND)
    if tensor.device.type == "meta":
        raise NoBytesError(NO_MEMORY)
    if not layout.nbytes:
        return b""
    if tensor._is_zerotensor():
        return bytes(layout.nbytes)
    plain = logical_bytes(tensor)
    if not plain.data_ptr():
        raise NoBytesError(NO_MEMORY)
    host = plain.cpu()
    return string_at(host.data_ptr(), layout.nbytes)
