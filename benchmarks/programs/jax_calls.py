"""Small compiled functions in a Python loop: ``tanh`` of products and sums, chains of calls on what the one before
returned, and eager operations. ``jax_calls.py CALLS BLOCKS``.

Writes to ``$BENCH_REPORT``, by case, wall and processor µs a call of each block, first of a program that looks at each
result, then of one that waits for the last only; blocks of the two by turns.
"""

import sys
import time
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from reporting import write_report

T = TypeVar("T")

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


def chain(function: Callable[[T], T], state: T) -> Callable[[int], jax.Array]:
    """A call by its number, of what the one before returned; an array of what it returns."""

    def call(number: int) -> jax.Array:
        nonlocal state
        state = function(state)
        first: jax.Array = state["layer0"] if isinstance(state, dict) else state
        return first

    return call


def block(call: Callable[[int], jax.Array], count: int, looks: bool) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    for number in range(count):
        result = call(number)
        if looks:
            result.block_until_ready()
    result.block_until_ready()
    return (time.perf_counter() - wall) / count * 1e6, (time.process_time() - cpu) / count * 1e6


one, other = map(jnp.asarray, arrays(8, 2))
parameters, gradients = ({f"layer{i}": jnp.asarray(array) for i, array in enumerate(arrays(8, 12))} for _ in range(2))
step = jax.jit(lambda given, gradients: jax.tree.map(lambda each, own: each - 1e-6 * own, given, gradients))
cases: dict[str, tuple[int, Callable[[int], jax.Array]]] = {
    f"{size} × {size}, {count}": (calls * 8 // size, case(size, count)) for size in (8, 256) for count in compiled
}
cases["8 × 8, 1, that the call before returned"] = calls, chain(jax.jit(jnp.tanh), one)
cases["8 × 8, 24 in two dicts, one of them returned anew"] = (
    calls,
    chain(lambda own: step(own, gradients), parameters),
)
given = jax.jit(step, donate_argnums=0)
cases["8 × 8, 24 in two dicts, one of them donated and returned anew"] = (
    calls,
    chain(lambda own: given(own, gradients), jax.tree.map(jnp.copy, parameters)),
)
key, other_key = jax.random.split(jax.random.key(0))
draw, split = jax.jit(lambda key: jax.random.normal(key, (8, 8))), jax.jit(lambda key: jax.random.split(key)[0])
cases["8 × 8, 1, donated, that the call before returned"] = calls, chain(jax.jit(jnp.tanh, donate_argnums=0), one + 0)
cases["`random.normal(key, (8, 8))` of a typed key"] = calls, lambda number: draw(key)
cases["`random.split(key)[0]` of a typed key, that the call before returned"] = calls, chain(split, other_key)
cases["8 × 8, `jnp.tanh(x)`"] = calls, lambda number: jnp.tanh(one)
cases["8 × 8, `x + y`"] = calls, lambda number: one + other

report = {}
for name, (number, call) in cases.items():
    block(call, number, True)
    report[name] = [(*block(call, number, True), *block(call, number, False)) for _ in range(blocks)]
write_report(**report)
