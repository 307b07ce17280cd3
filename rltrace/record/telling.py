"""What a session is told of beside ops: events, numbers of series, phases, the beginning and end of backward passes.

Owns what becomes of each; who tells of it knows nothing of streams.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from types import FrameType

from rltrace.record.events import EventForm
from rltrace.record.parts import Parts
from rltrace.trace.schema import Phase


class Telling(Parts):
    """That side of a session."""

    def takes_events(self) -> bool:
        """Whether ``event`` would write a row now, in the calling thread."""
        return self._recording and self._streams.between_ops() is not None

    def event(
        self,
        form: EventForm,
        *,
        evidence: Sequence[int] = (),
        digests: Sequence[int] = (),
        integers: Sequence[int] = (),
        floats: Sequence[float] = (),
        frame: FrameType | None = None,
    ) -> bool:
        """Write a row that is no op into the calling thread's stream (``events.py``), a cell for each name of the form.

        ``evidence``: its counts, then its digests that are evidence.

        ``frame``: where it is to say that it happened; the caller's own where not given (frames of rltrace are never
        shown). Returns False where nothing can be written: ops are not rows now (``--level step``, outside of the
        window), the thread is not recorded, or it is in the middle of an op. Never raises an error of its own.
        """
        try:
            stream = self._streams.between_ops() if self._recording else None
            if stream is None:
                return False
            stream.happened(form, evidence, digests, integers, floats, frame or sys._getframe(1))
        except Exception as error:
            self.fail(error)
            return False
        return True

    def environment_passed(self, environment: str, frame: FrameType) -> bool:
        """An environment was stepped or reset by the calling thread, in ``frame``; whether an evaluation did that."""
        stream = self._streams.here() if self._recording else None
        if self._cycles is not None:
            self._cycles.between_ops()
        return self._process.phases.environment_event(stream, environment, frame)

    def count_step(self) -> None:
        """``rltrace.step()``: a step that no torch optimizer marks."""
        self._steps.count_manual()

    def watch(self, name: str, value: object) -> None:
        """``rltrace.watch(name, value)``: one more number of a series."""
        try:
            self._series.watch(name, value)
        except Exception as error:
            self.fail(error)

    @contextlib.contextmanager
    def in_phase(self, phase: Phase) -> Iterator[None]:
        """``with rltrace.phase("rollout")``."""
        process = self._process
        said = process.phase
        self._streams.set_phase(phase)
        process.phases.said += 1
        try:
            yield
        finally:
            process.phases.said -= 1
            self._streams.set_phase(said)

    def backward_begins(self, frame: FrameType) -> bool:
        """Every op of a backward pass has the stack of the call that started it."""
        stream = self._streams.here() if self._recording else None
        if self._cycles is not None:
            self._cycles.between_ops()
        self._process.phases.backward_begins(stream)
        self._boundaries.backward_begins()
        if stream is None:
            return False
        stream.modules.begin_backward(frame)
        return True

    def backward_ended(self) -> None:
        stream = self._streams.here()
        if stream is not None:
            stream.modules.leave()
