"""What is recorded of a traced function: its numbers and its lines, each by the source."""

from __future__ import annotations

import json

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
    programs = JaxPrograms(tmp_path_factory.mktemp("programs"), {"traced": TRACED})
    traced = json.loads(programs.plain("traced"))
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
