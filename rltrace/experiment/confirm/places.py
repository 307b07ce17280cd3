"""Where an op of a control is in the trace that it repeats, which may hold other steps: by the step both begin at.

Owns that one question. Reads the table of steps, and the rows in which a window begins.
"""

from __future__ import annotations

import numpy as np

from rltrace.errors import HoleError
from rltrace.trace.reader import ProcessTrace, Trace
from rltrace.trace.schema import Column, Kind, Step
from rltrace.trace.stream import StreamTrace

BLOCK = 1024


def row_in(trace: Trace, control: Trace, stream: str, row: int, step: int) -> int | None:
    """The row of ``trace`` that is ``row`` of a stream of ``control``, both being the same from the beginning of
    ``step`` on; None: the trace has no such row, or it is not known where the step begins.
    """
    there, here = _stream(trace, stream), _stream(control, stream)
    if there is None or here is None:
        return None
    begins = _begins(*there, step), _begins(*here, step)
    if begins[0] is None or begins[1] is None:
        return None
    found = row - begins[1] + begins[0]
    return found if row >= begins[1] and found < there[1].rows else None


def _stream(trace: Trace, name: str) -> tuple[ProcessTrace, StreamTrace] | None:
    return next(((p, s) for p in trace.processes for s in p.streams if s.name == name), None)


def _begins(process: ProcessTrace, stream: StreamTrace, step: int) -> int | None:
    """The row of a stream at which the ops of a step begin; None where the stream did not end the one before."""
    if step == 0:
        return _after_window(stream, 0)
    steps = process.steps
    ended = steps[(steps[:, Step.STEP] == np.uint64(step - 1)) & (steps[:, Step.STREAM] == stream.index)]
    return _after_window(stream, int(ended[0, Step.END_ROW])) if len(ended) else None


def _after_window(stream: StreamTrace, row: int) -> int | None:
    """The first row from ``row`` on that does not tell what the window began with; None: it cannot be read."""
    while row < stream.rows:
        try:
            kinds = stream.read(row, min(row + BLOCK, stream.rows)).column(Column.KIND)
        except HoleError:
            return None
        ops = np.flatnonzero(kinds != Kind.WINDOW)
        if len(ops):
            return row + int(ops[0])
        row += len(kinds)
    return row
