"""Where two programs' routers decided, found and paired: by module, by row, and by how manieth decision of a call.

Owns finding the experts, weights and scores among what ops and modules gave, by what they are rather than by how one
library calls them. What became of the decisions is for ``rltrace.parity.effects.routing``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rltrace.parity.effects.logprobs import Policy
from rltrace.parity.effects.routing import Decisions, Routing, compare_decisions
from rltrace.parity.effects.taken import NONE
from rltrace.parity.finding import FLOATS, around, finds_call, ops_in
from rltrace.parity.rows.keying import Keyed, KeyedRows
from rltrace.parity.rows.pairing import Table, pair, table_of
from rltrace.parity.stretch import flat_rows
from rltrace.row_keys import Numbers
from rltrace.select import Selector, parse_selectors
from rltrace.trace.tensor_rows import KeptRows, ModuleCall, Part

TOPK = "op=aten.topk,module=*.*"
DEFAULT = parse_selectors([TOPK])
"""Every ``topk`` within a model: a sampler's stands outside of it."""
WHOLE = ("int64", "int32", "int16", "uint8")

Router = tuple[str, int]
"""(module path, how manieth of its call)."""


@dataclass(frozen=True, eq=False)
class Decided:
    """What was decided in one call."""

    call: ModuleCall
    experts: KeyedRows
    weights: KeptRows | None
    scores: KeptRows | None


def routing_of(
    a: Policy, b: Policy, names: Iterable[tuple[str, str]], selectors: tuple[Selector, Selector] = (DEFAULT, DEFAULT)
) -> tuple[tuple[Routing, ...], tuple[str, ...]]:
    """The routers of both sides compared, in the order in which A's first decided; and what could not be, and why.

    ``names``: (A's module path, B's) of modules that belong together.
    """
    of_a, of_b = _decided(a, selectors[0]), _decided(b, selectors[1])
    partners = dict(names)
    found, notes = [], []
    for router, own in of_a.items():
        other = of_b.get((partners.get(router[0], ""), router[1]))
        if other is None:
            notes.append(f"{_told(router)} chose experts in A only")
            continue
        compared = _compare(a, b, own, other, router)
        notes += [compared] if isinstance(compared, str) else []
        found += [compared] if isinstance(compared, Routing) else []
    met = {(partners.get(module, ""), nth) for module, nth in of_a}
    notes += [f"{_told(router)} chose experts in B only" for router in of_b if router not in met]
    return tuple(found), tuple(notes)


def _decided(side: Policy, selector: Selector) -> Mapping[Router, Sequence[Decided]]:
    """Every decision that the selector finds, by router, in the order in which they were made."""
    made = list(_by_ops(side, selector))
    rows = [row for row, _ in made]
    for call in side.stretch.calls:  # an op tells more than what its module gave: the scores are among its inputs
        at = bisect_left(rows, call.first_row)
        if finds_call(selector, side.stretch, call) and not (at < len(rows) and rows[at] < call.end_row):
            outputs = [rows for rows in side.keying.of(call) if rows.tensor.part is Part.OUTPUT]
            decided = _decision(call, outputs)
            made += [] if decided is None else [(call.end_row, decided)]
    found: dict[Router, list[Decided]] = {}
    counts: dict[int, int] = {}
    for _, decided in sorted(made, key=lambda one: one[0]):
        nth = counts[decided.call.number] = counts.get(decided.call.number, -1) + 1
        found.setdefault((decided.call.module, nth), []).append(decided)
    return found


def _by_ops(side: Policy, selector: Selector) -> Iterator[tuple[int, Decided]]:
    """(row, decision) of each op that chose some of more."""
    stretch = side.stretch
    for row, _ in ops_in(stretch, selector):
        call = around(stretch, row)
        decided = None if call is None else _decision(call, side.keying.of_op(call, stretch.ops[row]))
        if decided is not None and decided.scores is not None:
            yield row, decided


