"""The first iteration and the arrays that rltrace names are those of an oracle, which steps the loop's body in Python.

The environment of the program is a callback into Python, and one number of what it returns is another in B. The
program then hides it, hands it on later, or drops it, so that neither the iteration nor the arrays can be guessed.
"""

import json
import re

import numpy as np
import pytest
from jax_programs import JaxPrograms

from rltrace.diff.base.model import Verdict
from rltrace.diff.compare import compare
from rltrace.trace.format.schema import Column
from rltrace.trace.read.reader import Trace

LOOP = """
import json, sys
import jax, jax.numpy as jnp, numpy as np

STEPS = 8
plant = None  # (iteration, row, column, what is added there)

def observe(batch, at):
    seen = np.array(batch, np.float32)
    if plant is not None and at == plant[0]:
        seen[plant[1], plant[2]] += plant[3]
    return seen

def update(state, at):
    key, own = jax.random.split(state["key"])
    batch = jax.random.uniform(own, (4, 3), minval=-2, maxval=2)
    seen = jax.pure_callback(observe, jax.ShapeDtypeStruct((4, 3), np.float32), batch, at)
    weights, pending = state["weights"], jnp.where(at % 3 == 0, seen[0], state["pending"])
    weights = jnp.where(at % 3 == 2, weights - 0.1 * jnp.outer(pending, jnp.tanh(pending @ weights)), weights)
    best = jnp.maximum(state["best"], seen[1:3].max())
    hits = state["hits"] + (seen[:, 2] > 1.5).astype(np.int32)
    return {"weights": weights, "pending": pending, "best": best, "hits": hits, "key": key}, best

def initial(key):
    start = {"pending": jnp.zeros(3), "best": jnp.float32(-9), "hits": jnp.zeros(4, np.int32), "key": key}
    return {"weights": jax.random.uniform(key, (3, 3)), **start}

def train(key):
    return jax.lax.scan(update, initial(key), jnp.arange(STEPS))

def carries(key):
    step, state = jax.jit(update), jax.jit(initial)(key)
    for at in range(STEPS):
        state, _ = step(state, np.int32(at))
        leaves = jax.tree_util.tree_flatten_with_path(state)[0]
        yield {"state" + jax.tree_util.keystr(path): np.asarray(leaf).tobytes().hex() for path, leaf in leaves}

key = jax.random.PRNGKey(0)
if sys.argv[1] == "oracle":
    found = []
    for plant in json.loads(sys.argv[2]):
        found.append(list(carries(key)))
    print(json.dumps(found))
else:
    plant = json.loads(sys.argv[2])
    jax.block_until_ready(jax.jit(train)(key))
"""


SEEDS = (1, 4, 23, 25)
"""One plant that is hidden for good, one that an array keeps, one that is made good again, one that spreads."""


def plant(seed: int) -> list[float]:
    """(iteration, row, column, what is added there)"""
    numbers = np.random.default_rng(seed)
    return [int(numbers.integers(7)), int(numbers.integers(4)), int(numbers.integers(3)), float(numbers.normal() * 2)]


Differing = list[list[str]]
"""Of each iteration the arrays of its carry that differ."""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> JaxPrograms:
    return JaxPrograms(tmp_path_factory.mktemp("oracle"), {"loop": LOOP}, RLTRACE_LOOPS="*")


@pytest.fixture(scope="module")
def oracle(programs: JaxPrograms) -> dict[int, Differing]:
    """What differs under each plant, by the oracle."""
    plants = json.dumps([None, *map(plant, SEEDS)])
    plain, *planted = json.loads(programs.plain("loop", "oracle", plants))
    both = (zip(plain, other, strict=True) for other in planted)
    found = [[[name for name in sorted(x) if x[name] != y[name]] for x, y in pairs] for pairs in both]
    return dict(zip(SEEDS, found, strict=True))


def record(programs: JaxPrograms, name: str, given: list[float] | None) -> Trace:
    return programs.recorded(name, "loop", "run", json.dumps(given), options=("--level", "step"))


def carries(trace: Trace) -> list[dict[str, int]]:
    """Of each iteration the digests of its carry, by name."""
    process = trace.processes[0]
    rows, words = process.streams[0].read(0, process.streams[0].rows), process.words
    at = [i for i in range(len(rows)) if words.op(int(rows.columns[i, Column.OP])) == "jit.train.iteration"]
    names = [words.written(int(rows.columns[i, Column.SCALARS])) for i in at]
    pairs = (zip(own, rows.outputs(i), strict=True) for own, i in zip(names, at, strict=True))
    return [{name: digest for name, digest in each if name.startswith("state")} for each in pairs]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_difference_is_the_oracles(programs: JaxPrograms, oracle: dict[int, Differing], seed: int) -> None:
    """Its iteration and its arrays; and every array of every iteration differs, or is equal, as by the oracle."""
    a, b = record(programs, "a", None), record(programs, f"b{seed}", plant(seed))
    pairs = zip(carries(a), carries(b), strict=True)
    assert [[name for name in sorted(x) if x[name] != y[name]] for x, y in pairs] == oracle[seed]

    found = compare(a, b)
    first = next((k for k, names in enumerate(oracle[seed]) if names), None)
    if first is None:
        assert found.verdict is Verdict.IDENTICAL
        return
    assert (found.decisive.op, found.decisive.step) == ("jit.train.iteration", first)
    assert sorted(re.findall(r"state\['\w+'\]", found.decisive.explanation)) == oracle[seed][first]
    assert "it uses what observe returned to it, which is not recorded" in found.decisive.explanation


def test_the_plants_are_of_every_kind(oracle: dict[int, Differing]) -> None:
    """Hidden for good, seen in one array alone, equal again later, in another array later."""
    hidden, alone, healed, spreading = oracle.values()
    assert not any(hidden)
    assert {len(names) for names in alone} == {0, 1}
    assert any(healed)
    assert not healed[-1]
    assert max(map(len, spreading)) > len(next(filter(None, spreading)))
