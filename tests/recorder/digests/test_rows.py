"""Rows of ops on a device in the cases in which their digests cannot simply be read back, and captures of graphs."""

import contextlib

import pytest
import torch
from host_as_device import HostAccelerator, HostGraph, host_as_device
from recorded import Record, digest_of

from rltrace.recorder.core.op_info import NON_BLOCKING, Role, make_plan, plan_of_call
from rltrace.recorder.digests import rng_state, tensor_digest
from rltrace.recorder.digests.cuda_graphs import is_captured
from rltrace.recorder.digests.layouts import Layout
from rltrace.recorder.digests.readback import ReadBack
from rltrace.recorder.digests.rng_state import RngUse
from rltrace.recorder.session import optimizer_steps
from rltrace.trace.format.schema import Generator, Origin, Step, StepFlag


def test_nothing_is_asked_of_a_device_while_a_graph_is_captured(record: Record) -> None:
    """Rows of a capture have no digests, which is said: they are marked. Those before and after have theirs."""
    accelerator = HostAccelerator()
    asked: list[tuple[int, int]] = []
    with host_as_device(accelerator), record.block() as found:
        first = torch.ones(5).mul(2)
        graph = HostGraph(accelerator)
        graph.capture_begin()
        asked.append((len(accelerator.copies), accelerator.waits))
        first.add(1)
        first.sub_(1)
        torch._foreach_mul_([first, first], 1.0)
        torch.randn(3)
        asked.append((len(accelerator.copies), accelerator.waits))
        graph.capture_end()
        first.div(2)
    assert asked[0] == asked[1]
    captured = [row for row in found.rows if row.op.split(".")[1] in ("add", "sub_", "_foreach_mul_", "randn")]
    assert len(captured) == 4
    for row in captured:
        assert row.marked and not any(row.outputs)
        assert all(link.digest is None for link in row.inputs)
    assert not found.one("mul").marked and found.one("mul").outputs == [digest_of(torch.full((5,), 2.0))]
    assert not found.one("div").marked and found.one("div").outputs == [digest_of(torch.full((5,), 0.5))]


def test_after_a_replay_no_op_is_known_to_have_written_what_the_graph_writes(record: Record) -> None:
    """Who reads it digests it; what the graph does not write keeps its writer."""
    accelerator = HostAccelerator()
    kept: list[torch.Tensor] = []
    with host_as_device(accelerator), record.block() as found:
        given, other = torch.ones(5).mul(2), torch.ones(5).mul(3)
        graph = HostGraph(accelerator, lambda: result.fill_(7))
        graph.capture_begin()
        result = given.add(1)
        graph.capture_end()
        result.neg()
        graph.replay()
        result.exp()
        result.log()
        graph.replay()
        result.sqrt()
        other.tan()
        kept.append(result)
    seven, three = digest_of(torch.full((5,), 7.0)), digest_of(torch.full((5,), 3.0))
    [before] = found.one("neg").inputs
    assert (before.origin, before.digest) == (Origin.UNKNOWN, three)  # the capture computed nothing, for all we know
    for name in ("exp", "sqrt"):
        [link] = found.one(name).inputs
        assert (link.origin, link.digest) == (Origin.UNKNOWN, seven)
    [again] = found.one("log").inputs
    assert again.row == found.one("exp").index and again.known
    [other] = found.one("tan").inputs
    assert other.row == found.named("mul")[1].index and other.digest is None


def test_a_graph_whose_capture_was_not_followed_may_write_anything(record: Record) -> None:
    """Every link after its replay is read."""
    accelerator = HostAccelerator()
    with host_as_device(accelerator), record.block() as found:
        other = torch.ones(5).mul(3)
        HostGraph(accelerator).replay()
        other.tan()
    [link] = found.one("tan").inputs
    assert (link.origin, link.digest) == (Origin.UNKNOWN, digest_of(torch.full((5,), 3.0)))


