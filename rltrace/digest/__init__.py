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
independent implementation. This package imports neither torch nor zarr.
"""

from __future__ import annotations

from rltrace.digest.constants import ALGORITHM, PAGE_BYTES, layout_text, seed_of
from rltrace.digest.cpu import digest_address, digest_buffer, digest_page, digest_pages

__all__ = [
    "ALGORITHM",
    "PAGE_BYTES",
    "digest_address",
    "digest_buffer",
    "digest_page",
    "digest_pages",
    "layout_text",
    "seed_of",
]
