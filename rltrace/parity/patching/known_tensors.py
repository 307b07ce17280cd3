"""Which tokens' rows a tensor holds that has not a row for each: found by where they stood in the forward pass before.

Owns the search, in one forward pass of the running program: the last positions that a head is given, the tokens that
a router hands to an expert. A tensor that lies in the memory of one met before has its rows; any other has the rows
that hold the same bits, where these stood at tokens of one key alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from math import prod
from weakref import ref

import numpy as np
import torch
from numpy.typing import NDArray

from rltrace.digest.activation_rows import row_digests
from rltrace.parity.patching.row_table import NONE
from rltrace.recorder.capture.values import NoBytesError, bytes_of
from rltrace.recorder.core.storages import address_of
from rltrace.recorder.digests.layouts import Layouts, dtype_name
from rltrace.token_keys import Keys, Numbers
from rltrace.trace.read.values import Value

Fetch = Callable[[int], Value | None]

SEARCHED = 24
"""Tensors of a forward pass that are searched, the latest first."""

MOST_BYTES = 1 << 28
"""Of a tensor that is searched for, or in."""

Tensor = torch.Tensor


class KnownTensors:
    """Tensors of one forward pass whose rows are known. None of them is kept alive."""

    def __init__(self, keys: Keys, layouts: Layouts) -> None:
        self._keys = keys
        self._layouts = layouts
        self._known: deque[_Known] = deque(maxlen=SEARCHED)

    def add(self, tensor: Tensor, rows: Numbers) -> None:
        """``rows``: for each row of the tensor (along all axes but the last) the row of the pass; NONE: not known."""
        if tensor.is_floating_point() and tensor.dim() > 1:
            self._known.append(_Known(tensor, rows))

    def rows(self, tensor: Tensor) -> Numbers | None:
        """The rows of the pass that a tensor holds, as ``add`` takes them; None: not known."""
        if not tensor.is_floating_point() or tensor.dim() < 2 or not tensor.numel():
            return None
        wanted: Keys | None = None
        for known, other in self._alike(tensor):
            if address_of(other) == address_of(tensor):
                found = _by_memory(tensor, other, known.rows)
            else:
                wanted = self._digests(tensor) if wanted is None else wanted
                found = self._by_content(wanted, known, other)
            if found is not None:
                self.add(tensor, found)
                return found
        return None

    def _alike(self, tensor: Tensor) -> Iterator[tuple[_Known, Tensor]]:
        for known in reversed(self._known):
            other = known.tensor()
            if other is not None and (other.dtype, other.shape[-1]) == (tensor.dtype, tensor.shape[-1]):
                yield known, other

    def _by_content(self, wanted: Keys, known: _Known, other: Tensor) -> Numbers | None:
        """None unless every row stood there."""
        if known.digests is None or known.version != _version(other):
            known.digests, known.version = self._digests(other), _version(other)
        if not len(known.digests) or not len(wanted):
            return None
        order = np.argsort(known.digests, kind="stable")
        digests = known.digests[order]
        first = np.searchsorted(digests, wanted, "left")
        last = np.searchsorted(digests, wanted, "right") - 1
        if (last < first).any():
            return None
        rows = known.rows[order]
        keys = np.where(rows == NONE, np.uint64(0), self._keys[rows])
        changes = np.r_[0, np.cumsum(keys[1:] != keys[:-1])]
        return np.where(changes[first] == changes[last], rows[first], NONE)

    def _digests(self, tensor: Tensor) -> Keys:
        if tensor.numel() * tensor.element_size() > MOST_BYTES:
            return np.zeros(0, np.uint64)
        try:
            data = bytes_of(tensor, self._layouts.of(tensor))
        except NoBytesError:
            return np.zeros(0, np.uint64)
        shape = tuple(map(int, tensor.shape))
        axes = range(len(shape) - 1)
        return row_digests(data, dtype_name(tensor.dtype), shape, tensor.element_size(), axes).ravel()


class _Known:
    """One tensor."""

    __slots__ = ("digests", "rows", "tensor", "version")

    def __init__(self, tensor: Tensor, rows: Numbers) -> None:
        self.tensor = ref(tensor)
        self.rows = rows
        self.digests: Keys | None = None
        self.version = 0


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _by_memory(tensor: Tensor, other: Tensor, rows: Numbers) -> Numbers | None:
    """Rows of a tensor that lies in the memory of another one; None unless every one of them is one of that one's."""
    if tensor.stride(-1) != other.stride(-1):
        return None
    here, there = _starts(tensor), _starts(other)
    order = np.argsort(there)
    at = np.minimum(np.searchsorted(there[order], here), len(order) - 1)
    if not (there[order][at] == here).all():
        return None
    found: Numbers = rows[order[at]]
    return found


def _starts(tensor: Tensor) -> NDArray[np.int64]:
    """Where in its storage each row of a tensor begins, in elements."""
    starts = np.array([tensor.storage_offset()], np.int64)
    for size, stride in zip(tensor.shape[:-1], tensor.stride()[:-1], strict=True):
        starts = (starts[:, None] + np.arange(size) * stride).reshape(-1)
    assert len(starts) == prod(tensor.shape[:-1])
    return starts
