"""The arguments of a recorded op, from the skeleton and the numbers of its row, as values and as Python text.

Owns the meaning of table "scalars", which ``recorder.core.calls`` writes. Arguments that a trace does not hold (a
storage, a process group) are refused by name.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from rltrace.errors import UsageError
from rltrace.trace.format.rows import Rows

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class TensorAt:
    """The tensor argument with this index among the tensor arguments."""

    place: int


@dataclass(frozen=True)
class GeneratorArgument:
    """The generator that was passed to the op."""


@dataclass(frozen=True)
class Constant:
    """A constant of torch: ``torch.float32``, ``torch.device("cuda:0")``."""

    kind: str
    """dtype, device, layout or memory_format."""
    text: str

    @property
    def source(self) -> str:
        return f"torch.device({self.text!r})" if self.kind == "device" else f"torch.{_checked(self.text)}"

    @property
    def value(self) -> Any:
        return torch.device(self.text) if self.kind == "device" else getattr(torch, _checked(self.text))


@dataclass(frozen=True)
class Arguments:
    """The arguments of one call. A leaf is a TensorAt, a GeneratorArgument, a Constant, or a Python value."""

    positional: tuple[Any, ...]
    named: Mapping[str, Any] = field(default_factory=dict)

    @property
    def takes_generator(self) -> bool:
        return any(isinstance(leaf, GeneratorArgument) for leaf in _leaves([*self.positional, *self.named.values()]))

    def values(self, tensors: Sequence[Any], generator: Any) -> tuple[list[Any], dict[str, Any]]:
        """The positional and the named arguments as values."""
        named = {name: _value(node, tensors, generator) for name, node in self.named.items()}
        return [_value(node, tensors, generator) for node in self.positional], named

    @property
    def source(self) -> str:
        """Python source, with ``t`` for the tensors and ``generator`` for the generator."""
        return ", ".join([*map(_source, self.positional), *(f"{name}={_source(n)}" for name, n in self.named.items())])


def arguments_of(payload: object, rows: Rows, i: int) -> Arguments:
    """Arguments of row ``i`` with the skeleton ``payload``. Raises UsageError where the trace lacks one of them."""
    integers = iter(rows.integers[rows.integer_offsets[i] : rows.integer_offsets[i + 1]].tolist())
    floats = iter(rows.floats[rows.float_offsets[i] : rows.float_offsets[i + 1]].tolist())
    reader = _Reader(integers, floats)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for item in payload if isinstance(payload, list) else []:
        match item:
            case [str(name), value] if name.endswith("="):
                named[_checked(name[:-1])] = reader.read(value)
            case _:
                positional.append(reader.read(item))
    return Arguments(tuple(positional), named)


class _Reader:
    """Reads a skeleton from left to right, with its numbers from the row."""

    def __init__(self, integers: Iterator[int], floats: Iterator[float]) -> None:
        self._integers = integers
        self._floats = floats
        self._tensors = 0

    def read(self, item: Any) -> Any:
        match item:
            case "T":
                self._tensors += 1
                return TensorAt(self._tensors - 1)
            case "i":
                return next(self._integers)
            case "f":
                return next(self._floats)
            case "c":
                return complex(next(self._floats), next(self._floats))
            case list():
                return [self.read(inner) for inner in item]
            case {"int": text}:
                return int(text)
            case {"str": text}:
                return str(text)
            case {"dtype": text}:
                return Constant("dtype", text)
            case {"object": "Generator"}:
                return GeneratorArgument()
            case {"object": name}:
                raise UsageError(f"the op takes a {name}, which a trace does not hold: it cannot be re-executed")
            case {"device": text}:
                return Constant("device", str(text))
            case {"layout": text} | {"memory_format": text}:
                return Constant(next(iter(item)), str(text).removeprefix("torch."))
        return item


def _leaves(node: Any) -> Iterator[Any]:
    if isinstance(node, list):
        for item in node:
            yield from _leaves(item)
    else:
        yield node


def _value(node: Any, tensors: Sequence[Any], generator: Any) -> Any:
    match node:
        case list():
            return [_value(item, tensors, generator) for item in node]
        case TensorAt(place):
            return tensors[place]
        case GeneratorArgument():
            return generator
        case Constant():
            return node.value
    return node


def _source(node: Any) -> str:
    match node:
        case list():
            return f"[{', '.join(map(_source, node))}]"
        case TensorAt(place):
            return f"t[{place}]"
        case GeneratorArgument():
            return "generator"
        case Constant():
            return node.source
        case float() if not math.isfinite(node):
            return f'float("{node!r}")'
        case complex():
            return f"complex({_source(node.real)}, {_source(node.imag)})"
    return repr(node)


def _checked(name: str) -> str:
    """The name, if it may be written into a program. Raises UsageError."""
    if not NAME.fullmatch(name):
        raise UsageError(f"{name[:80]!r} is no name of torch's: the trace's tables are inconsistent")
    return name
