"""A device for tests without one: memory of the CPU, talked to as to a device, all that is slow about one made visible.

What is copied to the host arrives when its event is waited for, and not before: until then the host's memory holds
``GARBAGE``, which no digest may be made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.digests.cuda_graphs import Graphs
from rltrace.recorder.digests.readback import ReadBack
from rltrace.recorder.session import session as sessions

GARBAGE = -0x1234567812345678


class Arrival:
    """Marks the end of one copy."""

    def __init__(self, accelerator: HostAccelerator, source: torch.Tensor, host: torch.Tensor) -> None:
        self._accelerator = accelerator
        self._copied = source.clone()  # in stream order: without later writes
        self._host = host
        host.fill_(GARBAGE)

    def synchronize(self) -> None:
        self._accelerator.waits += 1
        if self._accelerator.failed:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        self._host.copy_(self._copied)


class HostAccelerator:
    """Stands where ``CudaWays`` does."""

    def __init__(self) -> None:
        self.current: int | None = 0
        """The stream of the calling thread."""
        self.captured = False
        self.failed = False
        self.waits = 0
        self.copies: list[tuple[int, int]] = []
        """Stream and words of each copy to the host."""

    def stream(self, device: torch.device) -> int | None:
        return self.current

    def memory(self, device: torch.device, words: int) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.inference_mode(mode=False):
            return torch.full((words,), 7), torch.full((words,), GARBAGE)

    def record_use(self, memory: torch.Tensor, device: torch.device, stream: int) -> None:
        pass

    def copy(self, source: torch.Tensor, host: torch.Tensor, device: torch.device, stream: int) -> Arrival:
        if self.failed:
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        self.copies.append((stream, len(source)))
        return Arrival(self, source, host)

    def is_captured(self, device: torch.device) -> bool:
        return self.captured


class HostGraph:
    """Stands where ``torch.cuda.CUDAGraph`` does. What runs while it captures is computed all the same; a replay does
    ``work``, which no op is seen to do."""

    def __init__(self, accelerator: HostAccelerator, work: Callable[[], object] = lambda: None) -> None:
        self._accelerator = accelerator
        self.work = work

    def capture_begin(self, pool: object = None) -> None:
        self._accelerator.captured = True

    def capture_end(self) -> None:
        self._accelerator.captured = False

    def replay(self) -> None:
        with torch._C._DisableTorchDispatch():
            self.work()


@contextmanager
def host_as_device(
    accelerator: HostAccelerator | None = None, *, buffers: int = 3, words: int = 2_600
) -> Iterator[list[ReadBack]]:
    """Within, recorders take tensors of the CPU for tensors of a device. Small buffers, so that all fill up.

    Yields what reads back for each recording that is begun."""
    made: list[ReadBack] = []

    def make(*args: Any, **options: Any) -> ProcessState:
        readback = ReadBack({"cpu": accelerator or HostAccelerator()}, buffers=buffers, words=words)
        made.append(readback)
        process = ProcessState(*args, **options, readback=readback)
        process.graphs = Graphs(readback.gate, process.storages.record_unseen_write, process.fail, HostGraph)
        return process

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "ProcessState", make)
        yield made
