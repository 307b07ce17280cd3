"""Collectives of ``torch.distributed``: their schemas say neither what they write nor when."""

import functools
from collections.abc import Callable

import pytest
import torch
from recorded import Record, Row
from torch import distributed

from rltrace.diff import compare
from rltrace.diff.base.model import Cause
from rltrace.recorder.core import op_info
from rltrace.recorder.core.op_info import ARRIVED, IN_FLIGHT, VIEWS
from rltrace.trace.format.schema import Origin, RowFlag
from rltrace.trace.read.reader import open_trace

functional_collectives = pytest.importorskip("torch.distributed._functional_collectives")
pytestmark = pytest.mark.filterwarnings("ignore")


def collectives() -> None:
    one = torch.ones(3)
    for collective in (
        distributed.all_reduce,
        lambda t: distributed.broadcast(t, 0),
        lambda t: distributed.reduce(t, 0),
    ):
        tensor = torch.ones(3)
        collective(tensor)
        tensor + 1
    for scatter in (
        lambda t: distributed.all_gather([t], one),
        lambda t: distributed.all_gather_into_tensor(t, one),
        lambda t: distributed.gather(one, [t]),
        lambda t: distributed.scatter(t, [one]),
        lambda t: distributed.all_to_all_single(t, one),
    ):
        tensor = torch.empty(3)
        scatter(tensor)
        tensor + 2


def reads(rows: list[Row]) -> list[tuple[Origin | None, bool, bool]]:
    return [(row.inputs[0].origin, row.inputs[0].digest is not None, row.marked) for row in rows]


def test_what_arrives_is_outside_and_was_written(record: Record, group: None) -> None:
    """The next reader digests it and leads to no op; memory that it fills is marked no longer. The collective has no
    digest of what is on its way: the bytes may come after it has returned."""
    got = record(collectives)
    assert reads(got.named("add")) == [(Origin.OUTSIDE, True, False)] * 8
    rows = [row for row in got.rows if row.op.startswith("c10d.")]
    assert [row.outputs for row in rows] == [[]] * 8
    assert not any(row.marked for row in rows)
    assert [row.inputs[0].origin for row in rows] == [None] * 3 + [Origin.OVERWRITTEN] * 5


def said(row: Row) -> list[dict[str, object]]:
    """What an op was given that is no tensor and no number."""
    return [word for word in row.scalars if isinstance(word, dict)] if isinstance(row.scalars, list) else []


def test_a_collective_says_who_takes_part(record: Record, group: None) -> None:
    """The group by its name, its members and the own rank, and how what they send is put together."""
    with record.block() as got:
        distributed.all_reduce(torch.ones(3), op=distributed.ReduceOp.MAX)
        distributed.all_reduce(torch.ones(3), group=distributed.new_group([0]))
        op = torch.ops._c10d_functional
        op.wait_tensor(op.all_reduce(torch.ones(3), "sum", distributed.group.WORLD.group_name))
    first, second, functional = (said(row) for row in got.rows if "reduce" in row.name)
    assert first == [{"group": "0", "rank": 0, "ranks": [0]}, {"reduce": "MAX"}]
    assert second[0]["group"] != "0" and second[0]["ranks"] == [0]
    assert functional == [{"str": "sum"}, {"group": "0", "rank": 0, "ranks": [0]}]


def test_what_is_read_before_the_program_waits_is_marked(record: Record, group: None, engine: str) -> None:
    """It may be there or not. From the wait on it is memory as any."""
    with record.block(engine=engine) as got:
        op = torch.ops._c10d_functional
        sent = op.all_reduce(torch.ones(4), "sum", distributed.group.WORLD.group_name)
        sent.clone().sin()
        sent.exp2()
        sent[1:] + 1
        op.wait_tensor(sent)
        sent + 2
        sent[1:] + 3
    assert got.one("clone").marked
    assert [got.one(name).inputs[0].digest is not None for name in ("clone", "exp2")] == [True, True]
    assert [row.marked for row in got.named("add")] == [True, False, False]
    assert [row.inputs[0].row for row in got.named("add")[1:]] == [got.one("wait_tensor").index] * 2


WAITS: list[Callable[[distributed.Work], object]] = [
    lambda work: work.wait(),
    lambda work: work.get_future().wait(),
    lambda work: next(done for _ in iter(int, 1) if (done := work.is_completed())),
    lambda _: distributed.barrier(),
]


def test_what_is_read_before_a_work_is_waited_for_is_marked(record: Record, group: None, engine: str) -> None:
    """Whichever way the program waits; before it and after, the bytes came with the collective."""
    with record.block(engine=engine) as got:
        for wait in WAITS:
            work = distributed.all_reduce(sent := torch.ones(4), async_op=True)
            sent.sin()
            wait(work)
            sent.cos()
    for name, marked in (("sin", True), ("cos", False)):
        read = [(row.inputs[0].origin, row.inputs[0].slot, row.marked) for row in got.named(name)]
        assert read == [(Origin.OUTSIDE, 1, marked)] * len(WAITS)


