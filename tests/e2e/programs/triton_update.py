"""A few updates through kernels of Triton, which the interpreter runs: an autotuned sum, and one that scales in place.

``--pick N``: the configuration that the autotuner takes. With ``--record FOLDER`` it records variants in one process.
"""

import argparse
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl


@triton.jit
def put(pointer, value):
    tl.store(pointer, value)


@triton.jit
def scale(x, factor, n, block: tl.constexpr):
    places = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(x + places, tl.load(x + places, mask=places < n) * factor, mask=places < n)


def summing(pick: int) -> Any:
    """A kernel with its tuner, which makes as many trials as it has made before, and takes configuration ``pick``."""
    tried = []

    def measure(call: Callable[[], None], quantiles: Any) -> list[float]:
        tried.append(len(tried))
        for _ in tried:
            call()
        return [float(tried[-1] != pick)] * 3

    configurations = [triton.Config({"block": 32}, num_warps=4), triton.Config({"block": 64}, num_warps=8)]

    @triton.autotune(configs=configurations, key=["n"], do_bench=measure)
    @triton.jit
    def total(x, out, n, block: tl.constexpr):
        sums = tl.zeros((block,), tl.float32)
        for start in range(0, n, block):
            places = start + tl.arange(0, block)
            sums += tl.load(x + places, mask=places < n, other=0.0)
        put(out, tl.sum(sums, 0))

    return total


def update(pick: int = 0, *, block: int = 64, factor: float = 0.5, warps: int = 4, noise: float = 0.0) -> list[float]:
    torch.manual_seed(0)
    total = summing(pick)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.001)
    losses = []
    for _ in range(2):
        x, out = torch.randn(1000) + noise, torch.empty(1)
        scale[lambda given: (triton.cdiv(1000, given["block"]),)](x, factor, 1000, block=block, num_warps=warps)
        total[(1,)](x, out, 1000)
        loss = (weight * out).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def unreadable() -> list[float]:
    """A launch on a grid that no row can hold, and one that Triton refuses."""

    class Side(int):
        def __int__(self) -> int:
            raise ValueError("no number")

    x = torch.ones(8)
    scale[(Side(1),)](x, 2.0, 8, block=8)
    try:
        scale[("no grid",)](x, 2.0, 8, block=8)
    except Exception as error:
        return [len(str(error)), x.sum().item()]
    return []


VARIANTS: dict[str, Callable[[], list[float]]] = {
    "plain": update,
    "again": update,
    "picked": functools.partial(update, 1),
    "constant": functools.partial(update, block=128),
    "argument": functools.partial(update, factor=0.25),
    "warps": functools.partial(update, warps=8),
    "unreadable": unreadable,
    "input": functools.partial(update, noise=1.0),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pick", type=int, default=0)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--engines", nargs="*", default=[])
    options = parser.parse_args()
    if options.record is None:
        print(*map(float.hex, update(options.pick)))
        return
    import rltrace

    for engine in options.engines:
        for name, run in VARIANTS.items():
            with rltrace.record(options.record / f"{name}-{engine}.zarr", engine=engine):
                run()


if __name__ == "__main__":
    main()
