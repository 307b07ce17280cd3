"""Steps from the middle of a run of two ranks, run again by the program as one of them, without the other."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from recorded import Recorded
from torch import distributed

from rltrace.commands.main import main
from rltrace.query.locate import locate
from rltrace.rerun.recorded_op import recorded_op
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
    first = MODELS * ITERATION
    window = ("--steps", f"{first}:{first + MODELS}", "--rerunnable", "all")
    cli.record_ranks("step.zarr", 2, window, sys.executable, PROGRAM)
    values = ("--values", "op=aten.randn", "--values-inputs")
    again = ("--process", "rank1/main", "-o", "again.zarr", "--format", "json", "--", sys.executable, PROGRAM)
    found = cli.rltrace("rerun", "step.zarr", *values, *again)
    assert found.stdout, found.stderr
    return Rerun(cli.folder, found.returncode, json.loads(found.stdout), cli)


def test_a_step_is_run_again_by_the_program_alone(rerun: Rerun) -> None:
    """DDP, FSDP, tensor parallelism, experts with as many tokens as the other rank sent, and a gather of what memory
    holds already: the recorded bits."""
    assert (rerun.status, rerun.result["bitwise"], rerun.result["memory"]["missed"]) == (0, True, [])
    assert rerun.result["comparison"]["verdict"] == "identical"
    assert rerun.result["memory"]["answered"] == 17


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


def test_a_draw_of_a_rerun_can_be_run_again(rerun: Rerun) -> None:
    """What it read is the recorded state of its generator, not the one that the program came with."""
    trace = Recorded(rerun.folder / "again.zarr").trace
    at = locate(trace, f"op=aten.randn.generator,step={MODELS * ITERATION},nth=0")
    state = recorded_op(at.process, at.stream, at.row).call.generator
    assert state is not None
    recorded = locate(Recorded(rerun.folder / "step.zarr").trace, str(at))
    before = recorded_op(recorded.process, recorded.stream, recorded.row).call.generator
    assert before is not None
    assert bytes(state.state) == bytes(before.state)


TINY = """
import torch
from torch import distributed, nn

distributed.init_process_group("gloo")
net = nn.Linear(96, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.5)  # no product is rounded
numbers = torch.linspace(-3, 3, 96)  # not a batch: a sum of gradients may round as the other
for _ in range(3):
    distributed.all_reduce(sent := numbers.clone())
    loss = net(nn.functional.softplus(sent)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
distributed.destroy_process_group()
"""
SETTING = "ATEN_CPU_CAPABILITY=default"


def test_what_made_two_reruns_diverge_is_confirmed(
    cli: Any, needs_change: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """Both arms, and their controls, run the program as one rank on the recorded memory: one kind of op it was."""
    needs_change(SETTING, "softplus (24,4)")
    (cli.folder / "tiny.py").write_text(TINY)
    cli.record_ranks("step.zarr", 2, ("--steps", "2:3", "--rerunnable", "all"), sys.executable, "tiny.py")
    for name, setting, status in (("a", "", 0), ("b", SETTING, 1)):
        again = ("--process", "rank1/main", "-o", f"{name}.zarr", "--", sys.executable, "tiny.py")
        assert cli.rltrace("rerun", "step.zarr", *again, setting=setting).returncode == status
    found = cli.diff("a.zarr", "b.zarr")[1]
    assert found["decisive"]["op"] == "aten.softplus.default"
    assert any(line.startswith("rltrace confirm a.zarr b.zarr") for line in found["advice"])

    done = cli.rltrace("confirm", "a.zarr", "b.zarr", "--yes", "--samples", "1", "--format", "json")
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert (outcome["word"], outcome["by_state"]) == ("confirmed", True)
    assert [arm["state"] for arm in outcome["arms"]] == ["as-expected"] * 4
    assert [(kind["op"], kind["matters"]) for kind in outcome["classes"]] == [("aten.softplus.default", True)]

    assert main(["confirm", str(cli.folder / "step.zarr"), str(cli.folder / "b.zarr"), "--yes"]) == 2
    refused = capsys.readouterr().err
    assert "is of a program that ran steps of" in refused
    assert "rltrace rerun" in refused
