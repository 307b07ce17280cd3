"""Programs that compute with JAX and with torch: both are recorded, and a difference is found where it began.

JAX is never imported here: it starts threads, after which no other test of this process could fork.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rltrace.diff.base.model import Cause, Verdict
from rltrace.diff.compare import compare
from rltrace.extensions.archive.verify import verify
from rltrace.trace.read.reader import Trace, open_trace

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed: pip install rltrace-debugger[jax]", allow_module_level=True)

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

run("main")
thread = threading.Thread(target=run, args=("other",), name="other")
thread.start()
thread.join()
"""

FIRST = """
import jax.numpy as jnp
print(jnp.ones(3).sum())
import torch
print(torch.ones(3).sum())
"""


def run(folder: Path, source: str, *command: str, **variables: str) -> str:
    (folder / "program.py").write_text(source)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **variables}
    ended = subprocess.run(
        [*command, sys.executable, "program.py"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert not ended.returncode, ended.stderr
    return ended.stdout


def recorded(folder: Path, name: str, *options: str, source: str = PROGRAM, **variables: str) -> tuple[str, Trace]:
    record = sys.executable, "-m", "rltrace", "record", "--quiet", "-o", f"{name}.zarr", *options, "--"
    printed = run(folder, source, *record, **variables)
    return printed, open_trace(folder / f"{name}.zarr")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, Trace]:
    folder = tmp_path_factory.mktemp("both")
    return folder, *recorded(folder, "a")


def test_each_library_is_a_process_of_the_trace(first: tuple[Path, str, Trace]) -> None:
    """The program prints what it does unrecorded; its calls of JAX and its torch ops are rows, thread by thread."""
    folder, printed, trace = first
    assert printed == run(folder, PROGRAM)
    rows = {s.name: s.rows for p in trace.processes for s in p.streams}
    assert rows["rank0/main/jax"] == rows["rank0/main/jax/thread:other"] == 5
    assert rows["rank0/main"] == rows["rank0/main/thread:other"] > 10
    assert [process.state for process in trace.processes] == ["complete"] * 2
    assert verify(trace.path).sound


def test_a_difference_in_jax_precedes_what_torch_makes_of_it(first: tuple[Path, str, Trace]) -> None:
    """The call of JAX is the first difference of each thread, not torch's op that reads its result."""
    folder, _, trace = first
    found = compare(trace, recorded(folder, "scaled", SCALE="1.5")[1])
    assert found.verdict is Verdict.DIVERGED
    assert [(each.stream, each.a_index, each.cause) for each in found.unordered] == [
        ("rank0/main/jax", 0, Cause.ARGUMENTS),
        ("rank0/main/jax/thread:other", 0, Cause.ARGUMENTS),
    ]


def test_a_difference_in_torch_precedes_what_jax_makes_of_it(first: tuple[Path, str, Trace]) -> None:
    """The torch op is the first difference of each thread, not the call of JAX that takes what it wrote."""
    folder, _, trace = first
    found = compare(trace, recorded(folder, "wind", WIND="0.25")[1])
    assert [(each.stream, each.op, each.cause) for each in found.unordered] == [
        ("rank0/main", "aten.add_.Tensor", Cause.ARGUMENTS),
        ("rank0/main/thread:other", "aten.add_.Tensor", Cause.ARGUMENTS),
    ]


def test_torch_comes_second(tmp_path: Path) -> None:
    """Where JAX has computed before torch is imported, its ops have the process's name, and torch's another one."""
    printed, trace = recorded(tmp_path, "a", source=FIRST)
    assert printed == "3.0\ntensor(3.)\n"
    assert [process.name for process in trace.processes] == ["rank0/main", "rank0/main/torch"]
    assert all(process.after_op for process in trace.processes)


def test_what_jax_cannot_have_leaves_torch_recorded(first: tuple[Path, str, Trace]) -> None:
    """An option for torch alone is no error: a fact says that JAX's calls are no rows."""
    folder, printed, _ = first
    same, trace = recorded(folder, "checked", "--check-links")
    assert same == printed
    [process] = trace.processes
    assert process.state == "complete"
    assert process.facts["jax.not_recorded"] == "--check-links is not there for what JAX computes"


def test_values_of_jax_are_injected_beside_torch(first: tuple[Path, str, Trace]) -> None:
    """With A's results of the calls of JAX, a run of another number prints what A does."""
    folder, printed, _ = first
    same, _ = recorded(folder, "valued", "--values", "all", "--values-inputs")
    assert same == printed
    replay = sys.executable, "-m", "rltrace", "replay", "valued.zarr", "--inject", "op=jit.*", "--quiet"
    replayed = run(folder, PROGRAM, *replay, "-o", "replayed.zarr", "--", SCALE="1.5")
    assert replayed == printed != run(folder, PROGRAM, SCALE="1.5")
