"""Where a batch of rows is cut into segments.

Owns nothing but the rule: a segment has at most SEGMENT_ROWS rows and SEGMENT_CELLS cells.
"""

from __future__ import annotations

import numpy as np

from rltrace.trace.rows import Rows
from rltrace.trace.schema import SEGMENT_CELLS, SEGMENT_ROWS


def split_segments(rows: Rows) -> list[Rows]:
    """The stretch cut into as few segments as hold its rows and its cells. Raises ValueError for a row too wide."""
    if len(rows) <= SEGMENT_ROWS and _cells(rows) <= SEGMENT_CELLS:
        return [rows]
    cells = rows.link_offsets + rows.integer_offsets + rows.float_offsets + rows.digest_offsets
    parts, start = [], 0
    while start < len(rows):
        fits = int(np.searchsorted(cells, cells[start] + SEGMENT_CELLS, side="right")) - 1
        stop = min(fits, start + SEGMENT_ROWS, len(rows))
        if stop == start:
            raise ValueError(f"row {rows.first + start} has more than {SEGMENT_CELLS} cells")
        parts.append(rows.cut(start, stop))
        start = stop
    return parts


def _cells(rows: Rows) -> int:
    return len(rows.links) + len(rows.integers) + len(rows.floats) + len(rows.digests)
