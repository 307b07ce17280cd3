"""Small compiled functions in a Python loop: ``tanh`` of products and sums. ``jax_calls.py CALLS BLOCKS``.

Writes to ``$BENCH_REPORT``, by case, wall and processor µs a call of each block, first of a program that looks at each
result, then of one that waits for the last only; blocks of the two by turns.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

calls, blocks = int(sys.argv[1]), int(sys.argv[2])
generator = np.random.default_rng(0)
compiled: dict[int, Callable[..., jax.Array]] = {
    1: jax.jit(lambda a: jnp.tanh(a @ a)),
    2: jax.jit(lambda weights, batch: jnp.tanh(batch @ weights)),
    12: jax.jit(lambda a, b, *others: jnp.tanh(a @ b) + sum(others)),
}


def arrays(size: int, count: int) -> list[np.ndarray]:
    return [generator.normal(size=(size, size)).astype(np.float32) for _ in range(count)]


def case(size: int, count: int) -> Callable[[int], jax.Array]:
    """A call by its number: of two arguments, the second is a batch of NumPy, another each time."""
    function, given = compiled[count], list(map(jnp.asarray, arrays(size, count)))
    if count != 2:
        return lambda number: function(*given)
    batches = arrays(size, 64)
    return lambda number: function(given[0], batches[number % 64])


def block(call: Callable[[int], jax.Array], count: int, looks: bool) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    for number in range(count):
        result = call(number)
        if looks:
            result.block_until_ready()
    result.block_until_ready()
    return (time.perf_counter() - wall) / count * 1e6, (time.process_time() - cpu) / count * 1e6


report = {}
for size in 8, 256:
    for count in compiled:
        call, number = case(size, count), calls * 8 // size
        block(call, number, True)
        pairs = [(*block(call, number, True), *block(call, number, False)) for _ in range(blocks)]
        report[f"{size} × {size}, {count}"] = pairs
Path(os.environ["BENCH_REPORT"]).write_text(json.dumps(report))
