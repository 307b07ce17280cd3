"""The digests of whole pages by plain torch operations, so on any device torch has.

Owns the parallel form of one page of XXH3 (16 KiB): the sixteen blocks' multiply-and-add terms at once, then sixteen
steps of scrambling over all pages together. Eight bytes a page cross to the host. Pure functions; no state beyond
constants.

Unsigned 64-bit arithmetic is done on int64: addition and multiplication wrap alike, a logical shift is an arithmetic
one with the upper bits masked off.
"""

from __future__ import annotations

import struct

import torch

from rltrace.digest.definition import PAGE_BYTES, SECRET

_BLOCKS, _STRIPES, _LANES = PAGE_BYTES // 1024, 16, 8
_PRIME32_1, _PRIME32_2, _PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
_PRIME64_1, _PRIME64_2, _PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_PRIME64_4, _PRIME64_5, _PRIME_MX1 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5, 0x165667919E3779F9
_START = (_PRIME32_3, _PRIME64_1, _PRIME64_2, _PRIME64_3, _PRIME64_4, _PRIME32_2, _PRIME64_5, _PRIME32_1)


def page_digests(pages: torch.Tensor, seed: int) -> torch.Tensor:
    """XXH3-64 with ``seed`` of each page: int64 [n, PAGE_BYTES / 8] on any device to int64 [n] on the same."""
    device = pages.device
    secret = _seeded_secret(seed)
    keys = torch.tensor(_stripe_keys(secret), dtype=torch.int64, device=device)
    values = pages.view(-1, _BLOCKS, _STRIPES, _LANES)
    keyed = values ^ keys
    products = (keyed & 0xFFFFFFFF) * _shift(keyed, 32)
    swapped = values.view(-1, _BLOCKS, _STRIPES, _LANES // 2, 2).flip(-1).view_as(values)
    sums = (products + swapped).sum(dim=2)
    lanes = torch.tensor([_signed(v) for v in _START], dtype=torch.int64, device=device).expand(len(pages), _LANES)
    scramble = torch.tensor(_words(secret, 128, 8), dtype=torch.int64, device=device)
    for block in range(_BLOCKS - 1):
        lanes = lanes + sums[:, block]
        lanes = (lanes ^ _shift(lanes, 47) ^ scramble) * _PRIME32_1
    return _merge(lanes + sums[:, _BLOCKS - 1], secret)


def _merge(lanes: torch.Tensor, secret: bytes) -> torch.Tensor:
    mixed = lanes ^ torch.tensor(_words(secret, 11, 8), dtype=torch.int64, device=lanes.device)
    total = _fold(mixed[:, 0::2], mixed[:, 1::2]).sum(dim=1) + _signed(PAGE_BYTES * _PRIME64_1)
    total = (total ^ _shift(total, 37)) * _signed(_PRIME_MX1)
    return total ^ _shift(total, 32)


def _fold(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Low half xor high half of the unsigned 128-bit product, by 32-bit limbs."""
    a_low, a_high, b_low, b_high = a & 0xFFFFFFFF, _shift(a, 32), b & 0xFFFFFFFF, _shift(b, 32)
    cross = a_high * b_low + _shift(a_low * b_low, 32)
    middle = a_low * b_high + (cross & 0xFFFFFFFF)
    return (a * b) ^ (a_high * b_high + _shift(cross, 32) + _shift(middle, 32))


def _shift(value: torch.Tensor, by: int) -> torch.Tensor:
    return (value >> by) & ((1 << (64 - by)) - 1)


def _seeded_secret(seed: int) -> bytes:
    words = struct.unpack("<24Q", SECRET)
    return struct.pack("<24Q", *((w + seed if i % 2 == 0 else w - seed) & (2**64 - 1) for i, w in enumerate(words)))


def _stripe_keys(secret: bytes) -> list[list[list[int]]]:
    """Keys [block, stripe, lane]; the very last stripe of a page has a place of its own in the secret."""
    block = [_words(secret, 8 * stripe, _LANES) for stripe in range(_STRIPES)]
    last = [*block[:-1], _words(secret, 192 - 64 - 7, _LANES)]
    return [block] * (_BLOCKS - 1) + [last]


def _words(secret: bytes, at: int, count: int) -> list[int]:
    return list(struct.unpack_from(f"<{count}q", secret, at))


def _signed(value: int) -> int:
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value