def test_parts_of_one_memory_are_waited_for_by_themselves(record: Record, group: None, engine: str) -> None:
    """Other parts are memory as any."""
    with record.block(engine=engine) as got:
        buffer = torch.zeros(6)
        parts = buffer[:2], buffer[2:4], buffer[4:]
        works = [distributed.all_reduce(part, async_op=True) for part in parts[:2]]
        for work in (None, *works):
            if work is not None:
                work.wait()
            [part.sin() for part in parts]
        buffer.cos()
    marked = [row.marked for row in got.named("sin")]
    assert marked == [True, True, False, False, True, False, False, False, False]
    assert not got.one("cos").marked


def send(sent: torch.Tensor) -> tuple[torch.Tensor, distributed.Work]:
    work = distributed.all_reduce(sent, async_op=True)
    return sent, work


def send_functional(sent: torch.Tensor) -> tuple[torch.Tensor, None]:
    return torch.ops._c10d_functional.all_reduce(sent, "sum", distributed.group.WORLD.group_name), None


PLAIN_WAIT = distributed.Work.wait


@pytest.mark.parametrize("start", [send, send_functional])
def test_a_read_of_what_is_in_flight_is_the_cause(
    record: Record, group: None, start: Callable[[torch.Tensor], tuple[torch.Tensor, distributed.Work | None]]
) -> None:
    """In two runs, of which one reads before the bytes are there; a program that drops what it read has no finding."""

    def program(early: bool, used: bool) -> None:
        sent, work = start(torch.ones(2))

        def arrive() -> None:
            with torch._C._DisableTorchDispatch():
                PLAIN_WAIT(work) if work else torch.ops._c10d_functional.wait_tensor(sent)
                sent.mul_(2)  # as another process's part of the sum

        if early:
            arrive()
        first, second = sent.sin(), sent.cos()
        if not early:
            arrive()
        work.wait() if work else torch.ops._c10d_functional.wait_tensor(sent)
        sent.tan()
        if used:
            (first * 2, second * 2)

    for used in (False, True):
        runs = [functools.partial(program, early, used) for early in (False, True)]
        paths = [record(run, check_links=used).path for run in runs]
        assert [fault for path in paths for fault in open_trace(path).processes[0].link_faults] == []
        first = compare(*paths).first
        assert (first is not None) is used
        if first is not None:
            assert (first.op, first.cause) == ("aten.sin.default", Cause.UNTRACKED_WRITE)
            assert "before the program waits" in first.explanation


def test_works_and_groups_of_python_are_left_alone(record: Record, group: None) -> None:
    """A class that inherits a method from C++ reaches that method, although it is replaced while ops are recorded."""

    class OwnWork(distributed.Work):
        pass

    class OwnGroup(distributed.ProcessGroup):
        pass

    with record.block():
        with pytest.raises(RuntimeError, match=r"[Bb]ackend"):
            OwnGroup(0, 1).allreduce([torch.ones(1)])
        with pytest.raises(RuntimeError, match="getFuture"):
            OwnWork().get_future()
    assert distributed.Work.wait is PLAIN_WAIT


def test_who_reads_what_arrived_has_it_from_the_collective(record: Record, group: None) -> None:
    """How many collectives back; the first reader, a view between or not, and no longer once an op has written it."""
    with record.block() as got:
        first, second = torch.ones(3), torch.ones(4)
        distributed.all_reduce(first)
        work = distributed.all_reduce(second, async_op=True)
        work.wait()
        distributed.barrier()  # nothing is sent with it
        first.sin()
        second[1:].cos()
        second.mul_(2)
        second.tan()
        torch.from_numpy(first.numpy()).exp()
    came = [got.one(name).inputs[0] for name in ("sin", "cos", "mul_", "tan", "exp")]
    assert [part.origin for part in came] == [Origin.OUTSIDE] * 3 + [None, Origin.OUTSIDE]
    assert [part.slot for part in came] == [2, 1, 1, 0, None]


def test_the_rest_of_a_buffer_that_grows_is_unwritten(record: Record) -> None:
    """``all_gather_object`` makes a tensor of a pickle's bytes as long as the longest: no op writes what is added."""
    with record.block() as got:
        sent = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage(list(range(8))))
        sent.resize_(64)
        sent.add(1)
        sent[:8].sub(1)
    assert got.one("add").marked
    assert not got.one("sub").marked


