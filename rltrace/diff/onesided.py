"""Ops that one side alone has: whether the rest of the program depends on them.

Owns what makes an extra op harmful: it drew from a generator, or a matched op computes with bytes that it wrote and
that are not proven to be those the other side computes with.
"""

from __future__ import annotations

import numpy as np

from rltrace.diff.findings import Decided, RowAt
from rltrace.diff.inputs import input_is_equal
from rltrace.diff.model import Cause, InputsMatch
from rltrace.diff.scene import Scene
from rltrace.diff.sequences import Indices
from rltrace.diff.view import Stretch
from rltrace.trace.schema import RowFlag


def control_flow(side: str, row: RowAt, other: str, beside: RowAt | None, harm: str) -> Decided:
    """The finding's words for an op that only ``side`` runs; ``harm``: why it matters, "" where it does not."""
    goes_on = f"; there {other} goes on with {beside}" if beside is not None else ""
    why = f"only {side} runs it{goes_on}"
    if harm:
        why += f"; it is not harmless: {harm}"
    return Decided(Cause.CONTROL_FLOW, InputsMatch.UNKNOWN, why)


def bytes_used_by_matched(
    scene: Scene, a: tuple[Stretch, Indices], b: tuple[Stretch, Indices], lonely: tuple[Indices, Indices]
) -> tuple[RowAt, RowAt] | None:
    """(one-sided writer, matched row that computes with its bytes) where those bytes are not proven equal; else None.

    ``a`` and ``b``: stretches and the places of their matched rows, pair by pair; ``lonely``: each side's own rows.
    """
    found: list[tuple[int, RowAt, RowAt]] = []
    for (stretch, places), rows in ((a, lonely[0]), (b, lonely[1])):
        for k, place, target in _uses(stretch, places, rows):
            pair = RowAt(scene.a, a[0].rows, int(a[1][k])), RowAt(scene.b, b[0].rows, int(b[1][k]))
            if not input_is_equal(scene, *pair, place):
                user = pair[0] if stretch is a[0] else pair[1]
                writer_rows, writer_place = stretch.view.row(target)
                found.append((k, RowAt(stretch.view, writer_rows, writer_place), user))
                break
    if not found:
        return None
    _, writer, user = min(found, key=lambda item: item[0])
    return writer, user


def _uses(stretch: Stretch, places: Indices, lonely: Indices) -> list[tuple[int, int, int]]:
    """(pair, input, one-sided row) wherever a matched row's input leads to a one-sided row that wrote it."""
    rows = stretch.rows
    if not len(lonely) or not len(rows.links):
        return []
    owner = np.repeat(np.arange(len(stretch)), np.diff(rows.link_offsets))
    distance = rows.links >> 12
    wrote = (distance > 0) & (rows.links & 2 == 0)
    targets = stretch.first + owner - distance
    hits = np.flatnonzero(wrote & np.isin(targets, lonely) & ~stretch.flags(RowFlag.VIEW | RowFlag.ALLOCATION)[owner])
    if not len(hits):
        return []
    pair_of = np.full(len(stretch), -1, np.int64)
    pair_of[places] = np.arange(len(places))
    return [
        (int(pair_of[owner[h]]), int(h - rows.link_offsets[owner[h]]), int(targets[h]))
        for h in hits.tolist()
        if pair_of[owner[h]] >= 0
    ]
