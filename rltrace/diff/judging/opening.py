"""What the opening rows of a window prove: the digests of everything that had a history when recording began.

Within a window, a parameter comes from outside as far as links tell. Owns the look-up that tells it from an
observation.
"""

from __future__ import annotations

import numpy as np

from rltrace.diff.findings import RowAt, row_at
from rltrace.diff.judging.scene import Scene
from rltrace.diff.view import StreamView
from rltrace.errors import HoleError
from rltrace.trace.rows import Link
from rltrace.trace.schema import Column, Kind, Origin

LARGEST = 1 << 16
"""Opening rows that are read at most."""


def was_equal_when_the_window_began(scene: Scene, a: RowAt, x: Link, b: RowAt, y: Link) -> bool:
    """Whether an input that differs now is known to have been equal when the recording of ops began.

    ``x`` and ``y`` are the input's links; at least one of them says "outside".
    """
    held_a, held_b = held_at_opening(scene.a, a, x), held_at_opening(scene.b, b, y)
    if x.distance == y.distance == Origin.OUTSIDE:
        return bool({x.digest, y.digest} & held_a & held_b)
    return bool({x.digest, y.digest} & (held_a or written(a, x)) & (held_b or written(b, y)))


def held_before_the_window(scene: Scene, a: RowAt, x: Link, b: RowAt, y: Link) -> bool:
    """Whether one side knows the writer of an input, and for the other it is from before its window."""
    if x.distance == y.distance:
        return False
    view, digest = (scene.a, x.digest) if x.distance == Origin.OUTSIDE else (scene.b, y.digest)
    return digest in opening_digests(view)


def held_at_opening(view: StreamView, row: RowAt, link: Link) -> set[int]:
    return opening_digests(view) if link.distance == Origin.OUTSIDE else set()


def is_opening(row: RowAt) -> bool:
    """Whether a row is one of a window's opening rows."""
    return int(row.rows.columns[row.place, Column.KIND]) == Kind.WINDOW


def digests_of(row: RowAt) -> set[int]:
    """What a row wrote, or, of an opening row, what it found."""
    if is_opening(row):
        start, stop = row.rows.digest_offsets[row.place : row.place + 2]
        return set(row.rows.digests[start:stop].tolist())
    return set(row.rows.outputs(row.place))


def written(row: RowAt, link: Link) -> set[int]:
    """Digests of what the row that a link leads to wrote."""
    if not 0 < link.distance <= row.index:
        return set()
    try:
        target = row_at(row.view, row.index - link.distance)
    except HoleError:
        return set()
    return set(target.rows.outputs(target.place))


def opening_digests(view: StreamView) -> set[int]:
    """Digests of every window's opening rows; empty where a side was recorded from its start."""
    found: set[int] = set()
    for _, _, row in view.stream.windows:
        try:
            rows = view.stream.read(row, min(view.rows, row + LARGEST))
        except HoleError:
            continue
        later = np.flatnonzero(rows.column(Column.KIND) != Kind.WINDOW)
        count = int(later[0]) if len(later) else len(rows)
        found.update(rows.digests[: rows.digest_offsets[count]].tolist())
    return found
