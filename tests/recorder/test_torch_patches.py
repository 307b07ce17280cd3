"""What is patched of torch: subclasses of Tensor that a program makes by calling them, and composite operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from children import forked
from op_programs import Logged
from recorded import PassingMode, Record


class Plain(torch.Tensor):
    """With torch's own constructor."""


class Quiet(torch.Tensor):
    """With a constructor of its own, and ops that return plain tensors."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __new__(cls, source: torch.Tensor) -> Quiet:
        return super().__new__(cls, source)


def grown() -> torch.Tensor:
    """Not a leaf."""
    return torch.arange(4.0).requires_grad_() * 2


WAYS: dict[str, Callable[[], torch.Tensor]] = {
    "a tensor": lambda: Plain(torch.arange(4.0)),
    "a part of a tensor": lambda: Plain(torch.arange(8.0)[::2]),
    "a tensor with a gradient": lambda: Plain(grown()),
    "its own constructor": lambda: Quiet(grown()),
    "one of its own": lambda: Plain(Plain([1.0, 2.0])),
    "another subclass": lambda: Quiet(Plain([1.0, 2.0])),
    "by name": lambda: torch.Tensor.__new__(Plain, torch.ones(2)),
    "a parameter": lambda: Plain(torch.nn.Parameter(torch.ones(3))),
    "a list": lambda: Plain([1.0, 2.0]),
    "an array": lambda: Plain(np.arange(3.0, dtype=np.float32)),
    "a storage": lambda: Plain(torch.arange(3.0).untyped_storage()),
    "sizes": lambda: Plain(2, 3).fill_(1),
    "nothing": lambda: Plain(),
    "a size": lambda: Plain(torch.Size((2, 2))).zero_(),
    "a dispatch of its own": lambda: Logged(torch.ones(2)),
}


def described(tensor: torch.Tensor) -> tuple[object, ...]:
    """All that a program can read of it."""
    with torch._C.DisableTorchFunctionSubclass():
        return (
            type(tensor).__name__,
            tensor.detach().as_subclass(torch.Tensor).tolist(),
            tensor.dtype,
            tensor.stride(),
            tensor.requires_grad,
            tensor.is_leaf,
            tensor._is_view(),
            tensor._version,
            type(tensor.grad_fn).__name__,
        )


def test_a_subclass_is_made_as_it_is_unrecorded(record: Record) -> None:
    """Type, content, place in the graph and version are the same, from whatever it is made."""

    def made() -> dict[str, object]:
        return {name: described(way()) for name, way in WAYS.items()}

    assert record(made).returned == made()


def test_a_subclass_with_a_dispatch_of_its_own_sees_the_same_ops(record: Record) -> None:
    """Making one, and computing with it, reaches it as if nothing watched."""

    def program() -> list[str]:
        Logged.seen.clear()
        Logged(Logged(torch.ones(2)).mul(2)).add(1)
        return list(Logged.seen)

    assert record(program).returned == program()


def test_gradients_flow_through_it(record: Record) -> None:
    """What it was made from gets its gradient."""

    def program() -> list[float]:
        source = torch.arange(3.0).requires_grad_()
        (Quiet(source * 2) ** 2).sum().backward()
        return source.grad.tolist()

    assert record(program).returned == program() == [0.0, 8.0, 16.0]


def test_its_memory_is_followed(record: Record) -> None:
    """What it was made from is linked to; uninitialised memory stays so."""
    with record.block() as got:
        made = Quiet(torch.ones(4))
        torch.neg(made)
        torch.exp(Plain(3).as_subclass(torch.Tensor))
    assert got.one("neg").inputs[0].row == got.one("ones").index
    assert got.one("exp").marked


def test_a_forked_child_makes_them_too(record: Record) -> None:
    """The mode it inherits is silent, and still there."""

    def child() -> None:
        assert Plain([1.0]).item() == 1.0

    with record.block():
        assert forked(child) == 0


def test_a_mode_of_the_program_refuses_as_ever(record: Record) -> None:
    """What torch refuses without the recorder it refuses with it."""

    def program() -> None:
        with PassingMode(), pytest.raises(RuntimeError, match="already associated"):
            Plain(torch.ones(2))

    program()
    record(program)


def test_the_constructor_is_restored(record: Record) -> None:
    """When nothing records, the constructor is torch's own, for classes made before, during and after."""
    own = torch.Tensor.__new__
    during = record(lambda: type("During", (torch.Tensor,), {})).returned
    assert torch.Tensor.__new__ is own
    assert "__new__" not in vars(torch.Tensor)
    after = type("After", (torch.Tensor,), {})
    for kind in (torch.Tensor, Plain, during, after):
        assert type(kind([1.0])) is kind
        assert type(kind(torch.ones(1))) in (kind, torch.Tensor)


def test_the_compiler_finds_its_own_constructor(record: Record) -> None:
    """torch's modules look the constructor up to know it again: what they find while a program records is torch's."""
    lookup = eval("lambda: torch.Tensor.__new__", {"torch": torch, "__name__": "torch._dynamo.polyfills.tensor"})
    assert record(lookup).returned == torch.Tensor.__new__


def draws(scramble: bool) -> list[torch.Tensor]:
    engine = torch.quasirandom.SobolEngine(3, scramble=scramble, seed=1)
    points = [engine.draw(5)]
    engine.fast_forward(2)
    points.append(engine.draw(4))
    engine.reset()
    return [*points, engine.draw(3, dtype=torch.float64)]


@pytest.mark.parametrize("scramble", [False, True])
def test_a_sobol_engine(record: Record, scramble: bool) -> None:
    """No mark on what it draws, every read of its state linked to what wrote it, and the same points as ever."""
    plain, drawn = draws(scramble), []
    with record.block() as got:
        for points in draws(scramble):
            drawn.append(points)
            points.sin()
    assert all(torch.equal(a, b) for a, b in zip(plain, drawn, strict=True))
    assert not any(row.marked for row in got.rows)
    draw = got.named("_sobol_engine_draw")
    assert [len(row.outputs) for row in draw] == [2, 2, 2]
    forward = got.one("_sobol_engine_ff_")
    assert forward.inputs[0].row == draw[0].index
    assert draw[1].inputs[0].row == forward.index
    state = got.named("_sobol_engine_scramble_" if scramble else "_sobol_engine_initialize_state_")[-1]
    assert [row.inputs[1].row for row in draw] == [state.index] * 3
    assert got.named("sin")[1].inputs[0].row == draw[1].index
