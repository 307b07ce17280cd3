"""The next row of a stream that a selector finds, forwards or backwards.

Owns the order of the search: from a row on, a segment at a time, so memory stays flat and a match nearby is found at
once. Rows that cannot be read are passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from rltrace.errors import HoleError, SelectorError
from rltrace.report.rowmask import RowMask
from rltrace.report.words import Words
from rltrace.select import Key, Selector
from rltrace.trace.reader import ProcessTrace, StreamTrace


def next_row(
    process: ProcessTrace,
    stream: StreamTrace,
    selector: Selector,
    start: int,
    direction: int = 1,
    cancelled: Callable[[], bool] = lambda: False,
    guard: AbstractContextManager[object] | None = None,
) -> int | None:
    """The first row from ``start`` on (up to it, with -1) that ``selector`` finds; None: there is none.
    ``guard`` is entered for each reading, where threads share the stream. Raises SelectorError for ``nth``, which
    counts from the beginning of a step and is no property of a row.
    """
    if any(condition.key is Key.NTH for clause in selector.clauses for condition in clause):
        raise SelectorError("nth= cannot be looked for here; rltrace ops finds it")
    mask = RowMask(selector, None, stream.name, Words(process))
    if not mask.possible:
        return None
    segments = [s for s in stream.segments if (s.stop > start if direction > 0 else s.first <= start)]
    for segment in segments if direction > 0 else reversed(segments):
        if cancelled():
            return None
        try:
            with guard or nullcontext():
                rows = stream.read_segment(segment)
        except HoleError:
            mask.skip()
            continue
        found = segment.first + np.flatnonzero(mask.of(rows))
        ahead = found[found >= start] if direction > 0 else found[found <= start]
        if len(ahead):
            return int(ahead[0 if direction > 0 else -1])
    return None
