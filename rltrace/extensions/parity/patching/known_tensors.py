"""The tokens of activation rows of a tensor that has not one for each token, by earlier tensors of the forward pass.

Owns the search, in one forward pass of the running program: the last positions that a head is given, the tokens that
a router hands to an expert. A tensor has the rows of an earlier one with the same bits, where these were at tokens of
one key only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from weakref import ref

import numpy as np
import torch

from rltrace.digest.activation_rows import row_digests
from rltrace.extensions.parity.matching.row_keying import places_of
from rltrace.extensions.parity.token_keys import NONE, Keys, Numbers
from rltrace.recorder.capture.values import NoBytesError, bytes_of
from rltrace.recorder.digests.layouts import Layouts, dtype_name

SEARCHED = 24
"""Tensors of a forward pass that are searched, the latest first."""

MAX_BYTES = 1 << 28
"""Of a tensor whose content is compared."""

Tensor = torch.Tensor


class KnownTensors:
    """Tensors of one forward pass whose activation rows are identified, by weak references."""

    def __init__(self, keys: Keys, layouts: Layouts) -> None:
        self._keys = keys
        self._layouts = layouts
        self._known: deque[_Known] = deque(maxlen=SEARCHED)

    def add(self, tensor: Tensor, rows: Numbers) -> None:
        """``rows``: the token of each row (along all axes but the last), as an index into the grid; NONE: unknown."""
        if tensor.is_floating_point() and tensor.dim() > 1:
            self._known.append(_Known(tensor, rows))

    def rows(self, tensor: Tensor) -> Numbers | None:
        """The token of each row of a tensor, as ``add`` takes them; None: unknown."""
        if not tensor.is_floating_point() or tensor.dim() < 2 or not tensor.numel():
            return None
        digests = self._digests(tensor)
        for known, other in self._similar(tensor):
            found = self._by_content(digests, known, other)
            if found is not None:
                self.add(tensor, found)
                return found
        return None

    def _similar(self, tensor: Tensor) -> Iterator[tuple[_Known, Tensor]]:
        for known in reversed(self._known):
            other = known.tensor()
            if other is not None and (other.dtype, other.shape[-1]) == (tensor.dtype, tensor.shape[-1]):
                yield known, other

    def _by_content(self, digests: Keys, known: _Known, other: Tensor) -> Numbers | None:
        """None unless every row is one of ``other``."""
        if known.digests is None or known.version != _version(other):
            known.digests, known.version = self._digests(other), _version(other)
        keys = np.where(known.rows == NONE, np.uint64(0), self._keys[known.rows])
        at = places_of(digests, known.digests, keys)
        return None if at is None else np.where(at == NONE, NONE, known.rows[at])

    def _digests(self, tensor: Tensor) -> Keys:
        if tensor.numel() * tensor.element_size() > MAX_BYTES:
            return np.zeros(0, np.uint64)
        return digests_of(tensor, self._layouts, range(tensor.dim() - 1)).ravel()


def digests_of(tensor: Tensor, layouts: Layouts, axes: Sequence[int]) -> Keys:
    """Digests of a tensor's rows along these axes; empty where it has no bytes."""
    try:
        data = bytes_of(tensor, layouts.of(tensor))
    except NoBytesError:
        return np.zeros(0, np.uint64)
    return row_digests(data, dtype_name(tensor.dtype), tuple(map(int, tensor.shape)), tensor.element_size(), axes)


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
