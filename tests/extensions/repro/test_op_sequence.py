"""Ops run again one after the other: the recorded bits, whatever wrote their memory, and where they begin to differ."""

import ctypes
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recorded import Record, Recorded
from torch import nn

from rltrace.commands.main import main
from rltrace.errors import UsageError
from rltrace.extensions.repro.op_sequence import SequenceRun, op_sequence, ops_not_run
from rltrace.extensions.repro.rerun_result import OpOutcome, RerunResult, rerun_result
from rltrace.recorder.capture.memory import NumberedStorages
from rltrace.recorder.core.op_info import OpPlan
from rltrace.rerun import recorded_op
from rltrace.rerun.recorded_op import MissingValuesError
from rltrace.selectors import parse_selectors
from rltrace.trace.format.schema import Column, Phase, RowFlag


def outcomes(found: Recorded) -> list[OpOutcome]:
    return list(SequenceRun(found.process).run(op_sequence(found.process)))


def again(found: Recorded, selector: str = "all") -> RerunResult:
    not_run = ops_not_run(found.process, op_sequence(found.process), parse_selectors([selector]))
    return rerun_result(found.process, outcomes(found), not_run)


def training() -> None:
    """Three steps of layers with buffers, dropout, an optimizer of several tensors at once, and a scaler."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    recurrent, drop = nn.LSTM(3, 5), nn.Dropout(0.3)
    optimizer = torch.optim.AdamW([*model.parameters(), *recurrent.parameters()], foreach=True)
    scaler, generator = torch.amp.GradScaler("cpu"), torch.Generator().manual_seed(3)
    rollouts, observation = torch.zeros(30, 3, 5, 5), np.zeros((4, 3))
    for step in range(3):
        observation[:] = step
        rollouts[step * 10 : step * 10 + 10] = torch.randn(10, 3, 5, 5)
        rollouts[::2].mul_(0.99)
        batch = rollouts[torch.randint(0, step * 10 + 10, (8,), generator=generator)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(batch), torch.arange(8) % 3)
        hidden = drop(recurrent(torch.from_numpy(observation).float()[None])[0])
        turned = torch.complex(hidden, hidden).conj() @ torch.ones(5, 2, dtype=torch.complex64)
        added = torch.empty(5)
        torch.add(torch.ones(5), step, out=added)
        optimizer.zero_grad()
        scaler.scale(loss + hidden.sum() + turned.imag.sum() + added.sum()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        torch.multinomial(torch.softmax(rollouts.flatten()[:9], 0), 4)


@pytest.mark.parametrize("steps", [(0, None), (1, 2), (2, 3)], ids=str)
def test_every_op_gives_the_recorded_bits(record: Record, steps: tuple[int, int | None]) -> None:
    """From the first op on, and from the middle: of parameters, optimizer state and a buffer that older ops wrote."""
    result = again(record(training, rerunnable="all", steps=steps))
    assert (result.bitwise, result.differing, result.first) == (True, 0, None)
    assert result.ops > 60 and result.from_record == ()


def test_what_is_read_in_flight_is_no_difference(record: Record) -> None:
    """Of a marked op other bits are none, nor are they where they are read; of any other op they are the first."""
    with record.block(rerunnable="all") as found:
        read = torch.empty(4) * 2
        torch.ones(4).exp() + read
    given = outcomes(found)
    names = [found.process.words.op(int(each.rows.columns[0, Column.OP])) for each in given]
    marked, other, reader = map(names.index, ("aten.mul.Tensor", "aten.exp.default", "aten.add.Tensor"))
    assert given[marked].rows.flags(0) & RowFlag.MARKED
    given[marked] = replace(given[marked], here=("other",))
    given[reader] = replace(given[reader], here=("other",), inputs_equal=False)
    result = rerun_result(found.process, given, Counter())
    assert (result.bitwise, result.unsettled, result.first) == (True, 2, None)
    given[other] = replace(given[other], here=("other",))
    result = rerun_result(found.process, given, Counter())
    assert (result.bitwise, result.differing, result.unsettled) == (False, 2, 1)
    assert result.first.op == "aten.exp.default"


def test_memory_that_changes_while_it_is_recorded(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a collective in flight changes it: the bytes in the trace are those that it has the digest of."""
    memory, read = np.zeros(64, np.uint8), NumberedStorages.read

    def change_after(storages: NumberedStorages, raw: torch.UntypedStorage) -> Any:
        found = read(storages, raw)
        memory[:] += 1
        return found

    monkeypatch.setattr(NumberedStorages, "read", change_after)
    with record.block(rerunnable="all") as found:
        tensor = torch.from_numpy(memory)
        for _ in range(5):
            tensor.sum()
    values = found.process.values
    assert values.read_all() == len(values) > 4


