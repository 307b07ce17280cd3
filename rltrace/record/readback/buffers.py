"""The buffers of one device: a fixed number, each of which goes from free to open to closed and back.

Owns these states. Each change is one assignment, made when all that it stands for is done: Ctrl-C between two
statements leaves a buffer as it was before, or after.
"""

from __future__ import annotations

import torch

from rltrace.record.logical import own_work
from rltrace.record.readback.gate import Gate
from rltrace.record.readback.staging import Buffer
from rltrace.record.readback.ways import Event, Ways


class Buffers:
    """Used by one thread at a time."""

    def __init__(self, ways: Ways, gate: Gate, device: torch.device, count: int, words: int) -> None:
        self._ways = ways
        self._gate = gate
        self._device = device
        there, here = ways.memory(device, count * words)
        self._all = [Buffer(*halves) for halves in zip(there.split(words), here.split(words), strict=True)]
        self._open: dict[int, Buffer] = {}
        """By stream, the buffer that was opened for it last."""
        self._opened = 0
        self._has_failed = False

    def room(self, stream: int, words: int) -> Buffer | None:
        """A buffer of this stream, the current one, with so much room; None where there will be none."""
        if self._has_failed:
            return None
        buffer = self._open.get(stream)
        if buffer is not None and buffer.stream == stream and buffer.event is None:
            if buffer.has_room(words):
                return buffer
            self.close(buffer)
        free = next((buffer for buffer in self._all if buffer.stream is None), None) or self._wait_for_one()
        if free is None:
            return None
        self._ways.used_on(free.there, self._device, stream)
        self._opened += 1
        free.number = self._opened
        free.stream = stream
        self._open[stream] = free
        return free

    def _wait_for_one(self) -> Buffer | None:
        """All are in use: wait for the one that has been for longest."""
        with self._gate.inside() as may:
            if not may:
                return None
            oldest = min(self._all, key=lambda buffer: (buffer.event is None, buffer.number))
            if oldest.event is None:
                self.close(oldest)
            self.take_in(oldest, arrived=self.wait(oldest.event))
            return None if self._has_failed else oldest

    def close(self, buffer: Buffer) -> None:
        """Enqueue the copy to the host behind all that is in it."""
        assert buffer.stream is not None
        used = slice(buffer.filled)
        try:
            with own_work():
                buffer.event = self._ways.copy(buffer.there[used], buffer.here[used], self._device, buffer.stream)
        except RuntimeError:
            self.fail()

    def wait(self, event: Event | None) -> bool:
        """Whether what is before the event has come about; False: the device has failed."""
        if self._has_failed or event is None:
            return False
        try:
            event.synchronize()
        except RuntimeError:
            return False
        return True

    def take_in(self, buffer: Buffer, *, arrived: bool) -> None:
        """Make the digests of what has come over."""
        if arrived:
            buffer.settle(arrived=True)
        else:
            self.fail()

    def fail(self) -> None:
        """The device answers no more: nothing that is on its way will arrive."""
        self._has_failed = True
        for buffer in self._all:
            buffer.settle(arrived=False)
