"""The tensors among what a module is called with and what it returns, each with a name for where it stands.

Owns which containers are looked into: tuples, lists, mappings, dataclasses, each by Python's own means, so that nothing
of the program's runs. What is held by an object of another kind (a cache, say) is not found.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch

Tensor = torch.Tensor

DEEPEST: Final = 8
MOST: Final = 1_024
"""Tensors of one call that are taken, inputs and outputs apart."""

LONGEST: Final = 200
"""Characters of a name."""


def named_tensors(value: object, name: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """(where it stands, tensor), in order: ``0``, ``logits``, ``past.0.1``; "" for ``value`` itself."""
    if isinstance(value, Tensor):
        yield name[:LONGEST], value
    elif depth < DEEPEST:
        for key, item in _items(value):
            if type(item) not in _PLAIN:
                yield from named_tensors(item, f"{name}.{key}" if name else key, depth + 1)


_PLAIN = (type(None), bool, int, float, str, bytes)


def _items(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, tuple):
        names = getattr(type(value), "_fields", None)
        plain = tuple.__iter__(value)
        if isinstance(names, tuple) and len(names) == tuple.__len__(value) and all(type(n) is str for n in names):
            yield from zip(names, plain, strict=True)
        else:
            yield from ((str(i), item) for i, item in enumerate(plain))
    elif isinstance(value, list):
        yield from ((str(i), item) for i, item in enumerate(list.__iter__(value)))
    elif isinstance(value, dict):  # and so every ModelOutput, which is a dataclass as well
        for i, (key, item) in enumerate(dict.items(value)):
            yield key if type(key) is str else str(key) if type(key) is int else str(i), item
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            try:
                yield field.name, object.__getattribute__(value, field.name)
            except AttributeError:  # not given a value, or not kept as one
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
            names = self._of(module)
            for i, value in enumerate(args):
                yield names[i] if i < len(names) else str(i), value
        yield from kwargs.items()

    def _of(self, module: torch.nn.Module) -> tuple[str, ...]:
        forward = vars(module).get("forward", type(module).forward)  # one of its own, or its class's
        function = getattr(forward, "__func__", forward)
        try:
            known = self._known.get(function)
        except TypeError:  # cannot be referred to weakly
            return ()
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
