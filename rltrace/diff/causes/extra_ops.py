"""Ops that one side alone has: whether the rest of the program depends on them.

Owns what makes an extra op harmful: it drew from a generator, or a matched op computes with bytes that it wrote and
that are not proven to be those the other side computes with.
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

MAX_HASHED_BYTES = 256
"""One-sided rows that are looked at for the one that wrote a part of something."""


def control_flow(side: str, row: RowAt, other: str, beside: RowAt | None, harm: str) -> Judgement:
    """The finding's words for an op that only ``side`` runs; ``harm``: why it matters, "" where it does not."""
    goes_on = f"; there {other} continues with {beside}" if beside is not None else ""
    why = f"only {side} runs it{goes_on}"
    if harm:
        why += f"; it affects results: {harm}"
    return Judgement(Cause.CONTROL_FLOW, InputsMatch.UNKNOWN, why)


def bytes_used_by_matched(
    scene: DiffContext, a: tuple[RowRange, Indices], b: tuple[RowRange, Indices], lonely: tuple[Indices, Indices]
) -> tuple[RowAt, RowAt] | None:
    """(one-sided writer, matched row that computes with its bytes) where those bytes are not proven equal; else None.

    ``a`` and ``b``: stretches and the places of their matched rows, pair by pair; ``lonely``: each side's own rows.
    """
    found: list[tuple[int, RowAt, RowAt]] = []
    for own, other, rows in ((a, b, lonely[0]), (b, a, lonely[1])):
        for use in _uses(own, other, rows):
            pair = RowAt(scene.a, a[0].rows, int(a[1][use.pair])), RowAt(scene.b, b[0].rows, int(b[1][use.pair]))
            if input_is_equal(scene, *pair, use.place):
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
    """A matched row that may compute with what a one-sided row wrote."""

    pair: int
    place: int
    """Which of its inputs."""
    row: int
    writer: int | None
    """The one-sided row; None: one of several that wrote a part."""


def _uses(own: tuple[RowRange, Indices], other: tuple[RowRange, Indices], lonely: Indices) -> list[_Use]:
    """Where an input of a matched row leads to a one-sided row, or has several writers on this side alone."""
    (stretch, places), (beside, partners) = own, other
    rows = stretch.rows
    if not len(lonely) or not len(rows.links):
        return []
    owner = np.repeat(np.arange(len(stretch)), np.diff(rows.link_offsets))
    pair_of = np.full(len(stretch), -1, np.int64)
    pair_of[places] = np.arange(len(places))
    distance = rows.links >> 12
    targets = stretch.first + owner - distance
    computes = ~stretch.flags(RowFlag.VIEW | RowFlag.ALLOCATION)[owner] & (pair_of[owner] >= 0)
    single = computes & (distance > 0) & (rows.links & 2 == 0) & np.isin(targets, lonely)
    mixed = np.flatnonzero(computes & (distance == Origin.MIXED))
    place_of = np.arange(len(rows.links)) - rows.link_offsets[owner]
    partner = partners[pair_of[owner[mixed]]]
    has = place_of[mixed] < np.diff(beside.rows.link_offsets)[partner]
    mixed, partner = mixed[has], partner[has]
    links = beside.rows.links[beside.rows.link_offsets[partner] + place_of[mixed]]
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


def _last_writer_in_place(view: StreamView, before: int, lonely: Indices) -> int | None:
    """The last one-sided row before a row that wrote one of its arguments."""
    for row in lonely[lonely < before][::-1][:MAX_HASHED_BYTES].tolist():
        if writes_in_place(row_at(view, row)):
            return int(row)
    return None
