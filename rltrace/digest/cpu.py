"""The digest of bytes in host memory, by the xxhash library."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from ctypes import c_char
from typing import Any

from xxhash import xxh3_64_intdigest

from rltrace.digest.constants import PAGE_BYTES

digest_page = xxh3_64_intdigest
"""Digest of the bytes of a C-contiguous object with the buffer protocol, PAGE_BYTES of them at most, and a seed."""


def digest_buffer(data: Any, seed: int) -> int:
    """Digest of the bytes of a C-contiguous object with the buffer protocol (bytes, memoryview, NumPy array)."""
    view = memoryview(data).cast("B")
    if len(view) <= PAGE_BYTES:
        return xxh3_64_intdigest(view, seed)
    return digest_pages(
        [xxh3_64_intdigest(view[i : i + PAGE_BYTES], seed) for i in range(0, len(view), PAGE_BYTES)], seed
    )


def digest_address(address: int, size: int, seed: int) -> int:
    """Digest of ``size`` bytes at ``address``, which must be readable and must not change meanwhile."""
    if size <= PAGE_BYTES:
        return xxh3_64_intdigest((c_char * size).from_address(address), seed) if size else xxh3_64_intdigest(b"", seed)
    return digest_buffer((c_char * size).from_address(address), seed)


def digest_pages(pages: Iterable[int], seed: int) -> int:
    """Digest of more than one page of bytes, from the digests of its pages in order."""
    digests = array("Q", pages)
    if sys.byteorder == "big":
        digests.byteswap()
    return digest_buffer(digests, seed)
