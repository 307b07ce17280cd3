"""Which row of A is which row of B inside a stretch where structure has parted.

Owns the order of the means, from certain to weak: equal ends; execution index (site and op, the how-manieth) with a
longest increasing subsequence; linear-space Myers inside what is left, under a budget; what a row computes. Says
"unsure" past the budget and never guesses. Works on tokens alone; memory is linear in the stretch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.sequences import (
    EMPTY,
    Budget,
    BudgetExceededError,
    Indices,
    Tokens,
    codes_of,
    common_prefix,
    common_suffix,
    longest_common,
    longest_increasing,
    match_nth,
    occurrences,
    reach_an_end,
    unique_pairs,
)

ALIGN_BUDGET = 3_000_000
"""Elementary Myers steps per stretch: about two seconds of Python."""


LINKED = 8
"""So many equal rows in a row, each at most so many rows after the last, are no coincidence."""


@dataclass(frozen=True, eq=False)
class StretchTokens:
    """One side of a stretch, a token per row and question."""

    identity: Tokens
    """Call site and op: with the how-manieth occurrence, the execution index."""
    structure: Tokens
    """All that is in the structure chain: kind, op, site, module, tensor structure, skeleton of the arguments."""
    values: Tokens
    """All that is in the value chain."""
    computation: Tokens
    """Op, tensor structure and skeleton of the arguments, wherever it was called from."""
    digested: NDArray[np.bool_]
    """Whether the row carries an output digest, so that what it computed can be told."""
    draws: NDArray[np.bool_]
    """Whether it drew from a generator: what it returned then tells how often others drew before, not which it is."""

    def __len__(self) -> int:
        return len(self.identity)

    @property
    def exact(self) -> Tokens:
        """Structure and values as one token."""
        return mix(self.structure, self.values)

    @property
    def content(self) -> Tokens:
        """What the row computes, wherever it was called from."""
        return mix(self.computation, self.values)


@dataclass(frozen=True, eq=False)
class Alignment:
    """Matched rows of a stretch; positions count from the start of the stretch."""

    rows_a: int
    rows_b: int
    a: Indices
    """Matched rows of A, ascending."""
    b: Indices
    """Their partners in B; ascending except where ``moved``."""
    moved: NDArray[np.bool_]
    """The pair stands at another place in the order of the two sides."""
    unsure: tuple[int, int] | None
    """From which rows on the two sides were too different to be aligned within the budget; None: all is sure."""

    @property
    def sure(self) -> bool:
        return self.unsure is None

    @property
    def only_a(self) -> Indices:
        return _missing(self.a, self.rows_a)

    @property
    def only_b(self) -> Indices:
        return _missing(self.b, self.rows_b)


def mix(*parts: Tokens) -> Tokens:
    """One token for several, position-dependent and non-linear (the splitmix64 finaliser after each)."""
    state = np.full(len(parts[0]), 0x9E3779B97F4A7C15, dtype=np.uint64)
    for part in parts:
        state = (state ^ part) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state


def align(a: StretchTokens, b: StretchTokens, *, open_end: bool = False, budget: int = ALIGN_BUDGET) -> Alignment:
    """Match the rows of two stretches; ``open_end``: they were cut off and go on, so their last rows need not match."""
    work = _Work(a, b, Budget(budget), open_end)
    work.run()
    in_order = _sorted(work.pairs)
    moved = _moved(a, b, _missing(in_order[0], len(a)), _missing(in_order[1], len(b)))
    at_a, at_b = np.concatenate([in_order[0], moved[0]]), np.concatenate([in_order[1], moved[1]])
    flags = np.repeat([False, True], [len(in_order[0]), len(moved[0])])
    order = np.argsort(at_a)
    return Alignment(len(a), len(b), at_a[order], at_b[order], flags[order], work.unsure)


Box = tuple[int, int, int, int]
"""Rows [0:1] of A and [2:3] of B that are not matched yet."""


@dataclass
class _Work:
    a: StretchTokens
    b: StretchTokens
    budget: Budget
    open_end: bool
    pairs: list[tuple[Indices, Indices]] = field(default_factory=list)
    unsure: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.exact = self.a.exact, self.b.exact

    def run(self) -> None:
        box = self._trim_both((0, len(self.a), 0, len(self.b)))
        gaps = [box] if self.open_end else self._split(box, self._anchors(box))
        for gap in gaps:
            inner = self._trim_both(gap)
            for part in self._split(inner, self._equal_runs(inner)):
                self._inside(self._trim_both(part))

    def _inside(self, box: Box) -> None:
        """The weaker means, in what the strong ones left."""
        if self._is_open(box):
            box = self._reach(box)
        for part in self._split(box, self._myers(box, self.a.structure, self.b.structure)):
            for rest in self._split(part, self._myers(part, self.a.identity, self.b.identity)):
                self._by_computation(rest)

    def _is_open(self, box: Box) -> bool:
        """Whether the stretches go on after this box, so that its end on one side need not be its end on the other."""
        return self.open_end and box[1] == len(self.a) and box[3] == len(self.b)

    def _reach(self, box: Box) -> Box:
        a0, a1, b0, b1 = box
        a, b = self.a.structure[a0:a1], self.b.structure[b0:b1]
        if not len(a) or not len(b) or not np.isin(a, b).any():
            return box
        try:
            x, y = reach_an_end(a, b, self.budget)
        except BudgetExceededError:
            self._give_up(box)
            return a0, a0, b0, b0
        return a0, a0 + x, b0, b0 + y

    def _trim_both(self, box: Box) -> Box:
        """Match equal rows at the ends of ``box``, by structure and values, then by structure; what is left of it."""
        return self._trim(self._trim(box, self.exact[0], self.exact[1]), self.a.structure, self.b.structure)

    def _trim(self, box: Box, a: Tokens, b: Tokens) -> Box:
        a0, a1, b0, b1 = box
        head = common_prefix(a[a0:a1], b[b0:b1])
        tail = 0 if self._is_open(box) else common_suffix(a[a0 + head : a1], b[b0 + head : b1])
        self._add(a0 + np.arange(head), b0 + np.arange(head))
        self._add(a1 - tail + np.arange(tail), b1 - tail + np.arange(tail))
        return a0 + head, a1 - tail, b0 + head, b1 - tail

    def _equal_runs(self, box: Box) -> tuple[Indices, Indices]:
        """Rows whose structure and values occur once on either side, where many of them stand at equal distances.

        What is left here has counts that differ, in loops that structure alone would let slide by a round.
        """
        a0, a1, b0, b1 = box
        if min(a1 - a0, b1 - b0) < LINKED:
            return EMPTY, EMPTY
        use_a = a0 + np.flatnonzero((self.a.digested & ~self.a.draws)[a0:a1])
        use_b = b0 + np.flatnonzero((self.b.digested & ~self.b.draws)[b0:b1])
        at_a, at_b = unique_pairs(self.exact[0][use_a], self.exact[1][use_b])
        at_a, at_b = use_a[at_a], use_b[at_b]
        apart = (np.diff(at_a) != np.diff(at_b)) | (np.diff(at_a) > LINKED)
        starts = np.concatenate([[0], np.flatnonzero(apart) + 1, [len(at_a)]])
        lengths = np.diff(starts)
        keep = np.repeat(lengths >= LINKED, lengths)
        return at_a[keep], at_b[keep]

    def _anchors(self, box: Box) -> tuple[Indices, Indices]:
        """Execution indices of tokens that both sides have equally often, as far as their order agrees."""
        a0, a1, b0, b1 = box
        if a0 == a1 or b0 == b1:
            return EMPTY, EMPTY
        code_a, code_b, count = codes_of(self.a.identity[a0:a1], self.b.identity[b0:b1])
        often = np.bincount(code_a, minlength=count) == np.bincount(code_b, minlength=count)
        keep_a, keep_b = np.flatnonzero(often[code_a]), np.flatnonzero(often[code_b])
        order_a = np.lexsort((occurrences(code_a)[keep_a], code_a[keep_a]))
        order_b = np.lexsort((occurrences(code_b)[keep_b], code_b[keep_b]))
        partner = np.empty(len(keep_a), dtype=np.int64)
        partner[order_a] = keep_b[order_b]
        chosen = longest_increasing(partner)
        return a0 + keep_a[chosen], b0 + partner[chosen]

    def _split(self, box: Box, pairs: tuple[Indices, Indices]) -> Iterator[Box]:
        """Keep ``pairs``; the boxes between them in which both sides have rows left."""
        self._add(*pairs)
        a0, a1, b0, b1 = box
        from_a, to_a = np.concatenate([[a0], pairs[0] + 1]), np.concatenate([pairs[0], [a1]])
        from_b, to_b = np.concatenate([[b0], pairs[1] + 1]), np.concatenate([pairs[1], [b1]])
        for k in np.flatnonzero((from_a < to_a) & (from_b < to_b)):
            yield int(from_a[k]), int(to_a[k]), int(from_b[k]), int(to_b[k])

    def _myers(self, box: Box, a: Tokens, b: Tokens) -> tuple[Indices, Indices]:
        a0, a1, b0, b1 = box
        try:
            at_a, at_b = longest_common(a[a0:a1], b[b0:b1], self.budget)
        except BudgetExceededError:
            self._give_up(box)
            return EMPTY, EMPTY
        return a0 + at_a, b0 + at_b

    def _by_computation(self, box: Box) -> None:
        """Rows called from elsewhere (a renamed function, an edited line): matched by what they compute."""
        a0, a1, b0, b1 = box
        same = a1 - a0 == b1 - b0 and np.array_equal(self.a.computation[a0:a1], self.b.computation[b0:b1])
        if same:
            self._add(np.arange(a0, a1), np.arange(b0, b1))
            return
        keep_a = a0 + np.flatnonzero(self.a.digested[a0:a1])
        keep_b = b0 + np.flatnonzero(self.b.digested[b0:b1])
        try:
            at_a, at_b = longest_common(self.a.content[keep_a], self.b.content[keep_b], self.budget)
        except BudgetExceededError:
            self._give_up(box)
            return
        pairs = keep_a[at_a], keep_b[at_b]
        for c0, c1, d0, d1 in self._split(box, pairs):
            if c1 - c0 == d1 - d0 and np.array_equal(self.a.computation[c0:c1], self.b.computation[d0:d1]):
                self._add(np.arange(c0, c1), np.arange(d0, d1))

    def _give_up(self, box: Box) -> None:
        if self.unsure is None or box[0] < self.unsure[0]:
            self.unsure = box[0], box[2]

    def _add(self, a: Indices, b: Indices) -> None:
        if len(a):
            self.pairs.append((a, b))


def _moved(a: StretchTokens, b: StretchTokens, left_a: Indices, left_b: Indices) -> tuple[Indices, Indices]:
    """Rows left over on both sides that compute the same thing, at the same place in the code or elsewhere."""
    found: list[tuple[Indices, Indices]] = []
    means: tuple[tuple[Callable[[StretchTokens], Tokens], bool], ...] = (
        (lambda side: side.exact, False),
        (lambda side: side.content, True),
    )
    for token, needs_digest in means:
        if not len(left_a) or not len(left_b):
            break
        use_a = left_a[a.digested[left_a]] if needs_digest else left_a
        use_b = left_b[b.digested[left_b]] if needs_digest else left_b
        at_a, at_b = match_nth(token(a)[use_a], token(b)[use_b])
        found.append((use_a[at_a], use_b[at_b]))
        left_a, left_b = np.setdiff1d(left_a, use_a[at_a]), np.setdiff1d(left_b, use_b[at_b])
    return _sorted(found)


def _sorted(pairs: list[tuple[Indices, Indices]]) -> tuple[Indices, Indices]:
    if not pairs:
        return EMPTY, EMPTY
    a, b = np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs])
    order = np.argsort(a)
    return a[order].astype(np.int64), b[order].astype(np.int64)


def _missing(present: Indices, count: int) -> Indices:
    absent = np.ones(count, dtype=bool)
    absent[present] = False
    return np.flatnonzero(absent)
