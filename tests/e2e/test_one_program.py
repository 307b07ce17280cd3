"""One program and what can become of its second run: cause, op, step and place of each.

Recorded in this process, each on a thread of its own, so that the stack below is the same; compared through the command
line. That the command line records the same is the first test.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import rltrace
from rltrace.trace.read.reader import open_trace

PROGRAM = """
import os
from pathlib import Path
import numpy as np
import torch
odd = os.environ.get("ODD")
torch.manual_seed(0)
actor, critic = torch.nn.Linear(4, 2), torch.nn.Linear(4, 1)
for network, start in zip((actor, critic), torch.load(Path(__file__).with_name("start.pt")), strict=True):
    network.load_state_dict(start)
acts = torch.optim.SGD(actor.parameters(), lr=0.1)
judges = torch.optim.SGD(critic.parameters(), lr=0.1)
camera = np.zeros((8, 4), np.float32)
seen = torch.from_numpy(camera)
filled = torch.empty(6, 8)
for update in range(5):
    for tick in range(6):
        camera[:] = np.sin(np.arange(32).reshape(8, 4) * (1 + tick) + update)
        if odd == "simulator" and (update, tick) == (1, 4):
            camera[3, 2] += 1
        filled[tick] = critic(seen).detach()[:, 0]
    factor = 4.0 if odd == "meets again" and update == 2 else 2.0
    chosen = (actor(seen).detach() * factor).argmax(1)
    loss = torch.nn.functional.cross_entropy(actor(seen), chosen) + filled.mean()
    acts.zero_grad()
    loss.backward()
    acts.step()
    if update % 2 == 0 and not (odd == "attempt" and update == 2):
        judges.zero_grad()
        critic(seen).pow(2).mean().backward()
        judges.step()
    if odd == "ends" and update == 3:
        break
"""
"""A simulator's buffer rewritten within a step, a buffer filled before it is read, two optimizers, a checkpoint."""

OTHER = """
import torch
x = torch.ones(3)
for _ in range(40):
    x = torch.special.erfcx(torch.fft.ifft(torch.fft.fft(x)).real)
"""


@pytest.fixture(scope="module")
def starts() -> tuple[Any, Any]:
    """Two checkpoints that differ in one bias of the actor."""
    states = []
    for bias in (0.0, 0.25):
        generator = torch.Generator().manual_seed(0)
        actor = {"weight": torch.randn(2, 4, generator=generator), "bias": torch.tensor([0.5, bias])}
        states.append((actor, {"weight": torch.randn(1, 4, generator=generator), "bias": torch.zeros(1)}))
    return states[0], states[1]


@pytest.fixture(scope="module")
def unchanged(new_cli: Any, starts: tuple[Any, Any]) -> Path:
    """The first run, recorded once for all."""
    return run(new_cli(), starts[0])


def written(cli: Any, start: Any, code: str = PROGRAM) -> None:
    """Put the program and its checkpoint into the folder."""
    (cli.folder / "train.py").write_text(code)
    torch.save(start, cli.folder / "start.pt")


def run(cli: Any, start: Any, code: str = PROGRAM, odd: str = "") -> Path:
    """Record the program in this process."""
    written(cli, start, code)

    def recorded() -> None:
        with chdir(cli.folder), patch.dict(os.environ, ODD=odd), rltrace.record("t.zarr"):
            runpy.run_path("train.py", run_name="__main__")

    with ThreadPoolExecutor(1, thread_name_prefix="program") as thread:
        thread.submit(recorded).result()
    trace: Path = cli.folder / "t.zarr"
    return trace


def launched(cli: Any, start: Any) -> Path:
    """Record the program through the command line, as a process."""
    written(cli, start)
    result = cli.rltrace("record", "--quiet", "-o", "t.zarr", "--", sys.executable, "train.py")
    assert result.returncode == 0, result.stderr
    trace: Path = cli.folder / "t.zarr"
    return trace


