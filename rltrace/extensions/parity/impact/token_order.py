"""The tokens of one side in the order of their forward passes: which follows which, and which were sampled.

Owns what follows from token grids alone.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rltrace.extensions.parity.matching.row_pairs import joined
from rltrace.extensions.parity.matching.token_grids import TokenGrid
from rltrace.extensions.parity.token_keys import NO_KEY, NONE, Keys, Numbers


@dataclass(frozen=True, eq=False)
class Tokens:
    """Every token of a side that has a key, in the order of the forward passes; arrays of one length."""

    grid: Numbers
    """Number of the grid, from 0, and …"""
    at: Numbers
    """… the flat index there."""
    keys: Keys
    ids: Numbers
    """NONE: of an observation."""
    sequences: Numbers
    places: Numbers
    following: Numbers
    """Index of the next token of the sequence; NONE: it was not an input."""
    before: Numbers
    """Index of the token before it."""
    calls: tuple[int, ...]
    """For each grid, the number of its anchor."""
    index: tuple[Numbers, ...]
    """For each grid, the index of each of its tokens; NONE: padding, or unknown."""
    sampled: Numbers
    """Nonzero for tokens that were sampled, 0 for those of prompts; NONE: not declared."""

    def __len__(self) -> int:
        return len(self.keys)

    def prompts(self, grids: Collection[int]) -> frozenset[int]:
        """Keys of tokens of prompts: in these forward passes of a model, first input together with the token before, or
        with the one after, as where a prompt is computed in chunks; or as was declared.

        Empty where that holds for all tokens: whole sequences do not show which were sampled.
        """
        own = np.isin(self.grid, list(grids))
        if (self.sampled[own] != NONE).all():
            return frozenset(
                np.setdiff1d(*(self.keys[own & (self.sampled == is_sampled)] for is_sampled in (0, 1))).tolist()
            )
        first: dict[int, int] = {}
        for token in np.flatnonzero(own).tolist():
            first.setdefault(int(self.keys[token]), token)
        later = np.flatnonzero(own & (self.before != NONE))
        pairs = list(zip(self.keys[later].tolist(), self.keys[self.before[later]].tolist(), strict=True))
        found = frozenset(key for key, before in pairs if self._is_with(first[before], first[key]))
        chunks = frozenset(key for key, _ in pairs if self._is_with(first[key], int(self.following[first[key]])))
        return found | chunks if any(key not in found | chunks for key, _ in pairs) else frozenset()

    def _is_with(self, token: int, other: int) -> bool:
        """Whether both were input to one forward pass."""
        return other != NONE and bool(self.grid[token] == self.grid[other])

    @cached_property
    def samples(self) -> bool:
        """Whether this side samples tokens: some are input in a later forward pass than the token before them."""
        later = np.flatnonzero(self.before != NONE)
        return bool((self.grid[later] != self.grid[self.before[later]]).any())

    def words(self, tokens: Numbers) -> list[str]:
        """Each in words: ``token 12 of sequence 3``, or ``row 5 of call 8`` where it has no sequence."""
        columns = (self.sequences, self.places, self.at, self.grid)
        return [
            f"row {at} of call {self.calls[grid]}"
            if sequence < 0 or place < 0
            else f"token {place} of sequence {sequence}"
            for sequence, place, at, grid in zip(*(column[tokens].tolist() for column in columns), strict=True)
        ]

    def given_ids(self, tokens: Numbers) -> list[int | None]:
        """The id of each; None: it has none, or ``tokens`` has NONE in its place."""
        ids = np.where(tokens == NONE, NONE, self.ids[tokens]).tolist()
        return [None if token == NONE else token for token in ids]

    def back_from(self, last: Numbers, count: int) -> Numbers:
        """[sequences, count]: the tokens up to each of ``last``, which is the last column; NONE before the first."""
        found = np.full((len(last), count), NONE)
        current = last
        for column in range(count - 1, -1, -1):
            found[:, column] = current
            current = np.where(current == NONE, NONE, self.before[current])
        return found


def tokens_of(grids: Sequence[TokenGrid]) -> Tokens:
    """The tokens of all grids of a side."""
    own = [np.flatnonzero(grid.keys != NO_KEY) for grid in grids]
    of_grid = joined([np.full(len(at), number) for number, at in enumerate(own)])
    keys = np.concatenate([np.zeros(0, np.uint64), *(g.keys[at] for g, at in zip(grids, own, strict=True))])
    ids = joined([_ids(grid)[at] for grid, at in zip(grids, own, strict=True)])
    sequences, places = (
        joined([numbers[at] for numbers, at in zip(all_, own, strict=True)])
        for all_ in ([g.sequences for g in grids], [g.places for g in grids])
    )
    order = np.lexsort((places, sequences))
    ahead, behind = order[:-1], order[1:]
    adjacent = (sequences[ahead] >= 0) & (sequences[ahead] == sequences[behind]) & (places[ahead] + 1 == places[behind])
    following, before = np.full(len(keys), NONE), np.full(len(keys), NONE)
    following[ahead[adjacent]], before[behind[adjacent]] = behind[adjacent], ahead[adjacent]
    index, start = [], 0
    for grid, at in zip(grids, own, strict=True):
        places_of = np.full(len(grid.keys), NONE)
        places_of[at] = np.arange(start, start + len(at))
        index.append(places_of)
        start += len(at)
    calls = tuple(grid.anchor.number for grid in grids)
    each = (np.full(len(grid.keys), NONE) if grid.sampled is None else grid.sampled for grid in grids)
    sampled = joined([numbers[at] for numbers, at in zip(each, own, strict=True)])
    return Tokens(of_grid, joined(own), keys, ids, sequences, places, following, before, calls, tuple(index), sampled)


def _ids(grid: TokenGrid) -> Numbers:
    return np.full(len(grid.keys), NONE) if grid.ids is None else grid.ids
