"""Ops on one side only, and whether the rest of the program depends on them.

An extra op is harmful if it drew from a generator, or if a matched op reads bytes that it wrote and that are not proven
equal to those of the other side.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rltrace.diff.base.context import DiffContext
from rltrace.diff.base.findings import Judgement, RowAt, row_at
from rltrace.diff.base.model import Cause, InputsMatch
from rltrace.diff.base.sequences import Indices
from rltrace.diff.base.view import RowRange, StreamView
from rltrace.diff.causes.inputs import input_is_equal
from rltrace.diff.causes.no_op_writes import writes_in_place
from rltrace.trace.format.schema import Origin, RowFlag

MAX_TRIED = 256
"""One-sided rows that are searched for the writer of a part of a tensor."""


def control_flow(side: str, row: RowAt, other: str, opposite: RowAt | None, harm: str) -> Judgement:
    """The cause of an op that only ``side`` runs; ``opposite``: the other side's op at this place; ``harm``: why it
    matters, "" where it does not."""
    continues = f"; there {other} continues with {opposite}" if opposite is not None else ""
    why = f"only {side} runs it{continues}"
    if harm:
        why += f"; it affects results: {harm}"
    return Judgement(Cause.CONTROL_FLOW, InputsMatch.UNKNOWN, why)


def bytes_used_by_matched(
    context: DiffContext, a: tuple[RowRange, Indices], b: tuple[RowRange, Indices], one_sided: tuple[Indices, Indices]
) -> tuple[RowAt, RowAt] | None:
    """(one-sided writer, matched row that reads its bytes) where those bytes are not proven equal; else None.

    ``a`` and ``b``: ranges and the places of their matched rows, pair by pair; ``one_sided``: rows of A, rows of B.
    """
    found: list[tuple[int, RowAt, RowAt]] = []
    for own, other, rows in ((a, b, one_sided[0]), (b, a, one_sided[1])):
        for use in _uses(own, other, rows):
            pair = RowAt(context.a, a[0].rows, int(a[1][use.pair])), RowAt(context.b, b[0].rows, int(b[1][use.pair]))
            if input_is_equal(context, *pair, use.place):
                continue
            writer = use.writer if use.writer is not None else _last_writer_in_place(own[0].view, use.row, rows)
            if writer is not None:
                user = pair[0] if own is a else pair[1]
                found.append((use.pair, row_at(own[0].view, writer), user))
                break
    if not found:
        return None
    _, writer_row, user = min(found, key=lambda item: item[0])
    return writer_row, user


class _Use(NamedTuple):
    """A matched row that may read what a one-sided row wrote."""

    pair: int
    place: int
    """Number of the input."""
    row: int
    writer: int | None
    """The one-sided row; None: one of several writers of the input."""


def _uses(own: tuple[RowRange, Indices], other: tuple[RowRange, Indices], one_sided: Indices) -> list[_Use]:
    """Inputs of matched rows that a one-sided row wrote, or that have several writers on this side only."""
    (stretch, places), (other_stretch, partners) = own, other
    rows = stretch.rows
    if not len(one_sided) or not len(rows.links):
        return []
    owner = np.repeat(np.arange(len(stretch)), np.diff(rows.link_offsets))
    pair_of = np.full(len(stretch), -1, np.int64)
    pair_of[places] = np.arange(len(places))
    distance = rows.links >> 12
    targets = stretch.first + owner - distance
    computes = ~stretch.flags(RowFlag.VIEW | RowFlag.ALLOCATION)[owner] & (pair_of[owner] >= 0)
    single = computes & (distance > 0) & (rows.links & 2 == 0) & np.isin(targets, one_sided)
    mixed = np.flatnonzero(computes & (distance == Origin.MIXED))
    place_of = np.arange(len(rows.links)) - rows.link_offsets[owner]
    partner = partners[pair_of[owner[mixed]]]
    has = place_of[mixed] < np.diff(other_stretch.rows.link_offsets)[partner]
    mixed, partner = mixed[has], partner[has]
    links = other_stretch.rows.links[other_stretch.rows.link_offsets[partner] + place_of[mixed]]
    mixed = mixed[links >> 12 != Origin.MIXED]
    hits = np.sort(np.concatenate([np.flatnonzero(single), mixed])).tolist()
    return [
        _Use(
            int(pair_of[owner[h]]),
            int(place_of[h]),
            int(stretch.first + owner[h]),
            int(targets[h]) if distance[h] > 0 else None,
        )
        for h in hits
    ]


def _last_writer_in_place(view: StreamView, before: int, one_sided: Indices) -> int | None:
    """The last one-sided row before row ``before`` that wrote one of its arguments in place."""
    for row in one_sided[one_sided < before][::-1][:MAX_TRIED].tolist():
        if writes_in_place(row_at(view, row)):
            return int(row)
    return None