def test_a_capture_that_does_not_begin_leaves_the_gate_open(record: Record) -> None:
    """Its error is the program's, and what comes after has digests."""
    accelerator = HostAccelerator()

    class Broken(HostGraph):
        def capture_begin(self, pool: object = None) -> None:
            super().capture_begin(pool, no_such_argument=1)

    def program() -> None:
        torch.ones(3).add(1)
        try:
            Broken(accelerator).capture_begin()
        except TypeError:
            torch.ones(3).sub(1)

    with host_as_device(accelerator) as made:
        found = record(program)
    assert not made[0].gate.is_shut
    assert found.one("sub").outputs == [digest_of(torch.zeros(3))]


def test_a_device_that_fails_costs_digests_and_no_rows(record: Record) -> None:
    """Rows that were on their way then are marked; the recording does not break off, nor does it raise."""
    accelerator = HostAccelerator()
    with host_as_device(accelerator, buffers=2, words=100), record.block() as found:
        for n in range(40):
            torch.full((60,), float(n)).add_(1)
        accelerator.failed = True
        for n in range(40):
            torch.full((60,), float(n)).mul_(2)
    assert len(found.named("add_")) == len(found.named("mul_")) == 40
    known = [row for row in found.rows if not row.marked]
    assert 30 < len(known) < 80 and all(row.name in ("full", "add_") for row in known)
    for n, row in enumerate(found.named("add_")):
        assert row.outputs == [0 if row.marked else digest_of(torch.full((60,), n + 1.0))]
    assert all(row.marked and row.outputs == [0] for row in found.named("mul_"))


def test_a_copy_to_the_host_that_does_not_wait_has_the_digest_of_what_is_copied(record: Record) -> None:
    """It is not there yet; each op that reads it digests it. Of a conversion it is not known."""
    copy = torch.ops.aten._to_copy.default
    with host_as_device(), record.block() as found:
        there = torch.ones(5).mul(2)
        here = copy(there, device="cpu", non_blocking=True)
        here.exp()
        here.log()
        copy(there, dtype=torch.float64, device="cpu", non_blocking=True)
        copy(there, device="cpu", non_blocking=False)
    same, converted, waited = found.named("_to_copy")
    two = digest_of(torch.full((5,), 2.0))
    assert (same.outputs, same.marked, waited.outputs, waited.marked) == ([two], False, [two], False)
    assert (converted.outputs, converted.marked) == ([0], True)
    for name in ("exp", "log"):
        [link] = found.one(name).inputs
        assert (link.row, link.digest, link.known) == (same.index, two, False)


