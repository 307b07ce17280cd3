"""The digest: a 64-bit hash of a tensor's dtype, shape and logical bytes. The definition, frozen with the format.

*Logical bytes*: the elements in row-major order, little endian, as if the tensor were contiguous; complex numbers as
real then imaginary part; lazy conjugation and negation carried out. Device, strides, storage offset and
``requires_grad`` are not hashed.

*Seed*: ``XXH3-64`` (seed 0) of the ASCII text ``dtype[d0,d1,…]``, for example ``float32[64,4]`` or ``bool[]``.

*Digest* of ``n`` bytes under a seed:

- up to ``PAGE_BYTES``: ``XXH3-64(bytes, seed)``;
- more: the bytes are split into pages of ``PAGE_BYTES`` (the last one may be shorter), each page is digested as above
  under the same seed, and the concatenated page digests, little endian, are digested by the same rule.

So a CPU calls a fast sequential hash a few times, and a parallel device works on all pages at once and returns eight
bytes for each; below one page it returns the raw bytes. Within a page XXH3 multiplies every 64-bit lane, keyed by its
position, so swapped, shifted or sign-flipped lanes do not cancel as in an XOR or in a plain multilinear sum.

Method: XXH3 as specified by Yann Collet, github.com/Cyan4973/xxHash, doc/xxhash_spec.md. ``reference.py`` is a slow,
independent implementation. Bytes in host memory are digested by the xxhash library. This package imports neither torch
nor zarr. A change of the constants or the seed changes the algorithm's name.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from ctypes import c_char
from typing import Any, Final

from xxhash import xxh3_64_intdigest

ALGORITHM: Final = "xxh3-64-pages/1"
"""Named in every trace; digests of two algorithms are never compared."""

PAGE_BYTES: Final = 16_384
"""Sixteen blocks of XXH3: small enough that a device runs many pages at once and only sixteen steps of one page in
turn, large enough that a CPU keeps half of the speed of one sequential pass (docs/internals/benchmarks.md)."""

SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8"
    "fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb17"
    "0ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
"""The default secret of XXH3."""


def layout_text(dtype: str, shape: Sequence[int]) -> str:
    """``float32[64,4]``: a tensor's dtype and shape as text."""
    return f"{dtype}[{','.join(map(str, shape))}]"


def seed_of(dtype: str, shape: Sequence[int]) -> int:
    """Seed of the digest of a tensor of this dtype (torch's name without ``torch.``) and shape."""
    return xxh3_64_intdigest(layout_text(dtype, shape).encode("ascii"))


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
