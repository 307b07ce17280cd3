"""What is recorded of a traced function: its numbers and its lines, each by the source."""

import json
from pathlib import Path

import pytest
from jax_programs import JaxPrograms

TRACED = """
import json
import jax, jax.numpy as jnp
from rltrace.extensions.jax.programs import program_of

@jax.jit
def fall(speed, gravity, unused):
    return brake(speed + gravity * 0.5, gravity)

@jax.jit
def brake(speed, gravity):
    faster = speed - gravity
    return jnp.where(speed > 3, 0.0, faster)

@jax.jit
def hand_on(speed, limit):
    return speed, limit

def program(x, gravity, reward):
    speed = fall(x, gravity, 7.0)
    low, high = hand_on(speed, 6.0)
    return low * high + (jnp.cos(x) if reward else x)

traced = [jax.make_jaxpr(lambda x: program(x, *more))(1.0) for more in ((9.8, False), (9.9, False), (9.8, True))]
print(json.dumps([program_of(each.jaxpr) for each in traced]))
"""


Traced = tuple[str, dict[str, float], dict[str, str]]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> list[Traced]:
    """Fingerprint, numbers and lines of a function, of one with another number, and of one with another equation."""
    traced = json.loads(JaxPrograms(tmp_path_factory.mktemp("programs"), {"traced": TRACED}).plain("traced"))
    return [(fingerprint, dict(numbers), dict(lines)) for fingerprint, numbers, lines in traced]


def test_a_number_has_the_line_that_computes_with_it(programs: list[Traced]) -> None:
    """Not that of a call which hands it on; one that nothing computes with is none."""
    numbers = programs[0][1]
    assert numbers["return brake(speed + gravity * 0.5, gravity) #1"] == 9.8
    assert numbers["low, high = hand_on(speed, 6.0) #1"] == 6.0
    assert 7.0 not in numbers.values()
    assert programs[1][1]["return brake(speed + gravity * 0.5, gravity) #1"] == 9.9


def test_a_fingerprint_has_no_numbers_and_lines_have_no_neighbours(programs: list[Traced]) -> None:
    """Another number is the same program; another equation is another line of it alone."""
    one, number, equation = programs
    assert (one[0], one[2]) == (number[0], number[2])
    assert one[0] != equation[0]
    differing = [line for line, made in one[2].items() if equation[2].get(line) != made]
    assert differing == ["return low * high + (jnp.cos(x) if reward else x)"]
    assert set(one[2]) == set(equation[2])


# --- errors of callbacks ----------------------------------------------------------------------------------------------


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