def test_the_functional_operators_that_there_are_are_in_a_table() -> None:
    """A new one is to be looked at: does it return before its bytes are there?"""
    names = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    known = {name for name in IN_FLIGHT | ARRIVED | VIEWS if name.startswith("_c10d_functional::")}
    there = {name for name in names if name.startswith("_c10d_functional::")}
    assert there <= known
    not_in_every_version = ("wait_tensors", "batch_p2p_ops", "isend", "irecv", "_wrap_tensor_autograd")
    assert known - there <= {f"_c10d_functional::{name}" for name in not_in_every_version}


def test_what_a_process_group_copies_while_the_program_waits_came_with_the_collective(
    record: Record, group: None
) -> None:
    """gloo reduces into memory of its own, and copies from there; what the program copies later comes from outside."""
    with record.block() as got:
        distributed.reduce_scatter_tensor(part := torch.empty(4), torch.ones(4))
        part.neg()
        part.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    copies = got.named("copy_")
    assert [(row.inputs[1].origin, row.inputs[1].slot) for row in copies] == [
        (Origin.OUTSIDE, 1),
        (Origin.OUTSIDE, None),
    ]
    assert got.one("neg").inputs[0].row == copies[0].index


def functional() -> None:
    world = distributed.group.WORLD
    sent = torch.ones(4)
    reduced = functional_collectives.all_reduce(sent, "sum", world)
    reduced + 1  # the wrapper waits by itself
    (reduced.view(2, 2)).sin()
    gathered = functional_collectives.wait_tensor(functional_collectives.all_gather_tensor(sent, 0, world))
    gathered * 2
    part = torch.ones(6)[1:4]
    op = torch.ops._c10d_functional
    op.wait_tensor(op.all_reduce_(part, "sum", world.group_name))
    part.cos()
    for tensor in op.all_reduce_coalesced([sent, sent], "sum", world.group_name):
        op.wait_tensor(tensor)
        tensor.tan()


def test_nothing_is_read_of_what_is_on_its_way(record: Record, group: None) -> None:
    """Functional collectives return before the bytes are there: no digest of them; who reads what wraps them waits."""
    got = record(functional)
    flying = [row for row in got.rows if row.op.partition(".default")[0].replace(".", "::") in IN_FLIGHT]
    assert [row.name for row in flying] == [
        "all_reduce",
        "all_gather_into_tensor",
        "all_reduce_",
        "all_reduce_coalesced",
    ]
    assert [row.outputs for row in flying] == [[]] * 4
    assert [row.inputs[0].digest for row in got.rows if row.flags & RowFlag.VIEW] == [None] * 4
    for reader in (got.one("add"), got.one("sin")):
        assert got.rows[reader.index - 1].name == "wait_tensor"
        assert reader.inputs[0].row == reader.index - 1
    assert not any(row.marked for row in got.rows)


def test_what_was_waited_for_comes_from_outside_once(record: Record, group: None) -> None:
    """``wait_tensor`` has the digest of what came in; who reads or waits later is linked to it."""
    got = record(functional)
    added, viewed, gathered, again, *waits = got.named("wait_tensor")
    for wait in (added, gathered, *waits):
        assert (wait.inputs[0].origin, wait.outputs) == (Origin.OUTSIDE, [wait.inputs[0].digest])
    assert [viewed.inputs[0].row, again.inputs[0].row] == [added.index, gathered.index]
    assert got.one("mul").inputs[0].row == again.index
    assert got.one("cos").inputs[0].row == waits[0].index
    assert [row.inputs[0].row for row in got.named("tan")] == [wait.index for wait in waits[1:]]


@pytest.mark.skipif(not hasattr(torch.ops._c10d_functional, "wait_tensors"), reason="this torch has no such operator")
def test_several_that_were_waited_for_come_from_outside_once(record: Record, group: None) -> None:
    """``wait_tensors`` has the digests of what came in, in order; who reads one later is linked to its place."""
    op = torch.ops._c10d_functional
    with record.block() as got:
        sent, name = [torch.ones(4), torch.ones(2, 3)], distributed.group.WORLD.group_name
        first, second = op.wait_tensors(op.all_reduce_coalesced(sent, "sum", name))
        second.tan()
        first.sin()
    wait = got.one("wait_tensors")
    assert [part.origin for part in wait.inputs] == [Origin.OUTSIDE] * 2
    assert [part.digest for part in wait.inputs] == wait.outputs
    assert len(set(wait.outputs)) == 2
    for name, slot in (("sin", 0), ("tan", 1)):
        assert (got.one(name).inputs[0].row, got.one(name).inputs[0].slot) == (wait.index, slot)


def test_links_of_collectives_are_checked(record: Record, group: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What arrives is no fault; without the table of what collectives write, each of those that fill memory is one."""
    for program in (collectives, functional):
        assert record(program, check_links=True).process.link_faults == []
    monkeypatch.setattr(op_info, "ARRIVING", {})
    faults = record(collectives, check_links=True).process.link_faults
    assert len(faults) == 5 and all(fault.handed_out is False for fault in faults)
