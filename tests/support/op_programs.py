"""Programs that run ops of every kind: training, arguments of every type, memory of others, modes, subclasses."""

import contextlib
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from children import in_thread
from torch import nn
from torch._library import opaque_object
from torch._opaque_base import OpaqueBase
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import rltrace

Program = Callable[[], object]


ActorCritic = tuple[nn.ModuleList, torch.optim.Optimizer, torch.Tensor, torch.Tensor]


def actor_critic(device: str, **options: Any) -> ActorCritic:
    """A small actor and critic, their optimizer, which has these options, observations and returns."""
    torch.manual_seed(1)
    net = nn.ModuleList([nn.Linear(8, 96), nn.LayerNorm(96), nn.Linear(96, 4), nn.Linear(96, 1)]).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, **options)
    return net, optimizer, torch.randn(256, 8, device=device), torch.randn(256, device=device)


def policy_update(net: nn.ModuleList, optimizer: Any, observations: torch.Tensor, returns: torch.Tensor) -> None:
    """An update as PPO makes it."""
    body, norm, actor, critic = net
    hidden = norm(torch.tanh(body(observations)))
    policy = torch.distributions.Categorical(logits=actor(hidden), validate_args=False)  # which would wait for a GPU
    actions = policy.sample()
    ratio = (policy.log_prob(actions) - policy.log_prob(actions).detach()).exp()
    surrogate = torch.min(ratio * returns, ratio.clamp(0.8, 1.2) * returns)
    loss = (critic(hidden).squeeze(1) - returns).pow(2).mean() - surrogate.mean() - policy.entropy().mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    optimizer.step()


def small_training() -> None:
    """Layers, views, foreach ops, draws, numbers, two steps of an optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Dropout(0.5), nn.Linear(3, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        loss = model(torch.randn(5, 4)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()


def _training(**options: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
            self.recurrent = nn.LSTM(36, 8, batch_first=True)
            self.attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.1)
            self.head = nn.Linear(8, 3)

        def forward(self, images: torch.Tensor) -> Any:
            sequence, _ = self.recurrent(F.relu(self.norm(self.convolution(images))).flatten(2))
            return self.head(self.attention(sequence).mean(1))

    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), **options)  # type: ignore[arg-type]
    for _ in range(2):
        loss = F.cross_entropy(net(torch.randn(5, 1, 8, 8)), torch.randint(0, 3, (5,)))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    loss.item()


def _autocast() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = net(torch.randn(4, 8)).float().pow(2).mean()
    loss.backward()


def _functional() -> None:
    observations, weights = torch.randn(4, 3), torch.randn(3)

    def f(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w).sum()

    torch.func.grad(f)(weights, observations)
    torch.func.vmap(torch.func.grad(f), in_dims=(None, 0))(weights, observations.unsqueeze(1))
    torch.func.hessian(lambda w: f(w, observations))(weights)


def _inference() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8))
    with torch.inference_mode():
        result = net(torch.randn(3, 8))
        result.reshape(-1)[::2].contiguous()
        result.add_(1)
    with torch.no_grad():
        net(torch.randn(3, 8))


def _unusual_tensors() -> None:
    complex_ = torch.randn(4, dtype=torch.complex64)
    (complex_.conj() * 2).imag.add(1)
    torch.view_as_real(complex_)
    torch.eye(3).to_sparse() @ torch.randn(3, 2)
    torch.nested.nested_tensor([torch.randn(2), torch.randn(3)]) * 2
    torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8).dequantize()
    torch.zeros(0, 3).sum()
    torch.empty(2, 3, device="meta") + 1
    torch.tensor(2**63 + 1, dtype=torch.uint64).item()
    torch.ones(3).expand(2, 3).contiguous()


def _numbers() -> None:
    values = torch.arange(6.0)
    values.add(True)
    values.add(1)
    values.mul(2.5)
    torch.full((2,), 3 + 4j)
    values.to(torch.int64).bitwise_and(3)
    values.clamp(min=1)
    values.clamp(max=2.0)
    [values[i].item() for i in range(3)]
    (values > 2).any().item()
    values.view(2, 3).norm(dim=[0, 1])


def _memory_of_others() -> None:
    array = np.arange(12, dtype=np.float32)
    shared = torch.from_numpy(array)
    for _ in range(3):
        shared.add(1)
        array += 1
        shared[2:5].mul(2)
    shared.add_(1)
    exposed = torch.ones(6)
    view = exposed.numpy()
    exposed.sum()
    view[0] = 3
    exposed.sum()
    del view
    exposed.fill_(2)
    exposed.sum()
    torch.tensor([1.0, 2.0]) + torch.as_tensor([3.0, 4.0])


def _written_in_places() -> None:
    table = torch.zeros(5, 4)
    table[1:3].fill_(1)
    table[:, 0] = 2
    table.index_put_((torch.tensor([0, 1]),), torch.ones(2, 4))
    table.scatter_(0, torch.zeros(1, 4, dtype=torch.int64), 7.0)
    torch.add(table, 1, out=torch.empty(5, 4))
    unwritten = torch.empty(6)
    unwritten[:3].normal_()
    unwritten.clone()
    torch.empty(3).copy_(torch.ones(3))
    table[:, :-1].copy_(table[:, 1:].clone())
    torch._foreach_mul_([torch.ones(n) for n in (1, 5, 0, 3)], 2.0)
    torch.ones(4).resize_(8)


def _random_draws() -> None:
    own = torch.Generator().manual_seed(3)
    other = torch.Generator().manual_seed(4)
    for generator in (own, other, own, torch.default_generator):
        torch.randn(3, generator=generator)
    torch.empty(5).normal_(generator=other)
    torch.rand(2)
    F.dropout(torch.ones(9), 0.5)
    torch.multinomial(torch.ones(4), 2)
    torch.randperm(5)


def _backwards() -> None:
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return gradients[0] * 2 + 0 * x

    leaf = torch.randn(5, requires_grad=True)
    changed = leaf.clone()
    changed[1:3].mul_(2)
    changed.sum().backward()
    layer = nn.Linear(5, 5)
    checkpoint(
        lambda t: torch.tanh(layer(t)), torch.randn(2, 5, requires_grad=True), use_reentrant=False
    ).sum().backward()
    (gradient,) = torch.autograd.grad((leaf**3).sum(), leaf, create_graph=True)
    gradient.sum().backward()
    Doubled.apply(torch.randn(3, requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]


def _scripted() -> None:
    @torch.jit.script
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ y) + x.sum()

    x = torch.randn(3, 3, requires_grad=True)
    for _ in range(3):
        f(x, x).sum().backward()


def _raising() -> None:
    weights = torch.ones(3, 4)
    for n in range(5):
        tensor = torch.from_numpy(np.full((n, 4), n, dtype=np.float32))
        try:
            torch.mm(tensor, weights)
        except RuntimeError:
            tensor.add_(1)


class Tagged(torch.Tensor):
    """A subclass whose ``__torch_function__`` is torch's."""


