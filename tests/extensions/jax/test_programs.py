"""What is recorded of a traced function: its numbers and its lines, each by the source."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed: pip install rltrace-debugger[jax]", allow_module_level=True)

TRACED = """
import json, sys
import jax, jax.numpy as jnp
from rltrace.extensions.jax.programs import program_of

gravity, reward = map(float, sys.argv[1:])

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

def program(x):
    speed = fall(x, gravity, 7.0)
    low, high = hand_on(speed, 6.0)
    return low * high + (jnp.cos(x) if reward else x)

print(json.dumps(program_of(jax.make_jaxpr(program)(1.0).jaxpr)))
"""


Traced = tuple[str, dict[str, float], dict[str, str]]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> list[Traced]:
    """Fingerprint, numbers and lines of a function, of one with another number, and of one with another equation."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "traced.py").write_text(TRACED)
    found = []
    for words in (("9.8", "0"), ("9.9", "0"), ("9.8", "1")):
        command = [sys.executable, "traced.py", *words]
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        fingerprint, numbers, lines = json.loads(ended.stdout)
        found.append((fingerprint, dict(numbers), dict(lines)))
    return found


def test_a_number_has_the_line_that_computes_with_it(
    programs: list[Traced],
) -> None:
    """Not that of a call which hands it on; one that nothing computes with is none."""
    numbers = programs[0][1]
    assert numbers["return brake(speed + gravity * 0.5, gravity) #1"] == 9.8
    assert numbers["low, high = hand_on(speed, 6.0) #1"] == 6.0
    assert 7.0 not in numbers.values()
    assert programs[1][1]["return brake(speed + gravity * 0.5, gravity) #1"] == 9.9


def test_a_fingerprint_has_no_numbers_and_lines_have_no_neighbours(
    programs: list[Traced],
) -> None:
    """Another number is the same program; another equation is another line of it alone."""
    one, number, equation = programs
    assert (one[0], one[2]) == (number[0], number[2])
    assert one[0] != equation[0]
    differing = [line for line, made in one[2].items() if equation[2].get(line) != made]
    assert differing == ["return low * high + (jnp.cos(x) if reward else x)"]
    assert set(one[2]) == set(equation[2])
