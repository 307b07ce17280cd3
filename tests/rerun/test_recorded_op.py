"""An op of a trace, called again on what it had: the recorded bits, its neighbours in memory, its generator."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from recorded import Record, Recorded
from torch import nn

from rltrace.errors import UsageError
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.digests.layouts import Layouts
from rltrace.recorder.digests.tensor_digest import TensorDigests
from rltrace.rerun.recorded_op import MissingValuesError, RecordedOp, recorded_op
from rltrace.rerun.runner import Memory, ResultDigests, repeat
from rltrace.rerun.torch_flags import read_switches, temporary_switches

DIGESTS = TensorDigests(Layouts(Tables()))


def fingerprint(tensor: torch.Tensor) -> str:
    return f"{DIGESTS.of(tensor):016x}"


def results(op: RecordedOp, times: int = 2) -> dict[ResultDigests, int]:
    return {outcome: count for (outcome,), count in repeat([op.call], times, fingerprint).items()}


def again(found: Recorded, row: int, times: int = 2) -> dict[ResultDigests, int]:
    return results(op_of(found, row), times)


def build(op: RecordedOp) -> list[torch.Tensor]:
    return Memory().arguments(op.call)


def op_of(found: Recorded, row: int) -> RecordedOp:
    return recorded_op(found.process, found.stream, row)


def network() -> None:
    """Layers, recurrent ones and attention, both ways, and optimizers of three kinds."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(3)
    layers = nn.ModuleDict(
        {
            "conv": nn.Conv2d(3, 4, 3),
            "norm": nn.BatchNorm2d(4),
            "lstm": nn.LSTM(4, 8, batch_first=True),
            "attention": nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
            "out": nn.Linear(8, 3),
        }
    )
    for options in ({"foreach": True}, {"fused": True}, {"foreach": False}):
        optimizer = torch.optim.AdamW(layers.parameters(), **options)  # type: ignore[arg-type]
        images = torch.from_numpy(np.random.RandomState(0).randn(2, 3, 5, 5).astype("f4"))
        hidden = layers["norm"](layers["conv"](images)).relu().flatten(2).transpose(1, 2)
        hidden = layers["attention"](layers["lstm"](hidden)[0]).mean(1)
        logits = layers["out"](nn.functional.gelu(nn.functional.dropout(hidden, 0.3)))
        chosen = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
        loss = nn.functional.cross_entropy(logits, chosen)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(layers.parameters(), 0.5)
        optimizer.step()
        loss.item()


def odds() -> None:
    """Memory that inputs share, dtypes, lazy conjugates, ``out=``, draws, lists, indices."""
    x = torch.arange(24.0).reshape(4, 6)
    y = x.clone()
    y.t()[1:3].add_(y.t()[1:3])
    y.addmm_(x[:, :4], x[:, :6], beta=0.5)
    torch.add(x, 1, out=y)
    y[0].add_(y[1])
    y.mul_(y)
    x.expand(2, 4, 6).sum()
    torch.as_strided(x, (3, 3), (1, 1)).sum()
    x.bfloat16() @ x.t().bfloat16()
    x.to(torch.float8_e4m3fn).to(torch.float32)
    z = torch.complex(x, x)
    z.conj() @ z.t()
    z.conj().imag.sum()
    torch.stack([x, x])
    x[x > 3]
    x[:, torch.tensor([0, 2])] += 1
    y.normal_()
    torch.randn(3, generator=torch.Generator().manual_seed(7))
    torch.zeros(0, 3).sum(0)
    torch.full((2,), float("inf"), dtype=torch.float64)
    torch.where(x > 3, x, -x)
    x.double().mul(5e-324)
    torch._foreach_copy_([x, y], [y + 1, x + 2])
    nn.functional.ctc_loss(torch.randn(5, 1, 4).log_softmax(-1), torch.tensor([[1, 2]]), (5,), (2,))
    bool(x[0, 0] > 3)
    complex(z[0, 0])