class Logged(torch.Tensor):
    """A subclass with a ``__torch_dispatch__``."""

    seen: ClassVar[list[str]] = []

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(str(func))
        with torch._C._DisableTorchDispatch():  # type: ignore[no-untyped-call]
            return func(*args, **(kwargs or {}))


def _subclasses() -> None:
    tagged = torch.ones(3).as_subclass(Tagged)
    (tagged * 2).sum()
    nn.Parameter(torch.ones(2)) + 1
    torch.add(torch.ones(3).as_subclass(Logged), 1)


def _settings() -> None:
    values = torch.randn(3, requires_grad=True)
    for _ in range(3):
        with torch.no_grad():
            values * 2
        values * 3
        with torch.inference_mode():
            values * 4
    torch.use_deterministic_algorithms(True)
    values * 5
    torch.use_deterministic_algorithms(False)
    torch.set_flush_denormal(True)
    values * 6
    torch.set_flush_denormal(False)
    values * 7
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = not before
    values * 8
    torch.backends.cuda.matmul.allow_tf32 = before
    with torch.backends.mkldnn.flags(enabled=False):
        values * 9


def _modules_that_raise() -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError(str(x.sum()))

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.failing = nn.Linear(2, 2), Failing()

        def forward(self, x: torch.Tensor) -> Any:
            try:
                self.failing(x)
            except KeyError:
                x = self.inner(x)
            return x * 2

    outer = Outer()
    for _ in range(3):
        outer(torch.ones(1, 2)).sum().backward()
        outer.inner(torch.ones(1, 2))


def _many_storages() -> None:
    """More than are followed between two sweeps, some of them shared with NumPy."""
    kept = []
    for n in range(9_000):
        fresh = torch.ones(1)
        if n % 50 == 0:
            fresh.numpy()
        if n % 900 == 0:
            kept.append(fresh)
    torch.stack(kept).sum()