def _decision(call: ModuleCall, found: Sequence[Keyed]) -> Decided | None:
    """The experts are whole numbers, several a row; their weights as many numbers, in the same shape; the scores more
    numbers for as many rows, of a result rather than of an input."""
    experts = next(
        (
            rows
            for rows in found
            if isinstance(rows, KeyedRows) and rows.tensor.part is Part.OUTPUT and rows.tensor.dtype in WHOLE
        ),
        None,
    )
    if experts is None or not experts.tensor.shape or experts.parts.shape[1] != 1:
        return None
    shape = experts.tensor.shape
    floats = [rows.tensor for rows in found if rows.tensor.dtype in FLOATS and rows.tensor.shape]
    floats.sort(key=lambda tensor: tensor.part is Part.INPUT)
    weights = next((t for t in floats if t.part is Part.OUTPUT and t.shape == shape), None)
    scores = next((t for t in floats if t.shape[:-1] == shape[:-1] and t.shape[-1] > shape[-1]), None)
    return Decided(call, experts.of_known(), weights, scores)


def _compare(a: Policy, b: Policy, own: Sequence[Decided], other: Sequence[Decided], router: Router) -> Routing | str:
    table_a = table_of([(one.call, one.experts) for one in own], a.ranks)
    table_b = table_of([(one.call, one.experts) for one in other], b.ranks)
    pairs = pair(table_a, table_b)
    if not len(pairs.a):
        return f"{_told(router)}: no token has a decision on both sides"
    read_a, read_b = _Reader(a, own, table_a, pairs.a), _Reader(b, other, table_b, pairs.b)
    experts_a, experts_b = read_a.experts, read_b.experts
    if experts_a is None or experts_b is None:
        side = "A" if experts_a is None else "B"
        equal = int((table_a.digests[pairs.a] == table_b.digests[pairs.b]).sum())
        return (
            f"{_told(router)}: {equal:,} of {len(pairs.a):,} decisions are equal, order included; which of the "
            f"others flipped is unknown, as {side} has no values of the experts (record it with --values as well)"
        )
    if experts_a.shape[1] != experts_b.shape[1]:
        return f"{_told(router)}: A chooses {experts_a.shape[1]} experts and B {experts_b.shape[1]}"
    tokens = b.tokens_at(table_b)[pairs.b]
    ids = np.where(tokens == NONE, NONE, b.tokens.ids[tokens]).tolist()
    return compare_decisions(
        router[0],
        Decisions(experts_a, read_a.weights, read_a.scores),
        Decisions(experts_b, read_b.weights, read_b.scores),
        b.tokens.words(tokens),
        [None if token == NONE else token for token in ids],
        module_b=other[0].call.module,
        nth=router[1],
        only_a=len(pairs.only_a),
        only_b=len(pairs.only_b),
    )


class _Reader:
    """The values of the decisions of one side that were paired, a row each."""

    def __init__(self, side: Policy, decided: Sequence[Decided], table: Table, at: Numbers) -> None:
        self._side = side
        self._table = table
        self._at = at
        experts = self._read([one.experts.tensor for one in decided])
        self.experts: NDArray[np.int64] | None = None if experts is None else experts.astype(np.int64)
        self.weights = self._numbers([one.weights for one in decided])
        self.scores = self._numbers([one.scores for one in decided])

    def _numbers(self, tensors: Sequence[KeptRows | None]) -> NDArray[np.float64] | None:
        found = self._read(tensors)
        return None if found is None else found.astype(np.float64)

    def _read(self, tensors: Sequence[KeptRows | None]) -> NDArray[np.generic] | None:
        """[pairs, length of a row], a tensor for each source of the table; None: one that is needed was not kept."""
        found: NDArray[np.generic] | None = None
        source = self._table.source[self._at]
        for number in np.unique(source).tolist():
            tensor = tensors[number]
            whole = None if tensor is None else self._side.stretch.numbers(tensor)
            if tensor is None or whole is None:
                return None
            rows = flat_rows(tensor, whole)
            if found is None:
                found = np.zeros((len(self._at), rows.shape[1]), rows.dtype)
            if rows.shape[1] != found.shape[1]:
                return None
            own = np.flatnonzero(source == number)
            _, keyed = self._table.sources[number]
            found[own] = rows[keyed.parts[self._table.at[self._at[own]], 0]]
        return found


def _told(router: Router) -> str:
    module, nth = router
    return module if nth == 0 else f"{module} ({nth + 1})"
