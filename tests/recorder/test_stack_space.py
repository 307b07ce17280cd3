"""At the end of the program's stack: its ops run, those that have no row are counted, and recording goes on."""

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from recorded import Record

from rltrace.diff.base.coverage import coverage_notes
from rltrace.recorder.base.stack_space import check_stack_space
from rltrace.recorder.core.process_state import FULL_STACK
from rltrace.trace.read.reader import open_trace


def deep(frames: int, work: Callable[[], Any]) -> Any:
    return deep(frames - 1, work) if frames else work()


def room() -> int:
    """Frames that there are left here, about."""
    left = 0
    with suppress(RecursionError):
        while left < sys.getrecursionlimit():
            deep(left, int)
            left += 1
    return left


OPTIONS: list[dict[str, Any]] = [{}, {"values": "all", "values_inputs": True}, {"rows": "all"}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_ops_at_the_end_of_the_stack(record: Record, options: dict[str, Any]) -> None:
    """Each either raises RecursionError and has no effect, or has the whole; what is recorded afterwards is as ever."""
    counted = [0]
    total = torch.zeros(3)

    def add() -> None:
        torch.add(total, torch.ones(3), out=total)
        counted[0] += 1

    with record.block(**options) as got:
        for frames in range(room() - 60, room()):
            with suppress(RecursionError):
                deep(frames, add)
        total.mul(2)
        torch.ones(2).sin().cos()
    assert total.tolist() == [float(counted[0])] * 3
    assert counted[0] > 20
    assert got.process.state == "complete"
    assert got.ops[-3:] == ["ones", "sin", "cos"]
    assert got.one("cos").inputs[0].row == len(got.rows) - 2
    assert len(got.named("add")) <= counted[0]
    if len(got.named("add")) < counted[0]:
        assert "at row" in got.process.facts[FULL_STACK]
        assert "RecursionError" in " ".join(coverage_notes(open_trace(got.path)))


def test_modules_at_the_end_of_the_stack(record: Record) -> None:
    """The stack of modules is what it was before."""

    class Deep(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self(x.sin())

    with record.block() as got:
        with suppress(RecursionError):
            Deep()(torch.ones(1))
        torch.ones(1).cos()
        torch.nn.Tanh()(torch.ones(1))
    assert got.process.state == "complete"
    assert got.one("cos").module == ""
    assert got.one("tanh").module == "Tanh"


def test_an_op_that_overflows_the_stack_by_itself(record: Record) -> None:
    """It is the program's own error, and reaches it."""

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            raise RecursionError("mine")

    with record.block() as got:
        with pytest.raises(RecursionError, match="mine"):
            Own.apply(torch.ones(1, requires_grad=True)).sum().backward()
        torch.ones(1).sin()
    assert got.process.state == "complete"
    assert got.ops[-1] == "sin"
    assert FULL_STACK not in got.process.facts


def test_room() -> None:
    """An error of that kind says that there is none, however much there is."""
    check_stack_space(LookupError())
    with pytest.raises(RecursionError):
        check_stack_space(RecursionError())
    with pytest.raises(RecursionError):
        deep(room() - 20, check_stack_space)
