"""Reordered rows: ops of one call site that run in another order, which is no difference of values.

A program that iterates over a set of strings runs the same ops in another order in every process. Matched by
occurrence, each would seem to compute something else. Owns the test for a *pure* permutation: up to the first that
changed, the rows of one site and op compute the same results on both sides, each equally often, from what matched rows
wrote. Marked rows, whose digests may cover uninitialised memory, are matched by what they read alone: a replay buffer
from ``empty`` may be filled key by key in the order of a set. Where one of the rows changed as well, the others show
which one it was. Otherwise the alignment stays as it is.
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
from rltrace.diff.base.sequences import EMPTY, Indices, Tokens, codes_of, longest_increasing, match_nth, occurrences
from rltrace.diff.base.tokens import mix, values_of
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.errors import HoleError
from rltrace.trace.format.row_hashes import DIGESTS, AnyOrder, cell_sums, input_digests
from rltrace.trace.format.schema import SLOT_UNKNOWN, Column, Kind, RowFlag

GroupedPairs = tuple[Indices, Indices, Indices]
"""Rows of A, rows of B, and the group of each pair; a group is accepted or rejected as a whole."""

MAX_ROWS = 20_000
"""Rows of a window that may have changed places; later ones stay where they are."""

BEFORE, NO_PARTNER = -(1 << 40), -(1 << 50)
"""Offset of rows before the ranges, and the value for a row without a partner; neither is a row or a kind of origin."""

ROUNDS = 16
"""Iterations in which a rejected group takes others with it that read what its rows wrote."""


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
    at_a, at_b = match_nth(*(AnyOrder(step.first).advance(step.rows, step.hashes, []).hashes for step in (a, b)))
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


def match_reordered(a: RowRange, b: RowRange, alignment: Alignment) -> Alignment:
    """``alignment`` with reordered rows matched by what they compute, and flagged as moved."""
    return _match_around_change(a, b, _match_permuted(a, b, alignment))


def _match_permuted(a: RowRange, b: RowRange, alignment: Alignment) -> Alignment:
    """``alignment`` with the rows of every pure permutation matched by what they compute."""
    unequal = _unequal(a, b, alignment)
    differ = [np.append(alignment.a[unequal], alignment.only_a), np.append(alignment.b[unequal], alignment.only_b)]
    if not all(map(len, differ)):
        return alignment
    inputs = _Inputs(a, *input_digests(a.rows)), _Inputs(b, *input_digests(b.rows))
    at_a, at_b, group = _permuted(inputs, _reorderable(a, b, differ), _partners(alignment, EMPTY, EMPTY))
    if not len(at_a):
        return alignment
    keep = _exchanged(inputs, alignment, (at_a, at_b, group))
    return _rematched(alignment, at_a[keep], at_b[keep]) if keep.any() else alignment


def _unequal(a: RowRange, b: RowRange, alignment: Alignment) -> NDArray[np.bool_]:
    """Which pairs differ, whatever row reads a tensor first in a step and so has its digest."""
    unequal = candidates(a, alignment.a, b, alignment.b)
    same = a.tokens.content[alignment.a] == b.tokens.content[alignment.b]
    for k in np.flatnonzero(unequal & same)[:MAX_ROWS].tolist():
        unequal[k] = difference(a, int(alignment.a[k]), b, int(alignment.b[k])).found
    return unequal


def _permuted(
    inputs: tuple[_Inputs, _Inputs], sides: tuple[_Reorderable, _Reorderable], partner: Indices
) -> GroupedPairs:
    """Pairs of rows that compute the same from what matched rows wrote, and their groups.

    A group is a run of one call's rows that is as long on both sides and holds the same rows, before the first that
    changed: what follows that one is no permutation. ``partner``: B's rows by A's.
    """
    a, b = sides
    matched = _matched_in_order(inputs, sides, partner)
    order = np.lexsort((a.nth, a.call))
    call, nth = a.call[order], a.nth[order]
    far = len(a.rows) + len(b.rows) + 1
    reach = np.concatenate([b.nth, [far - 1]])[matched[order]] + call * far
    ends = np.maximum.accumulate(reach) == nth + call * far
    last = np.full(int(call.max(initial=-1)) + 1, -1, np.int64)
    np.maximum.at(last, call[ends], nth[ends])
    at = order[nth <= last[call]]
    at_a, at_b, group = a.rows[at], b.rows[matched[at]], (np.cumsum(ends) - ends)[nth <= last[call]]
    moved = np.isin(group, group[partner[at_a] != at_b])
    return at_a[moved], at_b[moved], group[moved]


@dataclass(frozen=True, eq=False)
class _Reorderable:
    """Rows of one side that may have changed places, in order; shape [n] each."""

    rows: Indices
    call: Indices
    nth: Indices
    """The number of rows of the call before it."""
    results: Tokens


def _reorderable(a: RowRange, b: RowRange, differ: list[Indices]) -> tuple[_Reorderable, _Reorderable]:
    """The rows of each call up to the first with results that the other side does not have; none at all where no row
    that differs is before that.

    ``differ``: the rows of either side that do. A marked row may have digested uninitialised memory: it is one of them,
    and has no results.
    """
    tokens = _call_tokens(a, b)
    call_a, call_b, count = codes_of(*tokens)
    marked = [stretch.flags(RowFlag.MARKED) for stretch in (a, b)]
    results = [
        mix(own, np.where(without, stretch.tokens.content, _results(stretch)))
        for own, stretch, without in zip(tokens, (a, b), marked, strict=True)
    ]
    calls, nths = (call_a, call_b), (occurrences(call_a), occurrences(call_b))
    first, end = np.full((2, count), len(a) + len(b), np.int64)
    for call, nth, rows, without, own, other in zip(calls, nths, differ, marked, results, results[::-1], strict=True):
        np.minimum.at(first, call[rows], nth[rows])
        np.minimum.at(first, call[without], nth[without])
        changed = ~np.isin(own, other)
        np.minimum.at(end, call[changed], nth[changed])
    end[:] = np.where((first < end).any(), end, 0)  # what reads moved rows may have moved, too, though it is equal
    found = []
    for call, nth, own in zip(calls, nths, results, strict=True):
        rows = np.flatnonzero(nth < end[call])[:MAX_ROWS]
        found.append(_Reorderable(rows, call[rows], nth[rows], own[rows]))
    return found[0], found[1]


def _matched_in_order(
    inputs: tuple[_Inputs, _Inputs], sides: tuple[_Reorderable, _Reorderable], partner: Indices
) -> Indices:
    """For each row of A the place of the next of B with its call, results and inputs; -1: none.

    One after the other, as what a row reads was written by rows before it.
    """
    (a, b), partner = sides, partner.copy()
    own = np.arange(len(inputs[1].stretch), dtype=np.int64)
    places: dict[tuple[int, InputCells], deque[int]] = defaultdict(deque)
    for place, (row, results) in enumerate(zip(b.rows.tolist(), b.results.tolist(), strict=True)):
        places[results, inputs[1].cells(row, own)].append(place)
    found = np.full(len(a.rows), -1, np.int64)
    for place, (row, results) in enumerate(zip(a.rows.tolist(), a.results.tolist(), strict=True)):
        if free := places.get((results, inputs[0].cells(row, partner))):
            found[place] = free.popleft()
            partner[row] = b.rows[found[place]]
    return found


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


InputCells = tuple[tuple[int, int], ...]
"""Of every input: the digest of its bytes where it is known, else B's row that wrote it and which output it is."""

