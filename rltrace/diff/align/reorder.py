"""Reordered rows: ops of one call site that run in another order, which is no difference of values.

A program that iterates over a set of strings runs the same ops in another order in every process. Matched by
occurrence, each would seem to compute something else. Owns the test for a *pure* permutation: at one site and op, the
rows that differ compute the same results on both sides, each equally often, from matched producers. Where one of them
changed as well, the others show which one it was. Otherwise the alignment stays as it is.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.align.blocks import WINDOW_ROWS
from rltrace.diff.align.rows import Alignment
from rltrace.diff.base.row_diff import candidates, difference
from rltrace.diff.base.sequences import Indices, Tokens, codes_of, longest_increasing, match_nth
from rltrace.diff.base.tokens import mix, values_of
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.errors import HoleError
from rltrace.trace.format.row_hashes import DIGESTS, AnyOrder, cell_sums, input_digests
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind, RowFlag

# --- marked rows ------------------------------------------------------------------------------------------------------
#
# Marked rows that were reordered. Their digests may cover uninitialised memory, so they are matched by their producers:
# a replay buffer from ``empty`` may be filled key by key in the order of a set, and matched by position, the write of
# one key would seem to be that of another.


InputKeys = tuple[tuple[int, int], ...]
"""The token of its content, and for every input, B's row that wrote it (or the kind of origin) and the number of that
row's output."""

GroupedPairs = tuple[Indices, Indices, Indices]
"""Rows of A, rows of B, and the group of each pair; a group is accepted or rejected as a whole."""

MAX_MARKED = 20_000
"""Marked rows of a window; with more, they stay matched by position."""

BEFORE, NO_PARTNER = -(1 << 40), -(1 << 50)
"""Offset of rows before the ranges, and the value for a row without a partner; neither is a row or a kind of origin."""

ROUNDS = 16
"""Iterations in which a new match of one marked row changes those of marked rows that read what it wrote."""


def rematch_marked(a: RowRange, b: RowRange, alignment: Alignment, partner: Indices, groups: int) -> GroupedPairs:
    """New pairs of marked rows with the same inputs; ``partner``: B's rows by A's, -1 where not known.

    All rows of one site, op and computation are matched anew, or none. Groups are numbered from ``groups`` on.
    """
    none = np.empty(0, np.int64)
    flags = a.flags(RowFlag.MARKED)[alignment.a] & b.flags(RowFlag.MARKED)[alignment.b]
    at_a, at_b = alignment.a[flags], alignment.b[flags]
    if not len(at_a) or len(at_a) > MAX_MARKED:
        return none, none, none
    partner, own = partner.copy(), np.arange(len(b), dtype=np.int64)
    place_a, place_b, count = codes_of(_places(a, at_a), _places(b, at_b))
    found: dict[int, tuple[Indices, Indices]] = {}
    for _ in range(ROUNDS):
        changed = False
        for place in np.flatnonzero(_is_doubtful(a, at_a, b, at_b, partner, place_a, count)).tolist():
            rows_a, rows_b = at_a[place_a == place], at_b[place_b == place]
            matched = _match_by_inputs(
                [_input_keys(a, int(i), partner) for i in rows_a],
                [_input_keys(b, int(j), own) for j in rows_b],
            )
            if matched is not None and not np.array_equal(partner[rows_a], rows_b[matched]):
                partner[rows_a] = rows_b[matched]
                found[place] = rows_a, rows_b[matched]
                changed = True
        if not changed:
            break
    if not found:
        return none, none, none
    sizes = [len(rows) for rows, _ in found.values()]
    numbers = np.repeat(np.arange(groups, groups + len(sizes)), sizes)
    return (*(np.concatenate(rows) for rows in zip(*found.values(), strict=True)), numbers)  # type: ignore[return-value]


def _places(stretch: RowRange, at: Indices) -> NDArray[np.uint64]:
    """Site, op and computation of some rows, as one token each."""
    return mix(stretch.tokens.identity[at], stretch.tokens.computation[at])


def _is_doubtful(
    a: RowRange, at_a: Indices, b: RowRange, at_b: Indices, partner: Indices, place: Indices, count: int
) -> NDArray[np.bool_]:
    """Which sites have a pair whose inputs differ under these partners."""
    own = np.arange(len(b), dtype=np.int64)
    pairs = zip(at_a.tolist(), at_b.tolist(), strict=True)
    unequal = np.array([_input_keys(a, i, partner) != _input_keys(b, int(j), own) for i, j in pairs])
    doubtful = np.zeros(count, dtype=bool)
    doubtful[place[unequal]] = True
    return doubtful


