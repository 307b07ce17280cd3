"""Objects that processes exchange: the address of a tensor in a pickle is no difference, and hides none."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import recorder
from torch import distributed

from rltrace.diff import compare
from rltrace.diff.base.model import Cause, Comparison, Verdict
from rltrace.recorder.integrations import exchanged_objects

pytest.importorskip("torch.distributed.distributed_c10d")
pytestmark = pytest.mark.filterwarnings("ignore")

STEPS = 3

Program = Callable[[], None]
KEPT: list[Any] = []
"""What programs sent: memory of which no later program can get."""


@pytest.fixture(autouse=True)
def group(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()
    KEPT.clear()


def program(
    exchange: Callable[[list[Any]], None], *, rate: float = 0.1, extra: float = 0.0, trains: bool = True
) -> Program:
    """Training that exchanges its loss after each step. From the second step on ``rate`` applies, and ``extra`` is
    added to what is sent."""

    def run() -> None:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(STEPS):
            loss = model(torch.rand(5, 3)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.param_groups[0]["lr"] = rate if step else 0.1
            if trains:
                optimizer.step()
            sent = [{"loss": loss.detach() + 0.0}, {"step": step, "extra": torch.full((2,), extra if step else 0.0)}]
            KEPT.append([sent, [torch.empty(4) for _ in range(8)]])
            exchange(sent)

    return run


def gather(sent: list[Any]) -> None:
    for each in sent:
        distributed.all_gather_object([None], each)


def gather_to_one(sent: list[Any]) -> None:
    distributed.gather_object(sent, [None], dst=0)


def broadcast(sent: list[Any]) -> None:
    distributed.broadcast_object_list(sent, src=0)


def compared(folder: Path, a: Program, b: Program) -> Comparison:
    record = recorder(folder)
    return compare(record(a).path, record(b).path)


EXCHANGES = pytest.mark.parametrize("exchange", [gather, gather_to_one, broadcast])


@EXCHANGES
@pytest.mark.parametrize("trains", [True, False])
def test_two_runs_are_the_same(tmp_path: Path, exchange: Callable[[list[Any]], None], trains: bool) -> None:
    """In all but these addresses, which is said."""
    found = compared(tmp_path, program(exchange, trains=trains), program(exchange, trains=trains))
    assert (found.verdict, found.shown) == (Verdict.SAME_VALUES, None)
    assert "apart from addresses in the pickles" in found.why
    assert any("carry equal objects in rank0/main" in note for note in found.notes)


@EXCHANGES
def test_a_change_leads(tmp_path: Path, exchange: Callable[[list[Any]], None]) -> None:
    """Not the collectives before it, in which the same objects travelled."""
    found = compared(tmp_path, program(exchange), program(exchange, rate=0.2)).decisive
    assert found is not None
    assert (found.cause, found.phase, found.step) == (Cause.ARGUMENTS, "optimizer", 1)


@EXCHANGES
def test_other_objects_are_a_difference(tmp_path: Path, exchange: Callable[[list[Any]], None]) -> None:
    """Of the op that fills what is sent, before that which carries it."""
    found = compared(tmp_path, program(exchange), program(exchange, extra=1.0)).shown
    assert found is not None
    assert (found.cause, found.op, found.step) == (Cause.ARGUMENTS, "aten.full.default", 2)


def test_without_a_digest_nothing_is_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects that were too large to be digested may be others."""
    monkeypatch.setattr(exchanged_objects, "MAX_BYTES", 64)
    found = compared(tmp_path, program(gather), program(gather, rate=0.2)).decisive
    assert found is not None
    assert (found.cause, found.step) == (Cause.OUTSIDE, 1)


@EXCHANGES
def test_objects_that_are_no_tensors(tmp_path: Path, exchange: Callable[[list[Any]], None]) -> None:
    """What they differ in came from outside, as nothing else shows where."""

    def run(note: str) -> Program:
        return program(lambda sent: exchange([*sent, note]))

    found = compared(tmp_path, run("a"), run("b")).shown
    assert found is not None
    assert found.cause is Cause.OUTSIDE
    assert found.site is not None and found.site.function == exchange.__name__
