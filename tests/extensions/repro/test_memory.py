"""Recorded memory in a running program: its steps are the recorded ones, and its collectives have to be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recorded import Recorded
from torch import distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import rltrace
from rltrace.diff.base.model import Cause, Verdict
from rltrace.diff.compare import compare
from rltrace.errors import UsageError
from rltrace.extensions.repro.memory import MemoryProvider, StepMemory
from rltrace.extensions.repro.process_groups import OBJECTS, _check, follow_objects
from rltrace.extensions.repro.program import default_warm_up
from rltrace.recorder import current_session
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.session.api import recording
from rltrace.rerun.account import Account, account_in
from rltrace.rerun.hook import Injections
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import open_trace

FIRST, END = 4, 6
"""Steps that are recorded."""


class Rerun:
    """Programs recorded, and run again in the same process, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recorded, self.again = folder / "recorded.zarr", folder / "again.zarr"

    def call(self, program: Callable[[], object]) -> None:
        """Call a program from the same place in every test."""
        session = current_session()
        assert session is not None
        session.end_stacks_at(Rerun.call.__code__)
        program()

    def record(self, program: Callable[[], object], steps: tuple[int, int | None] = (FIRST, END)) -> ProcessTrace:
        with rltrace.record(self.recorded, steps=steps, rerunnable="all"):
            self.call(program)
        return open_trace(self.recorded).processes[0]

    def run(self, program: Callable[[], object], warm_up: int) -> Account:
        process = open_trace(self.recorded).processes[0]
        first, end = process.windows[0]
        options = RecordOptions(
            str(self.again), steps=(first, end), asleep=first > 0, rerun=str(self.recorded), warm_up=warm_up
        )
        provider = MemoryProvider(StepMemory(process), first)
        with recording(options, force=True, attach=lambda _: Injections([provider])):
            self.call(program)
        account = account_in(open_trace(self.again).processes[0], "memory", Account)
        assert account is not None
        return account


@pytest.fixture
def rerun(tmp_path: Path) -> Rerun:
    return Rerun(tmp_path)


class Training:
    """Steps of a model with dropout and a buffer, on batches that NumPy fills in memory of the program."""

    def __init__(self, steps: int, seed: int, factor: float = 1.0) -> None:
        self.steps, self.seed, self.factor = steps, seed, factor

    def __call__(self) -> None:
        torch.manual_seed(self.seed)
        numbers, batch = np.random.default_rng(self.seed), np.zeros((4, 3), np.float32)
        model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 2))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(self.steps):
            batch[:] = numbers.normal(size=batch.shape)
            loss = model(torch.from_numpy(batch)).pow(2).mean() * self.factor
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def test_a_program_with_other_data_and_weights_runs_the_recorded_steps(rerun: Rerun) -> None:
    """Parameters, buffers, optimizer state, batches and random numbers are those of the record, after fewer steps."""
    rerun.record(Training(END, seed=0))
    account = rerun.run(Training(2 + END - FIRST, seed=1), warm_up=2)
    found = compare(rerun.recorded, rerun.again)
    assert (found.verdict, found.agrees) == (Verdict.IDENTICAL, True)
    assert (account.reached, account.lacking, account.refused) == (True, 0, None)
    again = Recorded(rerun.again)
    assert {row.step for row in again.rows} == {FIRST, FIRST + 1}


def test_a_changed_number_is_the_first_difference(rerun: Rerun) -> None:
    """All before it is as recorded, so nothing hides it."""
    rerun.record(Training(END, seed=0))
    rerun.run(Training(2 + END - FIRST, seed=1, factor=2.0), warm_up=2)
    first = compare(rerun.recorded, rerun.again).first
    assert first is not None
    assert (first.op, first.step, first.cause) == ("aten.mul.Tensor", FIRST, Cause.ARGUMENTS)


