"""The gap between log-probabilities that the programs computed themselves, of tokens or of actions.

Owns which element of a selected tensor belongs to which token: by its shape and that of the last forward pass before
it. A tensor that does not fit is left out, and reported.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from rltrace.errors import UsageError
from rltrace.extensions.parity.call_range import (
    FLOATS,
    CallRange,
    Selected,
    name_of,
    outputs_of,
    selected_in,
    tensors_of,
)
from rltrace.extensions.parity.impact.logprobs import SAMPLED, Floats, Gap, Policy, measure
from rltrace.extensions.parity.impact.token_order import Tokens
from rltrace.extensions.parity.matching.row_pairs import LAST, KeyedTable, pair
from rltrace.extensions.parity.module_names import LOG_PROBABILITIES, root_of
from rltrace.extensions.parity.token_keys import NO_KEY, NONE, Keys, Numbers
from rltrace.selectors import Selector, parse_selectors
from rltrace.trace.format.activation_rows import ModuleCall, Part

NOTHING: Numbers = np.zeros(0, np.int64)
MAX_LOGPROB = 0.01
"""Of a token: 0, with the rounding of bfloat16."""


def parse_both(text: str, option: str) -> tuple[Selector, Selector]:
    """``SELECTOR`` for both sides, or ``A-SELECTOR::B-SELECTOR``. Raises UsageError."""
    sides = text.split("::")
    if len(sides) > 2:
        raise UsageError(f"{option} {text}: give one selector, or A's and B's with :: between them")
    return parse_selectors([sides[0]]), parse_selectors([sides[-1]])


@dataclass(frozen=True, eq=False)
class ElementPlacement:
    """The tokens of the elements of a tensor."""

    tokens: Numbers
    """For each element, flat, the index of its token; NONE: unknown."""
    assumed: str = ""
    """An assumption; empty: none."""


@dataclass(frozen=True, eq=False)
class Elements:
    """Log-probabilities of one side, each at a token or an observation; [n] each."""

    values: Floats
    tokens: Numbers
    """Index of the token *before* the one that was sampled."""
    steps: Numbers
    found: tuple[Selected, ...]
    """The selected tensors of this side."""
    assumed: tuple[str, ...] = ()
    unplaced: tuple[str, ...] = ()
    """Tensors that do not fit their forward pass."""
    unread: int = 0
    """Tensors whose values were not recorded, or cannot be read."""

    def __len__(self) -> int:
        return len(self.tokens)


def gap_of_selected(a: Policy, b: Policy, selector_a: Selector, selector_b: Selector) -> Gap | str:
    """The gap between the log-probabilities that these selectors find; or one sentence why there is none."""
    return _gap_of(a, b, selected_in(a.call_range, selector_a), selected_in(b.call_range, selector_b))


def gap_of_named(a: Policy, b: Policy) -> Gap | str:
    """The same of outputs that are called log-probabilities, of A's sampler and of B's model: in one trace, A may hold
    a forward pass of the trainer without gradient."""
    samplers = [call for call in a.call_range.outermost if any(one.name == SAMPLED for one in outputs_of(call))]
    if not samplers:
        return "A has no sampler"
    return _gap_of(a, b, _named(samplers), _named(b.call_range.outermost))


def _named(calls: Sequence[ModuleCall]) -> list[Selected]:
    return [
        Selected(call.end_row, f"{call.module}.{name_of(tensor)}", call, tensor)
        for call in calls
        for tensor in tensors_of(call, call.module)
        if tensor.part is Part.OUTPUT
        and tensor.dtype in FLOATS
        and name_of(tensor).rpartition(".")[2] in LOG_PROBABILITIES
    ]


def _gap_of(a: Policy, b: Policy, found_a: Sequence[Selected], found_b: Sequence[Selected]) -> Gap | str:
    of_a, of_b = _elements(a, found_a, b), _elements(b, found_b, a)
    for side, elements in ((a, of_a), (b, of_b)):
        if not len(elements):
            return _no_elements_reason(side, elements)
        if (elements.values[side.tokens.ids[elements.tokens] != NONE] > MAX_LOGPROB).any():
            return f"{elements.found[0].name} gives no log-probability of tokens in {side.call_range.side.upper()}"
    passes = np.unique(a.tokens.grid[of_a.tokens]).tolist()
    models = {a.keying.grids[number].anchor.module for number in passes}
    prompts = a.tokens.prompts({number for module in models for number in a.passes_of(module)})
    own_a = _sampled(a.tokens, of_a.tokens, prompts, last=True)
    own_b = _sampled(b.tokens, of_b.tokens, prompts, last=False)
    in_a, in_b = _pairs(_Side(a, of_a, own_a), _Side(b, of_b, own_b))
    at = of_b.tokens[in_b]
    following = b.tokens.following[at]
    return measure(
        _source(of_a, of_b),
        of_a.values[in_a],
        of_b.values[in_b],
        b.tokens.words(np.where(following == NONE, at, following)),
        b.tokens.given_ids(following),
        only_a=len(own_a) - len(in_a),
        only_b=len(own_b) - len(in_b),
    )


def _source(a: Elements, b: Elements) -> str:
    """What the log-probabilities are, what is assumed about them, and which are left out."""
    names = dict.fromkeys([a.found[0].name, b.found[0].name])
    parts = [f"outputs of {' (A) and '.join(names)}{' (B)' if len(names) > 1 else ''}, as the programs computed them"]
    for name, side in (("A", a), ("B", b)):
        parts += [f"in {name} {text}" for text in side.assumed]
        parts += [f"{name}'s {text} left out: its shape does not identify its tokens" for text in side.unplaced]
        parts += [f"the values of {side.unread:,} of {name}'s tensors were not recorded"] if side.unread else []
    return "; ".join(parts)


def _sampled(tokens: Tokens, at: Numbers, prompts: frozenset[int], *, last: bool) -> Numbers:
    """Indices into ``at`` of elements of sampled tokens: those whose keys are not in ``prompts``.

    ``last``: also after the last token of a sequence, which in B is followed by padding.
    """
    found = []
    for i, (own, following) in enumerate(zip(at.tolist(), tokens.following[at].tolist(), strict=True)):
        if following == NONE:
            found += [i] if last or tokens.ids[own] == NONE else []
        elif tokens.sampled[following] and int(tokens.keys[following]) not in prompts:
            found.append(i)
    return np.array(found, np.int64)


# --- pairs of elements ------------------------------------------------------------------------------------------------


class _Side:
    """The paired elements of one side."""

    def __init__(self, side: Policy, elements: Elements, own: Numbers) -> None:
        self.own = own
        tokens, at = side.tokens, elements.tokens[own]
        following = tokens.following[at]
        is_token = tokens.ids[at] != NONE
        self.before: Keys = tokens.keys[at]
        self.sampled: Keys = np.where(
            is_token, np.where(following == NONE, NO_KEY, tokens.keys[following]), self.before
        )
        """Key of the sampled token; NO_KEY: unknown, as it was never an input."""
        self.steps = elements.steps[own]
        sequences = tokens.sequences[at]
        self.ranks = sequences if side.ranks is None else np.append(side.ranks, LAST)[sequences]

    def table(self, keys: Keys, rows: Numbers) -> KeyedTable:
        none = np.zeros(len(rows), np.int64)
        zeros = np.zeros(len(rows), np.uint64)
        return KeyedTable(keys[rows], self.steps[rows], self.ranks[rows], none, none, zeros, none, none, ())


def _pairs(a: _Side, b: _Side) -> tuple[Numbers, Numbers]:
    """Indices of elements of A and of B for the same token."""
    known_a, known_b = (np.flatnonzero(side.sampled != NO_KEY) for side in (a, b))
    pairs = pair(a.table(a.sampled, known_a), b.table(b.sampled, known_b))
    in_a, in_b = known_a[pairs.a], known_b[pairs.b]
    left_a, left_b = (np.setdiff1d(np.arange(len(s.own)), used) for s, used in ((a, in_a), (b, in_b)))
    # A's last token is unknown; it is B's where only one token of B that is left follows the same tokens
    left_a = left_a[a.sampled[left_a] == NO_KEY]
    more = pair(a.table(a.before, left_a), b.table(b.before, left_b))
    more_a, more_b = left_a[more.a], left_b[more.b]
    sure = _unique_followers(b, left_b)
    keep = np.array([int(key) in sure for key in b.before[more_b]], bool)
    return (
        np.append(a.own[in_a], a.own[more_a[keep]]).astype(np.int64),
        np.append(b.own[in_b], b.own[more_b[keep]]).astype(np.int64),
    )


def _unique_followers(side: _Side, left: Numbers) -> frozenset[int]:
    """Keys of tokens that only one token among the elements ``left`` follows."""
    after: dict[int, set[int]] = {}
    for before, sampled in zip(side.before[left].tolist(), side.sampled[left].tolist(), strict=True):
        after.setdefault(before, set()).add(sampled)
    return frozenset(key for key, sampled in after.items() if len(sampled) == 1)


# --- tokens of elements -----------------------------------------------------------------------------------------------


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
        placement = element_tokens(one.tensor.shape, _base(side, number, prod(one.tensor.shape)), side.tokens)
        if placement is None:
            unplaced.append(f"{one.name} {list(one.tensor.shape)}")
            continue
        numbers = side.call_range.numbers(one.tensor)
        if numbers is None:
            unread += 1
            continue
        known = np.flatnonzero(placement.tokens != NONE)
        values.append(numbers.reshape(-1)[known].astype(np.float64))
        tokens.append(placement.tokens[known])
        assumed += [placement.assumed] if placement.assumed else []
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
    """The forward pass of each selected tensor: that of its call; for an op or a sampler's call, that of the last
    call that began before it, among all calls of the same models in the stream."""

    def __init__(self, side: Policy, other: Policy) -> None:
        self._side = side
        self._numbers = {id(grid): number for number, grid in enumerate(side.keying.grids)}
        roots = {root_of(grid.anchor.module) for policy in (side, other) for grid in policy.keying.grids}
        self._calls = [call for call in _all_calls(side.call_range) if root_of(call.module) in roots]

    def of(self, one: Selected) -> int | None:
        """Number of the forward pass; None: it is not of this side."""
        call = one.call
        if call is None or self._side.keying.grid(call) is None:
            at = bisect_right(self._calls, one.row, key=lambda call: call.first_row) - 1
            call = self._side.call_range.by_number.get(self._calls[at].number) if at >= 0 else None
        grid = None if call is None else self._side.keying.grid(call)
        return None if grid is None else self._numbers.get(id(grid))


def _all_calls(call_range: CallRange) -> Sequence[ModuleCall]:
    """All calls of the stream, including those outside of the call range."""
    if call_range.recorded is None:
        return call_range.calls
    return call_range.recorded.process.activations.calls(call_range.recorded.stream.index)


def _base(side: Policy, number: int, size: int) -> Numbers:
    """[sequences, tokens]: indices of the tokens of one forward pass, of those with logits if known; NONE: unknown.

    In a flat batch, where ``size``, the number of log-probabilities, is that of the logits.
    """
    grid, index = side.keying.grids[number], side.tokens.index[number]
    if len(grid.shape) < 2:
        rows = next((one.rows for one in side.logits if one.rows.grid is grid), None)
        if rows is not None and len(rows.tensor.digests) == size:
            found = np.full((1, size), NONE)
            found[0, rows.tensor_rows[:, 0]] = index[rows.tokens]
            return found
        if grid.sampled is not None and size != len(index):  # of an engine, whose batch holds several sequences
            return np.full((1, size), NONE)
        return index.reshape(1, -1) if grid.ids is not None else index.reshape(-1, 1)
    base: Numbers = index.reshape(grid.shape[0], -1)
    logits = next((one.rows.tensor for one in side.logits if one.rows.grid is grid), None)
    if logits is not None and len(logits.shape) == 3 and logits.shape[0] == len(base) > 0:
        return base[:, max(0, base.shape[1] - logits.shape[1]) :]
    return base


def element_tokens(shape: tuple[int, ...], base: Numbers, tokens: Tokens) -> ElementPlacement | None:
    """The tokens of the elements of a tensor of log-probabilities; None: the shape does not fit.

    ``base``: [sequences, tokens] of the forward pass before it. As many elements as these are theirs; fewer for each
    sequence are those of its last tokens but one, as nothing follows the last; more are those of as many last tokens of
    the sequence, over several calls.
    """
    batch, columns = base.shape
    size, lengths = prod(shape), tuple(length for length in shape if length != 1)
    if size == base.size and lengths in (tuple(length for length in base.shape if length != 1), (base.size,), ()):
        return ElementPlacement(base.ravel())
    last = np.array([row[row != NONE][-1] if (row != NONE).any() else NONE for row in base], np.int64)
    each = size if batch == 1 else size // batch if shape and shape[0] == batch else 0
    if each == 1 and tokens.samples:
        return ElementPlacement(last)
    if 0 < each < columns:
        return ElementPlacement(base[:, columns - 1 - each : columns - 1].ravel())
    if each > columns and tokens.samples:
        assumed = f"{list(shape)} taken as those of the last {each:,} tokens"
        return ElementPlacement(tokens.back_from(last, each).ravel(), assumed)
    known = base[base != NONE]
    followed = known[tokens.following[known] != NONE]
    return next((ElementPlacement(packed) for packed in (known, followed) if lengths == (len(packed),)), None)


def _no_elements_reason(side: Policy, elements: Elements) -> str:
    name = side.call_range.side.upper()
    if not elements.found:
        return f"it finds nothing in {name} with recorded rows after a forward pass over known tokens"
    if elements.unread:
        what = elements.found[0].name
        return f"the values of what it finds in {name} ({what}) were not recorded: record it with --values as well"
    return f"the shapes do not identify the tokens of these log-probabilities: {', '.join(elements.unplaced)} in {name}"
