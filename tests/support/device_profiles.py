"""A device that is none: real profiles of a CPU, with what Kineto would report of a device beside each op.

Owns those events' form, which is Kineto's (``CuptiActivityProfiler``, torch's ``collection.cpp``): for each launch a
call of the runtime within the innermost op, and what ran later on the device, both with one id of CUPTI's and with the
op's id of torch's. CUPTI counts its ids apart, so that they overlap with torch's.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import pytest

from rltrace.extensions.kernels.profiler import cycles, kineto
from rltrace.extensions.kernels.profiler.launch_matching import BRACKET, ProfilerEvent

KERNELS = {
    "aten::addmm": ("ampere_sgemm_32x32_sliced1x4_tn", "void splitKreduce_kernel<32, 16, float>(float)"),
    "aten::mm": ("ampere_sgemm_32x32_sliced1x4_nn",),
    "aten::tanh": ("void at::native::vectorized_elementwise_kernel<4, at::native::tanh_kernel_cuda>(int)",),
    "aten::copy_": ("Memcpy DtoD (Device -> Device)",),
    "aten::fill_": ("Memset (Device)",),
    "aten::mul": ("void at::native::vectorized_elementwise_kernel<4, at::native::mul>(int)",),
    "aten::_fused_adam_": ("multi_tensor_apply_kernel<FusedAdam>",),
    "aten::_foreach_lerp_": ("multi_tensor_apply_kernel<Lerp>", "multi_tensor_apply_kernel<Lerp>"),
}
"""What each innermost op launches here."""

Kernels = Callable[[ProfilerEvent], Iterable[str]]


def by_name(event: ProfilerEvent) -> Iterable[str]:
    return KERNELS.get(event.name, ())


def with_device(events: list[ProfilerEvent], kernels: Kernels = by_name) -> list[ProfilerEvent]:
    """These events of a host, and what they would have launched; the device runs late, and in another order."""
    return [*events, *_launched(events, kernels)]


def _launched(events: list[ProfilerEvent], kernels: Kernels) -> Iterator[ProfilerEvent]:
    numbers = count(1)
    last = max((event.end for event in events), default=0)
    begun = sorted(events, key=lambda event: (event.start, -event.end))
    for event, following in zip(begun, [*begun[1:], None], strict=True):
        if following is not None and following.name == BRACKET and following.end <= event.end:
            continue  # it is handed to the recorder, which runs it
        for name in kernels(event):
            n = next(numbers)
            moves = name.startswith("Mem")
            call = "cudaMemcpyAsync" if moves else "cudaLaunchKernel"
            yield ProfilerEvent(call, event.start, event.start, event.thread, n, event.correlation, runtime=True)
            grid = ((n % 7 + 1, 1, 1), (128, 1, 1)) if not moves else ((), ())
            yield ProfilerEvent(
                name, last + 10 * (n ^ 5), last + 10 * (n ^ 5) + 3, 0, n, event.correlation, True, *grid
            )


class _Module:
    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def synchronize() -> None:
        pass  # there is no ``torch._C._cpu_hasPrimaryContext``, so nothing asks for more


def pretend(
    patch: pytest.MonkeyPatch,
    *,
    rows: int = cycles.CYCLE_ROWS,
    longest: int = 1 << 20,
    kernels: Kernels | None = by_name,
) -> None:
    """Let the recorder look at the CPU as if it were a device: real profiles, with launches of made-up kernels.

    A cycle has ``rows`` rows, ``longest`` times as many at most.
    """
    real = kineto.events_of

    def events_of(result: Any) -> list[ProfilerEvent]:
        events = real(result)
        return events if kernels is None else with_device(events, kernels)

    patch.setattr(kineto, "devices", lambda: ("cpu",))
    patch.setattr(kineto, "_module", lambda kind: _Module)
    patch.setattr(kineto, "events_of", events_of)
    patch.setattr(cycles, "CYCLE_ROWS", rows)
    patch.setattr(cycles, "MAX_CYCLES", longest)