def test_an_edited_line_gets_the_memory_of_its_only_op(rerun: Rerun) -> None:
    """Another source text is another call site; the operator, its tensors and the functions are still those."""

    def program(seed: int, *, edited: bool) -> Callable[[], None]:
        def run() -> None:
            batch = np.full((4, 3), seed, np.float32)
            model = nn.Linear(3, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(END):
                if edited:
                    loss = model(torch.from_numpy(batch) * 3).sum() + 0
                else:
                    loss = model(torch.from_numpy(batch) * 3).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

        return run

    rerun.record(program(1, edited=False))
    account = rerun.run(program(2, edited=True), warm_up=FIRST)
    assert account.lacking == 0
    assert compare(rerun.recorded, rerun.again).first_value is None


def test_a_program_that_ends_before_did_not_reach_the_steps(rerun: Rerun) -> None:
    """The account says so, and names what was not read."""
    rerun.record(Training(END, seed=0))
    account = rerun.run(Training(1, seed=0), warm_up=2)
    assert (account.reached, account.injected) == (False, 0)
    assert account.missed[0].why == "it was not reached"


def test_few_steps_suffice_before(rerun: Rerun) -> None:
    """Two attempts of each optimizer, after which the same ones follow; all steps where there are fewer."""

    def two_optimizers() -> None:
        actor, critic = nn.Linear(2, 1), nn.Linear(2, 1)
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (actor, critic)]
        for _ in range(5):
            for model, optimizer in zip((actor, critic), optimizers, strict=True):
                model(torch.ones(2)).sum().backward()
                optimizer.step()

    process = rerun.record(two_optimizers, steps=(7, 9))
    assert default_warm_up(process, 7) == 5
    assert default_warm_up(process, 8) == 4
    assert default_warm_up(process, 1) == 1


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def reduced(*sizes: int) -> Callable[[], None]:
    def program() -> None:
        for size in sizes:
            distributed.all_reduce(torch.ones(size) * 2)

    return program


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ((3, 2), "collective 1 of step 0 in rank0/main is c10d.allreduce_(float32[3], reduce_op=SUM) of ranks 0"),
        ((2, 3, 4), "collective 3 of step 0 in rank0/main is c10d.allreduce_(float32[4], reduce_op=SUM) of ranks 0"),
        ((2,), "step 0 of rank0/main ended without a collective that was recorded: op"),
    ],
    ids=["order", "more", "fewer"],
)
@pytest.mark.usefixtures("group")
def test_another_collective_ends_the_program(rerun: Rerun, sizes: tuple[int, ...], why: str) -> None:
    """At once, with what was recorded in its place: what other ranks sent answers no other."""
    rerun.record(reduced(2, 3), steps=(0, None))
    process = open_trace(rerun.recorded).processes[0]
    provider = MemoryProvider(StepMemory(process), 0)
    options = RecordOptions(str(rerun.again), rerun=str(rerun.recorded))
    ends = pytest.raises(KeyboardInterrupt) if len(sizes) > 1 else pytest.MonkeyPatch.context()
    with recording(options, force=True, attach=lambda _: Injections([provider])), ends:
        rerun.call(reduced(*sizes))
    refused = provider.account().refused
    assert refused is not None and refused.startswith(why)
    assert ("was recorded" in refused) or ("were recorded" in refused)


@pytest.fixture
def one_of_three() -> Iterator[None]:
    """This process as rank 1 of three, alone, with a group of torch's tests, whose collectives do nothing."""
    distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=3)
    yield
    distributed.destroy_process_group()