def _input_keys(stretch: RowRange, i: int, partner: Indices) -> InputKeys:
    outside = [(int(stretch.tokens.content[i]), 0)]  # the numbers among its arguments; not what a marked row digested
    for link in stretch.rows.inputs(i):
        target, row = i - link.distance, link.distance
        if row > 0 and target >= 0:
            row = int(partner[target]) if partner[target] >= 0 else NO_PARTNER
        elif row > 0:
            row = BEFORE + target  # the ranges begin at matched rows
        outside.append((row, -1 if link.slot is None else link.slot))
    return tuple(outside)


def _match_by_inputs(a: list[InputKeys], b: list[InputKeys]) -> Indices | None:
    """For each of ``a`` the place in ``b`` with the same inputs, by occurrence; None: one of them has no partner."""
    places: dict[InputKeys, deque[int]] = defaultdict(deque)
    for place, outside in enumerate(b):
        places[outside].append(place)
    found = [places[outside].popleft() if places[outside] else -1 for outside in a]
    return None if -1 in found else np.array(found, np.int64)


# --- reorder ----------------------------------------------------------------------------------------------------------


Place = tuple[int, int, int]
"""First row of A, first row of B, number of rows of either side."""


def reordered_rows(view_a: StreamView, view_b: StreamView, place: Place) -> Alignment | None:
    """Alignment of a step that holds the same rows in another order, by the hashes of its order-independent digest.

    None where its rows cannot be read, or are too many for a window.
    """
    a0, b0, count = place
    if count > WINDOW_ROWS:
        return None
    try:
        a, b = view_a.read(a0, a0 + count), view_b.read(b0, b0 + count)
    except HoleError:
        return None
    at_a, at_b = match_nth(_order_free_hashes(a), _order_free_hashes(b))
    if len(at_a) != count:
        return None
    moved = np.ones(len(at_a), dtype=bool)
    moved[longest_increasing(at_b)] = False
    return Alignment(count, count, at_a, at_b, moved, None)


def partners_of(view_a: StreamView, view_b: StreamView, place: Place) -> Indices:
    """Rows of B's stream that match the rows of such a step of A; -1: not known."""
    partner = np.full(place[2], -1, np.int64)
    found = reordered_rows(view_a, view_b, place)
    if found is not None:
        partner[found.a] = place[1] + found.b
    return partner


def _order_free_hashes(step: RowRange) -> Tokens:
    return AnyOrder(step.first).advance(step.rows, step.hashes, []).hashes


def match_reordered(a: RowRange, b: RowRange, alignment: Alignment) -> Alignment:
    """``alignment`` with reordered rows matched by what they compute, and flagged as moved."""
    return _match_around_change(a, b, _match_permuted(a, b, alignment))


def _match_permuted(a: RowRange, b: RowRange, alignment: Alignment) -> Alignment:
    """``alignment`` with the rows of every pure permutation matched by what they compute."""
    unequal = _unequal(a, b, alignment)
    rows_a = np.sort(np.concatenate([alignment.a[unequal], alignment.only_a]))
    rows_b = np.sort(np.concatenate([alignment.b[unequal], alignment.only_b]))
    if not len(rows_a) or not len(rows_b):
        return alignment
    at_a, at_b, group = _permuted(a, b, rows_a, rows_b, _call_tokens(a, b))
    if not len(at_a) or len(at_a) > MAX_MARKED:
        return alignment
    more = rematch_marked(a, b, alignment, _partners(alignment, at_a, at_b), int(group.max()) + 1)
    again = np.isin(at_a, more[0]) | np.isin(at_b, more[1])
    sites = a.tokens.identity[at_a[again]]
    at_a, at_b, group = (np.concatenate([x[~again], y]) for x, y in zip((at_a, at_b, group), more, strict=True))
    # Some rows of a site are matched by what they compute, and others by what they read: all count as one group then.
    mixed = np.isin(a.tokens.identity[at_a], sites)
    group[mixed] = -1 - np.unique(a.tokens.identity[at_a[mixed]], return_inverse=True)[1]
    keep = _with_matching_producers(a, b, alignment, (at_a, at_b, group))
    return _rematched(alignment, at_a[keep], at_b[keep]) if keep.any() else alignment


def _unequal(a: RowRange, b: RowRange, alignment: Alignment) -> NDArray[np.bool_]:
    """Which pairs differ, whatever row reads a tensor first in a step and so has its digest."""
    unequal = candidates(a, alignment.a, b, alignment.b)
    same = a.tokens.content[alignment.a] == b.tokens.content[alignment.b]
    for k in np.flatnonzero(unequal & same)[:MAX_MARKED].tolist():
        unequal[k] = difference(a, int(alignment.a[k]), b, int(alignment.b[k])).found
    return unequal