def value(found: Mapping[str, Any]) -> tuple[str, str, int, str]:
    first = found["first_value"]
    return first["cause"], first["op"], first["step"], first["site"]["source"]


def test_launched(new_cli: Any, unchanged: Path, starts: tuple[Any, Any]) -> None:
    """Two processes, from the command line: nothing to find; and in this process the same ops are recorded."""
    first, second = new_cli(), new_cli()
    status, found = first.diff(launched(first, starts[0]), launched(second, starts[0]))
    assert (status, found["verdict"], found["first"]) == (0, "identical", None)
    assert found["a"]["ops"] == open_trace(unchanged).processes[0].after_op > 400


def test_again(cli: Any, unchanged: Path, starts: tuple[Any, Any]) -> None:
    """A simulator rewrites its buffer, a buffer is filled before it is read: nothing to find."""
    status, found = cli.diff(unchanged, run(cli, starts[0]))
    assert (status, found["verdict"], found["first"]) == (0, "identical", None)


def test_one_picture_of_many(cli: Any, unchanged: Path, starts: tuple[Any, Any]) -> None:
    """One of thirty writes into memory that torch only looks at: outside, at the first op that takes it in."""
    status, found = cli.diff(unchanged, run(cli, starts[0], odd="simulator"))
    assert (status, found["verdict"]) == (1, "diverged")
    assert value(found) == ("outside", "aten.addmm.default", 2, "filled[tick] = critic(seen).detach()[:, 0]")
    assert found["first_value"]["module"] == "Linear#2"


def test_values_that_meet_again(cli: Any, unchanged: Path, starts: tuple[Any, Any]) -> None:
    """A product that argmax makes equal again: the product is named, with the one number it was called with."""
    status, found = cli.diff(unchanged, run(cli, starts[0], odd="meets again"))
    assert (status, found["verdict"]) == (1, "diverged")
    assert value(found) == ("arguments", "aten.mul.Tensor", 3, "chosen = (actor(seen).detach() * factor).argmax(1)")
    assert found["first"] == found["first_value"]


def test_another_checkpoint(cli: Any, unchanged: Path, starts: tuple[Any, Any]) -> None:
    """What was loaded differs: outside, where it was loaded, and the op that copies it into the network is reported."""
    status, found = cli.diff(unchanged, run(cli, starts[1]))
    assert (status, found["verdict"]) == (1, "diverged")
    line = 'for network, start in zip((actor, critic), torch.load(Path(__file__).with_name("start.pt")), strict=True):'
    assert value(found) == ("outside", "checkpoint", 0, line)
    assert found["first_value"]["event"]["first_op"]["op"] == "aten.copy_.default"


def test_optimizers_out_of_step(cli: Any, unchanged: Path, starts: tuple[Any, Any]) -> None:
    """One of two optimizers leaves out an attempt: control flow, in that optimizer's step."""
    status, found = cli.diff(unchanged, run(cli, starts[0], odd="attempt"))
    assert (status, found["verdict"], found["first"]["cause"]) == (1, "diverged", "control-flow")
    assert found["first"]["site"]["source"] == "judges.zero_grad()"


def test_a_run_that_ends_early(cli: Any, unchanged: Path, starts: tuple[Any, Any]) -> None:
    """Equal as far as it goes, complete, and shorter."""
    status, found = cli.diff(unchanged, run(cli, starts[0], odd="ends"))
    assert (status, found["verdict"]) == (1, "diverged")
    assert (found["first"]["cause"], found["first_value"]) == ("ended", None)


def test_another_program(cli: Any, unchanged: Path, starts: tuple[Any, Any]) -> None:
    """Two programs with nothing in common are said to be that, not to part at their first op."""
    status, found = cli.diff(unchanged, run(cli, starts[0], code=OTHER))
    assert (status, found["verdict"]) == (3, "unknown")
