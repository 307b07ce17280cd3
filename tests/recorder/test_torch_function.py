"""A program's ``__torch_function__`` is called for what the program does, as often and in the order as unrecorded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from children import forked
from recorded import Record
from torch import nn
from torch.library import custom_op
from torch.overrides import TorchFunctionMode

import rltrace
from rltrace.recorder.base.torch_function import any_torch_function, has_torch_function
from rltrace.trace.format.schema import Phase

CALLS: list[str] = []


def called(func: Any) -> None:
    CALLS.append(str(func) if isinstance(func, torch._ops.OpOverload) else getattr(func, "__qualname__", str(func)))


class Counting(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class Refusing(Counting):
    """Knows what it is used with, and nothing else."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") not in ("linear", "tanh", "pow", "mean", "as_subclass", "sin"):
            raise NotImplementedError(func)
        return super().__torch_function__(func, types, args, kwargs)


class Alone(torch.Tensor):
    """Works with plain tensors and its own kind only."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called(func)
        if not all(kind in (cls, torch.Tensor, nn.Parameter) for kind in types):
            return NotImplemented
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class AloneToo(torch.Tensor):
    __torch_function__ = Alone.__dict__["__torch_function__"]


class Wrapper(Counting):
    """Holds another tensor, as DTensor does."""

    held: torch.Tensor

    policies: ClassVar[dict[str, Any]] = {}

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, **cls.policies)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called(func)
        held = torch.utils._pytree.tree_map_only(cls, lambda x: x.held, (args, kwargs or {}))
        return torch.utils._pytree.tree_map_only(torch.Tensor, cls, func(*held[0], **held[1]))


class Mode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called(func)
        return func(*args, **(kwargs or {}))


class Asked(Wrapper):
    """Says itself which sizes and which device it has."""

    policies: ClassVar = {"dispatch_sizes_strides_policy": "sizes", "dispatch_device": True, "dispatch_layout": True}

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__.removeprefix("sym_")
        if name in ("size", "stride", "numel", "storage_offset", "device", "layout"):  # the recorder asks, too
            found = getattr(args[0].held, name)
            return found() if callable(found) else found
        return super().__torch_dispatch__(func, types, args, kwargs)


@custom_op("rltrace_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    """Written in Python: what it calls is asked about, recorded or not."""
    with Mode():
        y = torch.add(x, 0)
    return (y.as_subclass(Counting) * 2).as_subclass(torch.Tensor).clone()


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return (grads[0] * ctx.saved_tensors[0].exp()).as_subclass(Counting) * 1


class Unwrapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Asked) -> Any:
        return x.held.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return Asked(grads[0])


def train(kind: type[torch.Tensor] = torch.Tensor) -> list[torch.Tensor]:
    net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(3):
        x = torch.randn(3, 4)
        loss = net(x if kind is torch.Tensor else x.as_subclass(kind)).pow(2).mean()
        optimizer.zero_grad()
        loss.as_subclass(torch.Tensor).backward()
        optimizer.step()
    return list(net.parameters())


def subclassed_parameter() -> list[torch.Tensor]:
    weight = nn.Parameter(torch.randn(3).as_subclass(Counting))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        (weight * weight).sum().backward()
        optimizer.step()
    return [weight]


def two_kinds_that_meet() -> list[torch.Tensor]:
    """Where their gradients are added."""
    weight = torch.randn(3, requires_grad=True)
    a, b = weight.as_subclass(Alone).sin(), weight.as_subclass(AloneToo).cos()
    (a.as_subclass(torch.Tensor) + b.as_subclass(torch.Tensor)).sum().backward()
    torch.optim.SGD([weight], lr=0.1).step()
    return [weight]


def written_in_python() -> list[torch.Tensor]:
    """Custom operators and functions, lists, ``out=``, transforms, checkpoints."""
    weight = torch.randn(3, requires_grad=True)
    plain, counting = weight.detach(), weight.detach().as_subclass(Counting)
    twice(plain)
    twice(counting)
    torch.ops.rltrace_test.twice.default(plain)
    with Mode():
        twice(plain)
        Exp.apply(weight).sum().backward()
        torch.func.vmap(lambda x: (x * x).sum())(torch.ones(2, 3))
        torch.utils.checkpoint.checkpoint(lambda x: x.sin().cos(), weight, use_reentrant=False).sum().backward()
    torch.ops.aten.add.Tensor(counting, plain)
    torch.stack([weight.as_subclass(Counting), weight]).sum().as_subclass(torch.Tensor).backward()
    torch.cat([counting, plain], out=torch.empty(6).as_subclass(Counting))
    torch.func.grad(lambda x: (x * x).sum())(counting)
    return [weight, *[gradient for gradient in [weight.grad] if gradient is not None]]


def wrapped() -> list[torch.Tensor]:
    weight = Wrapper(torch.randn(3)).requires_grad_()
    (weight * weight + weight.sin()).sum().backward()
    with Mode():
        (weight * weight).sum().backward()
    torch.optim.SGD([weight], lr=0.1).step()
    return [weight.held]


def wrapped_with_sizes() -> list[torch.Tensor]:
    weight = Asked(torch.randn(3)).requires_grad_()
    Unwrapped.apply(weight).sum().backward()
    return [weight.grad.held]


def under_a_mode() -> list[torch.Tensor]:
    with Mode():
        parameters = train()
        scaler = torch.amp.GradScaler("cpu")
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        scaler.scale(parameters[0].sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        torch.from_numpy(parameters[1].detach().numpy()).tolist()
        torch.rand(2)
        rltrace.watch("loss", parameters[0].sum())
    return parameters


def under_a_default_device() -> list[torch.Tensor]:
    torch.set_default_device("cpu")
    try:
        return train(Counting)
    finally:
        torch.set_default_device(None)


PROGRAMS: list[Callable[[], list[torch.Tensor]]] = [
    lambda: train(Counting),
    lambda: train(Refusing),
    subclassed_parameter,
    two_kinds_that_meet,
    written_in_python,
    wrapped,
    wrapped_with_sizes,
    under_a_mode,
    under_a_default_device,
]

LEVELS: list[dict[str, Any]] = [
    {},
    {"level": "step"},
    {"steps": (1, 9), "verify_inputs": True},
    {"values": "all", "values_inputs": True, "rows": "all"},
]


def run() -> list[tuple[list[str], list[Any]]]:
    """What was called by each program, and what it computed."""
    found = []
    for program in PROGRAMS:
        CALLS.clear()
        torch.manual_seed(0)
        computed = program()
        calls = list(CALLS)
        found.append((calls, [tensor.detach().as_subclass(torch.Tensor).tolist() for tensor in computed]))
    return found


@pytest.fixture(scope="module")
def plain() -> list[tuple[list[str], list[Any]]]:
    """Unrecorded; the first time torch does some things that it does once."""
    run()
    return run()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", LEVELS, ids=str)
def test_only_the_program_calls_it(record: Record, plain: Any, options: dict[str, Any]) -> None:
    """By every kind of program, at every level."""
    got = record(run, **options)
    assert got.process.state == "complete"
    assert got.returned == plain
    assert sum(len(calls) for calls, _ in plain) > 500


def test_an_op_has_its_row_however_it_is_called(record: Record) -> None:
    """Op by op the same ones, with the same values, as of plain tensors."""

    def program(kind: type[torch.Tensor]) -> None:
        torch.manual_seed(0)
        train(kind)

    plain, asked = (record(lambda kind=kind: program(kind)) for kind in (torch.Tensor, Counting))
    views = ("alias", "detach")  # as_subclass makes one of these
    assert [op for op in asked.ops if op not in views] == [op for op in plain.ops if op not in views]
    digests = [[row.outputs for row in got.rows if row.name not in views] for got in (plain, asked)]
    assert digests[0] == digests[1]


def test_numbers_in_front_of_a_tensor_are_taken_back(record: Record) -> None:
    """Of an op that is looked at a second time."""
    with record.block() as got:
        weight = torch.ones(2, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x.as_subclass(Counting)):
            torch.pow(3.0, weight).sum().backward()  # what is multiplied in backward comes after a number
    assert [row.floats for row in got.named("pow")] == [[3.0]]
    assert [row.floats for row in got.rows if row.phase is Phase.BACKWARD and row.name == "mul"]
    assert got.process.state == "complete"


def test_who_would_be_asked() -> None:
    """Subclasses with a ``__torch_function__`` of their own, in lists too; anything under a mode."""
    plain, counting = torch.ones(1), torch.ones(1).as_subclass(Counting)
    assert not has_torch_function(None) and not has_torch_function(nn.Parameter(plain))
    assert not any_torch_function((plain, [plain, 1], "text"))
    assert any_torch_function((plain, [plain, counting]))
    with Mode():
        assert any_torch_function(())
    with torch._C.DisableTorchFunction():
        assert not any_torch_function((counting,))


def test_a_forked_child_begins_under_a_mode(tmp_path: Path) -> None:
    """Recording begins with its first op, in the middle of what the program asks about."""

    def child() -> None:
        CALLS.clear()
        with Mode():
            x.sin()
        assert CALLS == ["TensorBase.sin"]

    with rltrace.record(tmp_path / "a.zarr"):
        x = torch.ones(2)
        assert forked(child) == 0
