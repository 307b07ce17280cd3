"""What is recorded within the iterations of a JAX loop: that the program has it, and what a comparison makes of it.

JAX is never imported here: it starts threads, after which no other test of this process could fork.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rltrace.diff.base.model import Cause, Verdict
from rltrace.diff.compare import compare
from rltrace.digest import digest_buffer, seed_of
from rltrace.trace.format.schema import Column, Phase, is_within
from rltrace.trace.read.reader import Trace, open_trace
from rltrace.trace.read.stream import StreamTrace
from rltrace.trace.tools.verify import verify

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed: pip install rltrace-debugger[jax]", allow_module_level=True)

WHOLE_NUMBERS = """
import jax, jax.numpy as jnp, numpy as np

weights = jnp.asarray(np.arange(16).reshape(4, 4) % 3 - 1, jnp.float32)

def inner(total, _):
    total = jax.nn.relu(total @ weights) % 5
    return total, total.sum()

def update(state, _):  # a call, an inner scan, a branch and a loop of unknown length, all exact however XLA fuses them
    total, sums = jax.lax.scan(inner, (state @ weights) % 7, None, 3)
    total = jax.lax.cond(sums[0] > 0, lambda t: jnp.sort(t), lambda t: -t, total)
    total = jax.lax.while_loop(lambda t: t.sum() > 10, lambda t: t - 1, total)
    return total % 5, sums

state, sums = jax.jit(lambda state: jax.lax.scan(update, state, None, 4))(jnp.arange(16.0).reshape(4, 4))
print(np.asarray(state).tolist(), np.asarray(sums).tolist())
"""

LEARNING = """
import jax, jax.numpy as jnp, numpy as np

def train(key):
    weights = {"first": jnp.linspace(-1, 1, 128).reshape(8, 16), "second": jnp.linspace(-1, 1, 32).reshape(16, 2)}

    def loss(weights, batch):
        hidden = jnp.tanh(batch @ weights["first"])
        return jnp.mean(jnp.exp(jnp.sin(hidden @ weights["second"])) ** 2)

    def update(state, _):
        weights, key = state
        key, own = jax.random.split(key)
        gradients = jax.grad(loss)(weights, jax.random.normal(own, (32, 8)))
        return (jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), key), None

    return jax.lax.scan(update, (weights, key), None, 5)[0][0]

weights = jax.jit(train)(jax.random.PRNGKey(0))
print(np.asarray(weights["first"]).tobytes().hex(), np.asarray(weights["second"]).tobytes().hex())
"""


class Runs:
    """Programs in a folder, each run once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._printed: dict[str, str] = {}
        for name, source in (("whole_numbers", WHOLE_NUMBERS), ("learning", LEARNING)):
            (folder / f"{name}.py").write_text(source)

    def printed(self, program: str, *command: str, name: str = "plain", flags: str = "") -> str:
        key = f"{name} {program} {flags}"
        if key not in self._printed:
            environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
            words = (*command, sys.executable, f"{program}.py")
            ended = subprocess.run(words, cwd=self._folder, env=environment, capture_output=True, text=True)
            assert not ended.returncode, ended.stderr
            self._printed[key] = ended.stdout
        return self._printed[key]

    def recorded(self, name: str, program: str, *options: str, flags: str = "") -> Trace:
        """The trace of this name, of a run that printed what the unrecorded one does."""
        command = sys.executable, "-m", "rltrace", "record", "--quiet", "-o", f"{name}.zarr", *options, "--"
        printed = self.printed(program, *command, name=name, flags=flags)
        assert printed == self.printed(program, flags=flags)
        trace = open_trace(self._folder / f"{name}.zarr")
        if "digested within the program" not in str(trace.processes[0].facts["jax.loops"]):
            pytest.skip("no compiler has built the library")
        return trace


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("fusions"))


def within(trace: Trace) -> StreamTrace:
    [stream] = [stream for stream in trace.processes[0].streams if is_within(stream.name)]
    return stream


