"""The memory of a case's inputs, put together: which storages there are, and every value where its tensor lies.

Owns that layout, whether the values come from a trace or from a program that is running. NumPy alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rltrace.errors import UsageError
from rltrace.reexecute.rerun import Tensor
from rltrace.trace import dtypes
from rltrace.trace.values import Place

Layout = tuple[str, Sequence[int], Sequence[int], str]
"""dtype, shape, strides, device of one tensor."""


@dataclass(frozen=True)
class Memory:
    """Of one call."""

    tensors: list[Tensor]
    storages: list[NDArray[np.uint8]]
    alignments: list[int]


def lay_out(layouts: Sequence[Layout], lying: Mapping[int, Place]) -> Memory:
    """Tensors with these layouts, in storages that hold zeros; ``lying``: of those that do not lie plainly."""
    places = [lying.get(place) or Place(place, 0, 0, False, False) for place in range(len(layouts))]
    numbers = {first: number for number, first in enumerate(dict.fromkeys(place.with_ for place in places))}
    tensors = [
        Tensor(
            str(dtype),
            tuple(shape),
            tuple(strides),
            numbers[place.with_],
            place.offset,
            str(device),
            conjugated=place.conjugated,
            negated=place.negated,
        )
        for (dtype, shape, strides, device), place in zip(layouts, places, strict=True)
    ]
    sizes = [max(t.offset + t.span for t in tensors if t.storage == number) for number in range(len(numbers))]
    alignments = {place.with_: place.alignment for place in places}
    return Memory(tensors, [np.zeros(size, np.uint8) for size in sizes], [alignments[first] for first in numbers])


def fill(memory: Memory, place: int, data: bytes | memoryview) -> None:
    """Put the logical bytes of a tensor where it lies."""
    tensor = memory.tensors[place]
    if not tensor.span:
        return
    raw = dtypes.raw(tensor.dtype, data).reshape(tensor.shape)
    if tensor.conjugated or tensor.negated:
        if tensor.dtype not in dtypes.PLAIN:
            raise UsageError(f"a lazily conjugated or negated {tensor.dtype} tensor cannot be reconstructed")
        raw = np.conj(raw) if tensor.conjugated else raw
        raw = np.negative(raw) if tensor.negated else raw
    strides = [stride * raw.dtype.itemsize for stride in tensor.strides]
    storage = memory.storages[tensor.storage]
    np.ndarray(tensor.shape, raw.dtype, storage.data, tensor.offset, strides)[...] = raw
