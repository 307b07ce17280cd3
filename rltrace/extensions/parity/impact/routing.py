"""Routing decisions of two programs for the same tokens: experts, their order, weights and margins.

Owns finding decisions, pairing and comparing them. A decision is one row of the results of ``topk``: k experts, best
first, and their weights. Its *margin* is the lowest chosen score minus the highest other one: scores that differ by
more may choose another expert.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from rltrace.extensions.parity.call_range import FLOATS, around, finds_call, flat_rows, ops_in
from rltrace.extensions.parity.impact.logprobs import Floats, Policy
from rltrace.extensions.parity.matching.row_keying import Keyed, KeyedRows
from rltrace.extensions.parity.matching.row_pairs import KeyedTable, pair, table_of
from rltrace.extensions.parity.token_keys import Numbers
from rltrace.selectors import Selector, parse_selectors
from rltrace.trace.format.activation_rows import ActivationRows, ModuleCall, Part

LISTED = 10
"""Flipped decisions that are listed one by one."""
QUANTILES = (0.0, 0.01, 0.1, 0.5, 0.9, 1.0)
"""Of margins."""


class RoutingOutcome(StrEnum):
    """The difference between one decision of A and B's; the first that holds."""

    FLIPPED = "flipped"
    """Another set of experts."""
    REORDERED = "reordered"
    """The same experts in another order."""
    REWEIGHTED = "reweighted"
    """The same experts in the same order, with other weights."""
    SAME = "same"
    """The same experts in the same order, with the same weights if these are known."""


@dataclass(frozen=True, eq=False)
class Decisions:
    """The decisions of one router for n tokens."""

    experts: Numbers
    """[n, k], as ``topk`` ordered them."""
    weights: Floats | None = None
    """[n, k]: their scores; None: not recorded."""
    scores: Floats | None = None
    """[n, experts]: the input of ``topk``; None: not recorded."""

    def __len__(self) -> int:
        return len(self.experts)


@dataclass(frozen=True)
class Flip:
    """One decision that flipped."""

    place: str
    """Of its row in B, in words: ``token 12 of sequence 3``."""
    token: int | None
    a: tuple[int, ...]
    b: tuple[int, ...]
    """Experts on each side, as ``topk`` ordered them."""
    margin_a: float | None
    margin_b: float | None
    """None: not known."""


@dataclass(frozen=True)
class Margins:
    """Margins of some decisions, on one side."""

    known: int
    """Decisions whose margin is known."""
    quantiles: tuple[float, ...]
    """The 0, 0.01, 0.1, 0.5, 0.9 and 1.0 quantiles; empty where no margin is known."""


@dataclass(frozen=True)
class Routing:
    """One router's decisions on both sides."""

    module_a: str
    module_b: str
    occurrence: int
    """Which ``topk`` of a call of the module, from 0."""
    experts: int | None
    """How many there were to choose from; None: not known."""
    chosen: int
    """How many are chosen."""
    n: int
    """Decisions that could be compared."""
    flipped: int
    reordered: int
    reweighted: int | None
    """None: the weights of a side are not known."""
    same: int
    margins_a: Margins
    """Of all decisions that were compared, in A."""
    largest_flipped: float | None
    """The largest margin, on either side, at which a decision flipped; None: none flipped, or no margin is known."""
    closer: int | None
    """Decisions whose margin in A is no larger than that and that did not flip all the same."""
    flips: tuple[Flip, ...]
    """Those that flipped at the largest margins first."""
    only_a: int = 0
    only_b: int = 0
    """Decisions that the other side has no counterpart of."""
    why_no_margins: str = ""
    """One sentence where margins of a side are not known."""


