"""A run that is started asleep: what is recorded when it is armed, and that nothing else of it changes."""

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import gymnasium
import pytest
import torch
from children import forked
from torch import nn
from torch.autograd import graph
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from rltrace.diff import compare
from rltrace.diff.base.model import Comparison, Verdict
from rltrace.extensions.archive.verify import verify
from rltrace.launch import summary
from rltrace.recorder import current_session
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.processes import exits
from rltrace.recorder.processes.forks import forks
from rltrace.recorder.session import window
from rltrace.recorder.session.session import recording
from rltrace.trace.format.arming import (
    VERSION,
    Answer,
    ArmRequest,
    EndRequest,
    SleepingProcess,
    end_path,
    request_path,
    sleeping_processes,
    write_end_request,
    write_request,
)
from rltrace.trace.format.process_start import checked
from rltrace.trace.format.schema import Step, StepFlag
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import open_trace

STEPS = 8

At = Mapping[int, Callable[[], object]]
"""What is called within the program at the end of these steps."""


@pytest.fixture(autouse=True)
def look_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (window, exits):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(window, "WRITE_SHARE", 0)


def train(at: At) -> list[torch.Tensor]:
    """Eight steps of two optimizers, the second of which makes every other one; the final weights."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizers = torch.optim.Adam(layers[0].parameters()), torch.optim.SGD(layers[2].parameters(), lr=0.1)
    for number in range(STEPS):
        layers(torch.randn(5, 3)).square().mean().backward()
        optimizer = optimizers[number % 2]
        optimizer.step()
        optimizer.zero_grad()
        at.get(number, lambda: None)()
    return [parameter.detach().clone() for parameter in layers.parameters()]


def recorded(path: Path, at: At | None = None, **options: object) -> list[torch.Tensor]:
    """Final weights of the program, recorded as the options say."""
    with recording(RecordOptions(str(path), **options), force=False):
        current_session().end_stacks_at(recorded.__code__)  # tests call it from different lines
        return train(at or {})


def arms(path: Path, *requests: tuple[int, ArmRequest]) -> At:
    """Each request is made at the end of a step, and read at the end of the next."""
    return {number: lambda request=request: write_request(path, request) for number, request in requests}


def main_process(path: Path) -> ProcessTrace:
    found = verify(path)
    assert (found.damage, found.notes) == ((), ())
    return open_trace(path).processes[0]


def steps_with(process: ProcessTrace, flag: StepFlag) -> list[int]:
    return [int(step[Step.STEP]) for step in process.steps if int(step[Step.FLAGS]) & flag]


def compared(folder: Path) -> Comparison:
    return compare(open_trace(folder / "a.zarr"), open_trace(folder / "b.zarr"))


def test_armed_steps_are_those_of_a_full_recording(tmp_path: Path, engine: str) -> None:
    """Weights are those of an unrecorded run, and the steps of two windows are those of a run recorded throughout."""
    path = tmp_path / "b.zarr"
    at = arms(path, (1, ArmRequest(3, 5)), (5, ArmRequest(7, 8, values=("op=addmm",))))
    weights = train({})
    full = recorded(tmp_path / "a.zarr", engine=engine)
    armed = recorded(path, at, engine=engine, asleep=True)
    for own, others in zip(weights, zip(full, armed, strict=True), strict=True):
        assert all(torch.equal(own, other) for other in others)
    a, b = main_process(tmp_path / "a.zarr"), main_process(path)
    assert (b.state, b.windows, b.asleep) == ("complete", [(3, 5), (7, 8)], [(0, 3), (5, 7)])
    assert steps_with(b, StepFlag.RECORDED) == steps_with(b, StepFlag.DIGESTED) == [3, 4, 7]
    assert len(b.values) > 0
    digests = [Step.PARAMETERS, Step.GRADIENTS, Step.TORCH_GENERATOR]
    places = [Step.STEP, Step.OPTIMIZER, Step.COUNT, Step.SKIPPED]
    assert (a.steps[[3, 4, 7]][:, digests] == b.steps[[3, 4, 7]][:, digests]).all()
    assert (a.steps[:, places] == b.steps[:, places]).all()
    found = compared(tmp_path)
    assert found.verdict is Verdict.IDENTICAL
    assert "asleep: steps 0:3, 5:7 of rank0/main are not recorded, as the run was not armed for them" in found.notes


def test_one_digest_a_step(tmp_path: Path) -> None:
    """Armed at level step, a run has digests of these steps and no op."""
    weights = train({})
    armed = recorded(tmp_path / "b.zarr", arms(tmp_path / "b.zarr", (0, ArmRequest(2, 4, level="step"))), asleep=True)
    recorded(tmp_path / "a.zarr", level="step")
    assert all(map(torch.equal, weights, armed))
    process = main_process(tmp_path / "b.zarr")
    assert (process.level, process.after_op, process.asleep) == ("step", 0, [(0, 2), (4, STEPS)])
    assert steps_with(process, StepFlag.DIGESTED) == [2, 3]
    assert compared(tmp_path).verdict is Verdict.IDENTICAL


def test_what_happened_asleep_is_not_guessed(tmp_path: Path) -> None:
    """A learning rate that changes meanwhile is unknown until the run wakes; a space that was seeded then, seeded."""

    def program(at: At) -> None:
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=1.0)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=STEPS)
        space = gymnasium.spaces.Discrete(9)
        space.seed(0)
        for number in range(STEPS):
            (weight * float(space.sample())).sum().backward()
            optimizer.step()
            schedule.step()
            at.get(number, lambda: None)()

    for name, options in (("a", {}), ("b", {"asleep": True})):
        path = tmp_path / f"{name}.zarr"
        with recording(RecordOptions(str(path), **options), force=False):
            current_session().end_stacks_at(test_what_happened_asleep_is_not_guessed.__code__)
            program(arms(path, (1, ArmRequest(3, 5))) if options else {})
    found = compared(tmp_path)
    assert found.verdict is Verdict.IDENTICAL
    assert [note for note in found.notes if "asleep" not in note] == []


def patched() -> tuple[object, ...]:
    """What recording ops or digests replaces."""
    return (
        nn.Module.__call__,
        torch.Tensor.numpy,
        threading.Thread.start,
        graph._engine_run_backward,
        tuple(_get_current_dispatch_mode_stack()),
    )


def threads() -> set[str]:
    """Of the system, the recorder's own included."""
    return {path.name for path in Path("/proc/self/task").iterdir()}


