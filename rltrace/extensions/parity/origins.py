"""Origins: the modules whose inputs agree and whose outputs differ, and the op within them.

Owns which modules are origins: none whose submodule is one, but also those whose own ops diverge between submodules
(attention between its projections). Positions, masks or ids that the programs hand in come before what modules make of
them. Where no module's outputs diverge first, the origin is the module around the first inputs that differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.model import Pair
from rltrace.errors import HoleError
from rltrace.extensions.parity.call_range import CallRange
from rltrace.extensions.parity.distances import Counted, calls_of, describe_row
from rltrace.extensions.parity.matching.row_keying import Keying
from rltrace.extensions.parity.matching.row_pairs import LAST, KeyedTable
from rltrace.extensions.parity.model import ModuleOrigin, Reason
from rltrace.extensions.parity.module_pairs import PairedTensor
from rltrace.extensions.parity.own_ops import (
    ATTENTION,
    WHOLE_NUMBERS,
    FirstOp,
    OwnOp,
    first_op,
    ops_leading_to,
    ops_of_module,
    own_ops,
)
from rltrace.extensions.parity.token_keys import Keys, Numbers
from rltrace.trace.format.activation_rows import ModuleCall, Part

# --- origins ----------------------------------------------------------------------------------------------------------


EPSILONS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""From 1 to the next number."""
MAX_EPSILONS = 1000.0
"""Largest distance, in epsilons and relative to the largest number of a row, that another order of sums explains …"""
MAX_SHARE = 0.1
"""… but at most this, in dtypes of few digits."""


def origins_of(modules: Sequence[Counted], a: Keying, b: Keying, ranks: Numbers) -> list[ModuleOrigin]:
    """The origins, the first one first. ``modules`` in the order in which they ended."""
    candidates = {counted.result.path.a: counted for counted in modules if len(counted.diverging)}
    below = _submodules(a.call_range)
    found: list[tuple[int, bool, ModuleOrigin]] = []
    for path, counted in candidates.items():
        within = below.get(str(path), frozenset())
        inside = [one for one in modules if (name := str(one.result.path.a)) in within or name.startswith(f"{path}.")]
        # attention before the projection after it
        inside.sort(key=lambda one: one.result.path.a != f"{path}.{ATTENTION}")
        given = _given_otherwise(counted, inside)
        blocked = any(other.result.path.a in candidates for other in inside)
        if not blocked or (given is not None and given.tensor.dtype.b not in WHOLE_NUMBERS):
            own = counted if given is None else replace(counted, diverging=given.rows)
            at = modules.index(counted if given is None else given.module)
            found.append((at, given is None, _origin(own, inside, given, modules, (a, b), ranks)))
    ordered = [origin for *_, origin in sorted(found, key=lambda one: one[:2])]
    given_first = _given_origin(modules, a, b)
    if given_first is not None:
        return [given_first, *(origin for origin in ordered if origin.path != given_first.path)]
    return ordered or _input_origins(modules, a, b, ranks)


def _submodules(call_range: CallRange) -> Mapping[str, frozenset[str]]:
    """For each module, the modules that are called within its calls, and those that are declared parts of it."""
    found: dict[str, set[str]] = {}
    for path, calls in call_range.modules.items():
        if call_range.own_path(path) != calls[0].module:
            found.setdefault(calls[0].module, set()).add(path)
    for call in call_range.calls:
        for above in call_range.around(call):
            if above.module != call.module:
                found.setdefault(above.module, set()).add(call.module)
    return {path: frozenset(inside) for path, inside in found.items()}


@dataclass(frozen=True, eq=False)
class _Given:
    """A module within another that is given something that differs, and that no module before it explains."""

    module: Counted
    tensor: PairedTensor
    at: int
    """The pair of the first such row."""
    names: str
    """Of all such tensors."""
    rows: Keys


def _origin(
    counted: Counted,
    inside: Sequence[Counted],
    given: _Given | None,
    modules: Sequence[Counted],
    sides: tuple[Keying, Keying],
    ranks: Numbers,
) -> ModuleOrigin:
    tensor, at = _first_row(counted)
    calls, path, (a, b) = calls_of(tensor, at), counted.result.path, sides
    diverging = tensor.b.keys[tensor.pairs.b[np.isin(tensor.pairs.ids, counted.diverging)]]
    if given is None or str(given.module.result.path.a).endswith(f".{ATTENTION}"):
        paths = {id(a): path.a, id(b): path.b}

        def of_module(side: Keying, call: ModuleCall) -> list[OwnOp]:
            return ops_of_module(side, call, paths[id(side)])

        found = first_op(a, calls[0], b, calls[1], ranks, diverging, of_module)
    else:
        found = _first_leading(given.tensor, given.at, modules, sides, ranks)
    first = _check_distance(found, counted)
    if given is not None:
        what = f"what {given.module.result.path.b} is given ({given.names})"
        first = replace(first, explanation=f"{what} differs already: {first.explanation}")
    counts = len(counted.diverging), counted.agreeing
    return _module_origin(path, counts, calls, (tensor, at), first, own=bool(inside))


