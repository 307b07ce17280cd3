"""The gap between log-probabilities that the programs computed themselves, of tokens or of actions.

Owns which number of a selected tensor is whose: told by its shape, held against the forward pass that ran last before
it. What fits nothing is told, never guessed at.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from rltrace.errors import UsageError
from rltrace.parity.call_range import CallRange
from rltrace.parity.impact.logprobs import Floats, Gap, Policy, measure
from rltrace.parity.impact.token_order import NONE, Tokens
from rltrace.parity.matching.row_pairs import LAST, KeyedTable, pair
from rltrace.parity.module_names import root_of
from rltrace.parity.selection import Selected, selected_in
from rltrace.selectors import Selector, parse_selectors
from rltrace.token_keys import NO_KEY, Keys, Numbers
from rltrace.trace.format.activation_rows import ModuleCall

NOTHING: Numbers = np.zeros(0, np.int64)
MOST = 0.01
"""A log-probability of a token is at most 0, but for rounding (of bfloat16, at worst)."""


def parse_both(text: str, option: str) -> tuple[Selector, Selector]:
    """``SELECTOR`` for both sides, or ``A-SELECTOR::B-SELECTOR``. Raises UsageError."""
    sides = text.split("::")
    if len(sides) > 2:
        raise UsageError(f"{option} {text}: give one selector, or A's and B's with :: between them")
    return parse_selectors([sides[0]]), parse_selectors([sides[-1]])


@dataclass(frozen=True, eq=False)
class ElementPlacement:
    """Which elements of a tensor are whose."""

    tokens: Numbers
    """For each element, flat, the index of a token; NONE: of none that is known."""
    assumed: str = ""
    """What was taken for granted."""


@dataclass(frozen=True, eq=False)
class Elements:
    """Numbers of one side, each the log-probability of what was done at a token, or at an observation; [n] each."""

    values: Floats
    tokens: Numbers
    """Index of the token at which it was done: the token *before* the one that was taken."""
    steps: Numbers
    found: tuple[Selected, ...]
    """Every tensor that the selector found and that is this side's."""
    assumed: tuple[str, ...] = ()
    unplaced: tuple[str, ...] = ()
    """Tensors of which it cannot be told whose they are."""
    unread: int = 0
    """Tensors whose values were not kept, or cannot be read."""

    def __len__(self) -> int:
        return len(self.tokens)


def gap_of_selected(a: Policy, b: Policy, selector_a: Selector, selector_b: Selector) -> Gap | str:
    """The gap between the log-probabilities that these selectors find; or one sentence why there is none."""
    of_a = _elements(a, selected_in(a.call_range, selector_a), b)
    of_b = _elements(b, selected_in(b.call_range, selector_b), a)
    for side, elements in ((a, of_a), (b, of_b)):
        if not len(elements):
            return _why_none(side, elements)
        if (elements.values[side.tokens.ids[elements.tokens] != NONE] > MOST).any():
            return f"{elements.found[0].name} gives no log-probability of tokens in {side.call_range.side.upper()}"
    passes = np.unique(a.tokens.grid[of_a.tokens]).tolist()
    models = {a.keying.grids[number].anchor.module for number in passes}
    given = a.tokens.given({number for module in models for number in a.passes_of(module)})
    own_a = _taken(a.tokens, of_a.tokens, given, last=True)
    own_b = _taken(b.tokens, of_b.tokens, given, last=False)
    in_a, in_b = _pairs(_Side(a, of_a, own_a), _Side(b, of_b, own_b))
    at = of_b.tokens[in_b]
    following = b.tokens.following[at]
    ids = np.where(following == NONE, NONE, b.tokens.ids[following]).tolist()
    return measure(
        _source(of_a, of_b),
        of_a.values[in_a],
        of_b.values[in_b],
        b.tokens.words(np.where(following == NONE, at, following)),
        [None if token == NONE else token for token in ids],
        only_a=len(own_a) - len(in_a),
        only_b=len(own_b) - len(in_b),
    )


def _source(a: Elements, b: Elements) -> str:
    """What the log-probabilities are, what was taken for granted, and what of them could not be used."""
    names = dict.fromkeys([a.found[0].name, b.found[0].name])
    told = [f"outputs of {' (A) and '.join(names)}{' (B)' if len(names) > 1 else ''}, as the programs computed them"]
    for name, side in (("A", a), ("B", b)):
        told += [f"in {name} {text}" for text in side.assumed]
        told += [f"{name}'s {text} left out: its shape does not identify its tokens" for text in side.unplaced]
        told += [f"the values of {side.unread:,} of {name}'s tensors were not recorded"] if side.unread else []
    return "; ".join(told)


