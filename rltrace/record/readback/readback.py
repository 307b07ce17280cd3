"""Digests of tensors on devices, without waiting for them: taken at once, read back in batches.

Owns the buffers of each device: a fixed number, made at the first tensor on it. What belongs to a digest is enqueued
on the stream that is current, where the op ran; a full buffer is copied to the host behind that, and marked. Whoever
needs the digests waits for the mark: the thread that commits, or a recording thread that finds all buffers on their
way. Of what the device no longer answers, the digests stay unknown; its error is the program's, and comes to it at its
own next call.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from rltrace.record.device import condensed_words
from rltrace.record.layouts import Layout
from rltrace.record.logical import own_work
from rltrace.record.readback.buffers import Buffers
from rltrace.record.readback.gate import Gate
from rltrace.record.readback.staging import Buffer, Pending, unread
from rltrace.record.readback.ways import WAYS, Ways

Tensor = torch.Tensor

BUFFERS: Final = 8
"""Of each device."""

BUFFER_WORDS: Final = 1 << 18
"""2 MiB, and as much on the host; holds the page digests of 4 GiB. Eight together are more than the 10 MiB from which
on torch takes a piece of its own from the device: the program's memory is cut no otherwise than without them."""


class ReadBack:
    """All devices of one process. Any thread may use it."""

    def __init__(
        self,
        ways: Mapping[str, Ways] = WAYS,
        *,
        buffers: int = BUFFERS,
        words: int = BUFFER_WORDS,
    ) -> None:
        self.gate = Gate()
        self._ways = ways
        self._sizes = buffers, words
        self._lock: Any = threading.RLock()
        """Whose owner comes a second time (a signal handler does) finds the buffers half done, and is turned away."""
        self._full: set[torch.device] = set()
        """Devices that have no memory for buffers."""
        self._devices: dict[torch.device, Buffers] = {}
        self._pid = os.getpid()

    def takes(self, device: torch.device) -> bool:
        """Whether digests of tensors on such a device can be put off."""
        return device.type in self._ways

    def is_shut(self, device: torch.device) -> bool:
        """Whether nothing may be asked of the device now: a graph is being captured."""
        return self.gate.is_shut or self._ways[device.type].is_captured(device)

    @staticmethod
    def unread() -> Pending:
        """Stands for a digest that nobody will ever know."""
        return unread()

    def put(self, tensors: Sequence[Tensor], layouts: Sequence[Layout]) -> list[Pending] | None:
        """Enqueue what the digests of plain tensors of one device are made of; None where they cannot be put off.

        Never waits, but for room in the buffers.
        """
        device = tensors[0].device
        if self.is_shut(device):
            return [unread() for _ in tensors]
        words = [condensed_words(layout.nbytes) for layout in layouts]
        stream = self._ways[device.type].stream(device)
        if stream is None or max(words) > self._sizes[1] or device in self._full or self._lock._is_owned():
            return None
        with self._lock:
            try:
                return self._put(device, stream, tensors, layouts, words)
            except torch.OutOfMemoryError:
                if device not in self._devices:
                    self._full.add(device)
                    return None
                return [unread() for _ in tensors]  # there is none for what is needed beside the tensors
            except RuntimeError:
                if not self._ways[device.type].has_failed(device):
                    raise
                if device in self._devices:  # the program is about to find out
                    self._devices[device].fail()
                return [unread() for _ in tensors]

    def _put(
        self,
        device: torch.device,
        stream: int,
        tensors: Sequence[Tensor],
        layouts: Sequence[Layout],
        words: Sequence[int],
    ) -> list[Pending]:
        found: list[Pending] = []
        with own_work():
            here = self._devices.get(device) or self._make(device)
            while len(found) < len(tensors):
                first = last = len(found)
                buffer = here.room(stream, words[first])
                if buffer is None:
                    return [*found, *(unread() for _ in tensors[first:])]
                room = len(buffer.there) - buffer.filled
                while last < len(tensors) and words[last] <= room:
                    room -= words[last]
                    last += 1
                found += buffer.stage(tensors[first:last], layouts[first:last])
        return found

    def _make(self, device: torch.device) -> Buffers:
        made = self._devices[device] = Buffers(self._ways[device.type], self.gate, device, *self._sizes)
        return made

    def settle(self, pending: Pending, *, last: bool = False) -> bool:
        """Wait until a digest is known, or known to stay unknown; False: not now, a graph is being captured.

        ``last``: there will be no later.
        """
        while (buffer := pending.buffer) is not None:
            with self.gate.inside() as may:
                if not may or not self._bring(buffer):
                    if not last:
                        return False
                    pending.settle(None)
        return True

    def _bring(self, buffer: Buffer) -> bool:
        """Have a buffer copied, wait for it, read it. False: this thread is in the midst of that, or of ``put``."""
        if self._lock._is_owned():
            return False
        with self._lock:
            here = self._devices[buffer.there.device]
            if buffer.event is None:
                here.close(buffer)
            event = buffer.event
        arrived = here.wait(event)  # without the lock: the program's threads go on
        with self._lock:
            if buffer.event is event:
                here.take_in(buffer, arrived=arrived)
        return True

    def leave_to_parent(self) -> None:
        """In a forked child: what stands here is the parent's. Nothing of it is touched, nor given back, ever."""
        if os.getpid() != self._pid and self._devices:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._devices))
