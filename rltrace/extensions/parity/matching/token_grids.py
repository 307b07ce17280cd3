"""Token grids: the keys of the tokens of one forward pass, in the shape of the program's ids.

Owns the keys, the sequence of each token and its place there; padding has no key. ``layouts`` owns which activation
row belongs to which token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count, pairwise

import numpy as np
from numpy.typing import NDArray

from rltrace.extensions.parity.matching.forward_passes import HIGHEST_FIRST_POSITION, Forward, Slots
from rltrace.extensions.parity.module_names import root_of
from rltrace.extensions.parity.token_keys import NO_KEY, Keys, Numbers, Sequences, runs_of, token_keys
from rltrace.trace.format.activation_rows import BEGINS, ModuleCall

UNKNOWN = -1


@dataclass(frozen=True, eq=False)
class TokenGrid:
    """The tokens, or observations, of one forward pass; flat arrays."""

    anchor: ModuleCall
    """The call that was given them."""
    shape: tuple[int, ...]
    """[sequences, tokens], or the lengths of the axes of observations."""
    keys: Keys
    """NO_KEY: padding, or unknown."""
    sequences: Numbers
    """Number of the sequence within the call range, from 0; UNKNOWN: none."""
    places: Numbers
    """Place in the sequence, without padding; UNKNOWN: none."""
    ids: Numbers | None = None
    """Token ids; None: of observations."""
    pads: Numbers | None = None
    """Nonzero at padding; None: unknown."""
    continues: bool = False
    """Whether some of its tokens follow those of an earlier forward pass."""
    sampled: Numbers | None = None
    """Nonzero for tokens that were sampled; None: not declared."""

    @classmethod
    def of_keys(cls, anchor: ModuleCall, shape: tuple[int, ...], keys: Keys) -> TokenGrid:
        """The grid of rows that are no tokens: they have keys, but no sequences."""
        unknown = np.full(len(keys), UNKNOWN)
        return cls(anchor, shape, keys, unknown, unknown)

    @classmethod
    def of_inputs(cls, anchor: ModuleCall, digests: Keys) -> TokenGrid:
        """The grid of rows that are identified by their input: the keys are its digests."""
        return cls.of_keys(anchor, digests.shape, np.where(digests == NO_KEY, np.uint64(1), digests).ravel())

    @property
    def known(self) -> int:
        return int((self.keys != NO_KEY).sum())

    @cached_property
    def ways(self) -> tuple[list[str], str]:
        """How its tokens were computed, in words: each, and all; the first is empty for what is no token."""
        known = self.sequences[self.sequences != UNKNOWN]
        count = np.bincount(known, minlength=1)
        begun = np.full(len(count), np.iinfo(np.int64).max)
        np.minimum.at(begun, known, self.places[self.sequences != UNKNOWN])
        of_sequence = [
            "prefilled" if first == 0 else "decoded" if tokens == 1 else "prefilled after what was cached"
            for tokens, first in zip(count.tolist(), begun.tolist(), strict=True)
        ]
        each = ["" if sequence == UNKNOWN else of_sequence[sequence] for sequence in self.sequences.tolist()]
        return each, "alone" if np.count_nonzero(count) == 1 else "in a batch"


def token_grids(forwards: Sequence[Forward], pad: int | None = None, first: int = 0) -> tuple[TokenGrid, ...]:
    """A grid for each forward pass, in order. ``pad``: the padding token, for forward passes without a mask. ``first``:
    number of the first sequence; those of all models are numbered in order."""
    numbers = count(first)
    followers: dict[str, SequenceFollower] = {}
    offset = first_position(forwards)
    grids = []
    of_module: dict[str, list[Forward]] = {}
    for forward in forwards:
        of_module.setdefault(forward.call.module, []).append(forward)
    flat = {path for path, own in of_module.items() if has_flat_batches(own, offset)}
    for forward in forwards:
        path = forward.call.module
        follower = followers.setdefault(path, SequenceFollower(pad, offset, numbers, flat=path in flat))
        grids.append(follower.grid(forward))
    return tuple(grids)


def first_position(forwards: Iterable[Forward]) -> int:
    """The position of the first token of a sequence: 0, in some models 1 or 2."""
    lowest = min((int(f.positions.min()) for f in forwards if f.positions is not None and f.positions.size), default=0)
    return lowest if 0 < lowest <= HIGHEST_FIRST_POSITION else 0


def has_flat_batches(forwards: Iterable[Forward], offset: int) -> bool:
    """Whether calls of a model hold tokens of several sequences in one row, some of which continue from a cache."""
    several = continues = False
    for forward in forwards:
        if forward.gradient or forward.mask is not None or len(forward.ids) != 1 or forward.positions is None:
            continue
        own = np.arange(forward.ids.shape[1])
        places = forward.positions[0]
        runs = runs_of(own, places, strict=True)
        several = several or len(runs) > 1 or len(forward.shape) == 1
        continues = continues or any(places[run[0]] > offset for run in runs)
    return several and continues


class SequenceFollower:
    """Follows the sequences of one model from call to call."""

    def __init__(self, pad: int | None, offset: int, numbers: Iterator[int], *, flat: bool | None = None) -> None:
        """``numbers``: of sequences. ``flat``: as of ``has_flat_batches``; None: not known yet, then a batch without an
        axis of sequences is."""
        self._sequences = Sequences()
        self._flat = flat
        self._cached = CachedSequences(numbers)
        self._has_slots = False
        self._pad = pad
        self.offset = offset
        self._numbers = numbers
        self._current: Numbers = np.zeros(0, np.int64)
        self._places: Numbers = np.zeros(0, np.int64)
        self._shift: Numbers = np.zeros(0, np.int64)
        """Position of the first token of each sequence."""

    def grid(self, forward: Forward) -> TokenGrid:
        ids, positions, mask = forward.ids, forward.positions, forward.mask
        if forward.slots is not None and ids.size:
            self._has_slots = True
            return self._cached.grid(forward, forward.slots)
        if self._has_slots:  # what this batch does to the cache is not known
            self._cached.forget()
            return TokenGrid.of_keys(forward.call, forward.shape, np.zeros(ids.size, np.uint64))
        if not ids.size:
            return TokenGrid.of_keys(forward.call, forward.shape, np.zeros(0, np.uint64))
        if positions is not None:
            positions = self._shifted(np.broadcast_to(positions - self.offset, ids.shape), mask)
        if mask is None and self._pad is not None:
            mask, positions = (~padding(ids, self._pad)).astype(np.int64), None
        if (len(forward.shape) == 1 and positions is None) or self._is_flat(forward):
            keys = np.zeros(ids.shape, np.uint64)  # which token follows which is not known
        else:
            keys = self._sequences.keys(ids, positions, mask)
        sequences, places = self._follow(ids, keys)
        pads = None if mask is None else (mask[:, mask.shape[1] - ids.shape[1] :] == 0).astype(np.int64)
        flat = None if pads is None else pads.ravel()
        columns = keys.ravel(), sequences.ravel(), places.ravel(), ids.ravel(), flat
        first = places[np.arange(len(places)), np.argmax(keys != NO_KEY, axis=1)]
        continues = not forward.gradient and (bool((first > 0).any()) or bool(self._flat))
        return TokenGrid(forward.call, forward.shape, *columns, continues)

    def _is_flat(self, forward: Forward) -> bool:
        flat = len(forward.shape) == 1 if self._flat is None else self._flat
        return flat and not forward.gradient and forward.mask is None and len(forward.ids) == 1

    def _shifted(self, positions: Numbers, mask: Numbers | None) -> Numbers:
        """Positions from the first token of each sequence: some libraries count padding on the left too."""
        if mask is not None and 1 < positions.shape[1] == mask.shape[1]:  # all sequences begin here
            self._shift = positions[np.arange(len(mask)), np.argmax(mask != 0, axis=1)]
        return positions - self._shift[:, None] if len(self._shift) == len(positions) else positions

    def _follow(self, ids: Numbers, keys: Keys) -> tuple[Numbers, Numbers]:
        """(sequences, places) of the tokens; UNKNOWN where one has no key."""
        if len(self._current) != len(ids):
            self._current = np.full(len(ids), UNKNOWN)
            self._places = np.zeros(len(ids), np.int64)
        sequences, places = np.full(ids.shape, UNKNOWN), np.full(ids.shape, UNKNOWN)
        starts = token_keys(ids.reshape(-1, 1), np.zeros(ids.size, np.uint64)).reshape(ids.shape)
        for row in range(len(ids)):
            for start, end in _runs(keys[row], keys[row] == starts[row]):
                if keys[row, start] == starts[row, start]:
                    self._current[row], self._places[row] = next(self._numbers), 0
                first = self._places[row]
                sequences[row, start:end] = self._current[row]
                own = keys[row, start:end] != NO_KEY
                places[row, start:end] = np.where(own, first + np.cumsum(own) - 1, UNKNOWN)
                sequences[row, start:end][~own] = UNKNOWN
                self._places[row] = first + int(own.sum())
        return sequences, places


class CachedSequences:
    """Follows the sequences of an engine through the slots of its KV cache."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._slots: dict[int, tuple[np.uint64, int, int]] = {}
        """Of the token in each slot: key, sequence, place."""
        self._last: dict[int, int] = {}
        """Of each sequence, the slot of its last token."""

    def forget(self) -> None:
        self._slots.clear()

    def grid(self, forward: Forward, slots: Slots) -> TokenGrid:
        """The predecessor of a token is what its slot holds; a token of which that is not known has no key."""
        ids = forward.ids.ravel()
        keys, sequences, places = np.zeros(len(ids), np.uint64), np.full(len(ids), UNKNOWN), np.full(len(ids), UNKNOWN)
        pads = (np.arange(len(ids)) >= len(slots.own)).astype(np.int64)
        for at, (own, previous) in enumerate(zip(slots.own.tolist(), slots.previous.tolist(), strict=True)):
            before, sequence, place = self._slots.get(previous, (None, UNKNOWN, UNKNOWN))
            if previous == BEGINS:
                before = NO_KEY
            if before is None:
                self._slots.pop(own, None)
                continue
            if self._last.get(sequence) != previous:  # another one goes on from here, or one begins
                sequence = next(self._numbers)
            keys[at] = token_keys(ids[at : at + 1][None], np.array([before]))[0, 0]
            sequences[at], places[at] = sequence, place + 1
            self._slots[own], self._last[sequence] = (keys[at], sequence, place + 1), own
        continues = bool((slots.previous != BEGINS).any())
        sampled = None if slots.sampled is None else np.pad(slots.sampled, (0, len(ids) - len(slots.sampled)))
        return TokenGrid(forward.call, forward.shape, keys, sequences, places, ids, pads, continues, sampled)