def outcomes(a: Decisions, b: Decisions) -> NDArray[np.object_]:
    """The ``RoutingOutcome`` of each decision."""
    ordered = (a.experts == b.experts).all(axis=1)
    same_set = (np.sort(a.experts, axis=1) == np.sort(b.experts, axis=1)).all(axis=1)
    weighted = np.ones(len(a), bool)
    if a.weights is not None and b.weights is not None:
        weighted = ((a.weights == b.weights) | (np.isnan(a.weights) & np.isnan(b.weights))).all(axis=1)
    found: NDArray[np.object_] = np.full(len(a), RoutingOutcome.SAME, object)
    found[~weighted] = RoutingOutcome.REWEIGHTED
    found[~ordered] = RoutingOutcome.REORDERED
    found[~same_set] = RoutingOutcome.FLIPPED
    return found


def margins(decisions: Decisions) -> Floats:
    """[n]: the lowest chosen score minus the highest other one, or the reverse for a ``topk`` of the smallest.

    NaN where it is unknown: no scores, all experts chosen, a NaN among the scores, or experts chosen otherwise.
    """
    unknown = np.full(len(decisions), np.nan)
    scores, experts = decisions.scores, decisions.experts
    if scores is None or not 0 < experts.shape[1] < scores.shape[1]:
        return unknown
    if experts.size and not (experts.min() >= 0 and experts.max() < scores.shape[1]):
        return unknown
    is_chosen = np.zeros(scores.shape, bool)
    np.put_along_axis(is_chosen, experts, True, axis=1)
    lowest, highest = (np.where(is_chosen, scores, fill) for fill in (np.inf, -np.inf))
    others_highest, others_lowest = (np.where(is_chosen, fill, scores) for fill in (-np.inf, np.inf))
    with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN: unknown
        above = lowest.min(axis=1) - others_highest.max(axis=1)
        below = others_lowest.min(axis=1) - highest.max(axis=1)
    found: Floats = np.where(np.isnan(scores).any(axis=1), np.nan, np.maximum(above, below))
    return np.where(found >= 0, found, np.nan)


def compare_decisions(
    modules: tuple[str, str],
    decisions: tuple[Decisions, Decisions],
    places: Sequence[str],
    tokens: Sequence[int | None],
    *,
    nth: int = 0,
    only: tuple[int, int] = (0, 0),
) -> Routing:
    """Compare decisions at the same index on both sides, of as many experts. ``only``: how many one side alone has."""
    a, b = decisions
    outcome = outcomes(a, b)
    flipped = outcome == RoutingOutcome.FLIPPED
    margins_a, margins_b = margins(a), margins(b)
    largest = _largest(np.concatenate([margins_a[flipped], margins_b[flipped]]))
    weighed = a.weights is not None and b.weights is not None
    return Routing(
        *modules,
        nth,
        next((side.scores.shape[1] for side in (a, b) if side.scores is not None), None),
        a.experts.shape[1],
        len(a),
        int(flipped.sum()),
        int((outcome == RoutingOutcome.REORDERED).sum()),
        int((outcome == RoutingOutcome.REWEIGHTED).sum()) if weighed else None,
        int((outcome == RoutingOutcome.SAME).sum()),
        margins_of(margins_a),
        largest,
        None if largest is None else int((margins_a[~flipped] <= largest).sum()),
        _flips(np.flatnonzero(flipped), a, b, margins_a, margins_b, places, tokens),
        *only,
        _no_margins_reason(a, b),
    )


def margins_of(margins: Floats) -> Margins:
    """Their distribution."""
    known = margins[~np.isnan(margins)]
    if not len(known):
        return Margins(0, ())
    # no interpolation: a margin may be infinite
    return Margins(len(known), tuple(np.quantile(known, QUANTILES, method="inverted_cdf").tolist()))


def _flips(
    at: NDArray[np.intp],
    a: Decisions,
    b: Decisions,
    margins_a: Floats,
    margins_b: Floats,
    places: Sequence[str],
    tokens: Sequence[int | None],
) -> tuple[Flip, ...]:
    widest = np.fmax(margins_a[at], margins_b[at])  # ignores NaN
    order = at[np.lexsort((at, -np.where(np.isnan(widest), -np.inf, widest)))]
    return tuple(
        Flip(
            places[i],
            tokens[i],
            tuple(a.experts[i].tolist()),
            tuple(b.experts[i].tolist()),
            _known(margins_a[i]),
            _known(margins_b[i]),
        )
        for i in order[:LISTED].tolist()
    )


