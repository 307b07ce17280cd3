"""The number that a tensor of one element holds, found by its digest among those that people write.

A trace has no values, but a digest proves one of two hundred thousand candidates: whole numbers, powers of two, and
decimals of up to four digits. Of another number nothing is known.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final

from xxhash import xxh3_64_intdigest

from rltrace.digest.constants import seed_of

FORMATS: Final = {"float32": "<f", "float64": "<d", "int64": "<q", "int32": "<i", "bool": "<?"}
MANTISSAS, DECIMALS, MOST_WHOLE = 10_000, 10, 20_000
POWERS: Final = tuple(1 << exponent for exponent in range(15, 31))


def number_of(digest: int, dtype: str, shape: Sequence[int]) -> int | float | bool | None:
    """The only element of a tensor of this dtype and shape; None: it has several, or it is no number that is tried."""
    if dtype not in FORMATS or any(size != 1 for size in shape):
        return None
    return _numbers(dtype, tuple(shape)).get(digest)


@lru_cache(8)
def _numbers(dtype: str, shape: tuple[int, ...]) -> dict[int, int | float | bool]:
    seed, pack = seed_of(dtype, shape), struct.Struct(FORMATS[dtype]).pack
    found: dict[int, int | float | bool] = {}
    for number in _candidates(dtype):
        found.setdefault(xxh3_64_intdigest(pack(number), seed), number)
    return found


def _candidates(dtype: str) -> Iterator[int | float | bool]:
    """The simplest first."""
    if dtype == "bool":
        yield from (False, True)
        return
    convert = float if dtype.startswith("float") else int
    yield from (convert(sign * whole) for whole in (*range(MOST_WHOLE), *POWERS) for sign in (1, -1))
    if convert is int:
        return
    for places in range(1, DECIMALS + 1):
        yield from (sign * float(f"{mantissa}e-{places}") for mantissa in range(1, MANTISSAS) for sign in (1, -1))
