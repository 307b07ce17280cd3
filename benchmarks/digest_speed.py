"""How fast the digest is on this CPU, beside one sequential XXH3 pass and a copy. Prints Markdown.

python benchmarks/digest_speed.py [--repeats 7]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from measure import machine, parse_options, table
from xxhash import xxh3_64_intdigest

from rltrace.digest import ALGORITHM, digest_address, seed_of

SIZES = (64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20)
"""Bytes."""


def microseconds(function: Callable[[], object], repeats: int) -> float:
    """Median over ``repeats`` of the mean time of as many calls as fit into 20 ms."""
    count, begin = 0, time.perf_counter()
    while count == 0 or time.perf_counter() - begin < 0.02:
        function()
        count += 1
    means = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(count):
            function()
        means.append((time.perf_counter() - begin) / count * 1e6)
    return median(means)


def row(size: int, repeats: int) -> list[str]:
    tensor = torch.arange(size // 4, dtype=torch.int32)
    target = torch.empty_like(tensor)
    seed, address, array = seed_of("int32", tensor.shape), tensor.data_ptr(), tensor.numpy()
    times = [
        microseconds(lambda: digest_address(address, size, seed), repeats),
        microseconds(lambda: xxh3_64_intdigest(array, seed), repeats),
        microseconds(lambda: target.copy_(tensor), repeats),
    ]
    return [f"{size:,}", *(f"{t:.2f}" for t in times), f"{size / times[0] / 1e3:.1f}"]


def main() -> None:
    options = parse_options(__doc__, repeats=7)
    torch.set_num_threads(1)
    print(f"Machine: {machine()}. One thread; digest {ALGORITHM}.\n")
    header = ["bytes", "digest, µs", "XXH3 of a NumPy array, µs", "copy, µs", "digest, GB/s"]
    print(table(header, [row(size, options.repeats) for size in SIZES]))


if __name__ == "__main__":
    main()
