"""``examples/purejax_ppo.py`` with the sizes of PureJaxRL, then its training again. ``jax_ppo.py UPDATES RUNS``.

Writes to ``$BENCH_REPORT``: wall and processor seconds of the example, whose training is compiled first, and of each of
RUNS runs after that, and the digest of everything that the last one returned.
"""

import hashlib
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from reporting import write_report

updates, runs = int(sys.argv[1]), int(sys.argv[2])
EXAMPLE = Path(__file__).parents[2] / "examples" / "purejax_ppo.py"


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def example() -> None:
    sizes = {"updates": updates, "environments": 4, "rollout-steps": 128, "epochs": 4}
    sys.argv = [str(EXAMPLE), *(f"--{name}={size}" for name, size in sizes.items())]
    found.update(runpy.run_path(str(EXAMPLE)))


def training() -> None:
    found["returned"] = jax.block_until_ready(found["train"](key))


found: dict[str, Any] = {}
first = timed(example)
key = jax.random.key(1)
later = [timed(training) for _ in range(runs)]
arrays = [a for a in jax.tree.leaves(found["returned"]) if not jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key)]
returned = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
write_report(first=first, later=later, returned=returned)