def _no_margins_reason(a: Decisions, b: Decisions) -> str:
    without = [name for name, side in (("A", a), ("B", b)) if side.scores is None]
    if not without:
        return ""
    return f"no values of the inputs of topk in {' and '.join(without)}, so the margins of these decisions are unknown"


def _largest(numbers: Floats) -> float | None:
    known = numbers[~np.isnan(numbers)]
    return float(known.max()) if len(known) else None


def _known(margin: float) -> float | None:
    return None if np.isnan(margin) else float(margin)


# --- finding decisions ------------------------------------------------------------------------------------------------


TOPK = "op=aten.topk,module=*.*"
DEFAULT = parse_selectors([TOPK])
"""Every ``topk`` within a model, without a sampler's."""
INTEGERS = ("int64", "int32", "int16", "uint8")

Router = tuple[str, int]
"""(module path, occurrence in its call)."""


@dataclass(frozen=True, eq=False)
class CallDecisions:
    """One decision for all tokens of a call."""

    call: ModuleCall
    experts: KeyedRows
    weights: ActivationRows | None
    scores: ActivationRows | None


def routing_of(
    a: Policy, b: Policy, names: Iterable[tuple[str, str]], selectors: tuple[Selector, Selector] = (DEFAULT, DEFAULT)
) -> tuple[tuple[Routing, ...], tuple[str, ...]]:
    """The routers of both sides compared, in the order of A's first decisions; and notes on those that were not.

    ``names``: (A's path, B's path) of partners.
    """
    of_a, of_b = _decided(a, selectors[0]), _decided(b, selectors[1])
    partners = dict(names)
    found, notes = [], []
    for router, own in of_a.items():
        other = of_b.get((partners.get(router[0], ""), router[1]))
        if other is None:
            notes.append(f"{_described(router)} chose experts in A only")
            continue
        compared = _compare(a, b, own, other, router)
        notes += [compared] if isinstance(compared, str) else []
        found += [compared] if isinstance(compared, Routing) else []
    partners_of_a = {(partners.get(module, ""), nth) for module, nth in of_a}
    notes += [f"{_described(router)} chose experts in B only" for router in of_b if router not in partners_of_a]
    return tuple(found), tuple(notes)


def _decided(side: Policy, selector: Selector) -> Mapping[Router, Sequence[CallDecisions]]:
    """The selected decisions by router, in execution order."""
    made = list(_by_ops(side, selector))
    rows = [row for row, _ in made]
    for call in side.call_range.calls:  # ops have precedence: the scores are among their inputs
        at = bisect_left(rows, call.first_row)
        if finds_call(selector, side.call_range, call) and not (at < len(rows) and rows[at] < call.end_row):
            outputs = [rows for rows in side.keying.of(call) if rows.tensor.part is Part.OUTPUT]
            decided = _decision(call, outputs)
            made += [] if decided is None else [(call.end_row, decided)]
    found: dict[Router, list[CallDecisions]] = {}
    counts: dict[int, int] = {}
    for _, decided in sorted(made, key=lambda one: one[0]):
        nth = counts[decided.call.number] = counts.get(decided.call.number, -1) + 1
        found.setdefault((decided.call.module, nth), []).append(decided)
    return found


def _by_ops(side: Policy, selector: Selector) -> Iterator[tuple[int, CallDecisions]]:
    """(row, decision) of each selected op with scores."""
    call_range = side.call_range
    for row, _ in ops_in(call_range, selector):
        call = around(call_range, row)
        decided = None if call is None else _decision(call, side.keying.of_op(call, call_range.ops[row]))
        if decided is not None and decided.scores is not None:
            yield row, decided


