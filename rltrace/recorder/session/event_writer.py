"""Writes events and phases into the stream of the calling thread.

Owns whether a row can be written at that moment. Its callers know nothing of streams.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from rltrace.recorder.core.events import EventForm
from rltrace.recorder.session.window import OpWindow
from rltrace.trace.format.schema import Phase


class EventWriter:
    """Writes events into the stream of the thread in which they happen."""

    def __init__(self, window: OpWindow) -> None:
        self._window = window
        self.stream = window.streams.between_ops
        """The stream that an event of the calling thread would be written into now; None: no event can be written."""
        self.fail = window.process.fail

    def write(
        self,
        form: EventForm,
        *,
        evidence: Sequence[int] = (),
        digests: Sequence[int] = (),
        integers: Sequence[int] = (),
        floats: Sequence[float] = (),
        frame: FrameType | None = None,
    ) -> bool:
        """Write an event (``core/events.py``), with a value for each cell of its form.

        ``evidence``: its counts, its digests that are evidence, then values of its fields. ``frame``: its call site;
        None: the caller's (frames of rltrace are never shown). Returns False where nothing can be written: ops are not
        recorded now (``--level step``, outside of the window), the thread is not recorded, or it is running an op.
        Never raises.
        """
        try:
            stream = self.stream()
            if stream is None:
                return False
            stream.write_event(form, evidence, digests, integers, floats, frame or sys._getframe(1))
        except Exception as error:
            self.fail(error)
            return False
        return True

    def environment_passed(self, environment: str, frame: FrameType) -> bool:
        """The calling thread stepped or reset an environment in ``frame``; whether that belongs to an evaluation."""
        self._window.between_ops()
        return self._window.process.phases.environment_event(self._window.stream_here(), environment, frame)

    @contextmanager
    def in_phase(self, phase: Phase) -> Iterator[None]:
        """``with rltrace.phase("rollout")``."""
        process = self._window.process
        outer = process.phase
        self._window.streams.set_phase(phase)
        process.phases.overrides += 1
        try:
            yield
        finally:
            process.phases.overrides -= 1
            self._window.streams.set_phase(outer)