def unrecorded(way: Callable[[torch.Tensor], object]) -> Callable[[], None]:
    def program() -> None:
        tensor = torch.ones(4) + 1
        way(tensor)
        tensor.mul_(3)
        torch.empty(4).copy_(tensor).sum()

    return program


WRITES = {
    "NumPy": lambda tensor: tensor.numpy().fill(7),
    "an address": lambda tensor: ctypes.memset(tensor.data_ptr() + 4, 5, 4),
    "other memory": lambda tensor: tensor.set_(torch.arange(4.0)),
    "resized": lambda tensor: tensor.untyped_storage().resize_(64),
}


@pytest.mark.parametrize("way", WRITES)
def test_what_no_op_wrote_is_in_the_trace(record: Record, way: str) -> None:
    """Memory is as it was before each op, whatever wrote it since the last one."""
    found = record(unrecorded(WRITES[way]), rerunnable="all")
    assert again(found).bitwise
    assert [outcome.here for outcome in outcomes(found)][-1] != ()


def test_a_tensor_without_memory(record: Record) -> None:
    """An op that returns one, and those that read it, are not run; what they leave in memory is in the trace."""
    with record.block(rerunnable="all") as found:
        weight = torch.ones(5, 3).mul_(2)
        places, rows = torch.tensor([[1, 4]]), torch.ones(2, 3)
        sparse = torch.sparse_coo_tensor(places, rows, (5, 3), check_invariants=False).coalesce()
        weight.add_(sparse)
        (weight.mul(3) + sparse.to_dense()).sum()
    result = again(found)
    assert result.bitwise and result.ops >= 4
    assert "aten.add_.Tensor" in dict(result.from_record)


def test_the_ops_of_one_module(record: Record) -> None:
    """Alone, forward and backward: what other modules gave them counts as outside."""
    found = record(training, rerunnable="module=Sequential.4,step=1")
    result = again(found, "module=Sequential.4,step=1")
    assert result.bitwise and 0 < result.ops < 12
    assert {found.rows[op.row].module for op in op_sequence(found.process)} == {"Sequential.4"}


