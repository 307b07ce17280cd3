"""Tensors condensed by plain torch operations, on any device.

Owns the parallel form of one page of XXH3 (16 KiB): the sixteen blocks' multiply-and-add terms at once, then sixteen
steps of scrambling over all pages together. The pages at a time are limited, so that extra memory is bounded. No state
beyond constants.

Unsigned 64-bit arithmetic is done on int64: addition and multiplication wrap alike, a logical shift is an arithmetic
one with the upper bits masked off.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from rltrace.digest import PAGE_BYTES, SECRET, digest_buffer, digest_pages

# --- condensed --------------------------------------------------------------------------------------------------------
#
# A *condensed* tensor, from which its digest is finished, in 64-bit words: the digest of each whole page, then the
# remaining bytes, padded to whole words. About 1/2000 of a large tensor; below a page the tensor itself.


WORD = 8
"""Bytes of a word."""


def condensed_words(nbytes: int) -> int:
    """Number of words of a condensed tensor of ``nbytes`` bytes."""
    whole, rest = divmod(nbytes, PAGE_BYTES)
    return whole + (rest + WORD - 1) // WORD


def finished(words: np.ndarray[Any, np.dtype[np.int64]], nbytes: int, seed: int) -> int:
    """The digest of a tensor of ``nbytes`` bytes, from its condensed words, int64, contiguous on the host."""
    whole, rest = divmod(nbytes, PAGE_BYTES)
    pages: list[int] = words[:whole].view(np.uint64).tolist()
    if rest or not whole:
        pages.append(digest_buffer(words[whole:].view(np.uint8)[:rest], seed))
    return pages[0] if nbytes <= PAGE_BYTES else digest_pages(pages, seed)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a contiguous tensor, uint8 [n], as a view."""
    flat = tensor.detach()
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)  # a single element may have any stride


def signed(value: int) -> int:
    """The int64 with the bits of this unsigned number."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def to_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a host tensor to a device without waiting; a copy of memory that is not pinned would wait."""
    return (values.pin_memory() if device.type == "cuda" else values).to(device, non_blocking=True)


# --- by operations ----------------------------------------------------------------------------------------------------


_BLOCKS, _STRIPES, _LANES = PAGE_BYTES // 1024, 16, 8
_PRIME32_1, _PRIME32_2, _PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIME64_1, _PRIME64_2, _PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_PRIME64_4, _PRIME64_5, _PRIME_MX1 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5, 0x165667919E3779F9
START = (_PRIME32_3, _PRIME64_1, _PRIME64_2, _PRIME64_3, _PRIME64_4, _PRIME32_2, _PRIME64_5, _PRIME32_1)


PAGES_AT_ONCE = 4_096
"""Pages that are digested at once: 64 MiB, plus a few times that of temporary memory."""

SEPARATE_PAGES = 256
"""From so many pages on a tensor is digested in place; the pages of smaller ones are concatenated first."""


