"""While a program captures a graph of its device, nothing of the recorder's may reach that device.

Owns that one question, for all threads: what is enqueued on a stream that is being captured becomes part of the graph,
and in CUDA's default mode a wait or a query from *any* thread makes the capture fail. So who is about to do either
passes here, and a capture begins only when nobody is inside.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

SECONDS = 60.0
"""A capture begins after so long at the latest, whoever is inside: it may fail then, but the program does not hang."""


class Gate:
    """Shut while a graph is being captured, by whichever thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._captures = 0

    @property
    def is_shut(self) -> bool:
        return self._captures > 0

    def shut(self) -> None:
        """A capture is about to begin; returns when nobody is inside."""
        with self._changed:
            self._captures += 1
            self._changed.wait_for(lambda: not self._inside, SECONDS)

    def open(self) -> None:
        """It has ended, or did not begin."""
        with self._changed:
            self._captures -= 1

    @contextmanager
    def inside(self) -> Iterator[bool]:
        """Within, what is asked of a device disturbs no capture; False: a capture is under way, ask nothing."""
        with self._changed:
            may = not self._captures
            self._inside += may
        try:
            yield may
        finally:
            if may:
                with self._changed:
                    self._inside -= 1
                    self._changed.notify_all()


def is_captured(device: torch.device) -> bool:
    """Whether what is done on this device now, in this thread, becomes part of a graph of the program's; or nothing can
    be done there any more, since it has failed."""
    if device.type != "cuda":
        return False
    try:
        return torch.cuda.is_current_stream_capturing()
    except RuntimeError:
        return True
