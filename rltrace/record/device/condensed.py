"""What the digest of a tensor is finished from: the tensor *condensed*.

Owns its form, in 64-bit words: the digest of each whole page, then the bytes that are left over, in whole words. Of a
large tensor it is some two thousandth, of one below a page the tensor itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rltrace.digest import PAGE_BYTES, digest_buffer, digest_pages

WORD = 8
"""Bytes of a word."""


def condensed_words(nbytes: int) -> int:
    """Into how many words a contiguous tensor of so many bytes is condensed."""
    whole, rest = divmod(nbytes, PAGE_BYTES)
    return whole + (rest + WORD - 1) // WORD


def finished(words: np.ndarray[Any, np.dtype[np.int64]], nbytes: int, seed: int) -> int:
    """The digest of a tensor of so many bytes, from its ``condensed_words``, contiguous on the host."""
    whole, rest = divmod(nbytes, PAGE_BYTES)
    pages: list[int] = words[:whole].view(np.uint64).tolist()
    if rest or not whole:
        pages.append(digest_buffer(words[whole:].view(np.uint8)[:rest], seed))
    return pages[0] if nbytes <= PAGE_BYTES else digest_pages(pages, seed)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a contiguous tensor, uint8 [n], where they lie."""
    flat = tensor.detach()
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)  # a single element may have any stride


def signed(value: int) -> int:
    """The int64 with the bits of this unsigned number."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Numbers of the host, sent without waiting for the device: memory that is not pinned waits for its stream."""
    return (values.pin_memory() if device.type == "cuda" else values).to(device, non_blocking=True)