def otherwise(name: str, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """``operator_of`` on a machine on which one op gives other results."""

    def found(*args: Any) -> tuple[Any, OpPlan]:
        func, plan = operator(*args)
        if plan.name != name:
            return func, plan
        return lambda *args, **kwargs: change(func(*args, **kwargs)), plan

    operator = recorded_op.operator_of
    return found


@pytest.mark.parametrize("values", [(), ("all",)], ids=["without values", "with values"])
def test_where_another_machine_differs(
    record: Record, values: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first op that differs; of later ones those that read recorded bytes: all of them where the trace has values,
    which are then put back."""
    with record.block(rerunnable="all", values=values) as found:
        x = torch.linspace(0, 1, 5)
        for _ in range(3):
            x = torch.tanh(x) + torch.tanh(torch.ones(2)).sum()
        x.sum()
    changed = otherwise("aten.tanh.default", lambda out: out.add_(0.25 * (len(out) == 5)))
    monkeypatch.setattr(recorded_op, "operator_of", changed)
    result = again(found)
    assert not result.bitwise and result.first is not None
    first = found.named("tanh")[0]
    assert (result.first.op, result.first.row) == ("aten.tanh.default", first.index)
    assert result.first.recorded == (f"{first.outputs[0]:016x}",) != result.first.here
    assert "test_op_sequence.py" in result.first.site
    [kind] = result.kinds
    if values:
        assert (kind.count, kind.of, kind.distance) == (3, 6, pytest.approx(0.25, rel=1e-6))
        assert result.differing == 3
    else:
        assert (kind.count, kind.of, kind.distance) == (1, 4, None)
        assert result.differing == 7  # all that follows from it


def test_a_limit_that_was_reached(record: Record) -> None:
    """Such ops cannot be run again, and it is said why."""
    found = record(training, rerunnable="all", values_limit=600)
    with pytest.raises(MissingValuesError, match=r"\d bytes\) were not recorded, as the limit was reached: .*limit"):
        op_sequence(found.process)


def test_a_window_over_the_limit(record: Record) -> None:
    """Nothing is recorded where parameters, buffers and optimizer state alone are over the limit."""
    found = record(wide_training, rerunnable="all", steps=(1, 2), values_limit=60_000)
    with pytest.raises(MissingValuesError, match="optimizer state alone are over the limit, so no memory"):
        op_sequence(found.process)
    assert len(found.process.values) == 0
    [left] = found.process.values.left_out
    trained, buffers, counts = 8 * 600 + 3 * 600 + 600 * 2 + 2, 2 * 600, 6  # Adam has two tensors of each, and a count
    assert left.bytes == 4 * (3 * trained + buffers + counts) + 8


def wide_training() -> None:
    model = nn.Sequential(nn.Linear(8, 600), nn.BatchNorm1d(600), nn.Linear(600, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(3, 8)).square().sum().backward()
        optimizer.step()


class Decoder(nn.Module):
    """One layer of attention over a cache of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.heads, self.logits = nn.Embedding(9, 8), nn.Linear(8, 24), nn.Linear(8, 9)

    def forward(self, ids: torch.Tensor, cache: torch.Tensor, at: int) -> torch.Tensor:
        query, key, value = self.heads(self.embed(ids)).chunk(3, -1)
        cache[:, at : at + ids.shape[1]] = torch.stack([key, value], 2).detach()
        keys, values = cache[:, : at + ids.shape[1]].unbind(2)
        return self.logits(nn.functional.scaled_dot_product_attention(query, keys, values))


def generate(policy: Decoder, prompts: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Five tokens after each prompt, sampled one by one with a cache that is as large as they will be."""
    sampled, new, cache = [], prompts, torch.empty(len(prompts), 8, 2, 8)
    for i in range(5):
        with torch.no_grad():
            scores = policy(new, cache, 0 if i == 0 else 2 + i)[:, -1]
        new = torch.multinomial(scores.softmax(-1), 1, generator=generator)
        sampled.append(new)
    return torch.cat(sampled, 1)


def sampling_and_learning() -> None:
    """Two updates of a policy on what it sampled."""
    torch.manual_seed(2)
    policy, generator = Decoder(), torch.Generator().manual_seed(6)
    optimizer = torch.optim.Adam(policy.parameters())
    prompts = torch.tensor([[1, 2, 3], [4, 5, 6]])
    for _ in range(2):
        sampled = generate(policy, prompts, generator)
        scores = policy(torch.cat([prompts, sampled], 1), torch.zeros(2, 8, 2, 8), 0)[:, 2:-1].log_softmax(-1)
        optimizer.zero_grad()
        (-scores.gather(-1, sampled[..., None]).squeeze(-1) * (sampled % 2)).sum().backward()
        optimizer.step()


def test_sampling_with_a_cache(record: Record) -> None:
    """One call that samples, alone, and the whole update on what it sampled, each from the middle of a run."""
    whole = record(sampling_and_learning, rerunnable="all", steps=(1, 2))
    assert again(whole).bitwise
    alone = record(sampling_and_learning, rerunnable="site=test_op_sequence.py:generate", steps=(1, 2))
    result = again(alone, "site=test_op_sequence.py:generate")
    assert result.bitwise and 5 * 8 < result.ops < again(whole).ops
    ops = op_sequence(alone.process)
    assert [alone.rows[op.row].name for op in ops].count("multinomial") == 5
    assert not any(alone.rows[op.row].phase is Phase.OPTIMIZER for op in ops)


def test_memory_that_is_not_there(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace with a part of its ops gives an error that names the row, never another result."""
    found = record(unrecorded(lambda tensor: None), rerunnable="all")
    ops = [op for op in op_sequence(found.process) if found.rows[op.row].name != "add"]
    with pytest.raises(UsageError, match=r"row \d+ reads memory that no earlier op of this run made"):
        list(SequenceRun(found.process).run(ops))


def test_the_command(record: Record, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """0 for the recorded bits, 1 for others; as text and as JSON."""
    found = record(training, rerunnable="all", steps=(1, 2))
    assert main(["rerun", str(found.path)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("BITWISE  ") and "ops of step 1, rank0/main: the recorded bits" in text
    monkeypatch.setattr(recorded_op, "operator_of", otherwise("aten.relu.default", lambda out: out.mul_(2)))
    assert main(["rerun", str(found.path), "--format", "json"]) == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["bitwise"], result["first"]["op"]) == (False, "aten.relu.default")
    assert main(["rerun", str(found.path)]) == 1
    text = capsys.readouterr().out
    kinds = text.partition("Give other bits here on recorded inputs\n")[2].splitlines()
    assert kinds[0].split() == ["op", "differ", "largest", "distance", "first"]
    assert kinds[1].startswith("  aten.relu.default  ")


def test_traces_that_cannot_be_run_again(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the option, and another process: an error with what to do."""
    plain = record(unrecorded(lambda tensor: None))
    assert main(["rerun", str(plain.path)]) == 2
    assert "recorded without --rerunnable" in capsys.readouterr().err
    found = record(unrecorded(lambda tensor: None), rerunnable="all")
    assert main(["rerun", str(found.path), "--process", "rank7/main"]) == 2
    assert "has no process rank7/main" in capsys.readouterr().err


def test_a_recording_is_not_changed(record: Record, tmp_path: Path) -> None:
    """Rows are those of a recording without the option."""
    plain, found = record(training, engine="mode"), record(training, rerunnable="all")
    assert [(row.op, row.outputs) for row in plain.rows] == [(row.op, row.outputs) for row in found.rows]
