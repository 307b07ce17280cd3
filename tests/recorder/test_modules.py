"""Module paths, in forward and in backward."""

import copy
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from children import in_thread
from recorded import Record, Row
from torch import nn
from torch.utils.checkpoint import checkpoint

from rltrace.diff.base.coverage import coverage_notes
from rltrace.recorder import current_session
from rltrace.recorder.core.modules import UNKNOWN_MODULES
from rltrace.trace.format.schema import Kind, Phase
from rltrace.trace.read.reader import open_trace


def modules(rows: list[Row]) -> list[str]:
    return [row.module for row in rows]


class Block(nn.Module):
    """Two layers with distinct ops: an ``exp`` and a ``sin``."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Exp(), Sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x) * 2) + 1


class Exp(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp()


class Sin(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


def leaf() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


def test_rows_have_the_innermost_module(record: Record) -> None:
    """Before, between and after submodules the module around them; in backward, by the autograd node, that of the
    forward."""
    with record.block() as got:
        block = Block()
        block(torch.ones(3)).sum()
        block(leaf()).sum().backward()
    assert got.ops[:6] == ["ones", "exp", "mul", "sin", "add", "sum"]
    assert modules(got.rows[:6]) == ["", "Block.first", "Block", "Block.second", "Block", ""]
    backward = [row for row in got.rows if row.phase is Phase.BACKWARD]
    by_module = {row.name: row.module for row in backward}
    assert by_module["cos"] == "Block.second"
    assert [row.module for row in backward if row.name == "mul"] == ["Block.second", "Block", "Block.first"]
    assert by_module["expand"] == ""


def test_containers_give_names_and_numbers(record: Record) -> None:
    """Sequential, ModuleList, ModuleDict, nested."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Tanh(), nn.Sequential(Exp(), Sin()))
            self.heads = nn.ModuleDict({"policy": nn.ModuleList([nn.Sigmoid()])})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.heads["policy"][0](self.body(x))

    with record.block() as got:
        Net()(leaf()).sum().backward()
    named = {row.name: row.module for row in got.rows}
    assert named["tanh"] == named["tanh_backward"] == "Net.body.0"
    assert named["exp"] == "Net.body.1.0"
    assert named["sin"] == named["cos"] == "Net.body.1.1"
    assert named["sigmoid"] == named["sigmoid_backward"] == "Net.heads.policy.0"


def test_instances_of_a_class_are_numbered_in_order_of_creation(record: Record) -> None:
    """Not of their calls, which may come in the order of a set."""
    with record.block() as got:
        nets = [nn.Sequential(nn.Tanh()) for _ in range(3)]
        layers = {name: nn.Linear(3, 3) for name in "abc"}
        nets[2](leaf()).sum().backward()
        nets[0](torch.ones(1))
        nets[2](torch.ones(1))
        for name in "cab":
            layers[name](torch.ones(3))
    assert modules(got.named("tanh")) == ["Sequential#3.0", "Sequential.0", "Sequential#3.0"]
    assert modules(got.named("tanh_backward")) == ["Sequential#3.0"]
    assert modules(got.named("addmm") or got.named("addmv")) == ["Linear#3", "Linear", "Linear#2"]


def test_submodules_and_the_dead_take_no_number(record: Record) -> None:
    """Only modules that stand by themselves when one of their class is first called are; copies as they come."""
    with record.block() as got:
        inner = nn.Linear(3, 3)
        outer = nn.Sequential(inner)
        nn.Linear(3, 3)
        alone = nn.Linear(3, 3)
        twin, target = copy.deepcopy(alone), copy.deepcopy(outer)  # which no constructor registers
        for module in (twin, alone, outer, target):
            module(torch.ones(1, 3))
    assert modules(got.named("addmm")) == ["Linear#2", "Linear", "Sequential.0", "Sequential#2.0"]


def test_a_submodule_called_directly_has_its_full_name(record: Record) -> None:
    """``policy.actor(x)`` without ``policy(x)``; what its parent is, its constructor said."""
    with record.block() as got:
        block = Block()
        block.first(leaf()).sum().backward()
        block.forward(torch.ones(1))  # no call of the module is seen, so no module is named
    assert modules(got.named("exp")) == ["Block.first"] * 2
    assert modules(got.named("add")) == [""]
    assert [row.module for row in got.named("mul") if row.phase is Phase.BACKWARD] == ["Block.first"]