@pytest.mark.processor
@pytest.mark.parametrize("program", [network, odds])
def test_every_op_gives_the_recorded_bits(record: Record, program: Callable[[], None]) -> None:
    """Whatever computes: outputs, in-place writes, numbers, draws, forward and backward. Nothing is left out."""
    found = record(program, values="all", values_inputs=True)
    refused = ("only makes a view", "uninitialised memory", "takes a ")
    ran = 0
    for row in found.rows:
        try:
            op = op_of(found, row.index)
        except UsageError as error:
            assert any(text in str(error) for text in refused), (row.op, str(error))
            assert row.name.startswith("_record_function") or not row.outputs
            continue
        assert results(op) == {op.results: 2}, row.op
        ran += 1
    assert ran > 20


SENSITIVE = {
    "grad_mode": {"mkldnn_rnn_layer"},
    "inference_mode": {"mkldnn_rnn_layer"},
    "flush_denormal": {"mul"},
    "mkldnn.enabled": {"convolution", "convolution_backward", "gelu", "gelu_backward"},
    "deterministic_algorithms": set(),
}
"""Ops that some x86 processor computes otherwise under the other setting. oneDNN's recurrent layer has a kernel for
training and one for inference, and asks grad mode which is wanted; without AVX-512 the two give other bits."""


@pytest.mark.parametrize("program", [network, odds])
def test_ops_that_ask_for_a_setting(record: Record, program: Callable[[], None]) -> None:
    """Every op is called under the other setting as well: none but those that are known to is changed by it."""
    found = record(program, values="all", values_inputs=True)
    sensitive: dict[str, set[str]] = {name: set() for name in SENSITIVE}
    for row in found.rows:
        with suppress(UsageError):
            op = op_of(found, row.index)
            for name in SENSITIVE:
                others = {**op.call.settings, name: not op.call.settings[name]}
                if results(replace(op, call=replace(op.call, settings=others)), 1) != {op.results: 1}:
                    sensitive[name].add(row.name)
    for name, ops in SENSITIVE.items():
        assert sensitive[name] <= ops, name
    if program is odds:
        assert sensitive["flush_denormal"] == SENSITIVE["flush_denormal"]


@pytest.mark.parametrize("setting", ["grad_mode", "inference_mode", "flush_denormal", "default_dtype"])
def test_an_op_runs_again_under_what_it_ran_under(record: Record, setting: str) -> None:
    """Whatever stands where it is called again; and what stands there is put back."""
    asked: list[dict[str, object]] = []
    ASKED[:] = [lambda: asked.append(read_switches([setting]))]
    usual, other = read_switches([setting])[setting], "float64" if setting == "default_dtype" else None

    def program() -> None:
        x = torch.ones(2)
        with temporary_switches({setting: other or (not usual)}):
            asking(x)

    found = record(program, values="all", values_inputs=True)
    again(found, found.one("asking").index, 1)
    assert asked[0] == asked[1] == {setting: other or (not usual)}
    assert read_switches([setting])[setting] == usual


ASKED: list[Callable[[], None]] = []


@torch.library.custom_op("reexecute::asking", mutates_args=())
def asking(x: torch.Tensor) -> torch.Tensor:
    for ask in ASKED:
        ask()
    return x.clone()


def test_inputs_that_are_each_others_memory(record: Record) -> None:
    """A view that the op writes and one that it reads share a storage again, at the same distance and alignment."""
    x = torch.arange(40.0)
    found = record(lambda: x[8:12].add_(x[4:8]), values="all", values_inputs=True)
    op = op_of(found, found.one("add_").index)
    written, read = build(op)
    assert written.untyped_storage().data_ptr() == read.untyped_storage().data_ptr()
    assert written.data_ptr() - read.data_ptr() == 16
    assert read.data_ptr() % 64 == x[4:8].data_ptr() % 64
    assert read.tolist() == [4.0, 5.0, 6.0, 7.0]
    same = torch.ones(3)
    found = record(lambda: same.add_(same), values="all", values_inputs=True)
    written, read = build(op_of(found, found.one("add_").index))
    assert written.data_ptr() == read.data_ptr()


