"""What a trace holds of a generator beyond its draws: its state as processes end, and who drew from it at all.

Owns these two readings, for draws that one side alone made. A number (``schema.Generator``) names a generator within
one process only; it means nothing on the other side.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rltrace.errors import HoleError
from rltrace.trace.reader import ProcessTrace, StreamTrace
from rltrace.trace.schema import Column, Generator, RowFlag, Step

MOST_READ = 1 << 24
"""Rows of a stream that are looked through for draws from one generator; where there are more, it stays open."""


def state_column(number: int) -> Step | None:
    """Which digest of a step, or of a process's end, tells the state of this generator; None: none does."""
    if number == Generator.TORCH:
        return Step.TORCH_GENERATOR
    return Step.DEVICE_GENERATORS if Generator.DEVICE <= number < Generator.OWN else None


def ends_alike(a: ProcessTrace, b: ProcessTrace, number: int) -> bool:
    """Whether the generator stood in the same state on both sides when the processes ended."""
    column = state_column(number)
    if column is None or a.generators is None or b.generators is None:
        return False
    place = column - Step.TORCH_GENERATOR
    return a.generators[place] == b.generators[place] != 0


def draws_from(stream: StreamTrace, number: int) -> NDArray[np.int64] | None:
    """Rows of a stream that drew from a generator; None where not all of it can be looked at."""
    if stream.rows > MOST_READ or stream.holes or stream.left_out:
        return None
    found = [np.empty(0, np.int64)]
    try:
        for segment in stream.segments:
            rows = stream.read_segment(segment)
            drew = (rows.column(Column.FLAGS) & np.uint32(RowFlag.RNG)) != 0
            found.append(rows.first + np.flatnonzero(drew & (rows.generators == number)))
    except HoleError:
        return None
    return np.concatenate(found)
