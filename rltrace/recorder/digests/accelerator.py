"""How a kind of device is talked to: which stream work goes to, memory on both sides, copies, and waiting for them.

Owns every call that is CUDA's own. Another kind of device needs a class like ``CudaAccelerator`` and an entry in
``WAYS``; without one its digests are waited for, each by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, Final, Protocol

import torch

from rltrace.recorder.digests.cuda_graphs import is_captured

Tensor = torch.Tensor


DEVICE_TYPE: Final = 1
"""CUDA's number among torch's kinds of device (c10/core/DeviceType.h)."""


class StreamEvent(Protocol):
    """A mark in the work of a stream."""

    def synchronize(self) -> None:
        """Wait until all before it is done. Raises RuntimeError where the device has failed."""


class Accelerator(Protocol):
    """One kind of device."""

    def stream(self, device: torch.device) -> int | None:
        """The stream on which this thread's work goes to the device; None where nothing may be enqueued there later."""

    def memory(self, device: torch.device, words: int) -> tuple[Tensor, Tensor]:
        """Words there, and as many here that the device can write by itself, int64 each."""

    def used_on(self, memory: Tensor, device: torch.device, stream: int) -> None:
        """``memory`` is about to be used on ``stream``: should it be given back, its allocator has to know."""

    def copy(self, there: Tensor, here: Tensor, device: torch.device, stream: int) -> StreamEvent:
        """Enqueue a copy to the host; the event that comes after it. Never waits."""

    def is_captured(self, device: torch.device) -> bool:
        """Whether this thread's work there becomes part of a graph."""

    def has_failed(self, device: torch.device) -> bool:
        """Whether an error of the device itself is why a call failed. Never waits."""


class CudaAccelerator:
    """CUDA, and what calls itself so (ROCm)."""

    def stream(self, device: torch.device) -> int | None:
        """By torch's number of it. One that torch did not make may be destroyed before its copy is enqueued: None.

        Numbers of torch's own streams are odd, or 0 (``StreamId assignment`` in c10/cuda/CUDAStream.cpp).
        """
        number: int = torch._C._cuda_getCurrentStream(device.index)[0]
        return number if number & 1 or not number else None

    def memory(self, device: torch.device, words: int) -> tuple[Tensor, Tensor]:
        with torch.inference_mode(mode=False):
            there = torch.empty(words, dtype=torch.int64, device=device)
            return there, torch.empty(words, dtype=torch.int64, device="cpu", pin_memory=True)

    def used_on(self, memory: Tensor, device: torch.device, stream: int) -> None:
        memory.record_stream(_stream(device, stream))

    def copy(self, there: Tensor, here: Tensor, device: torch.device, stream: int) -> StreamEvent:
        event, on = torch.cuda.Event(blocking=True), _stream(device, stream)  # who waits for such an event sleeps
        with nullcontext() if self.stream(device) == stream else _current(on, device):
            here.copy_(there, non_blocking=True)
            event.record(on)
        return event

    def is_captured(self, device: torch.device) -> bool:
        return is_captured(device)

    def has_failed(self, device: torch.device) -> bool:
        try:
            torch.cuda.current_stream(device).query()
        except RuntimeError:
            return True
        return False


def _stream(device: torch.device, number: int) -> Any:
    return torch.cuda.Stream(stream_id=number, device_index=device.index, device_type=DEVICE_TYPE)


@contextmanager
def _current(stream: Any, device: torch.device) -> Iterator[None]:
    """Not ``torch.cuda.stream``: leaving that would make a context on whichever device is this thread's own."""
    with torch.cuda.device(device):
        before = torch.cuda.current_stream(device)
        torch.cuda.set_stream(stream)
        try:
            yield
        finally:
            torch.cuda.set_stream(before)


WAYS: Mapping[str, Accelerator] = {"cuda": CudaAccelerator()}
"""By the type of a device."""


@contextmanager
def waiting_allowed(device: torch.device) -> Iterator[None]:
    """The recorder is about to wait for a device: a program that wants no such waiting (``set_sync_debug_mode``) means
    its own."""
    mode = torch._C._cuda_get_sync_debug_mode() if device.type == "cuda" else 0
    if mode:
        torch._C._cuda_set_sync_debug_mode(0)
    try:
        yield
    finally:
        if mode:
            torch._C._cuda_set_sync_debug_mode(mode)
