"""One side of a stretch as the aligner sees it: a 64-bit token per row and question, and where its inputs came from.

Owns what tokens mean. Two rows with equal tokens give the same answer to the question; nothing else is compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.sequences import Tokens
from rltrace.trace.format.row_hashes import DIGESTS, FLOATS, INTEGERS, cell_sums
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind, Origin, RowFlag


@dataclass(frozen=True, eq=False)
class StretchTokens:
    """One side of a stretch, a token per row and question."""

    identity: Tokens
    """Call site and op: with the how-manieth occurrence, the execution index."""
    structure: Tokens
    """All that is in the structure chain: kind, op, site, module, tensor structure, skeleton of the arguments."""
    values: Tokens
    """Numbers, generator state and digests; those of inputs only where they came from outside (see ``values_of``)."""
    computation: Tokens
    """Op, tensor structure and skeleton of the arguments, wherever it was called from."""
    operator: Tokens
    """Op alone."""
    told: NDArray[np.bool_]
    """Whether the row carries a digest or a number read out, so that it tells something of the values."""
    draws: NDArray[np.bool_]
    """Whether it drew from a generator: what it returned then tells how often others drew before, not which it is."""
    links: NDArray[np.int64]
    """Link cells of all rows."""
    link_offsets: NDArray[np.int64]
    """Shape [n + 1]: where each row's links begin."""

    def __len__(self) -> int:
        return len(self.identity)

    @cached_property
    def exact(self) -> Tokens:
        """Structure and values as one token."""
        return mix(self.structure, self.values)

    @cached_property
    def content(self) -> Tokens:
        """What the row computes, wherever it was called from."""
        return mix(self.computation, self.values)

    @cached_property
    def sources(self) -> Tokens:
        """The values of the rows that the inputs come from, as far as those are in the stretch.

        An argmax may return the same in every round; what it was computed from tells the rounds apart.
        """
        owner = np.repeat(np.arange(len(self)), np.diff(self.link_offsets))
        distance = self.links >> 12
        inside = (distance > 0) & (distance <= owner) & (self.links & 2 == 0)
        sources = np.zeros(len(self.links), np.uint64)
        sources[inside] = self.values[(owner - distance)[inside]]
        return cell_sums(sources, self.link_offsets, DIGESTS)

    def telling(self, tokens: Tokens, side: int) -> Tokens:
        """``tokens``, those of rows whose values tell nothing replaced by ones that equal no other of any side."""
        unlike = mix(np.arange(len(self), dtype=np.uint64), np.full(len(self), side, np.uint64))
        return np.where(self.told & ~self.draws, tokens, unlike)


def values_of(rows: Rows, given: bool = True) -> Tokens:
    """What each row was given from outside (unless ``given`` is false) and what it computed, as one token.

    Which op reads a parameter first in a step, and so carries its digest, is a matter of order; values are not. A
    marked row's digests tell nothing.
    """
    owner = np.repeat(np.arange(len(rows)), np.diff(rows.link_offsets))
    is_read = (rows.links & 1) != 0
    nth = np.cumsum(is_read) - 1
    first = np.concatenate([[0], np.cumsum(rows.reads)])[:-1]
    tracked = is_read & (rows.links >> 12 != Origin.OUTSIDE) if given else is_read
    marked = (rows.column(Column.FLAGS) & np.uint32(RowFlag.MARKED)) != 0
    marked &= rows.column(Column.KIND) == Kind.OP  # what an event tells is told for sure, whether it matters or not
    keep = ~np.repeat(marked, np.diff(rows.digest_offsets))
    keep[(rows.digest_offsets[owner] + nth - first[owner])[tracked]] = False
    if rows.evidence is not None:
        keep &= rows.is_hashed
    offsets = np.concatenate([[0], np.cumsum(keep)])[rows.digest_offsets]
    return mix(
        cell_sums(rows.integers.view(np.uint64), rows.integer_offsets, INTEGERS),
        cell_sums(rows.floats.view(np.uint64), rows.float_offsets, FLOATS),
        cell_sums(rows.digests[keep], offsets, DIGESTS),
    )


def mix(*parts: Tokens) -> Tokens:
    """One token for several, position-dependent and non-linear (the splitmix64 finaliser after each)."""
    state = np.full(len(parts[0]), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for part in parts:
        state = (state ^ part) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state
