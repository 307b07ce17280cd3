"""Callbacks that raise: a recorded program sees the errors of the unrecorded one."""

from __future__ import annotations

from pathlib import Path

from jax_programs import JaxPrograms

PROGRAM = """
import functools
import jax, jax.numpy as jnp, numpy as np
from jax.experimental import io_callback

class Broke(ValueError):
    pass

def observe(x):
    if float(np.asarray(x)) > 2.5:
        raise Broke("the environment broke")
    return np.float32(1)

def debug(function, shape, x):
    jax.debug.callback(function, x)
    return x

number = jax.ShapeDtypeStruct((), np.float32)
kinds = {"pure": jax.pure_callback, "ordered": functools.partial(io_callback, ordered=True)}

def called_back(name, kind):
    call = functools.partial(kind, observe, number)
    small = jax.jit(lambda x: call(x) + 1)
    loop = jax.jit(lambda x: jax.lax.scan(lambda c, row: (c + row, call(c)), x, jnp.ones(5)))
    large = jax.jit(lambda x: (jnp.sin(jnp.arange(1 << 21) * x).max(), jnp.cos(call(x))))
    within = jax.jit(lambda x: jax.tree.map(jnp.negative, loop(x)))
    programs = {"small": small, "loop": loop, "within": within} | ({"large": large} if name == "pure" else {})
    calls = [(jnp.float32, -9.0), (jnp.float32, 5.0)]
    calls += [(np.float32, 5.0), (np.float32, -9.0), (np.float32, 5.0)]  # none is cached
    for program, function in programs.items():
        for kind, x in calls:
            try:
                found = jax.block_until_ready(function(kind(x)))
                print(name, program, x, *map(np.asarray, jax.tree.leaves(found)))
            except Exception as error:
                text = str(error)
                if program == "large":  # on a thread of XLA, without the stack of the program, as XLA likes
                    text = [text.partition("\\n")[0], text.rpartition("\\n")[2]]
                print(name, program, x, type(error).__name__, text, error.__cause__, error.__context__)

for name, kind in {**kinds, "debug": debug}.items():
    called_back(name, kind)
jax.effects_barrier()
"""


def test_the_program_sees_the_errors_of_its_callbacks(tmp_path: Path) -> None:
    """Of the same types with the same texts, at both levels, from calls that JAX would serve from its cache, too."""
    programs = JaxPrograms(tmp_path, {"program": PROGRAM})
    plain = programs.plain("program")
    assert {"pure small 5.0 JaxRuntimeError", "pure small 5.0 ValueError"} <= {
        line.partition(" INTERNAL")[0] for line in plain.splitlines()
    }
    for level in "op", "step":
        trace = programs.recorded(level, "program", options=("--level", level))
        assert programs.printed[level] == plain
        assert {process.state for process in trace.processes} == {"complete"}