def test_an_exception_in_a_forward_leaves_the_stack_right(record: Record) -> None:
    """At any depth, in forward and in backward, and the exception is the program's own."""

    class Raising(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Exp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.inner(x)
            return x.view(7)

    with record.block() as got:
        outer = nn.Sequential(Raising())
        with pytest.raises(RuntimeError, match="shape '\\[7\\]'"):
            outer(torch.ones(3))
        torch.ones(3).cos()
        Block()(leaf()).sum().backward()
    assert modules(got.named("exp")) == ["Sequential.0.inner", "Block.first"]
    assert got.named("cos")[0].module == ""
    assert modules(got.named("sin")) == ["Block.second"]


def test_modules_made_before_the_recording_have_full_names(record: Record) -> None:
    """No constructor was seen: the tree itself is read at the first call."""
    net = nn.Sequential(nn.Tanh(), nn.Sequential(Exp()))
    with record.block() as got:
        net(leaf()).sum().backward()
    assert got.one("tanh").module == got.one("tanh_backward").module == "Sequential.0"
    assert got.one("exp").module == "Sequential.1.0"


def test_a_module_that_dies_gives_its_name_to_no_other(record: Record) -> None:
    """A new module at the address of a dead one is another module."""
    with record.block() as got:
        for _ in range(20):
            nn.Sequential(nn.Tanh())(torch.ones(1))
            Exp()(torch.ones(1))
    assert len(set(modules(got.named("tanh")))) == 20
    assert len(set(modules(got.named("exp")))) == 20


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_forwards_have_their_own_modules(record: Record, reentrant: bool) -> None:
    """Recomputed inside of backward, where reentrant in a backward pass of its own: modules of the forward again."""
    with record.block() as got:
        checkpoint(Block(), leaf(), use_reentrant=reentrant).sum().backward()
        torch.ones(1).tan()
    assert modules(got.named("exp")) == ["Block.first"] * 2
    assert {row.phase for row in got.named("exp")} == {Phase.FORWARD, Phase.BACKWARD}
    assert modules(got.named("cos")) == ["Block.second"]
    assert got.one("tan").module == ""


def test_a_backward_inside_of_a_forward_belongs_to_its_nodes(record: Record) -> None:
    """A gradient taken within a module: ops of inner nodes are the inner modules', and after it the outer is back."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            (gradient,) = torch.autograd.grad(self.block(x).sum(), x, create_graph=True)
            return gradient.tan()

    with record.block() as got:
        Outer()(leaf())
    assert modules(got.named("cos")) == ["Outer.block.second"]
    assert got.one("tan").module == "Outer"


def test_a_custom_function_has_the_module_that_applied_it(record: Record) -> None:
    """``autograd.Function``: its backward runs Python of the program's own."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad.clone() * 2

    class Layer(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Double.apply(x)

    with record.block() as got:
        nn.Sequential(Layer())(leaf()).sum().backward()
    (clone,) = got.named("clone")
    assert clone.module == "Sequential.0"
    assert clone.phase is Phase.BACKWARD


def test_hooks_of_the_program_run_as_ever(record: Record) -> None:
    """Pre- and post-hooks, of one module and of all; their ops belong to the module."""

    def program() -> list[str]:
        block, called = Block(), list[str]()
        block.first.register_forward_pre_hook(lambda m, args: called.append("pre"))
        block.first.register_forward_hook(lambda m, args, out: out.tan())
        block.first.register_full_backward_hook(lambda m, i, o: called.append("backward"))
        block(leaf()).sum().backward()
        return called

    got = record(program)
    assert got.returned == program() == ["pre", "backward"]
    assert got.named("tan")[0].module == "Block.first"


def test_a_thread_whose_first_op_is_inside_a_module(record: Record) -> None:
    """Its tensors came from another thread."""
    with record.block(stream="rank0/main/thread:actor") as got:
        in_thread("actor", partial(Block(), torch.ones(1)))
    assert modules(got.rows) == ["Block.first", "Block", "Block.second", "Block"]


class Sliced(nn.Module):
    """Runs the layers of a slice, as transformers does: a list of its own that lives for one loop."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Exp(), Sin()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:2]:
            x = layer(x)
        return x


def test_a_slice_of_a_module_list_takes_no_module_from_its_place(record: Record) -> None:
    """The layers are called what the model calls them, in the first forward and in later ones."""
    with record.block() as got:
        model = Sliced()
        for _ in range(2):
            model(leaf()).sum().backward()
    assert {row.module for row in got.named("exp")} == {"Sliced.layers.0"}
    assert {row.module for row in got.named("sin")} == {"Sliced.layers.1"}
    assert {row.module for row in got.named("cos")} == {"Sliced.layers.1"}


def test_a_module_that_moves_has_its_new_place(record: Record) -> None:
    """From a parent that let it go, and from one that died."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(*nn.Sequential(Exp()), Sin())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    with record.block() as got:
        first, second = nn.Sequential(), nn.Sequential()
        first.a = Sin()
        first(leaf())
        second.b = first.a
        del first.a
        second.b = second.b
        second(leaf())
        Net()(leaf())
    assert [row.module for row in got.named("sin")] == ["Sequential.a", "Sequential#2.b", "Net.net.1"]
    assert got.one("exp").module == "Net.net.0"


def test_calls_are_unwatched_after_the_recording(record: Record) -> None:
    """``nn.Module.__call__`` is torch's again, also when the program ended by an exception."""
    before = nn.Module.__call__

    def program() -> None:
        assert nn.Module.__call__ is not before
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        record(program)
    assert nn.Module.__call__ is before
    assert current_session() is None


# --- modules that cannot be followed as others are --------------------------------------------------------------------


def optimized(net: nn.Module, x: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        net(x).pow(2).sum().backward()
        optimizer.step()


def test_a_module_that_torch_jit_loaded(record: Record, tmp_path: Path) -> None:
    """Saved by a script and loaded again: its submodules have names of theirs, its parameters an owner."""
    torch.jit.script(nn.Sequential(nn.Linear(4, 2), nn.Tanh())).save(tmp_path / "m.ts")
    outer = nn.Sequential()

    def program() -> None:
        net = torch.jit.load(tmp_path / "m.ts")
        outer.add_module("loaded", net)
        optimized(net, torch.ones(1, 4))
        outer(torch.ones(1, 4))

    for steps in (None, (1, 9)):  # the window begins with its parameters
        got = record(program, steps=steps)
        assert got.process.state == "complete"
        assert UNKNOWN_MODULES not in got.process.facts
        assert {module for module in modules(got.rows) if "loaded" in module} == {"Sequential.loaded"}
    assert "loaded.0.weight" in {row.scalars[0] for row in got.rows if row.kind is Kind.WINDOW}


class Hostile(nn.Module):
    """What a class may define, of which nothing is to run because the program is recorded."""

    quiet = False

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(2, 2), nn.Parameter(torch.ones(2))
        self.register_buffer("offset", torch.zeros(2))

    def _raise(self, *_: Any, **__: Any) -> Any:
        raise LookupError("this method is the program's own")

    named_parameters = named_buffers = named_modules = named_children = modules = children = _raise
    state_dict = buffers = __eq__ = __hash__ = __len__ = __bool__ = __iter__ = __repr__ = _raise

    def __getattr__(self, name: str) -> Any:
        if name in ("layer", "scale", "offset"):
            return super().__getattr__(name)
        return self._raise()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale + self.offset


@pytest.mark.parametrize("level", ["op", "step"])
def test_methods_of_a_modules_own_are_not_called(record: Record, level: str) -> None:
    """Names and parameters are found without them."""

    def program() -> None:
        net, outer = Hostile(), nn.Sequential()
        outer.a, outer.b = Hostile(), Hostile()
        outer.b(outer.a(torch.ones(2)))
        optimizer = torch.optim.SGD([net.scale, *net.layer.parameters()], lr=0.1)
        for _ in range(2):
            net(torch.ones(2)).sum().backward()
            optimizer.step()

    got = record(program, level=level)
    assert got.process.state == "complete"
    assert UNKNOWN_MODULES not in got.process.facts
    if level == "op":
        assert got.table("optimizers")[0]["owner"] == "Hostile"
        inside = {f"Sequential.{name}.layer" for name in "ab"}
        assert {"Hostile", "Hostile.layer", *inside} <= set(modules(got.rows))
        got = record(program, steps=(1, 9))
        found = [row.scalars[0] for row in got.rows if row.kind is Kind.WINDOW and row.module == "Hostile"]
        assert {"scale", "layer.weight", "layer.bias", "offset"} <= set(found)


class Nameless(type):
    """Classes whose name only torch can read."""

    @property
    def __name__(cls) -> str:
        if sys._getframe(1).f_globals["__name__"].startswith("rltrace."):
            raise LookupError("the recorder asked a class for its name")
        return "Unfollowed"


class Unfollowed(nn.Module, metaclass=Nameless):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Sin()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.exp() * self.weight)


@pytest.mark.parametrize("options", [{}, {"level": "step"}, {"steps": (1, 9)}, {"rows": "module=*"}])
def test_a_module_that_cannot_be_followed_ends_nothing(record: Record, options: dict[str, Any]) -> None:
    """Its ops count to the module around it, the trace says so, all else is there."""

    def program() -> torch.Tensor:
        outer = nn.Sequential(Unfollowed(), Exp())
        optimizer = torch.optim.SGD(outer.parameters(), lr=0.1)
        for _ in range(2):
            loss = outer(torch.ones(3)).sum()
            loss.backward()
            optimizer.step()
        Unfollowed()(torch.ones(3)).sum().backward()
        return outer[0].weight.detach()

    got = record(program, **options)
    assert torch.equal(got.returned, program())
    assert got.process.state == "complete"
    assert len(got.steps) == 2
    if options.get("level") != "step":
        assert {row.module for row in got.named("exp")} == {"Sequential.0", "Sequential.1", ""}
        assert got.process.facts[UNKNOWN_MODULES] == "Unfollowed (LookupError)"
        assert "Unfollowed (LookupError)" in " ".join(coverage_notes(open_trace(got.path)))