def _given_otherwise(counted: Counted, inside: Sequence[Counted]) -> _Given | None:
    """The first module within ``counted`` that is given something that differs on rows that diverge, without those that
    come, in their sequence, at or after one at which a module before it diverges."""
    diverging = [other for other in inside if len(other.diverging)]
    for one in inside:
        before = [other for other in diverging if one.paired.tensors and _runs_before(other, one, counted)]
        found = []
        for tensor, equal in zip(one.paired.tensors, one.same, strict=True):
            at = np.flatnonzero(~equal & np.isin(tensor.pairs.ids, counted.diverging))
            at = at[~_explained(tensor, at, before)]
            found += [(tensor, at)] if tensor.part is Part.INPUT and len(at) else []
        if found:
            names = ", ".join(tensor.name.b or "its input" for tensor, _ in found)
            rows = np.unique(np.concatenate([tensor.pairs.ids[at] for tensor, at in found]))
            return _Given(one, found[0][0], int(found[0][1][0]), names, rows)
    return None


def _runs_before(one: Counted, other: Counted, around: Counted) -> bool:
    """Whether a module within ``around`` runs before another one there, or around it; True where it is not known, as of
    a point that is declared in the call around it."""
    if str(other.result.path.a).startswith(f"{one.result.path.a}."):
        return True
    for side in ("a", "b"):
        last = [getattr(each.paired.tensors[0], side).sources[-1] for each in (one, other, around)]
        calls, is_one_pass = [call for call, _ in last], len({id(rows.grid) for _, rows in last}) == 1
        if is_one_pass and calls[1] is not calls[2]:
            return bool(calls[0].first_row < calls[1].first_row)
    return True


def _explained(tensor: PairedTensor, at: Numbers, before: Sequence[Counted]) -> NDArray[np.bool_]:
    """Which of these pairs come at or after a row, in their sequence, at which one of these modules diverges."""
    sequences, places = tensor.b.sequences[tensor.pairs.b[at]], tensor.b.places[tensor.pairs.b[at]]
    found = np.zeros(len(at), bool)
    for other in before:
        found |= np.isin(tensor.pairs.ids[at], other.diverging)
        for output in other.paired.of(Part.OUTPUT):
            rows = output.pairs.b[np.isin(output.pairs.ids, other.diverging)]
            known = rows[output.b.sequences[rows] >= 0]
            first = np.full(max(sequences.max(initial=0), output.b.sequences[known].max(initial=0)) + 1, LAST)
            np.minimum.at(first, output.b.sequences[known], output.b.places[known])
            found |= (sequences >= 0) & (places >= first[sequences])
    return found


def _first_leading(
    tensor: PairedTensor, at: int, modules: Sequence[Counted], sides: tuple[Keying, Keying], ranks: Numbers
) -> FirstOp:
    """The first op whose rows differ since the last module with a partner that ran before on both sides, in whatever
    module, up to those that made an input."""
    calls, recorded = calls_of(tensor, at), []
    for table, row in ((tensor.a, tensor.pairs.a[at]), (tensor.b, tensor.pairs.b[at])):
        recorded.append(table.sources[table.source[row]][1].tensor)
    since: tuple[ModuleCall | None, ModuleCall | None] = None, None
    for one in modules:
        for output in one.paired.of(Part.OUTPUT):
            ended = _last_before(sides[0], output.a, calls[0]), _last_before(sides[1], output.b, calls[1])
            if ended[0] and ended[1] and (since[0] is None or ended[0].end_row > since[0].end_row):
                since = ended
    of = {id(side): (k, recorded[k]) for k, side in enumerate(sides)}
    diverging = tensor.b.keys[tensor.pairs.b[at : at + 1]]

    def leading(side: Keying, call: ModuleCall) -> list[OwnOp]:
        number, own = of[id(side)]
        return ops_leading_to(side, call, since[number], own)

    return first_op(sides[0], calls[0], sides[1], calls[1], ranks, diverging, leading)


def _last_before(keying: Keying, table: KeyedTable, call: ModuleCall) -> ModuleCall | None:
    """The last call that returned rows of a table and ended before another call of the same forward pass."""
    grid = keying.grid(call)
    own = (one for one, rows in table.sources if rows.grid is grid and one.end_row <= call.first_row)
    return max(own, key=lambda one: one.end_row, default=None)


def _module_origin(
    path: Pair[str],
    counts: tuple[int, int],
    calls: tuple[ModuleCall, ModuleCall],
    place: tuple[PairedTensor, int],
    first: FirstOp,
    *,
    own: bool,
) -> ModuleOrigin:
    row = describe_row(place[0].b, int(place[0].pairs.b[place[1]]))
    numbers = Pair(calls[0].number, calls[1].number)
    return ModuleOrigin(path, *counts, numbers, row, own, first.op, first.several, first.reason, first.explanation)


