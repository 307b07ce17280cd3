"""Placement of an op's tensor arguments in memory: which share a storage, at which offset and alignment.

A re-execution needs it beside the layouts: an input that is written may share memory with another, and kernels choose
their loops by alignment. Reads addresses, never bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rltrace.recorder.digests.layouts import data_address
from rltrace.trace.format.schema import PLACEMENT_ALIGNMENT, PlacementBit


@dataclass(frozen=True, slots=True)
class TensorPlacement:
    """Placement of one tensor argument."""

    shared_with: int
    """Place of the first argument in the same storage; its own place where it is the first."""
    offset: int
    """Bytes from the lowest address at which an argument in this storage begins."""
    alignment: int
    """That lowest address modulo PLACEMENT_ALIGNMENT."""
    bits: PlacementBit

    def is_plain(self, place: int) -> bool:
        """Whether it shares no storage, is aligned as by an allocator, and is not lazily conjugated or negated."""
        return self.shared_with == place and not self.offset and not self.alignment and not self.bits


def placements(tensors: Sequence[torch.Tensor]) -> dict[int, TensorPlacement]:
    """Placements by place; without tensors that have no address (sparse, nested, a subclass, on device meta, empty)."""
    storages: dict[int, int] = {}
    lowest: dict[int, int] = {}
    found = []
    with torch._C.DisableTorchFunctionSubclass():
        for place, tensor in enumerate(tensors):
            try:
                storage, address = torch._C._storage_address(tensor), data_address(tensor)  # type: ignore[attr-defined]
            except (NotImplementedError, RuntimeError):
                continue
            if not storage or not address:
                continue
            first = storages.setdefault(storage, place)
            lowest[first] = min(address, lowest.get(first, address))
            bits = PlacementBit(tensor.is_conj() * PlacementBit.CONJUGATED | tensor.is_neg() * PlacementBit.NEGATED)
            found.append((place, first, address, bits))
    return {
        place: TensorPlacement(first, address - lowest[first], lowest[first] % PLACEMENT_ALIGNMENT, bits)
        for place, first, address, bits in found
    }
