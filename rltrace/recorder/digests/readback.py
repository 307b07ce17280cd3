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
from torch._C import TensorBase

from rltrace.digest import PAGE_BYTES
from rltrace.recorder.digests.accelerator import WAYS, Accelerator, StreamEvent
from rltrace.recorder.digests.backend import condense
from rltrace.recorder.digests.cuda_graphs import CaptureLock
from rltrace.recorder.digests.layouts import WORDS, Layout, as_words, logical_bytes, own_work
from rltrace.recorder.digests.torch_backend import condensed_words, finished

# --- staging ----------------------------------------------------------------------------------------------------------
#
# One buffer of words on their way from a device to the host, and the digests that will be made of them.
#
# Owns who waits for which words. What they are, of a tensor, is ``rltrace.recorder.device``'s. All that is enqueued
# here goes to the current stream, behind what wrote the tensor and before what may overwrite it; nothing waits.


Tensor = torch.Tensor

_array: Any = TensorBase.numpy
"""torch's own method: what stands in for it while ops are recorded follows the program's arrays, not these."""


class Pending:
    """A digest that is not known yet."""

    __slots__ = ("at", "buffer", "digest", "nbytes", "seed", "unread")

    def __init__(self, buffer: Buffer | None, at: int = 0, nbytes: int = 0, seed: int = 0) -> None:
        self.buffer = buffer
        """In which its words are on their way; None: in none (any more)."""
        self.at = at
        self.nbytes = nbytes
        self.seed = seed
        self.digest = 0
        self.unread = buffer is None
        """It will never be known: nothing could be asked of the device, or it failed."""

    @property
    def is_settled(self) -> bool:
        return self.buffer is None

    def settle(self, words: Any) -> None:
        """Its words have arrived; None: they never will."""
        if words is None:
            self.unread = True
        else:
            mine = words[self.at : self.at + condensed_words(self.nbytes)]
            self.digest = finished(mine, self.nbytes, self.seed)
        self.buffer = None


def unread() -> Pending:
    """A digest that nobody will ever know."""
    return Pending(None)


class Buffer:
    """One of a device's. Belongs to one stream from when it is opened until its words have been read."""

    def __init__(self, there: Tensor, here: Tensor) -> None:
        """``there`` on the device, ``here`` on the host: int64, of one size."""
        self.there = there
        self.here = here
        self.stream: int | None = None
        """Whose work goes into it; None: it is free."""
        self.event: StreamEvent | None = None
        """After its copy to the host. None while it is open: digests are still added, and nothing has been copied."""
        self.number = 0
        """It was opened as the how manieth of its device."""
        self.filled = 0
        self.waiting: list[Pending] = []
        self._views = {size: there.view(dtype) for size, dtype in WORDS.items()}

    def has_room(self, words: int) -> bool:
        return self.filled + words <= len(self.there)

    def stage(self, tensors: Sequence[Tensor], layouts: Sequence[Layout]) -> list[Pending]:
        """Enqueue what these tensors' digests are made of; there is room for them."""
        staged: list[Pending] = []
        contiguous: list[Tensor] = []
        first = self.filled
        order = sorted(range(len(tensors)), key=lambda i: _is_strided(tensors[i], layouts[i]))
        for i in order:
            words = condensed_words(layouts[i].nbytes)
            at, self.filled = self.filled, self.filled + words
            staged.append(Pending(self, at, layouts[i].nbytes, layouts[i].seed))
            if _is_strided(tensors[i], layouts[i]):
                self._copy_strided(tensors[i], at)
            else:
                contiguous.append(logical_bytes(tensors[i]))
        if contiguous:
            condense(contiguous, [pending.seed for pending in staged[: len(contiguous)]], self.there, first)
        self.waiting += staged
        return [pending for _, pending in sorted(zip(order, staged, strict=True), key=lambda pair: pair[0])]

    def _copy_strided(self, tensor: Tensor, at: int) -> None:
        """Elements of a small tensor in row-major order, in one copy."""
        words = as_words(tensor)
        size = words.element_size()
        view = self._views[size]
        first = view.storage_offset() + at * (8 // size)  # all buffers of a device lie in one storage
        view.as_strided(words.shape, contiguous_strides(words.shape), first).copy_(words)

    def settle(self, *, arrived: bool) -> None:
        """Make the digests, and be free again. ``arrived``: its words are on the host; else they never will be."""
        words = _array(self.here) if arrived else None
        for pending in self.waiting:
            if not pending.is_settled:
                pending.settle(words)
        self.waiting = []
        self.filled = 0
        self.event = None
        self.stream = None


def _is_strided(tensor: Tensor, layout: Layout) -> bool:
    return layout.nbytes < PAGE_BYTES and not (tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg())


def contiguous_strides(shape: Sequence[int]) -> list[int]:
    """Of a tensor of this shape whose elements lie one after the other, in row-major order."""
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= size
    return strides[::-1]


# --- buffers ----------------------------------------------------------------------------------------------------------
#
# The buffers of one device: a fixed number, each of which goes from free to open to closed and back.
#
# Owns these states. Each change is one assignment, made when all that it stands for is done: Ctrl-C between two
# statements leaves a buffer as it was before, or after.


class Buffers:
    """Used by one thread at a time."""

    def __init__(self, ways: Accelerator, gate: CaptureLock, device: torch.device, count: int, words: int) -> None:
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

    def wait(self, event: StreamEvent | None) -> bool:
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


# --- readback ---------------------------------------------------------------------------------------------------------


BUFFERS: Final = 8
"""Of each device."""

BUFFER_WORDS: Final = 1 << 18
"""2 MiB, and as much on the host; holds the page digests of 4 GiB. Eight together are more than the 10 MiB from which
on torch takes a piece of its own from the device: the program's memory is cut no otherwise than without them."""


class ReadBack:
    """All devices of one process. Any thread may use it."""

    def __init__(
        self,
        ways: Mapping[str, Accelerator] = WAYS,
        *,
        buffers: int = BUFFERS,
        words: int = BUFFER_WORDS,
    ) -> None:
        self.gate = CaptureLock()
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
