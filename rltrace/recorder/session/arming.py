"""Requests to this process, read at the end of a step: which steps ``rltrace arm`` has requested.

Owns the look for requests, twenty times a second at most, and the answers. Records nothing; the session wakes and falls
asleep.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Final, NamedTuple

from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.processes.exits import LOOK_SECONDS
from rltrace.trace.format.arming import Answer, ArmRequest, SleepingProcess, read_request, request_path

WRITE_SHARE: Final = 2_000
"""The step that the process is in is written at a look, unless the last write took more than one part in so many of
the time since: on a network it may take milliseconds."""


class ArmedWindow(NamedTuple):
    """Steps that are recorded because of a request."""

    first: int
    end: int | None
    request: ArmRequest

    def options(self, asleep: RecordOptions) -> RecordOptions:
        """The options with which these steps are recorded, of a run that was started with ``asleep``."""
        request = self.request
        return replace(
            asleep,
            level=request.level,
            steps=(self.first, self.end),
            values=request.values,
            values_inputs=request.values_inputs,
            values_limit=request.values_limit,
        )


class Arming:
    """The requests to this process."""

    def __init__(self, trace: str, token: str) -> None:
        """Raises OSError where the trace cannot be written."""
        self._trace, self._token = trace, token
        self._state = SleepingProcess()
        self._state.write(trace, token)
        self.windows: list[ArmedWindow] = []
        """In the order of their requests; where two overlap, the first is recorded to its end."""
        self.next_look = 0.0
        """Time (``monotonic``) before which ``due`` need not be called while there are no windows."""
        self._next_write = 0.0

    def due(self, step: int) -> ArmedWindow | None:
        """The window to record ``step`` for, which is about to begin; None: the process is to be asleep."""
        now = monotonic()
        if now >= self.next_look:
            self.next_look = now + LOOK_SECONDS
            self._look(step, now)
        if not self.windows:
            return None
        self.windows = [window for window in self.windows if window.end is None or step < window.end]
        return next((window for window in self.windows if window.first <= step), None)

    def turned(self, step: int, *, is_awake: bool) -> None:
        """The process has woken at the beginning of ``step``, or has fallen asleep."""
        self._state.step, self._state.is_awake = step, is_awake
        self._write()

    def over(self, is_over: bool = True) -> None:
        """The recording has ended; False: it goes on, as the program could not be replaced."""
        self._state.is_over = is_over
        self._write()

    def _look(self, step: int, now: float) -> None:
        state, number = self._state, self._state.request + 1
        if now >= self._next_write:
            state.step = step
            self._write()
            self._next_write = now + WRITE_SHARE * (monotonic() - now)
        while os.access(request_path(self._trace, number), os.F_OK):
            self._answer(read_request(self._trace, number), step)
            state.step, state.request, number = step, number, number + 1
            self._write()

    def _answer(self, request: ArmRequest | None, step: int) -> None:
        state = self._state
        state.answer = Answer.REFUSED
        if request is not None and request.disarm:
            self.windows.clear()
            state.answer = Answer.DISARMED
        elif request is not None:
            steps = request.window_at(step)
            state.answer = Answer.PASSED if steps is None else Answer.ARMED
            if steps is not None:
                state.first, state.end = steps
                self.windows.append(ArmedWindow(*steps, request))

    def _write(self) -> None:
        with suppress(OSError):  # a full disk: the process is armed all the same, and the answer is missing
            self._state.write(self._trace, self._token)
