"""Deferred digests of tensors on devices: computed at once, read back in batches.

Owns the buffers of each device: a fixed number, allocated at the first tensor on it. A digest's work is enqueued on the
current stream, where the op ran; a full buffer is then copied to the host, with an event after the copy. The committing
thread waits for that event, or a recording thread that finds all buffers in use. Once a device has failed, pending
digests stay unknown; the program gets the error at its next call.
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
from rltrace.recorder.digests.accelerator import ACCELERATORS, Accelerator, StreamEvent
from rltrace.recorder.digests.backend import condense
from rltrace.recorder.digests.cuda_graphs import CaptureLock
from rltrace.recorder.digests.layouts import WORDS, Layout, as_condensed, as_words, is_plain, own_work
from rltrace.recorder.digests.torch_backend import condensed_words, finished

# --- staging ----------------------------------------------------------------------------------------------------------
#
# A buffer of condensed tensors between a device and the host, and their pending digests. Work is enqueued on the
# current stream, after the tensor is written and before it is overwritten; nothing here waits.


Tensor = torch.Tensor

_array: Any = TensorBase.numpy
"""The original method: its patch follows the program's arrays."""


class Pending:
    """A digest that is not known yet."""

    __slots__ = ("at", "buffer", "digest", "nbytes", "seed", "unread")

    def __init__(self, buffer: Buffer | None, at: int = 0, nbytes: int = 0, seed: int = 0) -> None:
        self.buffer = buffer
        """The buffer with its words; None: settled."""
        self.at = at
        self.nbytes = nbytes
        self.seed = seed
        self.digest = 0
        self.unread = buffer is None
        """It will never be known: a graph was being captured, or the device failed."""

    @property
    def is_settled(self) -> bool:
        return self.buffer is None

    def settle(self, words: Any) -> None:
        """``words``: of its buffer, on the host; None: they never arrive."""
        if words is None:
            self.unread = True
        else:
            own = words[self.at : self.at + condensed_words(self.nbytes)]
            self.digest = finished(own, self.nbytes, self.seed)
        self.buffer = None


def unread() -> Pending:
    """A digest that will never be known."""
    return Pending(None)


