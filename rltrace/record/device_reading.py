"""Digests of tensors on a device: its pages digested there, and what is left read back, of many tensors at once.

Owns what crosses to the host and when. Whole pages are digested where they are (``rltrace.record.device``), eight bytes
each come over; less than a page comes over as it is. Everything is enqueued on the current stream, behind what wrote
the tensors and before what will overwrite them; the host waits once, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch._C import TensorBase

from rltrace.digest import PAGE_BYTES, digest_buffer, digest_pages
from rltrace.record.device import page_digests, signed

PAGES_AT_ONCE = 4_096
"""Pages that are digested in one go, of one tensor or of several laid side by side: 64 MiB, and some times that beside
it while it is done."""

ALONE = 256
"""From so many pages on a tensor is digested where it lies, without being copied."""

_array: Any = TensorBase.numpy
"""torch's own method: what stands in for it while ops are recorded follows the program's arrays, not these."""


def digest_on_device(tensor: torch.Tensor, seed: int) -> int:
    """Digest of a contiguous tensor through torch operations on its own device (a CPU tensor works as well)."""
    return digests_on_device([tensor], [seed])[0]


def digests_on_device(tensors: Sequence[torch.Tensor], seeds: Sequence[int]) -> list[int]:
    """Digests of contiguous tensors of one device, each under its seed."""
    parts = [_parts(tensor) for tensor in tensors]
    digested = _PageDigests(parts[0][0].device if parts else torch.device("cpu"))
    for (pages, _), seed in zip(parts, seeds, strict=True):
        digested.add(pages, seed)
    rests = [rest for _, rest in parts]
    found = _array(torch.cat([*digested.bytes(), *rests]).cpu()) if parts else np.empty(0, np.uint8)
    counts = [len(pages) for pages, _ in parts]
    ends = 8 * np.cumsum(counts)
    at = int(ends[-1]) if counts else 0
    digests = []
    for end, count, rest, seed in zip(ends.tolist(), counts, rests, seeds, strict=True):
        tail = found[at : at + len(rest)]
        at += len(rest)
        digests.append(_together(found[end - 8 * count : end].view(np.uint64).tolist(), tail, seed))
    return digests


def _together(pages: list[int], tail: Any, seed: int) -> int:
    if not pages:
        return digest_buffer(tail, seed)
    return digest_pages([*pages, digest_buffer(tail, seed)] if len(tail) else pages, seed)


def _parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Its whole pages, int64 [n, PAGE_BYTES / 8], and the bytes after them; of a page or less it is all bytes."""
    flat = tensor.detach()
    data = flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)
    size = data.numel()
    whole = size // PAGE_BYTES if size > PAGE_BYTES else 0
    pages = data[: whole * PAGE_BYTES]
    if pages.storage_offset() % 8:
        pages = pages.clone()
    return pages.view(torch.int64).view(whole, PAGE_BYTES // 8), data[whole * PAGE_BYTES :]


class _PageDigests:
    """Digests of pages in the order in which they were handed in."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._made: list[torch.Tensor] = []
        self._waiting: list[tuple[torch.Tensor, int]] = []
        self._count = 0

    def add(self, pages: torch.Tensor, seed: int) -> None:
        if len(pages) >= ALONE:
            self._flush()
            self._made += [page_digests(part, seed) for part in pages.split(PAGES_AT_ONCE)]
        elif len(pages):
            self._waiting.append((pages, seed))
            self._count += len(pages)
            if self._count >= PAGES_AT_ONCE:
                self._flush()

    def bytes(self) -> list[torch.Tensor]:
        self._flush()
        return [digests.view(torch.uint8) for digests in self._made]

    def _flush(self) -> None:
        if self._waiting:
            seeds = torch.tensor([signed(seed) for pages, seed in self._waiting for _ in range(len(pages))])
            together = torch.cat([pages for pages, _ in self._waiting])
            self._made.append(page_digests(together, seeds.to(self._device, non_blocking=True)))
        self._waiting, self._count = [], 0
