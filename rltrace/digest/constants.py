"""The constants of the digest and its seed. A change here changes the algorithm's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

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
