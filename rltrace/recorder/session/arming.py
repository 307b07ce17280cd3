"""Arming of this process: which steps ``rltrace arm`` has requested, read at the end of a step.

Owns the look for requests, a few times a second at most, and the answers. Records nothing; the session wakes and falls
asleep.
"""

from __future__ import annotations

import os
from time import monotonic
from typing import Final, NamedTuple

from rltrace.recorder.base.options import RecordOptions
from rltrace.trace.format.arming import Answer, ArmRequest, Cell, flush, map_cells, read_request, request_path

LOOK_SECONDS: Final = 0.02
"""Between two looks for a request: a step may take microseconds, a look takes one or two."""


class ArmedWindow(NamedTuple):
    """Steps that are recorded because of a request."""

    first: int
    end: int | None
    request: ArmRequest

    def options(self, asleep: RecordOptions) -> RecordOptions:
        """The options with which these steps are recorded, of a run that was started with ``asleep``."""
        request = self.request
        return asleep._replace(
            level=request.level,
            first_step=self.first,
            end_step=self.end,
            values=request.values,
            values_inputs=request.values_inputs,
            values_limit=request.values_limit,
        )


class Arming:
    """The requests to this process."""

    def __init__(self, trace: str, token: str) -> None:
        """Raises OSError where the trace cannot be written."""
        self._trace = trace
        self._cells = map_cells(trace, token)
        self._windows: list[ArmedWindow] = []
        """In the order of their requests; where two overlap, the first is recorded to its end."""
        self._number = 1
        self._next_look = 0.0

    def due(self, step: int) -> ArmedWindow | None:
        """The window to record ``step`` for, which is about to begin; None: the process is to be asleep."""
        self._cells[Cell.STEP] = step
        if monotonic() >= self._next_look:
            self._look(step)
            self._next_look = monotonic() + LOOK_SECONDS
        if not self._windows:
            return None
        self._windows = [window for window in self._windows if window.end is None or step < window.end]
        return next((window for window in self._windows if window.first <= step), None)

    def awake(self, is_awake: bool) -> None:
        """The process has woken, or fallen asleep."""
        self._cells[Cell.AWAKE] = is_awake

    def over(self, is_over: bool = True) -> None:
        """The recording has ended; False: it goes on, as the program could not be replaced."""
        self._cells[Cell.OVER] = is_over

    def _look(self, step: int) -> None:
        while os.access(request_path(self._trace, self._number), os.F_OK):
            self._answer(read_request(self._trace, self._number), step)
            self._number += 1

    def _answer(self, request: ArmRequest | None, step: int) -> None:
        cells, answer = self._cells, Answer.REFUSED
        if request is not None and request.disarm:
            self._windows.clear()
            answer = Answer.DISARMED
        elif request is not None:
            steps = request.window_at(step)
            answer = Answer.PASSED if steps is None else Answer.ARMED
            if steps is not None:
                self._windows.append(ArmedWindow(*steps, request))
                cells[Cell.FIRST], cells[Cell.END] = steps[0], -1 if steps[1] is None else steps[1]
        cells[Cell.ANSWER] = answer
        cells[Cell.REQUEST] = self._number  # last: whoever waits for it reads the others
        flush(cells)