def _threads() -> None:
    def work(number: int) -> None:
        x = torch.full((4, 4), float(number), requires_grad=True)
        (x @ x).tanh().sum().backward()

    shared = torch.ones(3)
    for n in range(2):
        in_thread(f"worker{n}", functools.partial(work, n))
    in_thread("writer", lambda: shared.add_(1))
    shared * 2


def _other_modes() -> None:
    class Doubling(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.ops.aten.exp.default else result

    with Doubling():  # type: ignore[no-untyped-call]
        assert torch.zeros(3).exp().sum().item() == 6
    with FakeTensorMode():  # type: ignore[no-untyped-call]  # below the recorder's mode
        assert isinstance(torch.ones(3, 4) @ torch.ones(4, 2), FakeTensor)


def _kernels_in_python() -> None:
    """Of torch's operators: modes and subclasses work in them."""
    calls = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(func)
            return func(*args, **(kwargs or {}))

    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with Noted():  # type: ignore[no-untyped-call]
            return (torch.Tensor._make_subclass(Logged, x) + y).as_subclass(torch.Tensor)

    Logged.seen.clear()
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("fmod.Tensor", kernel, "CPU")
        torch.fmod(torch.ones(3), torch.ones(3)) + 1
    assert (len(calls), len(Logged.seen)) == (1, 1)


def _operators_that_go() -> None:
    """Another operator may have the memory of one that a library has taken back."""
    for number in range(12):
        with torch.library._scoped_library(f"rltrace_gone{number % 3}", "FRAGMENT") as library:
            if number % 2:
                library.define("f(Tensor a, int n=5) -> Tensor")
                library.impl("f", lambda a, n=5: a * n, "CPU")
            else:
                library.define("f(Tensor a, Tensor b, *, float s=0.5) -> (Tensor, Tensor)")
                library.impl("f", lambda a, b, *, s=0.5: (a + b, b * s), "CPU")
            f = torch._C._jit_get_operation(f"rltrace_gone{number % 3}::f")[0]
            f(torch.ones(2), number) if number % 2 else f(torch.ones(3), torch.ones(3), s=0.25)


class Label(OpaqueBase):
    """An object that operators pass on to a kernel in Python."""


class Text(Label, str):
    """One that is described by its value as well."""


def _objects() -> None:
    """Arguments of a type that only Python knows."""
    for kind in (Label, Text):
        if not opaque_object.is_opaque_reference_type(kind):
            opaque_object.register_opaque_type(kind, typ="reference")  # type: ignore[arg-type]
    with torch.library._scoped_library("rltrace_objects", "FRAGMENT") as library:
        for kind in (Label, Text):
            name = kind.__name__.lower()
            library.define(f"{name}(Tensor a, {opaque_object.get_opaque_type_name(kind)} b) -> Tensor")
            library.impl(name, lambda a, b: a + 1, "CPU")
            function = torch._C._jit_get_operation(f"rltrace_objects::{name}")[0]
            for made in (kind(), kind()):
                function(torch.ones(2), made)


def _kernel_that_fills(target: torch.Tensor, value: torch.Tensor) -> None:
    target.copy_(value)


_LIBRARY = torch.library.Library("rltrace_programs", "FRAGMENT")
_LIBRARY.define("fill(Tensor(a!) target, Tensor value) -> ()")
_LIBRARY.impl("fill", _kernel_that_fills, "CPU")


def _compiled() -> None:
    torch._dynamo.reset()
    net = torch.compile(nn.Sequential(nn.Linear(4, 4), nn.GELU()), backend="aot_eager")
    for _ in range(2):
        net(torch.randn(2, 4)).sum().backward()


class RandomProgram:
    """Ops, views, in-place writes, ``out=``, foreach ops and memory of NumPy on a few tensors, chosen by a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._tensors: list[torch.Tensor] = []
        self._arrays: list[Any] = []
        self._generator = torch.Generator()

    def __call__(self) -> None:
        self._tensors = [torch.randn(4, 3), torch.ones(3, 4), torch.arange(12.0), torch.zeros(4, 3)]
        self._generator.manual_seed(5)
        for _ in range(80):
            try:
                made = self._random.choice(list(self._actions()))()
            except (RuntimeError, IndexError, ValueError):  # of shapes, overlap, or a leaf that is written
                continue
            if isinstance(made, torch.Tensor):
                self._tensors = [*self._tensors[-9:], made]
        self._tensors.clear()
        self._arrays.clear()

    def _any(self) -> torch.Tensor:
        return self._random.choice(self._tensors)

    def _actions(self) -> Iterator[Callable[[], Any]]:
        r, t, u = self._random, self._any(), self._any()
        yield lambda: t + r.choice([1, 2.5, u])
        yield lambda: torch.mul(t, u)
        yield lambda: t.mm(u)
        yield lambda: t.reshape(-1)[r.randrange(3) :: r.randrange(1, 3)]
        yield lambda: t.view(-1).narrow(0, 0, r.randrange(1, t.numel()))
        yield t.t
        yield lambda: t.clone(memory_format=r.choice([torch.contiguous_format, torch.preserve_format]))
        yield lambda: t.add_(r.choice([1, u]))
        yield lambda: t.copy_(u)
        yield lambda: t.view(-1)[: r.randrange(4)].copy_(t.view(-1)[: r.randrange(4)])
        yield lambda: _doubled_into(u.view(-1)[r.randrange(3) :], t.view(-1))
        yield lambda: t.view(-1)[: r.randrange(4)].fill_(r.random())
        same = [each for each in self._tensors if each.shape == t.shape]
        yield lambda: torch.add(t, 2, out=r.choice(same))
        yield lambda: torch.sub(t, 1, out=torch.empty(0))
        yield lambda: torch._foreach_add_([t, u], 1.0)
        yield lambda: torch._foreach_mul([t, u], [2.0, 3.0])
        yield lambda: t.resize_(r.randrange(1, t.numel() + 1))
        yield lambda: torch.empty_like(t).copy_(u)
        yield lambda: torch.from_numpy(np.full(6, r.random(), dtype=np.float32))
        yield lambda: t.detach().numpy() is None
        yield lambda: self._arrays.append(t.detach().numpy())
        yield lambda: self._arrays.clear() if r.random() < 0.3 else r.choice(self._arrays).fill(r.random())
        yield lambda: torch.empty(12)[r.randrange(3) : r.randrange(3, 12)].copy_(torch.ones(1))
        yield lambda: torch.empty(t.shape, dtype=t.dtype).normal_(generator=self._generator)
        yield lambda: _filled(torch.empty_like(t), u)
        yield lambda: _filled(t.view(-1)[r.randrange(4) :], torch.ones(1))
        yield lambda: _in_a_thread(lambda: t.view(-1)[: r.randrange(9)].mul_(2))
        yield lambda: t.index_put_((torch.tensor([0]),), torch.tensor(5.0))
        yield lambda: torch.cat([t.reshape(-1), u.reshape(-1)])
        yield lambda: t.sort().values
        yield lambda: t.max(0)[1].float()
        yield lambda: t.sum().item()
        yield lambda: torch.rand_like(t)
        yield lambda: torch.addmm(t, u.mm(u.t()), u, beta=r.choice([0, 1]))
        yield lambda: t.detach().requires_grad_().pow(2).sum().backward()
        yield lambda: t.to(r.choice([torch.float64, torch.bfloat16])).float()
        yield rltrace.step


def _in_a_thread(write: Callable[[], Any]) -> None:
    def run() -> None:
        with contextlib.suppress(RuntimeError):
            write()

    in_thread(None, run)


def _doubled_into(target: torch.Tensor, value: torch.Tensor) -> None:
    size = min(3, target.numel(), value.numel())
    torch.mul(value[:size], 2, out=target[:size])


def _filled(target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    torch.ops.rltrace_programs.fill(target, value)
    return target


PROGRAMS: dict[str, Program] = {
    "single": functools.partial(_training, foreach=False),
    "foreach": functools.partial(_training, foreach=True),
    "fused": functools.partial(_training, fused=True),
    "autocast": _autocast,
    "functional": _functional,
    "inference": _inference,
    "unusual tensors": _unusual_tensors,
    "numbers": _numbers,
    "memory of others": _memory_of_others,
    "written in places": _written_in_places,
    "random draws": _random_draws,
    "backwards": _backwards,
    "scripted": _scripted,
    "raising": _raising,
    "subclasses": _subclasses,
    "settings": _settings,
    "modules that raise": _modules_that_raise,
    "many storages": _many_storages,
    "threads": _threads,
    "other modes": _other_modes,
    "kernels in Python": _kernels_in_python,
    "operators that go": _operators_that_go,
    "objects": _objects,
    "compiled": _compiled,
}