def products() -> Iterator[np.ndarray]:
    """Every product of the program of whole numbers, in its order."""
    weights = (np.arange(16).reshape(4, 4) % 3 - 1).astype(np.float32)
    state = np.arange(16, dtype=np.float32).reshape(4, 4)
    for _ in range(4):
        total = state @ weights
        yield total
        total, sums = np.mod(total, 7), []
        for _ in range(3):
            yield total @ weights
            total = np.mod(np.maximum(total @ weights, 0), 5)
            sums.append(total.sum())
        total = np.sort(total) if sums[0] > 0 else -total
        while total.sum() > 10:
            total = total - 1
        state = np.mod(total, 5)


def test_values_are_those_that_are_computed(runs: Runs) -> None:
    """Each product has a row, in the order of the program, inner scans unrolled, with the digest of its value."""
    trace = runs.recorded("whole", "whole_numbers")
    assert verify(trace.path).sound
    stream = within(trace)
    rows = stream.read(0, stream.rows)
    words = trace.processes[0].words
    named = [words.op(int(op)) for op in rows.column(Column.OP)]
    found = [rows.outputs(i) for i, op in enumerate(named) if op == "dot_general"]
    seed = seed_of("float32", (4, 4))
    assert found == [[digest_buffer(product.tobytes(), seed)] for product in products()]
    assert rows.column(Column.STEP).tolist() == sorted(rows.column(Column.STEP))
    assert set(named) >= {"cond", "while", "scan"}


def test_inputs_are_linked_within_the_iteration(runs: Runs) -> None:
    """What a row reads was written by a row before it, or is read with its digest, once; sites end in the loop's."""
    process = runs.recorded("learning", "learning").processes[0]
    stream = within(runs.recorded("learning", "learning"))
    rows = stream.read(0, stream.rows)
    first = int(np.sum(rows.column(Column.STEP) == 0))
    read = [link for i in range(first) for link in rows.inputs(i)]
    assert any(link.known for link in read)
    assert all(link.distance > 0 or link.digest is not None for link in read)
    phases = set(rows.column(Column.PHASE).tolist())
    assert {Phase.FORWARD, Phase.BACKWARD, Phase.OTHER} >= phases > {Phase.OTHER}
    lines = [process.words.stack(int(site))[-1].source for site in rows.column(Column.SITE)]
    assert set(lines) == {"return jax.lax.scan(update, (weights, key), None, 5)[0][0]"}


def test_the_first_operation_that_computes_otherwise_is_found(runs: Runs) -> None:
    """Another instruction set is found within the iteration, at an operation; the same program twice is identical."""
    a = runs.recorded("learning", "learning")
    again = compare(a, runs.recorded("again", "learning"))
    assert again.verdict is Verdict.IDENTICAL
    assert not again.notes
    flags = "--xla_cpu_max_isa=SSE4_2"
    other = runs.recorded("isa", "learning", flags=flags)
    if runs.printed("learning", flags=flags) == runs.printed("learning"):
        pytest.skip("this processor computes the same bits under SSE4.2")
    found = compare(a, other)
    assert found.decisive is not None
    assert is_within(found.decisive.stream)
    assert found.decisive.cause is Cause.KERNEL
    assert not found.unordered
    iteration = compare(a, other, within=False).decisive
    assert iteration is not None
    assert (iteration.op, iteration.step) == ("jit.train.iteration", found.decisive.step)


def test_other_fusions_are_compared_by_iterations(runs: Runs) -> None:
    """Two programs with other values in memory agree where their carries do, and so does one without any."""
    a = runs.recorded("whole", "whole_numbers")
    unfused = runs.recorded("unfused", "whole_numbers", flags="--xla_disable_hlo_passes=fusion")
    assert within(unfused).name != within(a).name
    compared = compare(a, unfused)
    assert compared.verdict is Verdict.IDENTICAL
    assert any("other values in memory" in note for note in compared.notes)
    both = [word for trace in (a, unfused) for word in ("--fusions-of", str(trace.path))]
    limited = runs.recorded("limited", "whole_numbers", *both)
    limited_unfused = runs.recorded("limited_unfused", "whole_numbers", *both, flags="--xla_disable_hlo_passes=fusion")
    assert 0 < within(limited).rows < within(unfused).rows
    again = compare(limited, limited_unfused)
    assert again.verdict is Verdict.IDENTICAL
    assert not again.notes
    steps = compare(a, runs.recorded("steps", "whole_numbers", "--level", "step"))
    assert steps.verdict is Verdict.IDENTICAL
    assert any("on one side only" in note for note in steps.notes)