def _permuted(
    a: RowRange, b: RowRange, rows_a: Indices, rows_b: Indices, calls: tuple[Tokens, Tokens]
) -> tuple[Indices, Indices, Indices]:
    """Pairs by content, and their groups, of every site and op whose differing rows compute the same on both sides."""
    place_a, place_b, count = codes_of(calls[0][rows_a], calls[1][rows_b])
    counts_a, counts_b = np.bincount(place_a, minlength=count), np.bincount(place_b, minlength=count)
    of_module = calls[0] != a.tokens.identity
    fits = (counts_a == counts_b) & ((counts_a > 1) | np.isin(np.arange(count), place_a[of_module[rows_a]]))
    keep_a, keep_b = fits[place_a], fits[place_b]
    rows_a, rows_b, place_a, place_b = rows_a[keep_a], rows_b[keep_b], place_a[keep_a], place_b[keep_b]
    content_a, content_b = _results(a)[rows_a], _results(b)[rows_b]
    order_a = np.lexsort((rows_a, a.tokens.structure[rows_a], content_a, place_a))
    order_b = np.lexsort((rows_b, b.tokens.structure[rows_b], content_b, place_b))
    wrong = place_a[order_a][content_a[order_a] != content_b[order_b]]
    right = ~np.isin(place_a[order_a], wrong)
    return rows_a[order_a][right], rows_b[order_b][right], place_a[order_a][right]


def _call_tokens(a: RowRange, b: RowRange) -> tuple[Tokens, Tokens]:
    """A token of each row's call: its site and op; and its module, where both sides call them in the same modules, each
    equally often. Such calls are not one another's, whatever they compute."""
    identity = a.tokens.identity, b.tokens.identity
    own = [
        mix(tokens, stretch.view.keys("modules", stretch.rows.column(Column.MODULE)))
        for tokens, stretch in zip(identity, (a, b), strict=True)
    ]
    code_a, code_b, count = codes_of(*own)
    unlike = np.bincount(code_a, minlength=count) != np.bincount(code_b, minlength=count)
    mixed = np.concatenate([identity[0][unlike[code_a]], identity[1][unlike[code_b]]])
    tokens = [np.where(np.isin(site, mixed), site, call) for site, call in zip(identity, own, strict=True)]
    return tokens[0], tokens[1]


def _results(stretch: RowRange) -> Tokens:
    """What each row computes, whatever row reads outside data first and so has its digest."""
    return mix(stretch.tokens.computation, values_of(stretch.rows, outside=False))


Candidates = tuple[Indices, Indices, Indices]


@dataclass(frozen=True)
class _Inputs:
    """Rows, and for each of their links the digest of its bytes, whatever row read them first."""

    rows: Rows
    known: NDArray[np.bool_]
    digests: NDArray[np.uint64]


def _with_matching_producers(a: RowRange, b: RowRange, alignment: Alignment, pairs: Candidates) -> np.ndarray:
    """Which pairs read what matched rows wrote; a group is accepted or rejected as a whole."""
    at_a, at_b, group = pairs
    inputs_a, inputs_b = _Inputs(a.rows, *input_digests(a.rows)), _Inputs(b.rows, *input_digests(b.rows))
    keep = np.ones(len(at_a), dtype=bool)
    for _ in range(ROUNDS):
        partner = _partners(alignment, at_a[keep], at_b[keep])
        bad = {
            int(group[k])
            for k in np.flatnonzero(keep).tolist()
            if not _producers_match(inputs_a, int(at_a[k]), inputs_b, int(at_b[k]), partner)
        }
        if not bad:
            return keep
        keep &= ~np.isin(group, list(bad))
    return np.zeros(len(at_a), dtype=bool)


def _partners(alignment: Alignment, at_a: Indices, at_b: Indices) -> Indices:
    """B's rows by A's (-1: none), with these pairs in place of those of the alignment."""
    partner = np.full(alignment.rows_a, -1, dtype=np.int64)
    partner[alignment.a] = alignment.b
    partner[at_a] = at_b
    return partner


