"""Rows of one side as the aligner sees them: several 64-bit tokens per row, and its links to producers.

Owns what each kind of token means. Two rows are equal in a respect where their tokens of that kind are equal.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.sequences import Tokens
from rltrace.trace.format.row_hashes import DIGESTS, FLOATS, INTEGERS, cell_sums
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind, Origin, RowFlag


@dataclass(frozen=True, eq=False)
class RowTokens:
    """Tokens of adjacent rows of one side; shape [n] each."""

    identity: Tokens
    """Call site and op; with the occurrence, this identifies an op within a step."""
    structure: Tokens
    """Kind, op, site, module, tensor structure and skeleton of the arguments, as in the prefix digest of structure."""
    values: Tokens
    """Numbers, RNG state and digests; those of inputs only for outside data (see ``values_of``)."""
    computation: Tokens
    """Op, tensor structure and skeleton of the arguments, whatever the call site."""
    operator: Tokens
    """Op only."""
    has_values: NDArray[np.bool_]
    """Whether the row has a digest or a logged scalar."""
    draws: NDArray[np.bool_]
    """Whether it drew from a generator: its result then depends on earlier draws, and does not identify it."""
    links: NDArray[np.int64]
    """Link cells of all rows; shape [links]."""
    link_offsets: NDArray[np.int64]
    """Where each row's links begin; shape [n + 1]."""

    def __len__(self) -> int:
        return len(self.identity)

    @cached_property
    def exact(self) -> Tokens:
        """Structure and values as one token."""
        return mix(self.structure, self.values)

    @cached_property
    def content(self) -> Tokens:
        """What the row computes, whatever the call site."""
        return mix(self.computation, self.values)

    @cached_property
    def sources(self) -> Tokens:
        """The values of the rows that produced the inputs, as far as those are in this range.

        An argmax may return the same in every iteration; its inputs distinguish the iterations.
        """
        owner = np.repeat(np.arange(len(self)), np.diff(self.link_offsets))
        distance = self.links >> 12
        inside = (distance > 0) & (distance <= owner) & (self.links & 2 == 0)
        sources = np.zeros(len(self.links), np.uint64)
        sources[inside] = self.values[(owner - distance)[inside]]
        return cell_sums(sources, self.link_offsets, DIGESTS)

    def with_values_only(self, tokens: Tokens, side: int) -> Tokens:
        """``tokens`` where the values of a row identify it; elsewhere tokens that equal no other."""
        unlike = mix(np.arange(len(self), dtype=np.uint64), np.full(len(self), side, np.uint64))
        return np.where(self.has_values & ~self.draws, tokens, unlike)


def values_of(rows: Rows, outside: bool = True) -> Tokens:
    """One token per row for the outside data that it read (unless ``outside`` is false) and what it computed.

    Other inputs are ignored: which op reads a parameter first in a step, and so has its digest, depends on the order.
    So are the digests of marked rows.
    """
    owner = np.repeat(np.arange(len(rows)), np.diff(rows.link_offsets))
    is_read = (rows.links & 1) != 0
    nth = np.cumsum(is_read) - 1
    first = np.concatenate([[0], np.cumsum(rows.reads)])[:-1]
    tracked = is_read & (rows.links >> 12 != Origin.OUTSIDE) if outside else is_read
    marked = (rows.column(Column.FLAGS) & np.uint32(RowFlag.MARKED)) != 0
    marked &= rows.column(Column.KIND) == Kind.OP  # the digests of an event are certain, whether they matter or not
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
