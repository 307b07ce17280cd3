"""Numbers that people write, found by their digests: that of a tensor of one element, and the seed of a generator.

A trace has neither values nor states, but a digest proves one of two hundred thousand candidates (whole numbers, powers
of two, and decimals of up to four digits), or one of the small seeds of a generator of torch for CPUs that nothing has
drawn from. Of another number, or another state, nothing is known.
"""

import struct
from collections.abc import Collection, Iterator, Sequence
from functools import cache, lru_cache
from typing import Final

import numpy as np
from xxhash import xxh3_64_intdigest

from rltrace.digest import seed_of

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


WORDS: Final = 624
"""Of the state of a Mersenne Twister."""

SIZE, HEAD = 5_056, 24
"""Bytes of ``torch.Generator().get_state()``, and of what is before the words: the seed, two counters, a position."""

MOST_SEEDS, AT_ONCE = 1 << 16, 1 << 12


def seeds_of(digests: Collection[int], near: Collection[int] = ()) -> dict[int, int]:
    """By digest of a state, the seed of the generator that was just seeded with it, where that is below 65,536 or by
    at most two thousand from a number of ``near``."""
    found: dict[int, int] = {}
    wanted = set(digests)
    larger = (number - AT_ONCE // 2 for number in sorted(set(near)) if MOST_SEEDS <= number < 2**64 - AT_ONCE)
    for start in (*range(0, MOST_SEEDS, AT_ONCE), *larger):
        if len(found) == len(wanted):
            break
        known = _seeds_from(start)
        found |= {digest: known[digest] for digest in wanted & known.keys()}
    return found


@cache
def _seeds_from(start: int) -> dict[int, int]:
    """By digest of the state, AT_ONCE seeds from this one on; all of them take a second, and no more than once."""
    states = _states(np.uint64(start) + np.arange(AT_ONCE, dtype=np.uint64))
    return {xxh3_64_intdigest(state): seed for seed, state in enumerate(states, start)}


def _states(seeds: np.ndarray) -> np.ndarray:
    """The states after seeding, shape [n, SIZE], as bytes."""
    words = np.empty((WORDS, len(seeds)), np.uint32)
    words[0] = seeds & np.uint64(2**32 - 1)
    for place in range(1, WORDS):  # Matsumoto and Nishimura, init_genrand
        before = words[place - 1]
        words[place] = np.uint32(1_812_433_253) * (before ^ (before >> np.uint32(30))) + np.uint32(place)
    states = np.zeros((len(seeds), SIZE), np.uint8)
    states[:, :8] = seeds.astype("<u8").view(np.uint8).reshape(-1, 8)
    states[:, 8] = states[:, 12] = 1  # words left, and whether it is seeded
    states[:, HEAD : HEAD + 8 * WORDS] = np.ascontiguousarray(words.T.astype("<u8")).view(np.uint8)
    return states