def _taken(tokens: Tokens, at: Numbers, given: frozenset[int], *, last: bool) -> Numbers:
    """Which of the elements are of tokens that were taken, not ``given``.

    ``last``: at the last token that was fed one was taken too. In B nothing is: what stands there is of padding.
    """
    found = []
    for i, (own, following) in enumerate(zip(at.tolist(), tokens.following[at].tolist(), strict=True)):
        if following == NONE:
            found += [i] if last or tokens.ids[own] == NONE else []
        elif int(tokens.keys[following]) not in given:
            found.append(i)
    return np.array(found, np.int64)


# --- which belong together --------------------------------------------------------------------------------------------


class _Side:
    """The elements of one side that take part."""

    def __init__(self, side: Policy, elements: Elements, own: Numbers) -> None:
        self.own = own
        tokens, at = side.tokens, elements.tokens[own]
        following = tokens.following[at]
        is_token = tokens.ids[at] != NONE
        self.before: Keys = tokens.keys[at]
        self.taken: Keys = np.where(is_token, np.where(following == NONE, NO_KEY, tokens.keys[following]), self.before)
        """Key of what was taken; NO_KEY: it was never fed, so it is not known which."""
        self.steps = elements.steps[own]
        sequences = tokens.sequences[at]
        self.ranks = sequences if side.ranks is None else np.append(side.ranks, LAST)[sequences]

    def table(self, keys: Keys, rows: Numbers) -> KeyedTable:
        none = np.zeros(len(rows), np.int64)
        zeros = np.zeros(len(rows), np.uint64)
        return KeyedTable(keys[rows], self.steps[rows], self.ranks[rows], none, none, zeros, none, none, ())


def _pairs(a: _Side, b: _Side) -> tuple[Numbers, Numbers]:
    """Elements of A and of B that are of the same token."""
    known_a, known_b = (np.flatnonzero(side.taken != NO_KEY) for side in (a, b))
    pairs = pair(a.table(a.taken, known_a), b.table(b.taken, known_b))
    in_a, in_b = known_a[pairs.a], known_b[pairs.b]
    left_a, left_b = (np.setdiff1d(np.arange(len(s.own)), used) for s, used in ((a, in_a), (b, in_b)))
    # what A took last it was never fed; where all that is left in B after the same token is one token, it is that
    left_a = left_a[a.taken[left_a] == NO_KEY]
    more = pair(a.table(a.before, left_a), b.table(b.before, left_b))
    more_a, more_b = left_a[more.a], left_b[more.b]
    sure = _followed_by_one(b, left_b)
    keep = np.array([int(key) in sure for key in b.before[more_b]], bool)
    return (
        np.append(a.own[in_a], a.own[more_a[keep]]).astype(np.int64),
        np.append(b.own[in_b], b.own[more_b[keep]]).astype(np.int64),
    )


def _followed_by_one(side: _Side, left: Numbers) -> frozenset[int]:
    """Keys of tokens after which there is no more than one other token in what is left."""
    after: dict[int, set[int]] = {}
    for before, taken in zip(side.before[left].tolist(), side.taken[left].tolist(), strict=True):
        after.setdefault(before, set()).add(taken)
    return frozenset(key for key, taken in after.items() if len(taken) == 1)


# --- which number is whose --------------------------------------------------------------------------------------------


def _elements(side: Policy, found: Sequence[Selected], other: Policy) -> Elements:
    values, tokens, steps = [np.zeros(0)], [NOTHING], [NOTHING]
    unplaced: list[str] = []
    assumed: list[str] = []
    unread, own = 0, []
    owners = _Owners(side, other)
    for one in found:
        number = owners.of(one)
        if number is None:
            continue
        own.append(one)
        lying = element_tokens(one.tensor.shape, _base(side, number), side.tokens)
        if lying is None:
            unplaced.append(f"{one.name} {list(one.tensor.shape)}")
            continue
        numbers = side.call_range.numbers(one.tensor)
        if numbers is None:
            unread += 1
            continue
        known = np.flatnonzero(lying.tokens != NONE)
        values.append(numbers.reshape(-1)[known].astype(np.float64))
        tokens.append(lying.tokens[known])
        assumed += [lying.assumed] if lying.assumed else []
        steps.append(np.full(len(known), side.keying.grids[number].anchor.step))
    return Elements(
        np.concatenate(values),
        np.concatenate(tokens),
        np.concatenate(steps),
        tuple(own),
        tuple(dict.fromkeys(assumed)),
        tuple(dict.fromkeys(unplaced)),
        unread,
    )


