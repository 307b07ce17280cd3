"""A forward pass of the running program, the calls in it, and going through it again. Owns what is known of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch

from rltrace.follow.rows.content import Met
from rltrace.parity.rows.grids import UNKNOWN, Grid
from rltrace.row_keys import Numbers

Arguments = list[tuple[str, torch.Tensor]]
"""A call's tensors, each with a name for where it stands."""


@dataclass(eq=False)
class Pass:
    """One forward pass."""

    number: int
    """Of this thread, from 0."""
    grid: Grid
    """The keys of its tokens."""
    alike: Numbers
    """For each of them, the sequence of A that goes on as its own does."""
    met: Met
    """Tensors whose rows are known."""
    events: list[tuple[str, str]] = field(default_factory=list)
    """(module, op) of everything in it that is counted, in order."""

    def words(self, row: int) -> str:
        """Which token it is: ``token 19 of sequence 1, in forward pass 3``."""
        place, sequence = int(self.grid.places[row]), int(self.grid.sequences[row])
        if place == UNKNOWN:
            return f"row {row:,} of forward pass {self.number:,}"
        return f"token {place:,} of sequence {sequence:,}, in forward pass {self.number:,}"


class Walk:
    """Going through a forward pass, for the first time or once more."""

    def __init__(self, over: Pass, begun: int | None = None) -> None:
        """``begun``: how many events there were before; None: this is the first time."""
        self.over = over
        self._counts = Counter(() if begun is None else over.events[:begun])
        self.again = begun is not None

    def count(self, module: str, op: str) -> int:
        """How many there were of this op in this module before; one more comes now."""
        number = self._counts[module, op]
        self._counts[module, op] += 1
        if not self.again:
            self.over.events.append((module, op))
        return number


@dataclass(frozen=True, eq=False)
class Given:
    """A tensor that holds the rows of some tokens."""

    lengths: tuple[int, ...]
    """Of the axes along which its rows are counted."""
    rows: Numbers
    """The row of the pass that each is; NONE: not known."""

    def fits(self, lengths: tuple[int, ...]) -> bool:
        """Whether a tensor with rows along these has the same."""
        return lengths in (self.lengths, (len(self.rows),))


class OpenCall:
    """A call of a module that has begun."""

    __slots__ = ("anew", "arguments", "depth", "given", "inside", "kind", "module", "nth", "path", "walk")

    def __init__(self, module: str | None, path: str, kind: str, depth: int, arguments: Arguments) -> None:
        self.module = module
        """A's path; None: it is none of A's."""
        self.path = path
        self.kind = kind
        self.depth = depth
        self.arguments = arguments
        self.anew = False
        """It began while gradients were computed."""
        self.given: list[Given] = []
        """Of what it was given, tensors that have not a row for each token."""
        self.inside = 0
        """Forward passes that were given their tokens in it."""
        self.walk: Walk | None = None
        """The pass that it is of; None: not known."""
        self.nth: int | None = None
        """How-manieth call of its module in that pass; None: not counted."""