class Buffer:
    """A buffer of a device. Belongs to one stream from when it is opened until its words have been read."""

    def __init__(self, device_words: Tensor, host_words: Tensor) -> None:
        """Both int64, of one size."""
        self.device_words = device_words
        self.host_words = host_words
        self.stream: int | None = None
        """The stream whose work it holds; None: it is free."""
        self.event: StreamEvent | None = None
        """After its copy to the host. None while it is open: digests are still added, and nothing has been copied."""
        self.number = 0
        """Count of the device's opened buffers when it was opened."""
        self.filled = 0
        self.pending: list[Pending] = []
        self._views = {size: device_words.view(dtype) for size, dtype in WORDS.items()}

    def stage(self, tensors: Sequence[Tensor], layouts: Sequence[Layout]) -> list[Pending]:
        """Enqueue the work for these tensors' digests; the buffer has space for them."""
        staged: list[Pending] = []
        others: list[Tensor] = []
        first = self.filled
        order = sorted(range(len(tensors)), key=lambda i: _is_strided(tensors[i], layouts[i]))
        for i in order:
            words = condensed_words(layouts[i].nbytes)
            at, self.filled = self.filled, self.filled + words
            staged.append(Pending(self, at, layouts[i].nbytes, layouts[i].seed))
            if _is_strided(tensors[i], layouts[i]):
                self._copy_strided(tensors[i], at)
            else:
                others.append(as_condensed(tensors[i]))
        if others:
            condense(others, [pending.seed for pending in staged[: len(others)]], self.device_words, first)
        self.pending += staged
        return [pending for _, pending in sorted(zip(order, staged, strict=True), key=lambda pair: pair[0])]

    def _copy_strided(self, tensor: Tensor, at: int) -> None:
        """Enqueue one copy of a small tensor's elements in row-major order."""
        words = as_words(tensor)
        size = words.element_size()
        view = self._views[size]
        first = view.storage_offset() + at * (8 // size)  # all buffers of a device share one storage
        view.as_strided(words.shape, contiguous_strides(words.shape), first).copy_(words)

    def settle(self, *, arrived: bool) -> None:
        """Settle its digests and free it. ``arrived``: its words are on the host; else they never will be."""
        words = _array(self.host_words) if arrived else None
        for pending in self.pending:
            if not pending.is_settled:
                pending.settle(words)
        self.pending = []
        self.filled = 0
        self.event = None
        self.stream = None


def _is_strided(tensor: Tensor, layout: Layout) -> bool:
    return layout.nbytes < PAGE_BYTES and not is_plain(tensor)


def contiguous_strides(shape: Sequence[int]) -> list[int]:
    """Strides of a contiguous tensor of this shape."""
    strides, stride = [], 1
    for size in reversed(shape):
        strides.append(stride)
        stride *= size
    return strides[::-1]


# --- buffers ----------------------------------------------------------------------------------------------------------
#
# Each buffer of a device goes from free to open to closed and back. Each change of state is one assignment, made last:
# Ctrl-C between two statements leaves a buffer in the old state or in the new one.


class Buffers:
    """The buffers of one device. Used by one thread at a time."""

    def __init__(
        self, accelerator: Accelerator, gate: CaptureLock, device: torch.device, count: int, words: int
    ) -> None:
        self._accelerator = accelerator
        self._gate = gate
        self._device = device
        device_words, host_words = accelerator.memory(device, count * words)
        self._all = [Buffer(*halves) for halves in zip(device_words.split(words), host_words.split(words), strict=True)]
        self._open: dict[int, Buffer] = {}
        """The buffer opened last, by stream."""
        self._opened = 0
        self._has_failed = False

    def buffer_for(self, stream: int, words: int) -> Buffer | None:
        """A buffer of this stream, the current one, with space for so many words; None where none can be had."""
        if self._has_failed:
            return None
        buffer = self._open.get(stream)
        if buffer is not None and buffer.stream == stream and buffer.event is None:
            if buffer.filled + words <= len(buffer.device_words):
                return buffer
            self.close(buffer)
        free = next((buffer for buffer in self._all if buffer.stream is None), None) or self._wait_for_one()
        if free is None:
            return None
        self._accelerator.record_use(free.device_words, self._device, stream)
        self._opened += 1
        free.number = self._opened
        free.stream = stream
        self._open[stream] = free
        return free

    def _wait_for_one(self) -> Buffer | None:
        """Wait for the buffer that has been in use for longest; None: a graph is being captured, or a failure."""
        with self._gate.inside() as allowed:
            if not allowed:
                return None
            oldest = min(self._all, key=lambda buffer: (buffer.event is None, buffer.number))
            if oldest.event is None:
                self.close(oldest)
            self.receive(oldest, arrived=self.wait(oldest.event))
            return None if self._has_failed else oldest

    def close(self, buffer: Buffer) -> None:
        """Enqueue the copy to the host."""
        assert buffer.stream is not None
        used = slice(buffer.filled)
        try:
            with own_work():
                buffer.event = self._accelerator.copy(
                    buffer.device_words[used], buffer.host_words[used], self._device, buffer.stream
                )
        except RuntimeError:
            self.fail()

    def wait(self, event: StreamEvent | None) -> bool:
        """Wait for the event; False: the device has failed."""
        if self._has_failed or event is None:
            return False
        try:
            event.synchronize()
        except RuntimeError:
            return False
        return True

    def receive(self, buffer: Buffer, *, arrived: bool) -> None:
        """Settle the digests of a buffer that was waited for."""
        if arrived:
            buffer.settle(arrived=True)
        else:
            self.fail()

    def fail(self) -> None:
        """The device has failed: no pending digest will be known."""
        self._has_failed = True
        for buffer in self._all:
            buffer.settle(arrived=False)


# --- readback ---------------------------------------------------------------------------------------------------------


BUFFERS: Final = 8
"""Buffers of each device."""

BUFFER_WORDS: Final = 1 << 18
"""2 MiB, and as much on the host; holds the page digests of 4 GiB. Eight together exceed the 10 MiB from which torch's
allocator makes a separate segment: the program's allocations are as without them."""


class ReadBack:
    """Deferred digests of all devices of one process. Any thread may use it."""

    def __init__(
        self,
        accelerators: Mapping[str, Accelerator] = ACCELERATORS,
        *,
        buffers: int = BUFFERS,
        words: int = BUFFER_WORDS,
    ) -> None:
        self.gate = CaptureLock()
        self._accelerators = accelerators
        self._sizes = buffers, words
        self._lock: Any = threading.RLock()
        """Not entered twice by one thread (as in a signal handler): the buffers may be in an intermediate state."""
        self._full: set[torch.device] = set()
        """Devices without memory for buffers."""
        self._devices: dict[torch.device, Buffers] = {}
        self._pid = os.getpid()

    def can_defer(self, device: torch.device) -> bool:
        """Whether digests of tensors on such a device can be deferred."""
        return device.type in self._accelerators

    def is_shut(self, device: torch.device) -> bool:
        """Whether the device must not be used now: a graph is being captured."""
        return self.gate.is_shut or self._accelerators[device.type].is_captured(device)

    @staticmethod
    def unread() -> Pending:
        """A digest that will never be known."""
        return unread()

    def defer(self, tensors: Sequence[Tensor], layouts: Sequence[Layout]) -> list[Pending] | None:
        """Enqueue the work for the digests of plain tensors of one device; None where they cannot be deferred.

        Waits only for space in the buffers.
        """
        device = tensors[0].device
        with self.gate.inside() as allowed:  # no other thread begins a capture while work is enqueued
            if not allowed or self._accelerators[device.type].is_captured(device):
                return [unread() for _ in tensors]
            words = [condensed_words(layout.nbytes) for layout in layouts]
            stream = self._accelerators[device.type].stream(device)
            if stream is None or max(words) > self._sizes[1] or device in self._full or self._lock._is_owned():
                return None
            with self._lock:
                try:
                    return self._enqueue(device, stream, tensors, layouts, words)
                except torch.OutOfMemoryError:
                    if device not in self._devices:
                        self._full.add(device)
                        return None
                    return [unread() for _ in tensors]  # no memory for temporary tensors
                except RuntimeError:
                    if not self._accelerators[device.type].has_failed(device):
                        raise
                    if device in self._devices:  # the program gets the error at its next call
                        self._devices[device].fail()
                    return [unread() for _ in tensors]

    def _enqueue(
        self,
        device: torch.device,
        stream: int,
        tensors: Sequence[Tensor],
        layouts: Sequence[Layout],
        words: Sequence[int],
    ) -> list[Pending]:
        found: list[Pending] = []
        with own_work():
            buffers = self._devices.get(device) or self._make(device)
            while len(found) < len(tensors):
                first = last = len(found)
                buffer = buffers.buffer_for(stream, words[first])
                if buffer is None:
                    return [*found, *(unread() for _ in tensors[first:])]
                space = len(buffer.device_words) - buffer.filled
                while last < len(tensors) and words[last] <= space:
                    space -= words[last]
                    last += 1
                found += buffer.stage(tensors[first:last], layouts[first:last])
        return found

    def _make(self, device: torch.device) -> Buffers:
        buffers = self._devices[device] = Buffers(self._accelerators[device.type], self.gate, device, *self._sizes)
        return buffers

    def settle(self, pending: Pending, *, last: bool = False) -> bool:
        """Wait until a digest is settled; False: not possible now, a graph is being captured.

        ``last``: settle it as unknown in that case.
        """
        while (buffer := pending.buffer) is not None:
            with self.gate.inside() as allowed:
                if not allowed or not self._receive(buffer):
                    if not last:
                        return False
                    pending.settle(None)
        return True

    def _receive(self, buffer: Buffer) -> bool:
        """Have a buffer copied, wait for it, read it. False: this thread is inside this method, or inside ``defer``."""
        if self._lock._is_owned():
            return False
        with self._lock:
            buffers = self._devices[buffer.device_words.device]
            if buffer.event is None:
                buffers.close(buffer)
            event = buffer.event
        arrived = buffers.wait(event)  # without the lock: the program's threads go on
        with self._lock:
            if buffer.event is event:
                buffers.receive(buffer, arrived=arrived)
        return True

    def leave_to_parent(self) -> None:
        """In a forked child: never use or free the parent's buffers."""
        if os.getpid() != self._pid and self._devices:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._devices))
