"""How the tensor arguments of one op lie in memory: which share a storage, where in it, at which alignment.

Owns what a layout does not tell and a re-execution needs: an input that is written may be another one's memory, and
kernels choose their loops by alignment. Reads addresses, never bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rltrace.trace.format.schema import PLACEMENT_ALIGNMENT, PlacementBit


@dataclass(frozen=True, slots=True)
class TensorPlacement:
    """Where one tensor argument lies."""

    with_: int
    """Place of the first argument in the same storage; its own where it shares with none before it."""
    offset: int
    """Bytes from the lowest address that any argument in this storage begins at."""
    alignment: int
    """That lowest address modulo PLACEMENT_ALIGNMENT."""
    bits: PlacementBit

    def is_plain(self, place: int) -> bool:
        """Alone in its storage, as an allocator aligns it, its bytes what they look like."""
        return self.with_ == place and not self.offset and not self.alignment and not self.bits


def placements(tensors: Sequence[torch.Tensor]) -> dict[int, TensorPlacement]:
    """By place; without those that have no address to ask for (sparse, nested, a subclass, on device meta, empty)."""
    storages: dict[int, int] = {}
    lowest: dict[int, int] = {}
    found = []
    with torch._C.DisableTorchFunctionSubclass():
        for place, tensor in enumerate(tensors):
            try:
                storage, address = torch._C._storage_address(tensor), tensor.data_ptr()  # type: ignore[attr-defined]
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
