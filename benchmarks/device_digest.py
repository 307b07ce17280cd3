"""What condensing tensors costs where they lie, beside a copy of the same bytes there. Prints Markdown.

On a GPU, by the kernels and by torch operations: bandwidth, one small tensor, many small tensors, memory. Where there
is none, torch operations on this CPU, which says nothing of a GPU.

python benchmarks/device_digest.py [--repeats 7] [--most 1024]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

import torch
from measure import machine, parse_options, table

from rltrace.digest import PAGE_BYTES
from rltrace.recorder.digests import backend, torch_backend
from rltrace.recorder.digests.backend import Condense, facts
from rltrace.recorder.digests.torch_backend import condensed_words

MIB = 1 << 20
SIZES = (4 << 10, 16 << 10, 256 << 10, MIB, 16 * MIB, 64 * MIB, 256 * MIB, 1024 * MIB)
"""Bytes."""

BEYOND_CACHES = 512 * MIB
"""Different tensors of at least so many bytes in all are taken in turn, so that none is in a cache when it is read."""

SMALL, MANY = (64, 64), 1_000


class Clock:
    """Microseconds of calls, on a device as the device measures them, of as many as keep it busy."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self._on_gpu = device.type == "cuda"
        self._repeats = repeats

    def of(self, calls: list[Callable[[], object]]) -> float:
        """Median over the repeats of the mean of these calls, in turn."""
        self._one_round(calls, 1)
        rounds = max(1, int(50_000 / max(1.0, self._one_round(calls, 1) * len(calls))))
        return median(self._one_round(calls, rounds) for _ in range(self._repeats))

    def of_host(self, call: Callable[[], object], count: int) -> float:
        """What one call takes of the host, which does not wait for the device."""
        call()
        times = []
        for _ in range(self._repeats):
            self.wait()
            begin = time.perf_counter()
            for _ in range(count):
                call()
            times.append((time.perf_counter() - begin) / count * 1e6)
        self.wait()
        return median(times)

    def wait(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()

    def _one_round(self, calls: list[Callable[[], object]], rounds: int) -> float:
        self.wait()
        if not self._on_gpu:
            begin = time.perf_counter()
            for call in calls * rounds:
                call()
            return (time.perf_counter() - begin) / rounds / len(calls) * 1e6
        begin_event, end_event = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin_event.record()
        for call in calls * rounds:
            call()
        end_event.record()
        self.wait()
        return float(begin_event.elapsed_time(end_event)) / rounds / len(calls) * 1e3


def ways(device: torch.device) -> Mapping[str, Condense]:
    """By name, those that this device has."""
    chosen = backend._choose(device)
    by_torch: dict[str, Condense] = {"torch operations": torch_backend.condense}
    return by_torch if chosen is torch_backend.condense else {"kernels": chosen, **by_torch}


def bandwidth(device: torch.device, clock: Clock, most: int) -> str:
    found = ways(device)
    rows = []
    for size in (size for size in SIZES if size <= most):
        count = max(1, min(64, min(BEYOND_CACHES, most) // size))
        tensors = [torch.arange(size // 8, device=device).mul_(0x1E3779B97F4A7C15 + 2 * k) for k in range(count)]
        targets = [torch.empty_like(tensor) for tensor in tensors]
        into = torch.empty(condensed_words(size), dtype=torch.int64, device=device)
        copy = clock.of([partial(target.copy_, each) for each, target in zip(tensors, targets, strict=True)])
        del targets
        row = [f"{size:,}", f"{copy:.1f}", f"{size / copy / 1e3:.1f}"]
        for condense in found.values():
            taken = clock.of([partial(condense, [each], [7], into, 0) for each in tensors])
            row += [f"{taken:.1f}", f"{size / taken / 1e3:.1f}", f"{copy / taken:.0%}"]
        rows.append(row)
    header = ["bytes", "copy, µs", "GB/s"]
    for name in found:
        header += [f"{name}, µs", "GB/s", "of the copy's"]
    return table(header, rows)


def small(device: torch.device, clock: Clock) -> str:
    """One small tensor a call, as for each op; and many in one, as for an optimizer's step."""
    tensors = [torch.randn(SMALL, device=device) for _ in range(MANY)]
    words = condensed_words(tensors[0].nbytes)
    into = torch.empty(MANY * words, dtype=torch.int64, device=device)
    seeds = list(range(MANY))
    one, target = tensors[0], torch.empty_like(tensors[0])
    rows = [["an addition, for comparison", f"{clock.of_host(partial(one.add, 1.0), 200):.1f}", ""]]
    rows.append(["a copy, for comparison", f"{clock.of_host(partial(target.copy_, one), 200):.1f}", ""])
    for name, condense in ways(device).items():
        alone = clock.of_host(partial(condense, [one], [7], into, 0), 200)
        together = clock.of_host(partial(condense, tensors, seeds, into, 0), 1)
        busy = clock.of([partial(condense, tensors, seeds, into, 0)])
        rows.append([f"{name}, one a call", f"{alone:.1f}", ""])
        rows.append([f"{name}, {MANY:,} in one call", f"{together / MANY:.2f}", f"{busy / MANY:.2f}"])
    return table(["a tensor of 64 × 64 floats", "host, µs a tensor", "begin to end, µs a tensor"], rows)


def memory(device: torch.device, most: int) -> str:
    """What is allocated beside the tensor and its words while it is condensed."""
    tensor = torch.zeros(most // 8, dtype=torch.int64, device=device)
    into = torch.empty(condensed_words(most), dtype=torch.int64, device=device)
    rows = []
    for name, condense in ways(device).items():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        condense([tensor], [7], into, 0)
        torch.cuda.synchronize()
        rows.append([name, f"{(torch.cuda.max_memory_allocated() - before) / MIB:,.1f}"])
    return table([f"of {most // MIB:,} MiB", "MiB beside it"], rows)


def main() -> None:
    options = parse_options(__doc__, repeats=7, most=(0, "MiB of the largest tensor (1,024 on a GPU, 1 on a CPU)"))
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    most = (options.most or (1024 if device.type == "cuda" else 1)) * MIB
    clock = Clock(device, options.repeats)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU: torch operations on this CPU"
    begin = time.perf_counter()
    ways(device)
    ready = time.perf_counter() - begin
    print(f"Machine: {machine()}; {where}. Pages of {PAGE_BYTES:,} bytes.")
    for name, value in facts().items():
        print(f"{name}: {value}; chosen within {ready:.1f} s.")
    print()
    print(bandwidth(device, clock, most), small(device, clock), sep="\n\n")
    if device.type == "cuda":
        print("\n" + memory(device, most))


if __name__ == "__main__":
    main()
