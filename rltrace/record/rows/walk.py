"""The tensors among what a module is called with and what it returns, each with a name for where it stands.

Owns which containers are looked into: tuples, lists, mappings, dataclasses, each by Python's own means, so that nothing
of the program's runs. What is held by an object of another kind (a cache, say) is not found.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import torch

Tensor = torch.Tensor

DEEPEST: Final = 8
MOST: Final = 1_024
"""Tensors of one call that are taken, inputs and outputs apart."""

MOST_LOOKED_AT: Final = 16_384
"""Things of one call that are looked at, to find them."""

LONGEST: Final = 200
"""Characters of a name."""


class Budget:
    """How many things may still be looked at."""

    def __init__(self, left: int = MOST_LOOKED_AT) -> None:
        self.left = left

    @property
    def spent(self) -> bool:
        """Whether there was more to look at than that."""
        return self.left < 0


def named_tensors(
    value: object, name: str = "", budget: Budget | None = None, depth: int = 0
) -> Iterator[tuple[str, Tensor]]:
    """(where it stands, tensor), in order: ``0``, ``logits``, ``past.0.1``; "" for ``value`` itself."""
    budget = budget or Budget()
    budget.left -= 1
    if issubclass(type(value), Tensor):  # what an object says of its class is the program's own
        yield name[:LONGEST], cast(Tensor, value)
    elif depth < DEEPEST:
        for key, item in _items(value):
            if budget.spent:
                return
            if type(item) in _PLAIN:
                budget.left -= 1
            else:
                yield from named_tensors(item, f"{name}.{key}" if name else key, budget, depth + 1)


_PLAIN = (type(None), bool, int, float, str, bytes)


def _items(value: Any) -> Iterator[tuple[str, object]]:
    kind = type(value)
    if kind is tuple or kind is list:
        yield from ((str(i), item) for i, item in enumerate(value))
    elif issubclass(kind, tuple):
        plain, names = list(tuple.__iter__(value)), inspect.getattr_static(kind, "_fields", None)
        if type(names) is tuple and len(names) == len(plain) and all(type(name) is str for name in names):
            yield from zip(names, plain, strict=True)
        else:
            yield from ((str(i), item) for i, item in enumerate(plain))
    elif issubclass(kind, list):
        yield from ((str(i), item) for i, item in enumerate(list.__iter__(value)))
    elif issubclass(kind, dict):  # and so every ModelOutput, which is a dataclass as well
        for i, (key, item) in enumerate(dict.items(value)):
            yield str.__str__(key) if issubclass(type(key), str) else str(key) if type(key) is int else str(i), item
    elif is_dataclass(kind):
        for field in fields(kind):
            try:
                yield field.name, object.__getattribute__(value, field.name)
            except Exception:  # not given a value, or none that is kept
                continue


class ForwardNames:
    """Names for the arguments of modules, from the signature of each ``forward``."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Any, tuple[str, ...]] = WeakKeyDictionary()

    def arguments(
        self, module: torch.nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Iterator[tuple[str, object]]:
        """(name, argument) of a call; one by position that has no name goes by its place."""
        if args:
            try:
                names = self._of(module)
            except Exception:  # compiled from a script, or with an attribute of its own in place of the method
                names = ()
            for i, value in enumerate(args):
                yield names[i] if i < len(names) else str(i), value
        yield from kwargs.items()

    def _of(self, module: torch.nn.Module) -> tuple[str, ...]:
        forward = vars(module).get("forward", type(module).forward)  # one of its own, or its class's
        function = getattr(forward, "__func__", forward)
        known = self._known.get(function)
        if known is None:
            known = self._known[function] = _positional(
                function, bound=forward is function and "forward" in vars(module)
            )
        return known


def _positional(function: Any, *, bound: bool) -> tuple[str, ...]:
    """Names of the arguments that can be given by position, without ``self``; ``bound``: it takes none."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = tuple(parameter.name for parameter in parameters if parameter.kind in kinds)
    return names if bound else names[1:]