def condense(tensors: Sequence[torch.Tensor], seeds: Sequence[int], into: torch.Tensor, at: int) -> None:
    """Condense tensors one after the other into ``into``, on the current stream, without waiting.

    ``tensors``: contiguous, on one device, each under its seed. ``into``: int64 [words], contiguous, on that device;
    written from word ``at`` on. Padding bytes of a last word are not written.
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
            start = WORD * (at + len(whole))
            rests.append((as_bytes[start : start + len(rest)], rest))
        at += condensed_words(len(data))
    for each in pages:
        if len(each.words) >= SEPARATE_PAGES:
            for batch, place in zip(each.words.split(PAGES_AT_ONCE), each.place.split(PAGES_AT_ONCE), strict=True):
                place.copy_(page_digests(batch, each.seed))
    _digest_together([each for each in pages if len(each.words) < SEPARATE_PAGES])
    if rests:
        torch._foreach_copy_([place for place, _ in rests], [rest for _, rest in rests], non_blocking=True)


def whole_pages(data: torch.Tensor) -> torch.Tensor:
    """Bytes as int64 [whole pages, words of a page]; copied where they are not word-aligned."""
    whole = len(data) // PAGE_BYTES
    pages = data[: whole * PAGE_BYTES]
    if pages.storage_offset() % WORD or pages.data_ptr() % WORD:  # a storage of another library may be unaligned
        pages = pages.clone()
    return pages.view(torch.int64).view(whole, PAGE_BYTES // WORD)


class _Pages(NamedTuple):
    """Whole pages of one tensor."""

    words: torch.Tensor
    """int64 [pages, words of a page]."""
    seed: int
    place: torch.Tensor
    """Where their digests go, int64 [pages]."""


def _digest_together(remaining: Sequence[_Pages]) -> None:
    """Digest the pages of many small tensors at once."""
    while remaining:
        tensors, pages = 0, 0
        while tensors < len(remaining) and pages < PAGES_AT_ONCE:
            pages += len(remaining[tensors].words)
            tensors += 1
        batch, remaining = remaining[:tensors], remaining[tensors:]
        counts = [len(each.words) for each in batch]
        seeds = torch.tensor([signed(each.seed) for each in batch]).repeat_interleave(torch.tensor(counts))
        digests = page_digests(torch.cat([each.words for each in batch]), to_device(seeds, batch[0].words.device))
        torch._foreach_copy_([each.place for each in batch], list(digests.split(counts)), non_blocking=True)


def page_digests(pages: torch.Tensor, seeds: int | torch.Tensor) -> torch.Tensor:
    """XXH3-64 of each page: int64 [n, PAGE_BYTES / 8] on any device to int64 [n] on the same.

    ``seeds``: one for all, or int64 [n] on the same device.
    """
    constants = _constants(pages.device)
    secret = _seeded_words(seeds, len(pages), constants)
    values = pages.view(-1, _BLOCKS, _STRIPES, _LANES)
    keyed = values ^ secret[:, None, constants.places]
    keyed[:, -1, -1] = values[:, -1, -1] ^ _unaligned(secret, 192 - 64 - 7)  # a page's last stripe has other keys
    products = (keyed & 0xFFFFFFFF) * _shift(keyed, 32)
    swapped = values.view(-1, _BLOCKS, _STRIPES, _LANES // 2, 2).flip(-1).view_as(values)
    sums = (products + swapped).sum(dim=2)
    lanes = constants.start.expand(len(pages), _LANES)
    scramble = secret[:, 16:24]
    for block in range(_BLOCKS - 1):
        lanes = lanes + sums[:, block]
        lanes = (lanes ^ _shift(lanes, 47) ^ scramble) * _PRIME32_1
    return _merge(lanes + sums[:, _BLOCKS - 1], secret)


def _merge(lanes: torch.Tensor, secret: torch.Tensor) -> torch.Tensor:
    mixed = lanes ^ _unaligned(secret, 11)
    total = _fold(mixed[:, 0::2], mixed[:, 1::2]).sum(dim=1) + signed(PAGE_BYTES * _PRIME64_1)
    total = (total ^ _shift(total, 37)) * signed(_PRIME_MX1)
    return total ^ _shift(total, 32)


def _fold(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Low half xor high half of the unsigned 128-bit product, by 32-bit limbs."""
    a_low, a_high, b_low, b_high = a & 0xFFFFFFFF, _shift(a, 32), b & 0xFFFFFFFF, _shift(b, 32)
    cross = a_high * b_low + _shift(a_low * b_low, 32)
    middle = a_low * b_high + (cross & 0xFFFFFFFF)
    return (a * b) ^ (a_high * b_high + _shift(cross, 32) + _shift(middle, 32))


def _shift(value: torch.Tensor, by: int) -> torch.Tensor:
    return (value >> by) & ((1 << (64 - by)) - 1)


class _Constants(NamedTuple):
    """Constants on a device, created once: creating them makes the program wait."""

    words: torch.Tensor
    """The secret, int64 [24]."""
    signs: torch.Tensor
    """1 or -1: whether the seed is added to a word of it or subtracted, int64 [24]."""
    places: torch.Tensor
    """Index of the word of the secret that keys a lane of a stripe, int64 [stripe, lane]."""
    start: torch.Tensor


@cache
def _constants(device: torch.device) -> _Constants:
    with torch.inference_mode(mode=False), torch._C._DisableTorchDispatch():
        words = torch.tensor(struct.unpack("<24q", SECRET), dtype=torch.int64, device=device)
        signs = torch.tensor([1, -1] * 12, dtype=torch.int64, device=device)
        places = torch.tensor([[s + lane for lane in range(_LANES)] for s in range(_STRIPES)], device=device)
        start = torch.tensor([signed(v) for v in START], dtype=torch.int64, device=device)
    return _Constants(words, signs, places, start)


def _seeded_words(seeds: int | torch.Tensor, count: int, constants: _Constants) -> torch.Tensor:
    """The secret under each seed, int64 [count, 24]: even words plus the seed, odd ones minus it."""
    if isinstance(seeds, int):
        return (constants.words + constants.signs * signed(seeds)).expand(count, 24)
    return constants.words + constants.signs * seeds[:, None]


def _unaligned(secret: torch.Tensor, at: int) -> torch.Tensor:
    """Eight words of the secret from the unaligned byte ``at`` on, int64 [n, 8]."""
    first, byte = divmod(at, 8)
    low, high = secret[:, first : first + 8], secret[:, first + 1 : first + 9]
    return _shift(low, 8 * byte) | (high << (64 - 8 * byte))