def _producers_match(a: _Inputs, i: int, b: _Inputs, j: int, partner: Indices) -> bool:
    first_a, first_b = int(a.rows.link_offsets[i]), int(b.rows.link_offsets[j])
    for k, (x, y) in enumerate(zip(a.rows.inputs(i), b.rows.inputs(j), strict=False)):
        if a.known[first_a + k] and b.known[first_b + k]:
            if a.digests[first_a + k] == b.digests[first_b + k]:
                continue
            if not a.rows.flags(i) & RowFlag.MARKED:  # else it may have read uninitialised memory
                return False
        if x.distance <= 0 or y.distance <= 0:
            continue
        target_a, target_b = i - x.distance, j - y.distance
        if target_a >= 0 and target_b >= 0:
            if partner[target_a] != target_b:
                return False
        elif target_a != target_b and not a.rows.flags(i) & RowFlag.VIEW:
            return False  # before the ranges, which begin at matched rows
    return True


def _rematched(alignment: Alignment, at_a: Indices, at_b: Indices) -> Alignment:
    unchanged = ~np.isin(alignment.a, at_a) & ~np.isin(alignment.b, at_b)
    new_a, new_b = np.concatenate([alignment.a[unchanged], at_a]), np.concatenate([alignment.b[unchanged], at_b])
    moved = np.concatenate([alignment.moved[unchanged], np.ones(len(at_a), dtype=bool)])
    order = np.argsort(new_a)
    return Alignment(alignment.rows_a, alignment.rows_b, new_a[order], new_b[order], moved[order], alignment.unsure)


# --- a change within a permutation ------------------------------------------------------------------------------------
#
# Reordered rows of which some also changed: the iterations of a loop over a set, one of them with another argument.
# Rows that compute the same from the same inputs are matched; where several do, and where one changed, neighbours of
# matched rows are. The first row of A whose partner computes something else is the difference; others follow from it.


GAP = 16
"""Unmatched rows between a matched row and one that is matched as its neighbour."""


@dataclass(frozen=True, eq=False)
class _Calls:
    """Rows as calls of an op from a site, wherever they are in the order; a token each, shape [n]."""

    site: Tokens
    reads: Tokens
    """The op and the bytes of the inputs, as far as they are known."""
    inputs: Tokens
    """Site, op and the bytes of the inputs, as far as they are known."""
    whole: Tokens
    """The same with what it computed."""

    @staticmethod
    def of(stretch: RowRange, site: Tokens) -> _Calls:
        results = mix(site, _results(stretch))
        reads = _input_tokens(stretch, results)
        inputs = mix(site, reads)
        return _Calls(site, mix(stretch.tokens.operator, reads), inputs, mix(results, inputs))


def _input_tokens(stretch: RowRange, results: Tokens) -> Tokens:
    """The inputs of each row: their bytes where a row of the range digested them, else the results of their writer."""
    rows = stretch.rows
    owner = np.repeat(np.arange(len(rows)), np.diff(rows.link_offsets))
    distance = rows.links >> 12
    writer = owner - distance
    cells = np.where(distance > 0, BEFORE + writer, distance).view(np.uint64)
    inside = np.flatnonzero((distance > 0) & (writer >= 0))
    cells[inside] = mix(results[writer[inside]], ((rows.links[inside] >> 1) & 0x7FF).view(np.uint64))
    known, digests = input_digests(rows)
    known &= ~stretch.flags(RowFlag.MARKED)[owner]
    cells[known] = digests[known]
    return cell_sums(cells, rows.link_offsets, DIGESTS)


class _Partners:
    """B's rows by A's, matched one after the other."""

    def __init__(self, rows_a: int, rows_b: int) -> None:
        self.of = np.full(rows_a, -1, np.int64)
        """-1: none."""
        self.free = np.ones(rows_b, dtype=bool)

    def add(self, at_a: Indices, at_b: Indices) -> None:
        """Match these pairs of rows that are not matched yet."""
        new = (self.of[at_a] < 0) & self.free[at_b]
        self.of[at_a[new]] = at_b[new]
        self.free[at_b[new]] = False

    def add_equal(self, a: Tokens, b: Tokens, *, once: bool = False) -> None:
        """Match rows with equal tokens by occurrence; ``once``: only those whose token either side has once."""
        at_a, at_b = np.flatnonzero(self.of < 0), np.flatnonzero(self.free)
        if once:
            code_a, code_b, count = codes_of(a[at_a], b[at_b])
            single = (np.bincount(code_a, minlength=count) == 1) & (np.bincount(code_b, minlength=count) == 1)
            at_a, at_b = at_a[single[code_a]], at_b[single[code_b]]
        places = match_nth(a[at_a], b[at_b])
        self.add(at_a[places[0]], at_b[places[1]])

    def add_neighbours(self, a: Tokens, b: Tokens) -> None:
        """Match rows with equal tokens after the same matched row, then before; at most ``GAP`` others between."""
        of, free, own, other = self.of.tolist(), self.free.tolist(), a.tolist(), b.tolist()
        for step, order, last in ((1, range(len(of)), -1), (-1, range(len(of) - 1, -1, -1), len(free))):
            for i in order:
                if of[i] < 0:
                    found = next((j for j in _gap(free, last, step) if own[i] == other[j]), None)
                    if found is None:
                        continue
                    of[i], free[found] = found, False
                last = of[i]
        self.of, self.free = np.array(of, np.int64), np.array(free, dtype=bool)

    def alignment(self) -> Alignment:
        at_a = np.flatnonzero(self.of >= 0)
        moved = np.ones(len(at_a), dtype=bool)
        moved[longest_increasing(self.of[at_a])] = False
        return Alignment(len(self.of), len(self.free), at_a, self.of[at_a], moved, None)


