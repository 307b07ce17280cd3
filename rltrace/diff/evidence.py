"""What tells that two rows, called from different places in the code, are one op: what they compute with, who uses it.

Owns the following of links on both sides at once. Values are no part of it: equal ones may be chance.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.align import Alignment
from rltrace.diff.findings import RowAt
from rltrace.diff.inputs import writer_of
from rltrace.diff.scene import Scene
from rltrace.diff.sequences import Indices
from rltrace.diff.view import Stretch
from rltrace.trace.schema import Origin


def same_writers(scene: Scene, a: tuple[Stretch, int], b: tuple[Stretch, int], partner: Indices) -> bool | None:
    """Whether matching ops wrote all that two rows compute with; None: no op that is known wrote any of it."""
    row_a, row_b = RowAt(scene.a, a[0].rows, a[1]), RowAt(scene.b, b[0].rows, b[1])
    found = None
    for x, y in zip(row_a.rows.inputs(row_a.place), row_b.rows.inputs(row_b.place), strict=False):
        if Origin.OVERWRITTEN in (x.distance, y.distance):
            continue
        writer_a, writer_b = writer_of(row_a, x), writer_of(row_b, y)
        if writer_a is None and writer_b is None:
            continue
        if writer_a is None or writer_b is None:
            return False
        place, other = writer_a.index - a[0].first, writer_b.index - b[0].first
        matched = scene.matching.partner(writer_a.index) == writer_b.index if place < 0 else partner[place] == other
        if not matched or (place >= 0) != (other >= 0):
            return False
        found = True
    return found


LONGEST_CHAIN = 64
"""Doubtful ops in a row, each computing with what the one before wrote."""


def used_alike(a: Stretch, b: Stretch, found: Alignment, sure: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which pairs wrote what a pair that is ``sure``, or that is used so itself, has for the same input."""
    writers, users = _uses(a, b, found)
    used = np.zeros(len(found.a), bool)
    for _ in range(LONGEST_CHAIN):
        more = writers[(sure | used)[users]]
        if used[more].all():
            break
        used[more] = True
    return used


def _uses(a: Stretch, b: Stretch, found: Alignment) -> tuple[Indices, Indices]:
    """Pairs, by number, that wrote an input of other pairs on both sides: (who wrote it, who computes with it)."""
    pair_a, pair_b = np.full(len(a), -1, np.int64), np.full(len(b), -1, np.int64)
    pair_a[found.a] = pair_b[found.b] = np.arange(len(found.a))
    keys = []
    for stretch, pair in ((a, pair_a), (b, pair_b)):
        tokens = stretch.tokens
        owner = np.repeat(np.arange(len(stretch)), np.diff(tokens.link_offsets))
        place = np.arange(len(tokens.links)) - tokens.link_offsets[owner]
        target = owner - (tokens.links >> 12)
        wrote = (target >= 0) & (target < owner) & (tokens.links & 2 == 0)
        user, writer, nth = pair[owner[wrote]], pair[target[wrote]], place[wrote]
        there = (user >= 0) & (writer >= 0)
        keys.append(np.stack([writer[there], user[there], nth[there]], axis=1))
    both = np.unique(np.concatenate([np.unique(own, axis=0) for own in keys]), axis=0, return_counts=True)
    shared = both[0][both[1] == 2]
    return shared[:, 0], shared[:, 1]
