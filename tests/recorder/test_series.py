"""Series are taken down beside the ops: scalers, learning rates and what a program watches, exactly and unseen."""

import gc
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from children import in_thread
from recorded import Record, Recorded, series_of
from torch import nn
from torch.amp import GradScaler

import rltrace
from rltrace.diff.metrics.series import ITEM, all_series
from rltrace.errors import RecordError
from rltrace.recorder import current_session
from rltrace.recorder.streams import series as series_module
from rltrace.trace.format.schema import Sample


def values(recorded: Recorded, name: str) -> list[float]:
    return [value for _, value in series_of(recorded)[name]]


def train(scaler: GradScaler, updates: int = 4, overflow: int = 1, optimizer: Any = None) -> None:
    """Updates of a small network; in one of them the loss overflows."""
    network = nn.Linear(2, 1)
    own = torch.optim.SGD(network.parameters(), lr=0.5) if optimizer is None else optimizer(network.parameters())
    for update in range(updates):
        own.zero_grad()
        loss = network(torch.ones(3, 2)).sum() * (float("inf") if update == overflow else 1.0)
        scaler.scale(loss).backward()
        scaler.step(own)
        scaler.update()


STATE = {
    "scaler:0/scale": [(0, 16.0), (0, 16.0), (1, 8.0), (2, 8.0), (3, 16.0)],
    "scaler:0/growth": [(0, 0.0), (0, 1.0), (1, 0.0), (2, 1.0), (3, 0.0)],
    "scaler:0/found_inf": [(0, 0.0), (1, 1.0), (2, 0.0), (3, 0.0)],
    "scaler:0/skipped:0": [(0, 0.0), (1, 1.0), (2, 0.0), (3, 0.0)],
}
"""Of a scaler that starts at 16 and grows after two good updates; the second overflows."""


class Counting(GradScaler):
    """Hands over to the base, as subclasses do."""

    def update(self, new_scale: Any = None) -> None:
        super().update(new_scale)


@pytest.mark.parametrize(("level", "class_"), [("op", GradScaler), ("step", GradScaler), ("op", Counting)])
def test_a_scaler_is_followed_through_a_real_overflow(record: Record, level: str, class_: type[GradScaler]) -> None:
    """Its state before the first update, then after each, by the step of its attempt; what was skipped, and why."""
    recorded = record(lambda: train(class_("cpu", init_scale=16.0, growth_interval=2)), level=level)
    found = series_of(recorded)
    assert {name: found[name] for name in STATE} == STATE
    assert found["optimizer:0/group:0/lr"] == [(0, 0.5)]


def test_scalers_made_before_and_classes_made_during_a_recording(record: Record) -> None:
    """None is missed; one that was there is numbered at its first use, a new one as it is made."""
    early = GradScaler("cpu", init_scale=16.0, growth_interval=2)
    with record.block() as recorded:

        class Own(GradScaler):
            """Does all of the update by itself."""

            def update(self, new_scale: Any = None) -> None:
                self._scale.mul_(0.5)
                self._per_optimizer_states.clear()

        late = Own("cpu", init_scale=16.0)
        train(early)
        train(late, 2, 9)
    found = series_of(recorded)
    assert [value for _, value in found["scaler:0/scale"]] == [16.0, 8.0, 4.0]
    assert [value for _, value in found["scaler:1/scale"]] == [value for _, value in STATE["scaler:0/scale"]]


def test_fused_optimizers_and_disabled_scalers(record: Record) -> None:
    """An optimizer that skips by itself is recorded as any other; a scaler that is off has no series."""
    fused = record(lambda: train(GradScaler("cpu"), 3, optimizer=lambda p: torch.optim.SGD(p, lr=0.5, fused=True)))
    assert values(fused, "scaler:0/skipped:0") == [0.0, 1.0, 0.0]
    off = record(lambda: train(GradScaler("cpu", enabled=False), 2))
    assert off.optimizers == [("SGD#0", 0, 0), ("SGD#0", 1, 0)]
    assert set(series_of(off)) == {"optimizer:0/group:0/lr"}


