"""``rltrace arm``: which steps are requested, what it says of the answer, and why a run cannot be armed."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rltrace.commands import arm
from rltrace.commands.arm import ArmSteps, _common_first, parse_arm_steps
from rltrace.commands.main import main
from rltrace.errors import UsageError
from rltrace.extensions.archive.verify import verify
from rltrace.testing import TraceBuilder
from rltrace.trace.format.arming import SleepingProcess, sleeping_processes
from rltrace.trace.format.process_start import STARTS, write_start
from rltrace.trace.format.schema import Step, StepFlag
from rltrace.trace.read.reader import open_trace

RLTRACE = Path(sys.executable).parent / "rltrace"

PROGRAM = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(model.parameters())
for _ in sys.stdin:  # a step a line
    optimizer.zero_grad()
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
    print("stepped", flush=True)
print(model.weight.tolist(), flush=True)
"""


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("+1:+2", ArmSteps(1, 3, True)),
        ("100:+2", ArmSteps(100, 102, False)),
        ("100:110", ArmSteps(100, 110, False)),
        ("100", ArmSteps(100, 101, False)),
        ("100:", ArmSteps(100, None, False)),
    ],
)
def test_steps(text: str, steps: ArmSteps) -> None:
    """A ``+`` counts from now, or from the first step; without it, numbers are those of ``record``."""
    assert parse_arm_steps(text) == steps


@pytest.mark.parametrize("text", ["+1", "+0:+1", "+1:+0", "+1:5", "1:+", "a:b", "5:5", ""])
def test_steps_that_are_none(text: str) -> None:
    """Anything else is refused with the text that was given."""
    with pytest.raises(UsageError, match="--steps"):
        parse_arm_steps(text)


def test_a_step_that_no_process_has_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process begins with its next step, several with one that the first of them reaches after the request."""
    (tmp_path / STARTS).mkdir()
    states = SleepingProcess(step=7), SleepingProcess(step=9), SleepingProcess(step=0)
    tokens = [write_start(tmp_path, {}) for _ in states]

    def make_steps(_seconds: float) -> None:
        for state, token in zip(states, tokens, strict=True):
            state._replace(step=state.step + 4 if state.step else 0).write(tmp_path, token)

    monkeypatch.setattr(arm, "sleep", make_steps)
    assert _common_first(tmp_path, states, later=1) == 13 + 1 + 1 + 4
    assert _common_first(tmp_path, states[1:], later=1) == 10


class Loop:
    """A program that runs asleep and makes a step for each line that it is sent."""

    def __init__(self, folder: Path) -> None:
        (folder / "train.py").write_text(PROGRAM)
        self.trace = folder / "a.zarr"
        command = [RLTRACE, "record", "--quiet", "--asleep", "-o", self.trace, "--", sys.executable, "train.py"]
        self.process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def step(self) -> None:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "stepped\n"

    def state(self) -> SleepingProcess:
        (found,) = sleeping_processes(self.trace)
        return found

    def arm(self, run: object, *arguments: str) -> int:
        """Arm it, and step until it has answered and is asleep again; returns the first step recorded."""
        number = self.state().request + 1
        assert main(["arm", str(run), "--wait", "0", *arguments]) == 0
        while self.state().request < number or self.state().is_awake:
            self.step()
        return self.state().first


@pytest.fixture
def loop(tmp_path: Path, new_processes: None) -> Iterator[Loop]:
    """In a new process, as a forked one has not the environment by which its pid is known to be recorded."""
    found = Loop(tmp_path)
    yield found
    if found.process.poll() is None:
        os.killpg(found.process.pid, signal.SIGKILL)
    found.process.communicate()


def test_a_program_is_armed_and_killed(loop: Loop, capsys: pytest.CaptureFixture[str]) -> None:
    """Armed by its trace and by a pid, a program records these steps, once each; killed asleep, it leaves them whole.

    What cannot be armed is named: steps that have passed, a run that has ended.
    """
    loop.step()
    first = loop.arm(loop.trace, "--steps", "+1:+2")
    assert "is not answered yet" in capsys.readouterr().err
    assert main(["info", str(loop.trace)]) == 0
    assert f"it is asleep in step {first + 2}; rltrace arm wakes it" in " ".join(capsys.readouterr().out.split())
    second = loop.arm(loop.process.pid, "--level", "step")
    os.kill(int(str(open_trace(loop.trace).processes[0].start_record["pid"])), signal.SIGKILL)
    assert loop.process.wait() == -signal.SIGKILL
    found = verify(loop.trace)
    assert found.damage == ()
    process = open_trace(loop.trace).processes[0]
    digested = process.steps[(process.steps[:, Step.FLAGS] & np.uint64(StepFlag.DIGESTED)) != 0]
    assert (process.state, process.windows) == ("killed", [(first, first + 2)])
    assert digested[:, Step.STEP].tolist() == [first, first + 1, second]
    capsys.readouterr()
    assert main(["arm", str(loop.trace)]) == 2
    assert "has ended; only a running program can be armed" in capsys.readouterr().err


def test_no_such_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trace that does not exist, a process that is not recorded, and a run that was recorded from its start."""
    TraceBuilder(tmp_path / "a.zarr").finish()
    for run, why in [
        (tmp_path / "b.zarr", "no such file"),
        (os.getpid(), f"process {os.getpid()} is no process of a recorded run"),
        (tmp_path / "a.zarr", "was not started asleep, so it cannot be armed: rltrace record --asleep -o"),
    ]:
        assert main(["arm", str(run)]) == 2
        assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "given"),
    [(["--steps", "3:4"], "--steps"), (["--level", "step"], "--level"), (["--values", "op=mm"], "--values")],
)
def test_what_is_chosen_later(options: list[str], given: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``record --asleep`` takes no option for what is recorded."""
    assert main(["record", "--asleep", *options, "--", "true"]) == 125
    assert f"leave out {given}: rltrace arm chooses" in capsys.readouterr().err
