"""The logical bytes of a tensor that lies anyhow: lazy conjugation and negation carried out, in row-major order.

Owns how a tensor is seen as plain words, and which tensors have none of their own. Reads no bytes by itself; what it
enqueues goes to the current stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch
from torch._C._profiler import _RecordFunctionFast

OWN_WORK: Final = "rltrace"
"""What a profile shows around operators that the recorder runs for itself, so that they are taken for nobody else's."""


@contextmanager
def own_work() -> Iterator[None]:
    """Operators inside are the recorder's: no mode, subclass, default device or autograd of the program takes part."""
    modes = torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction()
    with modes[0], modes[1], torch.no_grad(), _RecordFunctionFast(OWN_WORK):
        yield


WORDS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""An integer dtype for each size of element."""


def logical_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor of the logical bytes. Copied as integers: some dtypes cannot be copied, others warn."""
    data = tensor.detach().resolve_neg().resolve_conj()
    return data if data.is_contiguous() else _in_words(data).contiguous()


def as_words(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements as integers, in the order in which they lie; of complex128, which has no such integer, two each."""
    return _in_words(tensor.detach().resolve_neg().resolve_conj())


def _in_words(data: torch.Tensor) -> torch.Tensor:
    if data.dtype is torch.complex128:
        data = torch.view_as_real(data)
    return data.view(WORDS[data.element_size()])


def is_compound(tensor: torch.Tensor) -> bool:
    """Whether it is made up of other tensors, and has no logical bytes of its own."""
    return is_subclass(tensor) or tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized


def is_subclass(tensor: torch.Tensor) -> bool:
    """Whether its class handles operators by itself."""
    kind = type(tensor)
    return (
        kind is not torch.Tensor
        and kind is not torch.nn.Parameter
        and hasattr(kind, "__torch_dispatch__")
        and (kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl)
    )
