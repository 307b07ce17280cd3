"""Digests of tensors on a device, waited for: what they are made of is made there and read back, of many at once.

Owns that wait. Everything is enqueued on the current stream, behind what wrote the tensors and before what will
overwrite them; the host waits once, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C import TensorBase

from rltrace.record.device import condense, condensed_words, finished

_array: Any = TensorBase.numpy
"""torch's own method: what stands in for it while ops are recorded follows the program's arrays, not these."""


def digest_on_device(tensor: torch.Tensor, seed: int) -> int:
    """Digest of a contiguous tensor, by way of its own device (a CPU tensor works as well)."""
    return digests_on_device([tensor], [seed])[0]


def digests_on_device(tensors: Sequence[torch.Tensor], seeds: Sequence[int]) -> list[int]:
    """Digests of contiguous tensors of one device, each under its seed."""
    if not tensors:
        return []
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    counts = [condensed_words(size) for size in sizes]
    into = torch.empty(sum(counts), dtype=torch.int64, device=tensors[0].device)
    condense(tensors, seeds, into, 0)
    words = _array(into.cpu())
    digests, at = [], 0
    for size, count, seed in zip(sizes, counts, seeds, strict=True):
        digests.append(finished(words[at : at + count], size, seed))
        at += count
    return digests