def _gap(free: list[bool], last: int, step: int) -> Iterator[int]:
    """The places next to place ``last``, up to the first that is not free."""
    for j in range(last + step, last + step * (GAP + 2), step):
        if not 0 <= j < len(free) or not free[j]:
            return
        yield j


def _match_around_change(a: RowRange, b: RowRange, found: Alignment) -> Alignment:
    """``found``, or all rows matched anew where another order explains its first difference.

    That is a pair that reads what different rows computed, or an op of one site that each side has alone. A pair that
    reads the same stays the difference, whatever was reordered.
    """
    unequal = np.flatnonzero(_unequal(a, b, found))
    alone = found.only_a[np.isin(a.tokens.identity[found.only_a], b.tokens.identity[found.only_b])]
    if not found.sure or not (len(unequal) or len(alone)):
        return found
    if _is_event(a)[found.only_a].any() or _is_event(b)[found.only_b].any():
        return found  # after one more step of an environment, each row reads what the next one did
    calls = _call_tokens(a, b)
    own, other = _Calls.of(a, calls[0]), _Calls.of(b, calls[1])
    first = int(np.concatenate([found.a[unequal], alone]).min())
    if not (alone == first).any() and own.reads[first] == other.reads[found.b[unequal[0]]]:
        return found
    partners = _Partners(found.rows_a, found.rows_b)
    partners.add_equal(own.whole, other.whole, once=True)
    by_inputs = deepcopy(partners)
    by_inputs.add_equal(own.inputs, other.inputs, once=True)
    if not _has_moved(by_inputs, by_inputs.of >= 0):
        return found
    partners.add_neighbours(own.whole, other.whole)
    certain = (partners.of >= 0) & ~a.tokens.draws
    partners.add_equal(own.whole, other.whole)
    if a.tokens.draws[partners.of < 0].any() or b.tokens.draws[partners.free].any():
        return found  # after one more draw, each row computes what the next one did
    equal = np.delete(np.arange(len(found.a)), unequal)
    partners.add(found.a[equal], found.b[equal])
    partners.add_equal(own.inputs, other.inputs, once=True)
    before = partners.of
    partners.add_neighbours(own.site, other.site)
    near = (before < 0) & (partners.of >= 0)
    partners.add_equal(own.inputs, other.inputs)
    partners.add_equal(own.site, other.site, once=True)
    again = partners.alignment()
    unequal = np.flatnonzero(_unequal(a, b, again))
    end = int(again.a[unequal[0]]) if len(unequal) else again.rows_a
    if np.isin(own.site[again.only_a[again.only_a < end]], other.site[again.only_b]).any():
        return found  # which of these are one op is not known
    first = end if len(unequal) else first
    in_place = len(unequal) and (near[first] or own.inputs[first] == other.inputs[partners.of[first]])
    if not in_place and not _has_moved(partners, certain & (own.site == own.site[first])):
        return found  # with other data, too, rows compute what the next ones did
    partners.add(found.a, found.b)
    partners.add_equal(own.site, other.site)
    as_found = np.full(found.rows_a, -1, np.int64)
    as_found[found.a] = found.b
    if (partners.of != as_found)[_is_event(a)].any():
        return found  # an environment that steps otherwise: its steps are equal to others by chance
    return partners.alignment()


def _is_event(stretch: RowRange) -> NDArray[np.bool_]:
    """Of each row, whether it is none of an op."""
    return np.asarray(stretch.rows.column(Column.KIND) != Kind.OP)


def _has_moved(partners: _Partners, rows: NDArray[np.bool_]) -> bool:
    return bool((np.diff(partners.of[rows]) < 0).any())