def test_nothing_is_installed_while_asleep(tmp_path: Path, engine: str) -> None:
    """Before, between and after windows no mode is active, no function of the hot path is replaced, no thread runs."""
    path, plain, before = tmp_path / "a.zarr", patched(), threads()
    asleep: list[tuple[bool, bool]] = []
    look = lambda: asleep.append((patched() == plain, threads() <= before))  # noqa: E731
    at = {**dict.fromkeys((0, 2, 3, 5, 6), look), **arms(path, (1, ArmRequest(3, 4)), (4, ArmRequest(6, 7)))}
    recorded(path, at, engine=engine, asleep=True)
    assert asleep == [(True, True), (False, False), (True, True), (False, False), (True, True)]
    assert main_process(path).windows == [(3, 4), (6, 7)]


def sleeping(path: Path) -> SleepingProcess:
    (found,) = sleeping_processes(path)
    return found


def test_a_relative_window_moves(tmp_path: Path) -> None:
    """A process that is past the first of some steps from now records as many later ones, and says which."""
    path, answers = tmp_path / "a.zarr", []
    at = arms(path, (2, ArmRequest(1, 3, relative=True)), (6, ArmRequest(0, 8)))
    answer = lambda: answers.append(sleeping(path))  # noqa: E731
    recorded(path, {**at, 4: answer, 7: answer}, asleep=True)
    assert [(a.request, a.answer, a.first, a.end) for a in answers] == [
        (1, Answer.ARMED, 4, 6),
        (2, Answer.PASSED, 4, 6),
    ]
    assert main_process(path).windows == [(4, 6)]


