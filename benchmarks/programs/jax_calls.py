"""A small compiled function in a Python loop: ``tanh(batch @ weights)`` of 8 × 8. ``jax_calls.py CALLS BLOCKS``.

Writes to ``$BENCH_REPORT``: wall and processor µs a call, of the fastest of the blocks, of a program that looks at each
result and of one that waits for the last only; blocks of the two by turns.
"""

import json
import os
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

calls, blocks = int(sys.argv[1]), int(sys.argv[2])
generator = np.random.default_rng(0)
batches = [generator.normal(size=(8, 8)).astype(np.float32) for _ in range(64)]
weights = jnp.asarray(generator.normal(size=(8, 8)).astype(np.float32))


@jax.jit
def forward(weights: jax.Array, batch: jax.Array) -> jax.Array:
    return jnp.tanh(batch @ weights)


def block(looks: bool) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    for number in range(calls):
        result = forward(weights, batches[number % 64])
        if looks:
            result.block_until_ready()
    result.block_until_ready()
    return (time.perf_counter() - wall) / calls * 1e6, (time.process_time() - cpu) / calls * 1e6


block(True)
pairs = [(block(True), block(False)) for _ in range(blocks)]
looked, unlooked = ([min(times) for times in zip(*each, strict=True)] for each in zip(*pairs, strict=True))
Path(os.environ["BENCH_REPORT"]).write_text(json.dumps({"looked": looked, "unlooked": unlooked}))