COLLECTIVES: dict[str, tuple[Callable[[Any], object], Any, Any, str, str]] = {
    "reduction": (
        lambda op: distributed.all_reduce(torch.ones(2), op=op),
        distributed.ReduceOp.AVG,
        distributed.ReduceOp.SUM,
        "allreduce_(float32[2], reduce_op=SUM)",
        "allreduce_(float32[2], reduce_op=AVG)",
    ),
    "root": (
        lambda src: distributed.broadcast(torch.ones(2), src=src),
        0,
        2,
        "broadcast_(float32[2], root_rank=2, root_tensor=0)",
        "broadcast_(float32[2], root_rank=0, root_tensor=0)",
    ),
    "sender": (
        lambda src: distributed.recv(torch.ones(2), src=src),
        0,
        2,
        "recv_(float32[2], src=2, tag=0)",
        "recv_(float32[2], src=0, tag=0)",
    ),
    "receiver": (
        lambda dst: distributed.send(torch.ones(2), dst=dst),
        0,
        2,
        "send(float32[2], dst=2, tag=0)",
        "send(float32[2], dst=0, tag=0)",
    ),
    "sizes": (
        lambda sizes: distributed.all_to_all_single(torch.ones(6), torch.ones(6), *sizes),
        ([1, 2, 3], [3, 2, 1]),
        ([2, 2, 2], [3, 2, 1]),
        "output_split_sizes=[2, 2, 2], input_split_sizes=[3, 2, 1])",
        "output_split_sizes=[1, 2, 3], input_split_sizes=[3, 2, 1])",
    ),
}
"""By what is another in a run again: the collective, that argument as recorded and as called, and both in words."""


@pytest.mark.parametrize("what", COLLECTIVES)
@pytest.mark.usefixtures("one_of_three")
def test_another_reduction_or_peer_ends_the_program(rerun: Rerun, what: str) -> None:
    """What other ranks sent was for the arguments that were recorded; with those it is answered."""
    collective, was, now, called, recorded = COLLECTIVES[what]
    rerun.record(lambda: [collective(was) for _ in range(2)], steps=(0, None))
    provider = MemoryProvider(StepMemory(open_trace(rerun.recorded).processes[0]), 0)
    options = RecordOptions(str(rerun.again), rerun=str(rerun.recorded))
    with recording(options, force=True, attach=lambda _: Injections([provider])):
        rerun.call(lambda: collective(was))
        with pytest.raises(KeyboardInterrupt):
            rerun.call(lambda: collective(now))
    account = provider.account()
    assert account.answered == 1
    assert account.refused is not None
    here, _, there = account.refused.partition("; ")
    assert here.startswith("collective 2 of step 0 in rank0/main is c10d.")
    assert (called in here, recorded in there) == (True, True), account.refused


@pytest.mark.parametrize(
    ("receive", "sender"),
    [
        (lambda: distributed.broadcast_object_list([None], src=2), "rank 2"),
        (lambda: distributed.broadcast_object_list([None]), "rank 0"),
        (lambda: distributed.scatter_object_list([None], None, group_src=2), "rank 2"),
        (lambda: distributed.recv_object_list([None]), "another rank"),
        (lambda: distributed.broadcast_object_list(["its own"], src=1), None),
    ],
)
@pytest.mark.usefixtures("one_of_three")
def test_objects_of_another_rank_are_not_made_up(
    monkeypatch: pytest.MonkeyPatch, receive: Callable[[], object], sender: str | None
) -> None:
    """A program that receives them while it starts is ended with a word, rather than given bytes by chance."""

    class RefusedError(Exception):
        pass

    def refuse(why: str) -> None:
        raise RefusedError(why)

    for name in OBJECTS:
        monkeypatch.setattr(distributed, name, follow_objects(getattr(distributed, name), refuse))
    ends = pytest.raises(RefusedError, match=rf"_object_list at test_memory.py:\d+ receives objects of {sender} before")
    with ends if sender is not None else pytest.MonkeyPatch.context():
        receive()


def test_another_rank_or_number_of_ranks_is_refused() -> None:
    """The record is of one of them."""
    with pytest.raises(UsageError, match="is rank 1 of 3 here, and the recorded process was rank 1 of 2"):
        _check(1, 3, 1, 2)