def _decision(call: ModuleCall, found: Sequence[Keyed]) -> CallDecisions | None:
    """The decision among these tensors: experts are an integer output, weights a float output of the same shape, scores
    a longer float tensor, rather an output than an input."""
    experts = next(
        (
            rows
            for rows in found
            if isinstance(rows, KeyedRows) and rows.tensor.part is Part.OUTPUT and rows.tensor.dtype in INTEGERS
        ),
        None,
    )
    if experts is None or not experts.tensor.shape or experts.tensor_rows.shape[1] != 1:
        return None
    shape = experts.tensor.shape
    floats = [rows.tensor for rows in found if rows.tensor.dtype in FLOATS and rows.tensor.shape]
    floats.sort(key=lambda tensor: tensor.part is Part.INPUT)
    weights = next((t for t in floats if t.part is Part.OUTPUT and t.shape == shape), None)
    scores = next((t for t in floats if t.shape[:-1] == shape[:-1] and t.shape[-1] > shape[-1]), None)
    return CallDecisions(call, experts.drop_unkeyed(), weights, scores)


def _compare(
    a: Policy, b: Policy, own: Sequence[CallDecisions], other: Sequence[CallDecisions], router: Router
) -> Routing | str:
    table_a = table_of([(one.call, one.experts) for one in own], a.ranks)
    table_b = table_of([(one.call, one.experts) for one in other], b.ranks)
    pairs = pair(table_a, table_b)
    if not len(pairs.a):
        return f"{_described(router)}: no token has a decision on both sides"
    read_a, read_b = _Reader(a, own, table_a, pairs.a), _Reader(b, other, table_b, pairs.b)
    experts_a, experts_b = read_a.experts, read_b.experts
    if experts_a is None or experts_b is None:
        side = "A" if experts_a is None else "B"
        equal = int((table_a.digests[pairs.a] == table_b.digests[pairs.b]).sum())
        return (
            f"{_described(router)}: {equal:,} of {len(pairs.a):,} decisions are equal, order included; which of the "
            f"others flipped is unknown, as {side} has no values of the experts (record it with --values as well)"
        )
    if experts_a.shape[1] != experts_b.shape[1]:
        return f"{_described(router)}: A chooses {experts_a.shape[1]} experts and B {experts_b.shape[1]}"
    tokens = b.tokens_at(table_b)[pairs.b]
    return compare_decisions(
        (router[0], other[0].call.module),
        (Decisions(experts_a, read_a.weights, read_a.scores), Decisions(experts_b, read_b.weights, read_b.scores)),
        b.tokens.words(tokens),
        b.tokens.given_ids(tokens),
        nth=router[1],
        only=(len(pairs.only_a), len(pairs.only_b)),
    )


class _Reader:
    """The values of the paired decisions of one side."""

    def __init__(self, side: Policy, decided: Sequence[CallDecisions], table: KeyedTable, at: Numbers) -> None:
        self._side = side
        self._table = table
        self._at = at
        experts = self._read([one.experts.tensor for one in decided])
        self.experts: Numbers | None = None if experts is None else experts.astype(np.int64)
        self.weights = self._numbers([one.weights for one in decided])
        self.scores = self._numbers([one.scores for one in decided])

    def _numbers(self, tensors: Sequence[ActivationRows | None]) -> Floats | None:
        found = self._read(tensors)
        return None if found is None else found.astype(np.float64)

    def _read(self, tensors: Sequence[ActivationRows | None]) -> NDArray[np.generic] | None:
        """[pairs, length of a row], from one tensor for each source of the table; None: a value was not recorded."""
        found: NDArray[np.generic] | None = None
        source = self._table.source[self._at]
        for number in np.unique(source).tolist():
            tensor = tensors[number]
            whole = None if tensor is None else self._side.call_range.numbers(tensor)
            if tensor is None or whole is None:
                return None
            rows = flat_rows(tensor, whole)
            if found is None:
                found = np.zeros((len(self._at), rows.shape[1]), rows.dtype)
            if rows.shape[1] != found.shape[1]:
                return None
            own = np.flatnonzero(source == number)
            _, keyed = self._table.sources[number]
            found[own] = rows[keyed.tensor_rows[self._table.at[self._at[own]], 0]]
        return found


def _described(router: Router) -> str:
    module, nth = router
    return module if nth == 0 else f"{module} ({nth + 1})"
