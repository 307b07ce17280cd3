"""A JAX program as it is, and one line more: a hash of everything that its training returned.

    python jax_returned.py PROGRAM [CARRIES.json]

The training's results are the global ``out`` of the program, or what it waits for last. With a second argument, every
carry of its first ``jax.lax.scan`` is stacked beside what the program stacks, and the file has a hash of each array of
each carry, first of the initial one: an oracle that has nothing of rltrace. Nothing else is changed, and the line must
be the same.
"""

import hashlib
import inspect
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

CARRIES, METRICS = "carries of the oracle", "metrics"


def hash_of(*arrays: Any) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def watched(scan: Callable[..., Any], carry_of: dict[str, Any]) -> Callable[..., Any]:
    """``scan``, the first call of which stacks its carries, too; ``carry_of``: becomes their name, and dimensions."""

    def first(function: Callable[..., Any], init: Any, *args: Any, **options: Any) -> Any:
        jax.lax.scan = scan
        carry_of["name"] = next(iter(inspect.signature(function).parameters))
        carry_of["dimensions"] = [np.ndim(leaf) for leaf in jax.tree.leaves(init)]

        def step(carry: Any, x: Any) -> Any:
            carry, y = function(carry, x)
            return carry, (y, carry)

        end, (ys, carries) = scan(step, init, *args, **options)
        return end, {METRICS: ys, CARRIES: (init, carries)}

    return first


def by_iteration(init: Any, carries: Any, name: str, dimensions: list[int]) -> list[dict[str, str]]:
    """Of the initial carry and of each one after it, a hash by the name of each array; vmap's axis is first."""
    is_batched = [np.ndim(leaf) for leaf in jax.tree.leaves(init)] != dimensions
    stacked = [np.swapaxes(leaf, 0, 1) if is_batched else np.asarray(leaf) for leaf in jax.tree.leaves(carries)]
    paths, first = zip(*jax.tree_util.tree_flatten_with_path(init)[0], strict=True)
    names = [name + jax.tree_util.keystr(path) for path in paths]
    each = [first, *([leaf[k] for leaf in stacked] for k in range(len(stacked[0])))]
    return [dict(zip(names, map(hash_of, arrays), strict=True)) for arrays in each]


def main() -> None:
    program = Path(sys.argv[1])
    sys.path.insert(0, str(program.parent))
    if not hasattr(jax, "tree_map"):  # newer versions have it under another name only
        jax.tree_map = jax.tree.map
    waited_for: list[Any] = []
    carry_of: dict[str, Any] = {}
    wait = jax.block_until_ready
    jax.block_until_ready = lambda results: waited_for.append(results) or wait(results)
    if len(sys.argv) > 2:
        jax.lax.scan = watched(jax.lax.scan, carry_of)
    names = runpy.run_path(str(program), run_name="__main__")
    out = names.get("out", waited_for[-1] if waited_for else None)
    if carry_of:
        metrics = out["metrics"]
        out["metrics"] = metrics[METRICS]
        Path(sys.argv[2]).write_text(json.dumps(by_iteration(*metrics[CARRIES], **carry_of)))
    print("returned", hash_of(*jax.tree.leaves(out)))


main()
