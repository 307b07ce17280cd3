"""Token keys, which match the activation rows of two programs token by token.

Owns the keys; knows neither traces nor torch. In a causal model the activations at a token depend on that token and the
earlier ones of its sequence, padding aside. So a token's key is a digest of its sequence up to it: equal keys should
have equal activations, whatever the batch, the padding or the cache.
"""

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Numbers = NDArray[np.int64]

NONE = -1
"""No index, no number."""

NO_KEY = np.uint64(0)
"""Key of padding, and of a token of an unknown sequence."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def _mix(words: Keys) -> Keys:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection of 64 bits."""
    words = (words ^ (words >> np.uint64(30))) * _A
    words = (words ^ (words >> np.uint64(27))) * _B
    mixed: Keys = words ^ (words >> np.uint64(31))
    return mixed


def token_keys(ids: Numbers, before: Keys) -> Keys:
    """Keys of the tokens of several sequences.

    ``ids``: [sequences, tokens]. ``before``: [sequences], the key of the token before the first one (``NO_KEY`` where
    a sequence begins). Returns [sequences, tokens].
    """
    keys = np.zeros(ids.shape, np.uint64)
    last = before.copy()
    with np.errstate(over="ignore"):
        for at in range(ids.shape[1]):
            last = _mix(_mix(last + _GOLDEN) ^ (ids[:, at].astype(np.uint64) + _GOLDEN))
            last[last == NO_KEY] = _GOLDEN
            keys[:, at] = last
    return keys


class Sequences:
    """The sequences of one model, across calls: a generator with a cache passes them piece by piece."""

    def __init__(self) -> None:
        self._keys: Keys = np.zeros(0, np.uint64)
        self._lengths: Numbers = np.zeros(0, np.int64)

    def keys(self, ids: Numbers, positions: Numbers | None = None, mask: Numbers | None = None) -> Keys:
        """Keys of the tokens of one call, [batch, tokens]; ``NO_KEY`` for padding and for unknown sequences.

        ``ids``: [batch, tokens]. ``positions``: the same shape, or [1, tokens] for all rows; None: the model got none.
        ``mask``: [batch, length], nonzero where a token counts; its last columns are this call's. None: all count.

        A sequence begins where its first position is 0, and continues where that position is its length so far; without
        positions, the count of earlier tokens in the mask is used. Otherwise the sequence is unknown. Several sequences
        are packed into a row where its positions decrease; in a batch of one row without a mask, where they do not
        count up by one.
        """
        batch, tokens = ids.shape
        counts = np.ones(ids.shape, bool) if mask is None else mask[:, mask.shape[1] - tokens :] != 0
        if len(self._keys) != batch:
            self._keys, self._lengths = np.zeros(batch, np.uint64), np.zeros(batch, np.int64)
        begun = self._begun(counts, positions, mask)
        known = (begun == 0) | (begun > 0) & (begun == self._lengths)
        before = np.where(begun == 0, NO_KEY, self._keys)
        keys = np.zeros(ids.shape, np.uint64)
        for row in range(batch):  # padding may be on either side, so rows differ in their tokens
            own = np.flatnonzero(counts[row])
            places = None if positions is None else np.broadcast_to(positions, ids.shape)[row]
            first, *packed = [own] if places is None else runs_of(own, places, strict=batch == 1 and mask is None)
            if known[row] and len(own):
                keys[row, first] = self._follow(row, ids[row, first], before[row], int(begun[row]))
            for part in packed:
                assert places is not None
                known[row] = places[part[0]] == 0
                if known[row]:
                    keys[row, part] = self._follow(row, ids[row, part], NO_KEY, 0)
        self._lengths[~known] = -1
        return keys

    def _follow(self, row: int, ids: Numbers, before: np.uint64, begun: int) -> Keys:
        """Keys of the next tokens of a sequence with ``begun`` tokens so far; ``before``: key of the last of these."""
        keys: Keys = token_keys(ids[None], np.array([before]))[0]
        self._keys[row], self._lengths[row] = keys[-1], begun + len(ids)
        return keys

    def _begun(self, counts: NDArray[np.bool_], positions: Numbers | None, mask: Numbers | None) -> Numbers:
        """Count of the tokens of each sequence before this call, [batch]; -1: not known."""
        batch, tokens = counts.shape
        if positions is not None:
            each = np.broadcast_to(positions, counts.shape)
            first = np.argmax(counts, axis=1)
            starts: Numbers = each[np.arange(batch), first].astype(np.int64)
            return starts
        if mask is not None:
            earlier: Numbers = (mask[:, : mask.shape[1] - tokens] != 0).sum(axis=1).astype(np.int64)
            return earlier
        return np.zeros(batch, np.int64) if tokens > 1 else self._lengths.copy()


def runs_of(own: Numbers, positions: Numbers, *, strict: bool) -> list[Numbers]:
    """The tokens ``own`` of one row, cut where their positions decrease; ``strict``: where they do not count by one."""
    steps = np.diff(positions[own])
    return np.split(own, np.flatnonzero(steps != 1 if strict else steps <= 0) + 1)
