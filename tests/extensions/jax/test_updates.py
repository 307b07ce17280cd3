"""Programs whose training loop is Python's: a call that computes a gradient is a step, other loops part of calls."""

import pytest
from jax_programs import JaxPrograms

from rltrace.diff.base.model import Cause, Verdict
from rltrace.diff.compare import compare
from rltrace.query.ops import OpLine, list_ops
from rltrace.selectors import parse_selectors
from rltrace.trace.format.schema import Step
from rltrace.trace.read.reader import Trace

PROGRAM = """
import os
import jax, jax.numpy as jnp, numpy as np

rate = float(os.environ.get("RATE", 0.1))

@jax.jit
def returns(rewards):  # a loop that computes no gradient
    return jax.lax.scan(lambda total, reward: (total * 0.9 + reward,) * 2, 0.0, rewards, reverse=True)[1]

def loss(weights, batch, targets):
    return jnp.mean((jnp.tanh(batch @ weights) - targets) ** 2)

@jax.jit
def update(weights, batch, targets):
    value, gradient = jax.value_and_grad(loss)(weights, batch, targets)
    return weights - rate * gradient, value

given = jax.jit(lambda weights, *data: weights - rate * jax.grad(loss)(weights, *data), donate_argnums=0)
evaluate = jax.jit(loss)
generator = np.random.default_rng(0)
weights = jnp.zeros(3)
for number in range(6):
    batch = generator.normal(size=(4, 3)).astype(np.float32)
    targets = returns(generator.normal(size=4).astype(np.float32))
    weights, value = update(weights, batch, targets)
    weights = given(weights, batch, targets)
    print(number, float(value), float(evaluate(weights, batch, targets)), flush=True)
print(jax.grad(loss)(weights, batch, targets), jax.grad(lambda w: evaluate(w, batch, targets))(weights))
print(update.lower(weights, batch, targets).compile()(weights, batch, targets))
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> JaxPrograms:
    return JaxPrograms(tmp_path_factory.mktemp("updates"), {"program": PROGRAM})


def steps_of(trace: Trace) -> list[tuple[int, int, int, int]]:
    """Of each step its loop, the count of this, the row after it, and the digest of what it passed on."""
    [process] = trace.processes
    columns = [Step.OPTIMIZER, Step.COUNT, Step.END_ROW, Step.PARAMETERS]
    assert process.steps[:, Step.STEP].tolist() == list(range(len(process.steps)))
    return [tuple(step) for step in process.steps[:, columns].tolist()]


def ops_of(trace: Trace, selector: str = "all") -> list[str]:
    return [line.op for line in list_ops(trace, parse_selectors([selector])) if isinstance(line, OpLine)]


def test_a_call_that_computes_a_gradient_is_a_step(programs: JaxPrograms) -> None:
    """Each ends with its row, also one that donates, or that the program has compiled; eager derivatives end none."""
    trace = programs.recorded("whole", "program")
    assert programs.printed["whole"] == programs.plain("program")
    steps = steps_of(trace)
    assert [count for _, count, _, _ in steps] == [n // 2 for n in range(12)] + [6]
    assert len({digest for *_, digest in steps}) == 13
    ops = ops_of(trace)
    assert [ops[end - 1] for _, _, end, _ in steps] == ["jit.update", "jit.<lambda>"] * 6 + ["jit.update"]
    assert ops.count("jit.returns") == 6
    assert "computes no gradient (--loops returns records" in str(trace.processes[0].facts["jax.boundary_only"])


def test_calls_from_the_cache_end_the_same_steps(programs: JaxPrograms) -> None:
    """They are those of calls that all pass through Python, whose results are digested at once."""
    python = programs.recorded("python", "program", options=("--values", "op=nothing"))
    assert steps_of(programs.recorded("whole", "program")) == steps_of(python)


def test_other_numbers_are_found_at_the_first_update(programs: JaxPrograms) -> None:
    """Steps order what differs."""
    found = compare(programs.recorded("whole", "program"), programs.recorded("rate", "program", RATE="0.2")).decisive
    assert (found.cause, found.op, found.step) == (Cause.ARGUMENTS, "jit.update", 0)


def test_a_window_has_rows_of_its_steps(programs: JaxPrograms) -> None:
    """And digests of all steps, which are those of a whole recording; the program ends after the last one."""
    whole = programs.recorded("whole", "program")
    window = programs.recorded("window", "program", options=("--steps", "4:7", "--until", "8"))
    assert ops_of(window) == ops_of(whole, "step=4:7")
    assert [digest for *_, digest in steps_of(window)] == [digest for *_, digest in steps_of(whole)[:9]]
    assert window.processes[0].state == "stopped"
    assert len(programs.printed["window"].splitlines()) == 4
    found = compare(whole, window)
    assert found.verdict is not Verdict.DIVERGED
    assert found.decisive is None


def test_a_loop_that_is_named_is_a_training_loop(programs: JaxPrograms) -> None:
    """Its iterations are steps, of four in each call, and rows."""
    trace = programs.recorded("loops", "program", options=("--loops", "return*"))
    assert len(steps_of(trace)) == 13 + 6 * 4
    assert ops_of(trace).count("jit.returns.iteration") == 6 * 4
