"""A Triton kernel whose programs add to one number, run by the interpreter in an order that a seed draws anew.

python atomics.py TRACE: records itself with each op called twice more.
"""

import os
import random
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

import rltrace


@triton.jit  # type: ignore[untyped-decorator]
def total(x: Any, out: Any, block: tl.constexpr) -> None:
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.atomic_add(out, tl.sum(tl.load(x + at)))


def shuffled(seed: int, programs: int) -> None:
    """Run the programs of each launch in another order, as a GPU may."""
    builder, draws, order = interpreter.interpreter_builder, random.Random(seed), list(range(programs))
    original = builder.set_grid_idx

    def set_grid_idx(x: int, y: int, z: int) -> None:
        if x == 0:
            draws.shuffle(order)
        original(order[x], y, z)

    builder.set_grid_idx = set_grid_idx


if __name__ == "__main__":
    shuffled(7, 64)
    values = torch.randn(256, generator=torch.Generator().manual_seed(0))
    with rltrace.record(sys.argv[1], repeat=2):
        out = torch.zeros(1)
        total[(64,)](values, out, block=4)
        out * 2