def _check_distance(first: FirstOp, counted: Counted) -> FirstOp:
    """``first``, unless its reason is another shape and the distance exceeds that of another order of sums."""
    share, outputs = counted.share, counted.result.outputs
    dtype = outputs[0].dtype.b if outputs else None
    if first.reason is not Reason.SHAPE or share is None or dtype not in EPSILONS:
        return first
    if share <= min(MAX_EPSILONS * EPSILONS[dtype], MAX_SHARE):
        return first
    if counted.paired.fused:
        because = f"{first.explanation}; one side has fused it with other modules, so its weights are not compared"
        return replace(first, reason=Reason.UNKNOWN, explanation=because)
    because = (
        f"{first.explanation}. {share:.0%} of the largest number is more than the order of sums explains: what else it "
        "computes with (a mask, a cache, other rows of the batch) probably differs"
    )
    return replace(first, reason=Reason.BESIDE, explanation=because)


def _first_row(counted: Counted) -> tuple[PairedTensor, int]:
    """(output, index of the pair) of the first row of B that diverges."""
    for tensor, equal in zip(counted.paired.tensors, counted.same, strict=True):
        at = np.flatnonzero(np.isin(tensor.pairs.ids, counted.diverging) & ~equal)
        if tensor.part is Part.OUTPUT and len(at):
            return tensor, int(at[0])
    raise AssertionError  # a row diverges because an output of it differs


# --- inputs that differ before any output -----------------------------------------------------------------------------


def _given_origin(modules: Sequence[Counted], a: Keying, b: Keying) -> ModuleOrigin | None:
    """The first module that is given other integers (positions, a mask, ids) for a token of which nothing differed
    before: so they are none that the model computed, such as the experts of a router.
    """
    by_path = {str(counted.result.path.a): counted for counted in modules}
    differing: set[int] = set()
    seen: set[tuple[str, Part]] = set()
    for call, part in a.call_range.moments:
        counted = by_path.get(call.module)
        if counted is None or (call.module, part) in seen:
            continue
        seen.add((call.module, part))
        for tensor, equal in zip(counted.paired.tensors, counted.same, strict=True):
            if tensor.part is not part:
                continue
            own = np.flatnonzero(~equal)
            rows = [at for at in own.tolist() if int(tensor.b.keys[tensor.pairs.b[at]]) not in differing]
            if part is Part.INPUT and rows and tensor.dtype.a in WHOLE_NUMBERS and tensor.dtype.b in WHOLE_NUMBERS:
                return _given(counted, tensor, rows[0], len(rows), a, b)
            differing.update(tensor.b.keys[tensor.pairs.b[own]].tolist())
    return None


def _given(counted: Counted, tensor: PairedTensor, at: int, rows: int, a: Keying, b: Keying) -> ModuleOrigin:
    calls, path = calls_of(tensor, at), counted.result.path
    try:
        ops = Pair(*(next((op.op for op in own_ops(*each)), None) for each in zip((a, b), calls, strict=True)))
    except HoleError:
        ops = Pair(None, None)
    text = f"{tensor.name.b or 'the input'} of {path.b} differs between the two sides, for the same tokens"
    first = FirstOp(ops, (), Reason.INPUTS, text)
    return _module_origin(path, (rows, len(tensor.pairs.ids)), calls, (tensor, at), first, own=False)


def _input_origins(modules: Sequence[Counted], a: Keying, b: Keying, ranks: Numbers) -> list[ModuleOrigin]:
    """The first inputs that differ, where no module's outputs differ before them."""
    by_path = {str(counted.result.path.a): counted for counted in modules}
    for path in dict.fromkeys(call.module for call in a.call_range.calls):
        counted = by_path.get(path)
        if counted is None:
            continue
        for tensor, equal in zip(counted.paired.tensors, counted.same, strict=True):
            differing = np.flatnonzero(~equal)
            if tensor.part is Part.INPUT and len(differing):
                place = tensor, int(differing[0])
                return [_input_origin(counted, place, len(differing), modules, (a, b), ranks)]
    return []


def _input_origin(
    counted: Counted,
    place: tuple[PairedTensor, int],
    rows: int,
    modules: Sequence[Counted],
    sides: tuple[Keying, Keying],
    ranks: Numbers,
) -> ModuleOrigin:
    (tensor, at), (a, b) = place, sides
    calls, counts = calls_of(tensor, at), (rows, len(tensor.pairs.ids))
    outer = a.call_range.parent(calls[0]), b.call_range.parent(calls[1])
    name, path = tensor.name.b or "its input", counted.result.path
    if outer[0] is None or outer[1] is None:
        grid = b.grid(calls[1])
        text = f"{name} of {path.b}, which the program passes in, differs between the two sides"
        if grid is not None and grid.ids is not None and tensor.dtype.b not in WHOLE_NUMBERS:
            text = f"{name} of {path.b} differs already, and what computes it is not compared"
        first = FirstOp(Pair(None, None), (), Reason.INPUTS, text)
        return _module_origin(path, counts, calls, place, first, own=False)
    first = _first_leading(tensor, at, modules, sides, ranks)
    first = replace(first, explanation=f"{name}, which it passes to {path.b}, already differs: {first.explanation}")
    return _module_origin(Pair(outer[0].module, outer[1].module), counts, (outer[0], outer[1]), place, first, own=True)