def test_disarmed(tmp_path: Path) -> None:
    """A window ends with the step in which it is disarmed, and one that has not begun does not begin."""
    path = tmp_path / "a.zarr"
    requests = (0, ArmRequest(2, None)), (1, ArmRequest(6, 7)), (3, ArmRequest(0, 0, disarm=True))
    recorded(path, arms(path, *requests), asleep=True)
    process = main_process(path)
    assert steps_with(process, StepFlag.RECORDED) == [2, 3, 4]
    assert process.asleep == [(0, 2), (5, STEPS)]


@pytest.mark.parametrize("version", [VERSION, VERSION + 1])
def test_a_request_that_is_not_met(tmp_path: Path, version: int) -> None:
    """Steps that have passed, and a request of another version, leave the run asleep: the trace is whole, has each
    step's place, and is compared with another by nothing that it does not have."""
    path, found = tmp_path / "a.zarr", []
    fields = {"version": version, **ArmRequest(0, 3)._asdict()}
    write = lambda: Path(request_path(path, 1)).write_bytes(checked(json.dumps(fields).encode()))  # noqa: E731
    recorded(path, {3: write, 5: lambda: found.append(sleeping(path))}, asleep=True)
    assert [process.answer for process in found] == [Answer.PASSED if version == VERSION else Answer.REFUSED]
    process = main_process(path)
    assert (process.state, len(process.steps), process.asleep) == ("complete", STEPS, [(0, STEPS)])
    assert (summary.recorded(path).steps, summary.recorded(path).slept) == (STEPS, STEPS)
    recorded(tmp_path / "b.zarr", arms(tmp_path / "b.zarr", (0, ArmRequest(2, 3))), asleep=True)
    assert compared(tmp_path).verdict is Verdict.UNKNOWN  # there is no common step


def test_a_fork_sleeps(tmp_path: Path) -> None:
    """A child that a run asleep forks is asleep, and reads requests for itself; its parent goes on."""
    path = tmp_path / "a.zarr"
    armed = arms(path, (1, ArmRequest(3, 4)))
    statuses: list[int] = []
    recorded(path, {0: lambda: statuses.append(forked(lambda: train(armed)))}, asleep=True)
    assert statuses == [0]
    parent, child = open_trace(path).processes
    assert (parent.name, child.name[:11], child.state) == ("rank0/main", "rank0/fork:", "complete")
    assert [process.windows for process in (parent, child)] == [[(3, 4)], [(3, 4)]]


def test_a_process_without_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not recorded, as a note says, and is no difference to a run in which it was."""
    path = tmp_path / "b.zarr"
    for name, at in (("a.zarr", {}), ("b.zarr", arms(path, (1, ArmRequest(3, 5))))):
        monkeypatch.setattr(forks, "number", 0)
        recorded(tmp_path / name, {**at, 0: lambda: forked(torch.ones(3).sum)}, asleep=name == "b.zarr")
    found = compared(tmp_path)
    assert (found.verdict, found.structure.only_a) == (Verdict.IDENTICAL, 0)
    why = "asleep: no op of rank0/fork:1 is recorded, as a process wakes when an optimizer step of it ends"
    assert why in found.notes


def test_the_program_ends_asleep(tmp_path: Path) -> None:
    """``--until`` ends a run that is asleep, and everything before is in the trace."""
    with pytest.raises(KeyboardInterrupt):
        recorded(tmp_path / "a.zarr", asleep=True, until=3)
    assert current_session() is None
    process = main_process(tmp_path / "a.zarr")
    assert (process.state, process.asleep) == ("stopped", [(0, 4)])


def test_the_end_is_requested(tmp_path: Path) -> None:
    """Once, with the step that is requested or the one after; a damaged request is none."""
    (tmp_path / "starts").mkdir()
    look = exits.EndLook(str(tmp_path))
    assert look.due(3) == ""
    Path(end_path(tmp_path)).write_bytes(b"{}")
    assert look.due(4) == ""
    write_end_request(tmp_path, EndRequest(6, "because"))
    assert [look.due(step) for step in (5, 6, 7)] == ["", "because", ""]
