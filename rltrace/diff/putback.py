"""What a trace holds of a generator beyond its draws: its state as processes end, and who drew from it at all.

Owns these two readings, for draws that one side alone made. A number (``schema.Generator``) names a generator within
one process only; it means nothing on the other side.
"""

from __future__ import annotations

import numpy as np

from rltrace.errors import HoleError
from rltrace.trace.reader import ProcessTrace
from rltrace.trace.schema import Column, Generator, RowFlag, Step

MOST_READ = 1 << 24
"""Rows of a process that are looked through for draws from one generator; where there are more, it stays open."""


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


def draws_from(process: ProcessTrace, number: int, leave_out: tuple[int, int] | None = None) -> int | None:
    """How many ops of the process drew from a generator; None where not all of them can be looked at.

    ``leave_out``: (stream, row): that stream from that row on does not count.
    """
    if sum(stream.rows for stream in process.streams) > MOST_READ:
        return None
    count = 0
    for stream in process.streams:
        stop = leave_out[1] if leave_out is not None and leave_out[0] == stream.index else stream.rows
        if stream.holes or stream.left_out:
            return None
        try:
            for segment in stream.segments:
                rows = stream.read_segment(segment)
                drew = ((rows.column(Column.FLAGS) & np.uint32(RowFlag.RNG)) != 0) & (rows.generators == number)
                count += int(drew[: max(0, stop - rows.first)].sum())
        except HoleError:
            return None
    return count