_BYTES, _OUTSIDE = -1, -2
"""First numbers of a cell that names no output: its second one is a digest, or a kind of origin."""


@dataclass(frozen=True)
class _Inputs:
    """What rows read: of each link the digest of its bytes, whatever row read them first."""

    stretch: RowRange
    known: NDArray[np.bool_]
    digests: NDArray[np.uint64]

    def cells(self, i: int, partner: Indices) -> InputCells:
        """The inputs of row ``i``; ``partner``: B's rows by those of its side."""
        rows = self.stretch.rows
        first, stop = rows.link_offsets[i : i + 2].tolist()
        flags = int(rows.flags(i))
        found = []
        for k, link in enumerate(rows.links[first:stop].tolist(), first):
            distance = link >> 12
            if self.known[k] and not flags & RowFlag.MARKED:  # else it may have read uninitialised memory
                found.append((_BYTES, int(self.digests[k])))
            elif distance <= 0:
                found.append((_OUTSIDE, distance))
            elif distance <= i:
                writer = int(partner[i - distance])
                found.append((link >> 2 & SLOT_UNKNOWN, NO_PARTNER if writer < 0 else writer))
            else:  # before the ranges, which begin at matched rows
                found.append((_OUTSIDE, 0 if flags & RowFlag.VIEW else BEFORE + i - distance))
        return tuple(found)


def _exchanged(inputs: tuple[_Inputs, _Inputs], alignment: Alignment, pairs: GroupedPairs) -> NDArray[np.bool_]:
    """Which pairs read what matched rows wrote, and take no partner from a row that gets no other one.

    A group is accepted or rejected as a whole.
    """
    at_a, at_b, group = pairs
    own = np.arange(alignment.rows_b, dtype=np.int64)
    cells = [inputs[1].cells(j, own) for j in at_b.tolist()]
    touched = np.isin(alignment.a, at_a) | np.isin(alignment.b, at_b)
    before_a, before_b = alignment.a[touched], alignment.b[touched]
    keep = np.ones(len(at_a), dtype=bool)
    for _ in range(ROUNDS):
        partner = _partners(alignment, at_a[keep], at_b[keep])
        bad = np.zeros(len(at_a), dtype=bool)
        bad[[k for k in np.flatnonzero(keep).tolist() if inputs[0].cells(int(at_a[k]), partner) != cells[k]]] = True
        left_a, left_b = ~np.isin(before_a, at_a[keep]), ~np.isin(before_b, at_b[keep])
        bad |= np.isin(at_a, before_a[left_b]) | np.isin(at_b, before_b[left_a])
        if not (bad & keep).any():
            return keep
        keep &= ~np.isin(group, group[bad])
    return np.zeros(len(at_a), dtype=bool)


def _partners(alignment: Alignment, at_a: Indices, at_b: Indices) -> Indices:
    """B's rows by A's (-1: none), with these pairs in place of those of the alignment."""
    partner = np.full(alignment.rows_a, -1, dtype=np.int64)
    partner[alignment.a] = alignment.b
    partner[at_a] = at_b
    return partner


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