class _Owners:
    """Which forward pass of a side a tensor belongs to: a call's is known; an op's is that of the call that began last
    before it, among all calls of the same models: this side's, the other's, and those that are left out."""

    def __init__(self, side: Policy, other: Policy) -> None:
        self._side = side
        self._numbers = {id(grid): number for number, grid in enumerate(side.keying.grids)}
        roots = {root_of(grid.anchor.module) for policy in (side, other) for grid in policy.keying.grids}
        self._begun = [call for call in _all_calls(side.call_range) if root_of(call.module) in roots]

    def of(self, one: Selected) -> int | None:
        """Number of the forward pass; None: none of this side's."""
        call = one.call
        if call is None:
            at = bisect_right(self._begun, one.row, key=lambda begun: begun.first_row) - 1
            call = self._side.call_range.by_number.get(self._begun[at].number) if at >= 0 else None
        grid = None if call is None else self._side.keying.grid(call)
        return None if grid is None else self._numbers.get(id(grid))


def _all_calls(call_range: CallRange) -> Sequence[ModuleCall]:
    """Of the whole stream, those outside of the call range too."""
    if call_range.recorded is None:
        return call_range.calls
    return call_range.recorded.process.kept_rows.calls(call_range.recorded.stream.index)


def _base(side: Policy, number: int) -> Numbers:
    """[sequences, tokens] of one forward pass, those that it gave logits of where that is known; NONE: not known."""
    grid, index = side.keying.grids[number], side.tokens.index[number]
    if len(grid.shape) < 2:
        return index.reshape(1, -1) if grid.ids is not None else index.reshape(-1, 1)
    base: Numbers = index.reshape(grid.shape[0], -1)
    logits = next((one.rows.tensor for one in side.logits if one.rows.grid is grid), None)
    if logits is not None and len(logits.shape) == 3 and logits.shape[0] == len(base) > 0:
        return base[:, max(0, base.shape[1] - logits.shape[1]) :]
    return base


def element_tokens(shape: tuple[int, ...], base: Numbers, tokens: Tokens) -> ElementPlacement | None:
    """For each element of a tensor of log-probabilities, flat, the token at which it was done; None: it fits nothing.

    ``base``: [sequences, tokens] that the forward pass before it gave numbers for. As many elements as these are
    theirs; fewer for each sequence are those of its last tokens, the very last aside, as nothing follows it; more are
    those of as many tokens as were fed last, over all calls.
    """
    batch, columns = base.shape
    size, lengths = prod(shape), tuple(length for length in shape if length != 1)
    if size == base.size and lengths in (tuple(length for length in base.shape if length != 1), (base.size,), ()):
        return ElementPlacement(base.ravel())
    last = np.array([row[row != NONE][-1] if (row != NONE).any() else NONE for row in base], np.int64)
    each = size if batch == 1 else size // batch if shape and shape[0] == batch else 0
    if each == 1 and tokens.takes:
        return ElementPlacement(last)
    if 0 < each < columns:
        return ElementPlacement(base[:, columns - 1 - each : columns - 1].ravel())
    if each > columns and tokens.takes:
        assumed = f"{list(shape)} taken as those of the last {each:,} tokens"
        return ElementPlacement(tokens.back_from(last, each).ravel(), assumed)
    known = base[base != NONE]
    followed = known[tokens.following[known] != NONE]
    return next((ElementPlacement(packed) for packed in (known, followed) if lengths == (len(packed),)), None)


def _why_none(side: Policy, elements: Elements) -> str:
    name = side.call_range.side.upper()
    if not elements.found:
        return f"it finds nothing in {name} with recorded rows after a forward pass over known tokens"
    if elements.unread:
        what = elements.found[0].name
        return f"the values of what it finds in {name} ({what}) were not recorded: record it with --values as well"
    return f"the shapes do not identify the tokens of these log-probabilities: {', '.join(elements.unplaced)} in {name}"
