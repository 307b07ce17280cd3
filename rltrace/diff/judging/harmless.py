"""A stretch in which every op of one side is an op of the other, the same in all: nothing but extra and moved ops.

The longest alignment by structure may buy one more row by shifting others against each other, where a part of the
program ran once more and something moved besides. Owns the proof that no difference of values is needed to explain a
stretch: one side has a row for every row of the other.
"""

from __future__ import annotations

import numpy as np

from rltrace.diff.aligning.align import ALIGN_BUDGET, Alignment, with_fewest_moves
from rltrace.diff.aligning.sequences import (
    Budget,
    BudgetExceededError,
    Indices,
    Tokens,
    common_prefix,
    common_suffix,
    longest_common,
    match_nth,
)
from rltrace.diff.aligning.table import best_pairs, is_small
from rltrace.diff.aligning.tokens import StretchTokens, mix


def without_differences(a: StretchTokens, b: StretchTokens) -> Alignment | None:
    """The alignment of equal rows alone, where it leaves rows of one side only; None where it does not."""
    fed_a, fed_b = mix(a.exact, a.sources), mix(b.exact, b.sources)
    if len(match_nth(fed_a, fed_b)[0]) < min(len(a), len(b)):
        return None
    try:
        in_order = _longest(fed_a, fed_b)
    except BudgetExceededError:
        return None
    rest_a, rest_b = np.setdiff1d(np.arange(len(a)), in_order[0]), np.setdiff1d(np.arange(len(b)), in_order[1])
    at_a, at_b = match_nth(fed_a[rest_a], fed_b[rest_b])
    all_a, all_b = np.concatenate([in_order[0], rest_a[at_a]]), np.concatenate([in_order[1], rest_b[at_b]])
    moved = np.repeat([False, True], [len(in_order[0]), len(at_a)])
    order = np.argsort(all_a)
    return with_fewest_moves(Alignment(len(a), len(b), all_a[order], all_b[order], moved[order], None))


def _longest(a: Tokens, b: Tokens) -> tuple[Indices, Indices]:
    head = common_prefix(a, b)
    tail = common_suffix(a[head:], b[head:])
    inner_a, inner_b = a[head : len(a) - tail], b[head : len(b) - tail]
    if is_small((0, len(inner_a), 0, len(inner_b))):
        at_a, at_b = best_pairs([(inner_a, inner_b)])
    else:
        at_a, at_b = longest_common(inner_a, inner_b, Budget(ALIGN_BUDGET))
    ends = np.arange(head), np.arange(tail)
    return (
        np.concatenate([ends[0], head + at_a, len(a) - tail + ends[1]]),
        np.concatenate([ends[0], head + at_b, len(b) - tail + ends[1]]),
    )