def _runs(keys: Keys, begins: NDArray[np.bool_]) -> Iterable[tuple[int, int]]:
    """(first, end) of the tokens with a key, cut where a sequence begins."""
    own = np.flatnonzero(keys != NO_KEY)
    if not len(own):
        return
    cuts = [int(own[0]), *(int(k) for k in own[1:] if begins[k]), int(own[-1]) + 1]
    yield from pairwise(cuts)


def padding(ids: Numbers, pad: int) -> NDArray[np.bool_]:
    """Which tokens are padding: the runs of ``pad`` at the beginning and end of each sequence."""
    others = ids != pad
    from_left = np.logical_or.accumulate(others, axis=1)
    from_right = np.logical_or.accumulate(others[:, ::-1], axis=1)[:, ::-1]
    found: NDArray[np.bool_] = ~(from_left & from_right)
    return found


# --- observations -----------------------------------------------------------------------------------------------------


EARLIER = 16
"""Outputs of the outermost calls of a model that a later input is compared with."""


class EarlierOutputs:
    """Rows that the outermost calls of each model returned last.

    An input whose rows are all among them is no observation: where the modules of a policy are called one by one, a
    call continues the forward pass of the call before.
    """

    def __init__(self) -> None:
        self._digests: dict[str, deque[Keys]] = {}

    def add(self, module: str, digests: Keys) -> None:
        self._digests.setdefault(root_of(module), deque(maxlen=EARLIER)).append(digests.ravel())

    def hold(self, module: str, digests: Keys) -> bool:
        return any(np.isin(digests, earlier).all() for earlier in self._digests.get(root_of(module), ()))

    def forget(self, module: str) -> None:
        self._digests.pop(root_of(module), None)
