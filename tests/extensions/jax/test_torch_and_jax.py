"""Programs that compute with JAX and with torch: both are recorded, and a difference is found where it began."""

import pytest
from jax_programs import JaxPrograms

from rltrace.diff.base.model import Cause, Verdict
from rltrace.diff.compare import compare
from rltrace.extensions.archive.verify import verify
from rltrace.trace.read.reader import Trace

PROGRAM = """
import os, threading
import torch
import jax, jax.numpy as jnp, numpy as np

act = jax.jit(lambda weights, observation: jnp.tanh(weights @ observation) * scale)
scale = float(os.environ.get("SCALE", 1))

def run(name):
    weights = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    observation = torch.ones(4)
    for step in range(5):  # an environment in torch, a policy in JAX
        action = act(weights, observation.numpy())
        observation = observation * 0.5 + torch.from_numpy(np.array(action))
        if step == 3:
            observation += float(os.environ.get("WIND", 0))
    print(name, observation.tolist())

ready = threading.Event()  # which orders nothing that is recorded
thread = threading.Thread(target=lambda: ready.wait() and run("other"), name="other")
thread.start()
run("main")
ready.set()
thread.join()
"""

FIRST = """
import jax.numpy as jnp
print(jnp.ones(3).sum())
import torch
print(torch.ones(3).sum())
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> JaxPrograms:
    return JaxPrograms(tmp_path_factory.mktemp("both"), {"program": PROGRAM, "first": FIRST})


def whole(programs: JaxPrograms) -> Trace:
    return programs.recorded("a", "program", options=("--values", "all", "--values-inputs"))


def test_each_library_is_a_process_of_the_trace(programs: JaxPrograms) -> None:
    """The program prints what it does unrecorded; its calls of JAX and its torch ops are rows, thread by thread."""
    trace = whole(programs)
    assert programs.printed["a"] == programs.plain("program")
    rows = {s.name: s.rows for p in trace.processes for s in p.streams}
    assert rows["rank0/main/jax"] == rows["rank0/main/jax/thread:other"] == 5
    assert rows["rank0/main"] == rows["rank0/main/thread:other"] > 10
    assert [process.state for process in trace.processes] == ["complete"] * 2
    assert verify(trace.path).sound


def test_a_difference_in_jax_precedes_what_torch_makes_of_it(programs: JaxPrograms) -> None:
    """The call of JAX is the first difference of each thread, not torch's op that reads its result."""
    found = compare(whole(programs), programs.recorded("scaled", "program", SCALE="1.5"))
    assert found.verdict is Verdict.DIVERGED
    assert [(each.stream, each.a_index, each.cause) for each in found.unordered] == [
        ("rank0/main/jax", 0, Cause.ARGUMENTS),
        ("rank0/main/jax/thread:other", 0, Cause.ARGUMENTS),
    ]


def test_a_difference_in_torch_precedes_what_jax_makes_of_it(programs: JaxPrograms) -> None:
    """The torch op is the first difference of each thread, not the call of JAX that takes what it wrote."""
    found = compare(whole(programs), programs.recorded("wind", "program", WIND="0.25"))
    assert [(each.stream, each.op, each.cause) for each in found.unordered] == [
        ("rank0/main", "aten.add_.Tensor", Cause.ARGUMENTS),
        ("rank0/main/thread:other", "aten.add_.Tensor", Cause.ARGUMENTS),
    ]


def test_torch_comes_second(programs: JaxPrograms) -> None:
    """Where JAX has computed before torch is imported, its ops have the process's name, and torch's another one."""
    trace = programs.recorded("first", "first")
    assert programs.printed["first"] == "3.0\ntensor(3.)\n"
    assert [process.name for process in trace.processes] == ["rank0/main", "rank0/main/torch"]
    assert all(process.after_op for process in trace.processes)


def test_what_jax_cannot_have_leaves_torch_recorded(programs: JaxPrograms) -> None:
    """An option for torch alone is no error: a fact says that JAX's calls are no rows."""
    trace = programs.recorded("checked", "program", options=("--check-links",))
    assert programs.printed["checked"] == programs.plain("program")
    [process] = trace.processes
    assert process.state == "complete"
    assert process.facts["jax.not_recorded"] == "--check-links is not there for what JAX computes"


def test_values_of_jax_are_injected_beside_torch(programs: JaxPrograms) -> None:
    """With A's results of the calls of JAX, a run of another number prints what A does."""
    whole(programs)
    verb = "replay", "a.zarr"
    programs.recorded("replayed", "program", verb=verb, options=("--inject", "op=jit.*"), SCALE="1.5")
    programs.recorded("scaled", "program", SCALE="1.5")
    assert programs.printed["replayed"] == programs.plain("program") != programs.printed["scaled"]
