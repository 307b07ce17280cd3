"""What the digest of a tensor is finished from, made on the tensor's device: the tensor *condensed*.

Owns its form, in 64-bit words: the digest of each whole page, then the bytes that are left over, in whole words. Of a
tensor it is some two thousandth, of one below a page the tensor itself; the host makes the digest of it (``finished``)
once it has been read back. Whoever calls decides when that is.

By torch operations, on any device. Works on so much at a time, so that what it needs beside the tensors is bounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from rltrace.digest import PAGE_BYTES, digest_buffer, digest_pages
from rltrace.record.device.by_operations import page_digests, signed

PAGES_AT_ONCE = 4_096
"""Pages that torch operations digest in one go: 64 MiB, and some times that beside it while it is done."""

ALONE = 256
"""From so many pages on a tensor is digested where it lies; the pages of smaller ones are laid side by side first."""


def condensed_words(nbytes: int) -> int:
    """Into how many words a contiguous tensor of so many bytes is condensed."""
    whole, rest = divmod(nbytes, PAGE_BYTES)
    return whole + (rest + 7) // 8


def finished(words: np.ndarray[Any, np.dtype[np.int64]], nbytes: int, seed: int) -> int:
    """The digest of a tensor of so many bytes, from its ``condensed_words``, contiguous on the host."""
    whole, rest = divmod(nbytes, PAGE_BYTES)
    pages: list[int] = words[:whole].view(np.uint64).tolist()
    if rest or not whole:
        pages.append(digest_buffer(words[whole:].view(np.uint8)[:rest], seed))
    return pages[0] if nbytes <= PAGE_BYTES else digest_pages(pages, seed)


def condense(tensors: Sequence[torch.Tensor], seeds: Sequence[int], into: torch.Tensor, at: int) -> None:
    """Enqueue on the current stream, without waiting: these tensors condensed, one after the other, into ``into``.

    ``tensors``: contiguous, on one device, each under its seed. ``into``: int64 [words], contiguous, on that device;
    written from word ``at`` on. Bytes that fill up a last word are left as they are.
    """
    pages: list[_Pages] = []
    rests: list[tuple[torch.Tensor, torch.Tensor]] = []
    as_bytes = into.view(torch.uint8)
    for tensor, seed in zip(tensors, seeds, strict=True):
        data = bytes_of(tensor)
        whole = whole_pages(data)
        if len(whole):
            pages.append(_Pages(whole, seed, into[at : at + len(whole)]))
        rest = data[len(whole) * PAGE_BYTES :]
        if len(rest):
            start = 8 * (at + len(whole))
            rests.append((as_bytes[start : start + len(rest)], rest))
        at += condensed_words(len(data))
    for each in pages:
        if len(each.words) >= ALONE:
            for part, place in zip(each.words.split(PAGES_AT_ONCE), each.place.split(PAGES_AT_ONCE), strict=True):
                place.copy_(page_digests(part, each.seed))
    _side_by_side([each for each in pages if len(each.words) < ALONE])
    if rests:
        torch._foreach_copy_([place for place, _ in rests], [rest for _, rest in rests], non_blocking=True)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a contiguous tensor, uint8 [n], where they lie."""
    flat = tensor.detach()
    return flat.as_strided((flat.numel(),), (1,)).view(
        torch.uint8
    )  # one element may have any stride, and be contiguous


def whole_pages(data: torch.Tensor) -> torch.Tensor:
    """Bytes as int64 [whole pages, words of a page]; copied where their address is no word's."""
    whole = len(data) // PAGE_BYTES
    pages = data[: whole * PAGE_BYTES]
    if pages.storage_offset() % 8 or pages.data_ptr() % 8:  # a storage that another library lent begins anywhere
        pages = pages.clone()
    return pages.view(torch.int64).view(whole, PAGE_BYTES // 8)


class _Pages(NamedTuple):
    """Whole pages of one tensor."""

    words: torch.Tensor
    """int64 [pages, words of a page]."""
    seed: int
    place: torch.Tensor
    """Where their digests go, int64 [pages]."""


def _side_by_side(waiting: Sequence[_Pages]) -> None:
    """Digest the pages of many small tensors at once."""
    while waiting:
        taken, count = 0, 0
        while taken < len(waiting) and count < PAGES_AT_ONCE:
            count += len(waiting[taken].words)
            taken += 1
        now, waiting = waiting[:taken], waiting[taken:]
        counts = [len(each.words) for each in now]
        seeds = torch.tensor([signed(each.seed) for each in now]).repeat_interleave(torch.tensor(counts))
        digests = page_digests(torch.cat([each.words for each in now]), to_device(seeds, now[0].words.device))
        torch._foreach_copy_([each.place for each in now], list(digests.split(counts)), non_blocking=True)


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Numbers of the host, sent without waiting for the device: memory that is not pinned waits for its stream."""
    return (values.pin_memory() if device.type == "cuda" else values).to(device, non_blocking=True)
