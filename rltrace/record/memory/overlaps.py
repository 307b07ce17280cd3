"""Ops that write memory which they also read, element against other element: what comes out depends on their order.

``t[:, :-1].copy_(t[:, 1:])`` is such a copy; torch refuses the plainest of them and lets the others pass. Owns the
question whether two views share elements. Looks at addresses alone, never at memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from rltrace.record.memory.storages import address_of

MOST_TENSORS = 8
"""Ops over lists of tensors are not looked at: that would take each pair of them."""
MOST_WORK = 10_000
"""Steps of the search for a shared element; past it none is claimed."""


def overlaps_another(tensors: Sequence[torch.Tensor], written: int) -> bool:
    """Whether what an op writes shares elements with another view among its tensors."""
    if len(tensors) > MOST_TENSORS:
        return False
    tensor = tensors[written]
    address = address_of(tensor)
    for other in tensors:
        if other is not tensor and address_of(other) == address and _share_elements(tensor, other):
            return True
    return False


def _share_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two views of one storage have elements in common; the very same view has none that matter."""
    if a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride():
        return False
    try:
        return bool(np.shares_memory(_outline(a), _outline(b), max_work=MOST_WORK))  # type: ignore[arg-type]  # any number does
    except np.exceptions.TooHardError:
        return False


class _Memory:
    """What NumPy needs to know of a tensor's memory without touching it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
            "typestr": f"|V{size}",
            "data": (tensor.data_ptr(), True),
        }


def _outline(tensor: torch.Tensor) -> Any:
    return np.asarray(_Memory(tensor))
