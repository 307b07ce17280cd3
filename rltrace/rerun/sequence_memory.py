"""The memory of ops that run one after the other: numbered storages, in which each tensor has its recorded place.

Part of rltrace, and copied into folders that ``rltrace repro --module`` writes, beside ``runner.py``. Needs torch and
NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rltrace.rerun.runner import TensorSpec, flat, memory_with, tensor_in


@dataclass(frozen=True)
class SequenceTensor:
    """One tensor of an op."""

    index: int
    """Among the op's tensor arguments, or among the tensors that it returned."""
    spec: TensorSpec
    alignment: int
    """Address of its storage modulo 64."""


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a tensor in row-major order."""
    strides = [1]
    for length in reversed(shape[1:]):
        strides.append(strides[-1] * max(length, 1))
    return tuple(reversed(strides)) if shape else ()


class SequenceMemory:
    """What the storages hold between two ops."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.Tensor] = {}
        """By number: bytes."""

    def holds(self, tensor: TensorSpec) -> bool:
        """Whether all of a tensor's bytes are there."""
        return not tensor.span or self.size(tensor) >= tensor.offset + tensor.span

    def size(self, tensor: TensorSpec) -> int:
        """Bytes of its storage; 0: there is none."""
        return len(self._storages.get(tensor.storage, ()))

    def storage(self, tensor: TensorSpec) -> torch.Tensor:
        """The bytes of its storage, not copied."""
        return self._storages[tensor.storage]

    def fill(self, like: SequenceTensor, data: Any) -> None:
        """Let the storage of a tensor hold these bytes."""
        self._storages[like.spec.storage] = memory_with(data, like.alignment, like.spec.device)

    def allocate(self, tensor: SequenceTensor) -> None:
        """Make a storage for a tensor that will be written."""
        self.fill(tensor, np.zeros(tensor.spec.offset + tensor.spec.span, np.uint8))

    def tensor(self, spec: TensorSpec) -> torch.Tensor:
        """The tensor at its place; the storage has to be there."""
        return tensor_in(self._storages.get(spec.storage, torch.empty(0, dtype=torch.uint8)), spec)

    def keep(self, outputs: Sequence[SequenceTensor], out: Any) -> None:
        """What an op returned is what later ops find in these storages."""
        returned = [item for item in flat(out) if isinstance(item, torch.Tensor)]
        for tensor in outputs:
            found, spec = returned[tensor.index], tensor.spec
            if found.stride() == spec.strides and found.storage_offset() * found.element_size() == spec.offset:
                raw = found.untyped_storage()
                whole = torch.empty(0, dtype=torch.uint8, device=found.device).set_(raw, 0, (raw.nbytes(),), (1,))
                self._storages[spec.storage] = whole
            else:  # this device gives it another layout
                self.allocate(tensor)
                self.tensor(spec).copy_(found)