def test_what_an_optimizer_s_op_reads_and_writes_is_put_off_together(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one by one: each would be a launch of its own. An op that raises leaves nothing to the next one."""
    sizes: list[int] = []
    put = ReadBack.defer

    def counted(self: ReadBack, tensors: list[torch.Tensor], layouts: list[Layout]) -> object:
        sizes.append(len(tensors))
        return put(self, tensors, layouts)

    monkeypatch.setattr(ReadBack, "defer", counted)
    kept = [[torch.full((3,), float(n)) for n in range(start, start + 20)] for start in (0, 100, 200)]

    def program() -> None:
        linked = torch.ones(3)[:2].fill_(5)  # looked at ahead, and not read after all: its writer is known
        fresh = [torch.ones(3).add(n) for n in range(3)]
        with contextlib.suppress(RuntimeError):
            torch._foreach_add_([*kept[1][:3], linked, torch.ones(4)], [*kept[2][:4], torch.ones(5)])
        torch._foreach_add_([*fresh, *kept[0][3:6]], [*fresh, *kept[1][3:6]])
        torch._foreach_add_(kept[0][:10], kept[1][:10])
        torch._foreach_add_(kept[0], kept[1])

    def recorded(*around: contextlib.AbstractContextManager[object]) -> list[object]:
        values = [[tensor.clone() for tensor in each] for each in kept]
        with contextlib.ExitStack() as stack:
            for each in around:
                stack.enter_context(each)
            found = record(program)
        for each, before in zip(kept, values, strict=True):
            torch._foreach_copy_(each, before)
        return [(row.op, row.inputs, row.outputs) for row in found.rows]

    assert recorded() == recorded(host_as_device())
    assert {20, 10} <= set(sizes)
    assert len(sizes) < 25


def test_which_copies_return_before_their_result_is_there() -> None:
    """To the host, from a device, and only where it was asked not to wait."""
    copy, several, convert = (getattr(torch.ops.aten, name).default for name in ("copy_", "_foreach_copy_", "_to_copy"))
    a, b = torch.ones(2), torch.ones(2)
    cases = [
        (copy, (a, b, True), {}, [False, True], True),
        (copy, (a, b, True), {}, [True, False], False),
        (copy, (a, b), {"non_blocking": True}, [False, True], True),
        (copy, (a, b), {}, [False, True], False),
        (copy, (a, b, True), {}, [False, False], False),
        (several, ([a], [b], True), {}, [False, True], True),
        (several, ([a], [b], True), {}, [True, True], False),
        (convert, (a,), {"device": torch.device("cpu"), "non_blocking": True}, [True], True),
        (convert, (a,), {"device": "cuda:0", "non_blocking": True}, [True], False),
        (convert, (a,), {"dtype": torch.float64, "non_blocking": True}, [True], False),
    ]
    for func, args, kwargs, on_device, to_host in cases:
        plan = make_plan(0, func)
        assert plan.schema in NON_BLOCKING
        assert (plan_of_call(plan, args, kwargs, on_device).role is Role.TO_HOST) == to_host, (args, kwargs, on_device)


def test_recorded_values_are_compared_with_their_digest_at_once(record: Record) -> None:
    """Ops whose values are asked for wait; the others do not, and all have their digests."""

    def program() -> None:
        for n in range(4):
            torch.full((9,), float(n)).mul(2).add(1)

    with host_as_device():
        found = record(program, values="op=aten.mul.*", values_inputs=True)
        rowed = record(program, rows="op=aten.mul.*")
    for n, row in enumerate(found.named("mul")):
        value = found.process.values.get(row.outputs[0])
        assert value.numbers.tolist() == [2.0 * n] * 9
    assert [row.outputs for row in found.rows] == [row.outputs for row in rowed.rows]
    assert not any(row.marked or row.outputs == [0] for row in found.rows if row.name != "full")


def test_a_generator_is_not_asked_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the one that is given nor the device's own; its number is not said, and the row has the digest 0."""
    monkeypatch.setattr(rng_state, "is_captured", lambda _: True)
    assert RngUse().before_op((), {"generator": torch.Generator()}) == (0, Generator.UNKNOWN)
    assert RngUse().before_op((), {"device": torch.device("meta")}) == (0, Generator.UNKNOWN)


def test_an_attempt_within_a_capture_has_no_digests(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    """An optimizer's step that is captured computes nothing: its parameters have no digest, which is said."""
    parameter = torch.ones(3, requires_grad=True, device="meta")  # any device that is not the CPU
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    captured: list[bool] = []
    monkeypatch.setattr(optimizer_steps, "is_captured", lambda _: bool(captured))
    with record.block(level="step") as got:
        for _ in range(2):
            parameter.sum().backward()
            optimizer.step()
            captured.append(True)
    first, second = got.steps
    assert first[Step.FLAGS] & StepFlag.DIGESTED and first[Step.PARAMETERS]
    assert not second[Step.FLAGS] & StepFlag.DIGESTED and not second[Step.PARAMETERS]


def test_a_tensor_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """0 stands in place of a digest. A device that can no longer be asked counts as one that must not be."""

    def failing() -> bool:
        raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(tensor_digest, "is_captured", lambda _: True)
    assert digest_of(torch.ones(3, device="meta")) == 0  # any tensor that is not the CPU's
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", failing)
    assert is_captured(torch.device("cuda")) and not is_captured(torch.device("cpu"))
