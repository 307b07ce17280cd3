"""Steps from the middle of a run of two ranks, run again by the program as one of them, without the other."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from recorded import Recorded
from torch import distributed

from rltrace.trace.format.schema import Step

PROGRAM = Path(__file__).parent / "programs" / "alone.py"
MODELS, ITERATION = 4, 3

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="this build of torch has no torch.distributed")


@dataclass(frozen=True)
class Rerun:
    """Iteration 3 of a program, and what rank 1 gave when it ran it again alone."""

    folder: Path
    status: int
    result: dict[str, Any]
    cli: Any


@pytest.fixture(scope="module")
def rerun(new_cli: Callable[[], Any]) -> Rerun:
    cli = new_cli()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = "; ".join([*(f"RANK={rank} {sys.executable} {PROGRAM} &" for rank in (0, 1)), "wait"]).replace("&;", "&")
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    first = MODELS * ITERATION
    window = ("--steps", f"{first}:{first + MODELS}", "--rerunnable", "all")
    recorded = cli.rltrace("record", "--quiet", *window, "-o", "step.zarr", "--", "sh", "-c", command, **where)
    assert recorded.returncode == 0, recorded.stderr
    again = ("--process", "rank1/main", "-o", "again.zarr", "--format", "json", "--", sys.executable, PROGRAM)
    found = cli.rltrace("rerun", "step.zarr", *again)
    assert found.stdout, found.stderr
    return Rerun(cli.folder, found.returncode, json.loads(found.stdout), cli)


def test_a_step_is_run_again_by_the_program_alone(rerun: Rerun) -> None:
    """DDP, FSDP, tensor parallelism, and experts with as many tokens as the other rank sent: the recorded bits."""
    assert (rerun.status, rerun.result["bitwise"], rerun.result["memory"]["missed"]) == (0, True, 0)
    assert rerun.result["comparison"]["verdict"] == "identical"
    assert rerun.result["memory"]["answered"] == 13


def test_gradients_and_optimizer_state_are_those_of_the_run(rerun: Rerun) -> None:
    """At the end of each step, although the program made two iterations before, on made-up data of the other rank."""
    names = "step.zarr", "again.zarr"
    processes = [
        next(p for p in Recorded(rerun.folder / name).trace.processes if p.name == "rank1/main") for name in names
    ]
    first = MODELS * ITERATION
    columns = [Step.STEP, Step.OPTIMIZER, Step.COUNT, Step.PARAMETERS, Step.GRADIENTS, Step.TORCH_GENERATOR]
    a, b = (process.until_step(first + MODELS).steps[first:][:, columns].tolist() for process in processes)
    assert a == b
    assert len(a) == MODELS
    assert processes[1].asleep == [(0, first)]


def test_the_trace_of_a_rerun_is_compared_like_any_other(rerun: Rerun) -> None:
    """It is step 12 in both, and the process that was not run again is no difference."""
    found = rerun.cli.rltrace("diff", "step.zarr", "again.zarr", "--no-tui")
    assert found.stdout.startswith("IDENTICAL"), found.stdout
