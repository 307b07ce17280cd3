"""Layouts: dtype, shape, strides and device of a tensor, as one interned object with the seed of its digest.

Owns the table "layouts". Holds no tensor.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_char
from typing import Any, Final

import torch
from torch._C import TensorBase
from torch._C._profiler import _RecordFunctionFast

from rltrace.digest import PAGE_BYTES, seed_of
from rltrace.portable_keys import portable_key
from rltrace.recorder.base.intern_tables import Tables

data_address: Callable[[Any], int] = TensorBase.data_ptr
"""``tensor.data_ptr()``, which the program may be calling through a patch of the recorder."""


class Layout:
    """One (dtype, shape, strides, device)."""

    __slots__ = ("dense", "id", "later", "nbytes", "seed", "small")

    def __init__(self, number: int, seed: int, nbytes: int, dense: bool, later: bool) -> None:
        self.id = number
        self.seed = seed
        """Seed of the digest of such a tensor."""
        self.nbytes = nbytes
        """Size of its logical bytes."""
        self.dense = dense
        """Contiguous real numbers in host memory: the logical bytes as they are (unless negated lazily)."""
        self.later = later
        """Its digest can be deferred: it is on a device from which digests are read back in batches."""
        on_host = dense and not later
        self.small: Any = (c_char * nbytes).from_address if on_host and 0 < nbytes <= PAGE_BYTES else None
        """For a dense tensor of at most one page: address to buffer."""


class Layouts:
    """Interns layouts. The hot path reads ``known`` itself, keyed as in ``of``: True means the CPU."""

    def __init__(self, tables: Tables, later: Callable[[torch.device], bool] | None = None) -> None:
        """``later``: whether digests of tensors on a device can be deferred."""
        self._tables = tables
        self._later = later
        self.known: dict[tuple[object, ...], Layout] = {}

    def of(self, tensor: torch.Tensor) -> Layout:
        """The layout of any tensor, sparse, nested or subclass included."""
        try:
            key: tuple[object, ...] = (tensor.dtype, tensor.shape, tensor.stride(), tensor.is_cpu or tensor.device)
            found = self.known.get(key)
        except (RuntimeError, TypeError, ValueError):  # no strides: sparse, nested, opaque, not initialised
            return self._of_unstrided(tensor)
        if found is not None:
            return found
        unstrided = tensor.is_nested or tensor.layout is not torch.strided
        return self._of_unstrided(tensor) if unstrided else self._make_strided(tensor, key)

    def of_distributed(self, payload: list[Any], tensor: torch.Tensor) -> Layout:
        """The layout of a distributed tensor, whose part in this process is ``tensor``."""
        return self._make(payload, tensor, dense=False)

    def _make_strided(self, tensor: torch.Tensor, key: tuple[object, ...]) -> Layout:
        dtype, shape, strides = dtype_name(tensor.dtype), list(map(int, tensor.shape)), list(map(int, tensor.stride()))
        plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.is_complex()
        # a sparse tensor reports strides of 0, too: such a layout may be of either kind
        dense = plain and tensor.is_contiguous() and not tensor.is_quantized and 0 not in strides
        later = self._later is not None and self._later(tensor.device)
        layout = self._make([dtype, shape, strides, str(tensor.device)], tensor, dense, later)
        self.known[key] = layout
        return layout

    def _of_unstrided(self, tensor: torch.Tensor) -> Layout:
        shape = shape_of(tensor)
        key = (tensor.dtype, tuple(shape), str(tensor.layout), tensor.device)
        found = self.known.get(key)
        if found is None:
            payload = [dtype_name(tensor.dtype), shape, str(tensor.layout)[6:], str(tensor.device)]
            found = self.known[key] = self._make(payload, tensor, dense=False)
        return found

    def _make(self, payload: list[Any], tensor: torch.Tensor, dense: bool, later: bool = False) -> Layout:
        numbers = [n for n in payload[1] if isinstance(n, int)]
        nbytes = tensor.dtype.itemsize
        for n in numbers:
            nbytes *= n
        number = self._tables.intern("layouts", portable_key("layout", *payload), payload)
        return Layout(number, seed_of(payload[0], payload[1]), nbytes, dense, later)


def shape_of(tensor: torch.Tensor) -> list[object]:
    """Its sizes; ``["nested"]`` or ``["uninitialized"]`` where it has none."""
    if tensor.is_nested:
        return ["nested"]
    try:
        return [size if type(size) is int else _size(size) for size in tensor.shape]
    except RuntimeError:  # a lazy module's parameter before its first call
        return ["uninitialized"]


def _size(size: Any) -> object:
    """A size that is no plain int. Reading the value of a symbol would fix it."""
    return str(size) if isinstance(size, torch.SymInt) else int(size)


def dtype_name(dtype: torch.dtype) -> str:
    """``float32``."""
    return str(dtype).removeprefix("torch.")


# --- logical ----------------------------------------------------------------------------------------------------------
#
# The logical bytes of non-contiguous tensors: in row-major order, lazy conjugation and negation carried out. Work on a
# device is enqueued on the current stream.


OWN_WORK: Final = "rltrace"
"""The profiler range around operators of the recorder, which distinguishes them from the program's."""


@contextmanager
def own_work() -> Iterator[None]:
    """Operators inside are the recorder's: modes, subclasses, default device and autograd of the program are off."""
    modes = torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction()
    with modes[0], modes[1], torch.no_grad(), _RecordFunctionFast(OWN_WORK):
        yield


WORDS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtypes by element size."""


def logical_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor of the logical bytes. Copied as integers: some dtypes cannot be copied, others warn."""
    data = tensor.detach().resolve_neg().resolve_conj()
    return data if data.is_contiguous() else in_words(data).contiguous()


SLAB_BYTES = 64 << 20
"""Of a larger tensor on a device no copy is made as a whole."""


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its memory holds its logical bytes, in order."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def as_condensed(tensor: torch.Tensor) -> torch.Tensor:
    """What ``condense`` takes: ``logical_bytes``, or a large tensor of a device as it is, which is copied in slabs."""
    is_large = tensor.numel() * tensor.element_size() > SLAB_BYTES
    return tensor.detach() if is_large and not tensor.is_cpu else logical_bytes(tensor)


def slabs(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Parts of ``tensor`` in the order of its logical bytes, each of at most ``SLAB_BYTES``."""
    data = tensor.squeeze()
    row = data[0].numel() * data.element_size()
    if row <= SLAB_BYTES:
        yield from data.split(SLAB_BYTES // row)
    else:
        for part in data:
            yield from slabs(part)


def as_words(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements as integers, with the same strides; two per element of complex128."""
    return in_words(tensor.detach().resolve_neg().resolve_conj())


def in_words(data: torch.Tensor) -> torch.Tensor:
    if data.dtype is torch.complex128:
        data = torch.view_as_real(data)
    return data.view(WORDS[data.element_size()])


def is_compound(tensor: torch.Tensor) -> bool:
    """Whether it consists of other tensors, and has no logical bytes itself."""
    return is_subclass(tensor) or tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized


def is_subclass(tensor: torch.Tensor) -> bool:
    """Whether its class has a ``__torch_dispatch__``."""
    kind = type(tensor)
    return (
        kind is not torch.Tensor
        and kind is not torch.nn.Parameter
        and hasattr(kind, "__torch_dispatch__")
        and (kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl)
    )