def test_nothing_of_an_optimizer_is_held_on_to(record: Record) -> None:
    """Parameters go when the program lets go of them, whether or not a scaler made the attempts."""
    with record.block():
        for scaled in (False, True):
            parameter = nn.Parameter(torch.ones(1))
            scaler = GradScaler("cpu", enabled=scaled)
            optimizer = torch.optim.SGD([parameter], lr=0.5)
            scaler.scale(parameter.sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            gone = weakref.ref(parameter)
            del parameter, optimizer, scaler
            gc.collect()
            assert gone() is None


def test_rates_and_epochs_of_schedulers_are_recorded_where_they_change(record: Record) -> None:
    """By optimizer and group, at the first attempt and at each with another rate; tensors count by their number."""
    with record.block() as got:
        a, b = nn.Linear(1, 1), nn.Linear(1, 1)
        first = torch.optim.SGD([{"params": a.parameters()}, {"params": b.parameters(), "lr": 1.0}], lr=0.5)
        rate = torch.tensor(0.25)
        second = torch.optim.Adam(a.parameters(), lr=rate, fused=True)
        schedule = torch.optim.lr_scheduler.StepLR(first, 2, 0.5)
        for _ in range(3):
            (a(torch.ones(1)) + b(torch.ones(1))).sum().backward()
            first.step()
            second.step()
            schedule.step()
        rate.mul_(2)
        second.step()
    found = series_of(got)
    assert found == {
        "optimizer:0/group:0/lr": [(0, 0.5), (4, 0.25)],
        "optimizer:0/group:1/lr": [(0, 1.0), (4, 0.5)],
        "optimizer:1/group:0/lr": [(1, 0.25), (6, 0.5)],
        "StepLR 0/last_epoch": [(0, 0.0), (2, 1.0), (4, 2.0), (6, 3.0)],
    }


def test_watching(record: Record) -> None:
    """Any single number, at the step where it was watched; NaN, infinities and integers beyond floats too."""
    with record.block() as got:
        weight = nn.Parameter(torch.tensor([3.0]))
        optimizer = torch.optim.SGD([weight], lr=0.5)
        for value in (1, 2.5, True, np.float32(0.5), np.array([7]), weight, weight * 2, torch.tensor(9)):
            rltrace.watch("mixed", value)
        optimizer.step()
        for value in (float("nan"), float("inf"), 10**400, -(10**400), -0.0):
            rltrace.watch("odd", value)
    found = series_of(got)
    assert found["mixed"] == [(0, value) for value in (1.0, 2.5, 1.0, 0.5, 7.0, 3.0, 6.0, 9.0)]
    assert [step for step, _ in found["odd"]] == [1] * 5
    assert repr([value for _, value in found["odd"]]) == "[nan, inf, inf, -inf, -0.0]"


@pytest.mark.parametrize("recorded", [False, True])
def test_what_is_no_number_is_refused_whether_or_not_it_is_recorded(record: Record, recorded: bool) -> None:
    """So a program fails at its desk, not first under the recorder; where nothing is recorded, nothing is done."""

    def program() -> None:
        for value in ("1", None, [1.0], 1j, np.zeros(2), torch.zeros(2), torch.zeros(0)):
            with pytest.raises(TypeError):
                rltrace.watch("x", value)
        with pytest.raises(TypeError):
            rltrace.watch(3, 1.0)
        rltrace.watch("x", torch.tensor(1j))  # a tensor that says it is a number, and is none: left out
        rltrace.watch("x", 2.0)

    if not recorded:
        program()
    else:
        assert series_of(record(program)) == {"x": [(0, 2.0)]}


def test_watching_leaves_no_trace_among_the_ops(record: Record) -> None:
    """No row, no digest, no version, no call of the program's own modes or subclasses comes of it."""
    calls: list[Any] = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(func)
            return func(*args, **(kwargs or {}))

    def program(watch: bool) -> None:
        torch.manual_seed(1)
        weight = nn.Parameter(torch.randn(1))
        square = weight * weight
        if watch:
            with Mode():
                rltrace.watch("weight", weight)
                rltrace.watch("square", square)
        square.sum().backward()
        assert (weight._version, square._version) == (0, 0)

    plain, watched = record(lambda: program(False)), record(lambda: program(True))
    assert calls == [] and len(series_of(watched)) == 2
    assert watched.ops == plain.ops and watched.chains == plain.chains


def test_series_go_on_outside_of_the_window(record: Record) -> None:
    """What cost nearly nothing is recorded throughout, though ops are rows in one step only."""
    with record.block(steps=(2, 3)) as recorded:
        weight = nn.Parameter(torch.zeros(1))
        optimizer = torch.optim.SGD([weight], lr=0.5)
        for update in range(5):
            rltrace.watch("update", update)
            weight.grad = torch.ones(1)
            optimizer.step()
    assert series_of(recorded)["update"] == [(update, float(update)) for update in range(5)]
    assert {row.step for row in recorded.rows} == {2}


def test_threads_have_series_of_their_own(record: Record) -> None:
    """A thread's numbers are in its stream; where threads have none (level step), under its name."""

    def program() -> None:
        def act(number: int) -> None:
            torch.ones(1)
            rltrace.watch("return", number)

        for number in range(2):
            in_thread(f"actor-{number}", partial(act, number))
        rltrace.watch("return", 9)

    op, step = record(program), record(program, level="step")
    assert op.process.samples[:, Sample.STREAM].tolist() == [1, 2, 0]
    assert [stream.name for stream in op.process.streams][1:] == [f"rank0/main/thread:actor-{n}" for n in range(2)]
    assert series_of(step) == {"return in actor-0": [(0, 0.0)], "return in actor-1": [(0, 1.0)], "return": [(0, 9.0)]}


def test_many_samples_are_committed_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory doesn't grow with the samples of a run: so many wait at most, then they are written."""
    monkeypatch.setattr(series_module, "FLUSH_SAMPLES", 256)
    hurried: list[int] = []
    made = series_module.SeriesSampler(
        rltrace.recorder.core.process_state.ProcessState(lambda error: None).tables,
        lambda: series_module.StreamPosition(0, 0, 0, ""),
        lambda: hurried.append(len(made.take())),
    )
    for number in range(1000):
        made.watch("x", number)
    assert hurried == [256, 256, 256] and len(made.take()) == 1000 - 3 * 256 and len(made.take()) == 0


def test_a_recorder_that_broke_off_takes_nothing_more(tmp_path: Path) -> None:
    """Memory of a program that goes on for days is not filled with samples that will not be written."""
    with pytest.raises(RecordError), rltrace.record(tmp_path / "a.zarr"):
        session = current_session()
        rltrace.watch("x", 1.0)
        session.fail(OSError("no space"))
        for number in range(100):
            rltrace.watch("x", number)
        assert len(session._series.take()) == 0


def test_training_in_mixed_precision_computes_the_same(record: Record) -> None:
    """Weights, scales, trackers, generators and what a subclass sees are those of the program alone."""

    class Seeing(GradScaler):
        def update(self, new_scale: Any = None) -> None:
            seen.append((self._found_inf_per_device(optimizers[-1]), self.get_scale()))
            super().update(new_scale)

    seen: list[Any] = []
    optimizers: list[Any] = []

    def program() -> list[Any]:
        torch.manual_seed(3)
        seen.clear()
        optimizers.clear()
        network = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizers.append(torch.optim.Adam(network.parameters(), lr=0.01))
        scaler = Seeing("cpu", init_scale=2.0**14, growth_interval=2)
        for update in range(8):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = network(torch.randn(6, 4)).float().pow(2).mean() * (1e6 if update == 3 else 1.0)
            optimizers[0].zero_grad()
            scaler.scale(loss).backward()
            rltrace.watch("loss", loss)
            scaler.step(optimizers[0])
            scaler.update()
        state = [parameter.detach().clone() for parameter in network.parameters()]
        versions = [parameter._version for parameter in network.parameters()]
        return [state, versions, scaler.state_dict(), list(seen), torch.get_rng_state()]

    alone, found = program(), record(program)
    assert repr(found.returned) == repr(alone)
    assert all(torch.equal(a, b) for a, b in zip(found.returned[0], alone[0], strict=True))
    scales = values(found, "scaler:0/scale")
    assert scales[-1] == alone[2]["scale"] and 1.0 in values(found, "scaler:0/found_inf")


@pytest.mark.gpu
def test_numbers_on_a_device_are_those_of_the_moment(record: Record) -> None:
    """They are read back later, and are what they were when they were watched, on a stream of the program's own too."""
    with record.block(level="step") as recorded:
        scaler = GradScaler("cuda", init_scale=16.0, growth_interval=2)
        number = torch.zeros(1, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(100):
                number += 1
                rltrace.watch("x", number)
        torch.cuda.synchronize()
        weight = nn.Parameter(torch.ones(1, device="cuda"))
        optimizer = torch.optim.Adam([weight], lr=0.5, fused=True)
        for update in range(4):
            optimizer.zero_grad()
            scaler.scale((weight * (float("inf") if update == 1 else 1.0)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    found = series_of(recorded)
    assert values(recorded, "x") == [float(number) for number in range(1, 101)]
    assert {name: found[name] for name in STATE} == STATE


# --- logged scalars at level "step" -----------------------------------------------------------------------------------


def test_numbers_that_the_program_reads_are_those_that_ops_would_have(record: Record) -> None:
    """At level ``step``, as one series for each call, of the same name and numbers as at level ``op``; what torch
    reads, a bool and a tensor that raises are none, and the reads are torch's own again afterwards."""

    def program() -> None:
        weight = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.Adam([weight], lr=0.5)  # reads its count of steps
        for step in range(2):
            loss = weight.square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"{loss.item():.2f} {loss.detach().long().item() + step}")
            assert bool(loss > 0) and (loss > 0).item()
            with pytest.raises(RuntimeError, match="3 elements"):
                weight.item()

    found = []
    for level in ("step", "op"):
        recorded = record(program, level=level)
        assert "item" not in vars(torch.Tensor)
        series = [one for one in all_series(recorded.trace) if one.kind == ITEM]
        found.append({(one.key, one.name, one.place): (one.steps.tolist(), one.values.tolist()) for one in series})
    assert [numbers[0] for _, numbers in found[0].values()] == [3.0, 3.0]  # two calls of one line
    assert [steps for steps, _ in found[0].values()] == [[1, 2], [1, 2]]
    assert {site[1:]: read for site, read in found[0].items()} == {site[1:]: read for site, read in found[1].items()}


def test_only_the_first_reads_of_a_call_site_are_recorded_of_each_step(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that reads its action at each environment step adds no megabytes."""
    monkeypatch.setattr(series_module, "MAX_READS", 3)
    with record.block(level="step") as got:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)
        for _ in range(2):
            for number in range(5):
                torch.tensor(number).item()
            optimizer.step()
    (series,) = [one for one in all_series(got.trace) if one.kind == ITEM]
    assert (series.steps.tolist(), series.values.tolist()) == ([0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2])
