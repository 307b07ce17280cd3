"""The seed of a generator of torch for CPUs that nothing has drawn from, found by the digest of its state.

A trace has digests of states alone, but a digest proves one of the small seeds that people write. Of a generator that
was drawn from, or has another seed, nothing is known.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
from xxhash import xxh3_64_intdigest

WORDS: Final = 624
"""Of the state of a Mersenne Twister."""

SIZE, HEAD = 5_056, 24
"""Bytes of ``torch.Generator().get_state()``, and of what is before the words: the seed, two counters, a position."""

MOST_SEEDS, AT_ONCE = 1 << 16, 1 << 12


def seeds_of(digests: Collection[int]) -> dict[int, int]:
    """By digest of a state, the seed of the generator that was just seeded with it, where that is below 65,536."""
    found: dict[int, int] = {}
    if not digests:
        return found
    for start in range(0, MOST_SEEDS, AT_ONCE):
        states = _states(np.arange(start, start + AT_ONCE, dtype=np.uint64))
        for seed, state in enumerate(states, start):
            digest = xxh3_64_intdigest(state)
            if digest in digests:
                found[digest] = seed
        if len(found) == len(set(digests)):
            break
    return found


def _states(seeds: np.ndarray) -> np.ndarray:
    """The states after seeding, shape [n, SIZE], as bytes."""
    words = np.empty((WORDS, len(seeds)), np.uint32)
    words[0] = seeds
    for place in range(1, WORDS):  # Matsumoto and Nishimura, init_genrand
        before = words[place - 1]
        words[place] = np.uint32(1_812_433_253) * (before ^ (before >> np.uint32(30))) + np.uint32(place)
    states = np.zeros((len(seeds), SIZE), np.uint8)
    states[:, :8] = seeds.astype("<u8").view(np.uint8).reshape(-1, 8)
    states[:, 8] = states[:, 12] = 1  # words left, and whether it is seeded
    states[:, HEAD : HEAD + 8 * WORDS] = np.ascontiguousarray(words.T.astype("<u8")).view(np.uint8)
    return states
