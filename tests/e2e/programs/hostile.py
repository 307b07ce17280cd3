"""What a program may do that a recorder stumbles over: each part trains a little, and one ends when the next begins."""

import contextlib
import os
import sys
import tempfile
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

CHANGED = "CHANGED" in os.environ
"""Memory is written that torch has handed out, in one of two uses of it."""

calls: list[str] = []


class Counting(torch.Tensor):
    """Counts what it is asked about, and refuses what it does not know."""

    known = ("linear", "tanh", "pow", "mean", "as_subclass", "add", "mul", "sum")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        calls.append(name)
        if name not in cls.known:
            raise NotImplementedError(name)
        return super().__torch_function__(func, types, args, kwargs or {})


class Watching(TorchFunctionMode):
    """Notes what torch is asked for."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        calls.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def train(net: nn.Module, x: torch.Tensor, parameters: list[torch.Tensor] | None = None) -> None:
    held = list(net.parameters()) if parameters is None else parameters
    optimizer = torch.optim.SGD(held, lr=0.1)
    for _ in range(2):
        loss = net(x).pow(2).mean()
        loss.as_subclass(torch.Tensor).backward()
        optimizer.step()
    print("weights", [parameter.tolist() for parameter in held])


def small_net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 2), nn.Tanh())


class Hostile(nn.Module):
    """Its own methods are not what torch's are."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def _raise(self, *_: Any, **__: Any) -> Any:
        raise LookupError("not for you")

    named_parameters = named_buffers = named_modules = modules = children = state_dict = _raise
    __eq__ = __hash__ = __len__ = __bool__ = __repr__ = _raise

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if name == "layer" else self._raise()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def loaded_modules() -> None:
    with tempfile.NamedTemporaryFile() as file:
        torch.jit.script(small_net()).save(file.name)
        train(torch.jit.load(file.name), torch.ones(1, 4))
    net = Hostile()
    train(net, torch.ones(1, 4), list(net.layer.parameters()))


def overrides() -> None:
    train(small_net(), torch.randn(3, 4).as_subclass(Counting))
    with Watching():
        train(small_net(), torch.randn(3, 4))
    print("asked", len(calls), calls)


def shapes_only() -> None:
    generator = torch.Generator().manual_seed(5 if CHANGED else 4)
    weight = torch.ones(4, requires_grad=True)
    kept = torch.bernoulli(torch.empty(4), p=0.5, generator=generator)
    (weight * kept).sum().backward()
    torch.optim.SGD([weight], lr=0.1).step()
    print("weights", weight.tolist())


def shared_memory() -> None:
    weight = torch.ones(3, 4, requires_grad=True)
    h = torch.tanh(torch.randn(3, 4))
    a = h.sum()
    if CHANGED:
        h.numpy()[1, 1] = 0.25
    b = (h * 2).sum()
    ((weight * h).sum() + a + b * weight.sum()).backward()
    torch.optim.SGD([weight], lr=0.1).step()
    print("weights", weight.tolist())


def partly_filled() -> None:
    rng, net = np.random.default_rng(0), nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for n in (5, 9):
        buffer = np.empty((64, 8), np.float32)
        buffer[:n] = rng.normal(size=(n, 8))
        t = torch.from_numpy(buffer)
        (net(t[:n]).pow(2).mean() + net(t.index_select(0, torch.arange(n))).sum()).backward()
        optimizer.step()
    print("weights", [parameter.tolist() for parameter in net.parameters()])


def full_stack() -> None:
    """How deep it comes is not compared: recorded it is some calls less."""

    def depth(n: int) -> None:
        torch.ones(1).add_(1)
        depth(n + 1)

    class Deep(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self(x.sin())

    def step(n: int) -> None:
        if n:
            step(n - 1)
        torch.ones(3).mul_(2).sum().item()

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(250)
    for run in (lambda: depth(0), lambda: Deep()(torch.ones(2))):
        with contextlib.suppress(RecursionError):
            run()
    for n in range(170, 250, 5):
        with contextlib.suppress(RecursionError):
            step(n)
    sys.setrecursionlimit(limit)


torch.manual_seed(0)
for part in (loaded_modules, overrides, shapes_only, shared_memory, partly_filled, full_stack):
    part()
train(small_net(), torch.randn(3, 4))
raise SystemExit(7)
