"""Access to a kind of device: current stream, memory on both sides, copies, and waiting for them.

Owns every CUDA-specific call. Another kind of device needs a class like ``CudaAccelerator`` and an entry in
``ACCELERATORS``; without one its digests are not deferred, and the program waits for each.
"""

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
        """Wait until all work before it is done. Raises RuntimeError where the device has failed."""


class Accelerator(Protocol):
    """One kind of device."""

    def stream(self, device: torch.device) -> int | None:
        """This thread's current stream of the device; None where nothing may be enqueued on it later."""

    def memory(self, device: torch.device, words: int) -> tuple[Tensor, Tensor]:
        """Memory of the device and pinned memory of the host, int64 [words] each."""

    def record_use(self, memory: Tensor, device: torch.device, stream: int) -> None:
        """``memory`` is about to be used on ``stream``: the allocator must not reuse it early."""

    def copy(self, device_words: Tensor, host_words: Tensor, device: torch.device, stream: int) -> StreamEvent:
        """Enqueue a copy to the host and an event after it. Never waits."""

    def is_captured(self, device: torch.device) -> bool:
        """Whether this thread's work on the device is being captured into a graph."""

    def has_failed(self, device: torch.device) -> bool:
        """Whether a call failed because of an error of the device. Never waits."""


class CudaAccelerator:
    """CUDA, and ROCm, which uses its name."""

    def stream(self, device: torch.device) -> int | None:
        """The stream's id in torch; None for an external stream, which may be destroyed before its copy is enqueued.

        Ids of torch's streams are odd, or 0 (``StreamId assignment`` in c10/cuda/CUDAStream.cpp).
        """
        number: int = torch._C._cuda_getCurrentStream(device.index)[0]
        return number if number & 1 or not number else None

    def memory(self, device: torch.device, words: int) -> tuple[Tensor, Tensor]:
        with torch.inference_mode(mode=False):
            device_words = torch.empty(words, dtype=torch.int64, device=device)
            return device_words, torch.empty(words, dtype=torch.int64, device="cpu", pin_memory=True)

    def record_use(self, memory: Tensor, device: torch.device, stream: int) -> None:
        memory.record_stream(_stream(device, stream))

    def copy(self, device_words: Tensor, host_words: Tensor, device: torch.device, stream: int) -> StreamEvent:
        event, on = torch.cuda.Event(blocking=True), _stream(device, stream)  # blocking: a wait sleeps
        with nullcontext() if self.stream(device) == stream else _current(on, device):
            host_words.copy_(device_words, non_blocking=True)
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
    """``torch.cuda.stream``, which on exit would create a context on this thread's current device."""
    with torch.cuda.device(device):
        before = torch.cuda.current_stream(device)
        torch.cuda.set_stream(stream)
        try:
            yield
        finally:
            torch.cuda.set_stream(before)


ACCELERATORS: Mapping[str, Accelerator] = {"cuda": CudaAccelerator()}
"""By device type."""


@contextmanager
def waiting_allowed(device: torch.device) -> Iterator[None]:
    """Waiting for the device inside does not trigger the program's ``set_sync_debug_mode``."""
    mode = torch._C._cuda_get_sync_debug_mode() if device.type == "cuda" else 0
    if mode:
        torch._C._cuda_set_sync_debug_mode(0)
    try:
        yield
    finally:
        if mode:
            torch._C._cuda_set_sync_debug_mode(mode)