def test_nothing_of_the_process_changes(record: Record) -> None:
    """torch's generator stands where it stood, though the op drew from it; recorded memory is never written."""
    found = record(lambda: torch.ones(4).normal_(), values="all", values_inputs=True)
    torch.manual_seed(11)
    before = torch.get_rng_state()
    op = op_of(found, found.one("normal_").index)
    assert results(op, 3) == {op.results: 3}
    assert torch.equal(torch.get_rng_state(), before)


WRONG = [0.0]


@torch.library.custom_op("reexecute::off", mutates_args=("y",))
def off(x: torch.Tensor, y: torch.Tensor, name: str, times: list[int]) -> torch.Tensor:
    y.add_(1.0)
    return x * (len(name) + sum(times) + WRONG[0])


def test_other_bits_are_seen(record: Record) -> None:
    """A custom op that computes otherwise now: another result, with what it writes before what it returns."""
    x, y = torch.ones(2), torch.zeros(3)
    WRONG[0] = 0.0
    found = record(lambda: off(x, y, "ab", [1, 2]), values="all", values_inputs=True)
    row = found.one("off").index
    op = op_of(found, row)
    assert op.arguments.source == "t[0], t[1], 'ab', [1, 2]"
    assert list(again(found, row)) == [op.results]
    WRONG[0] = 0.5
    (outcome,) = again(found, row)
    assert outcome[0] == op.results[0]
    assert outcome[1] != op.results[1]


@torch.library.custom_op("reexecute::turning", mutates_args=())
def turning(x: torch.Tensor) -> torch.Tensor:
    WRONG[0] = 1 - WRONG[0]
    return x + WRONG[0]


def test_an_op_that_does_not_repeat_itself(record: Record) -> None:
    """Each outcome is counted."""
    WRONG[0] = 0.0
    made = torch.ones(2)
    found = record(lambda: turning(made), values="all", values_inputs=True)
    assert sorted(again(found, found.one("turning").index, 5).values()) == [2, 3]


# --- what cannot be run again -----------------------------------------------------------------------------------------


def refusal(found: Recorded, row: int) -> UsageError:
    with pytest.raises(UsageError) as caught:
        op_of(found, row)
    return caught.value


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "no values were recorded"),
        ({"values": "op=mm"}, "without --values-inputs"),
        ({"values": "op=exp", "values_inputs": True}, "no selector of the recording found this op"),
        ({"values": "all", "values_inputs": True, "values_limit": 8}, "the limit was reached"),
    ],
)
def test_values_that_are_missing(record: Record, options: dict[str, object], why: str) -> None:
    """It says which, and why."""
    made = torch.ones(4, 4)
    found = record(lambda: (made + 1).mm(made + 2).exp(), **options)
    error = refusal(found, found.one("mm").index)
    assert isinstance(error, MissingValuesError)
    assert "inputs 0, 1 of 2" in str(error)
    assert why in str(error)


def test_the_state_of_a_generator_that_is_missing(record: Record) -> None:
    """A draw without its state says so."""
    found = record(lambda: torch.randn(3), values="op=ones")
    assert "draws from a generator" in str(refusal(found, found.one("randn").index))


def test_what_there_is_nothing_to_run_of(record: Record) -> None:
    """Views, allocations, what a trace does not hold, tensors made of several."""

    def program() -> None:
        x = torch.empty(3)
        x.zero_().view(3, 1)
        with torch.profiler.record_function("label"):
            torch.ones(2, 2).to_sparse().to_dense()

    found = record(program, values="all", values_inputs=True)
    for name, why in (
        ("empty", "uninitialised memory"),
        ("view", "only makes a view"),
        ("_to_dense", "such a tensor has no plain bytes"),
        ("_record_function_enter_new", "a label"),
    ):
        assert why in str(refusal(found, found.named(name)[0].index)), name


def test_an_operator_that_is_not_there(record: Record) -> None:
    """Its library was not loaded: the name, and what to do about it."""
    found = record(lambda: torch.ones(2) + 1, values="all", values_inputs=True)
    row = found.one("add").index
    names = found.process.tables["ops"].payloads
    names[names.index("aten.add.Tensor")] = "mylib.fused.default"
    error = refusal(found, row)
    assert "mylib.fused.default" in str(error)
    assert "--import MODULE" in str(error)
