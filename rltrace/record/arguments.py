"""The arguments of an op taken apart: its tensors in order, its numbers exactly, and a signature of all the rest.

Owns the signature, a flat tuple of hashable parts: dtype, shape, strides and device of each tensor, the types of
numbers (their values stand in the cells, so that a learning rate which changes each step grows no table), the values
of everything else. ``1``, ``True`` and ``1.0`` never fall together. Never calls ``str`` on an unknown object: a
storage prints its bytes.
"""

from __future__ import annotations

import contextlib
from array import array
from typing import Any

import torch
from torch.nn import Parameter

from rltrace.record import groups
from rltrace.record.compiler.regions import RegionInputs
from rltrace.record.layouts import dtype_name, shape_of
from rltrace.record.overrides import OverriddenError, would_be_asked

Tensor = torch.Tensor
INT64 = 2**63

_BY_VALUE = (int, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


def take_apart(
    values: Any, parts: list[object], tensors: list[torch.Tensor], integers: array[int], floats: array[float]
) -> tuple[int, int]:
    """Sort ``values`` into ``tensors``, ``integers`` and ``floats`` and append their signature to ``parts``.

    Returns how many integers and how many floats there were. Raises OverriddenError where somebody would be asked about
    a tensor.
    """
    whole = real = 0
    for value in values:
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            tensors.append(value)
            parts += tensor_parts(value)
        elif kind is int and -INT64 <= value < INT64:
            integers.append(value)
            whole += 1
            parts.append(int)
        elif kind is float:
            floats.append(value)
            real += 1
            parts.append(float)
        elif value is None or kind is bool:
            parts += kind, value
        elif kind is list or kind is tuple or kind is RegionInputs:
            if kind is RegionInputs and value.held is None:
                value.held = tensors
            parts.append("[")
            try:
                inner = take_apart(value, parts, tensors, integers, floats)
            except OverriddenError as error:
                raise OverriddenError(whole + error.integers, real + error.floats) from None
            whole += inner[0]
            real += inner[1]
            parts.append("]")
        elif isinstance(value, torch.Tensor):
            if would_be_asked(value):
                raise OverriddenError(whole, real)
            tensors.append(value)
            parts.append(kind)
            parts += tensor_parts(value)
        elif isinstance(value, complex):
            floats.extend((value.real, value.imag))
            real += 2
            parts.append(complex)
        else:
            parts.append(kind)
            if isinstance(value, _BY_VALUE):
                parts.append(value)
            elif kind is groups.ScriptObject:
                parts.append(groups.signature_of(value))
    return whole, real


def op_tensors(args: Any, kwargs: dict[str, Any] | None) -> list[torch.Tensor]:
    """The tensors among the arguments of an op, in the order of its row."""
    tensors: list[torch.Tensor] = []
    take_apart((*args, *(kwargs or {}).values()), [], tensors, array("q"), array("d"))
    return tensors


def tensor_parts(tensor: torch.Tensor) -> tuple[object, ...]:
    """Signature of one tensor. Of one without strides (sparse, nested, lazy) only what there is to ask."""
    if not tensor.is_nested:
        with contextlib.suppress(RuntimeError, ValueError):
            return tensor.dtype, tensor.shape, tensor.stride(), tensor.is_cpu or tensor.device
    return tensor.dtype, tuple(shape_of(tensor)), tensor.layout, tensor.is_cpu or tensor.device


def skeleton(args: Any, kwargs: dict[str, Any] | None) -> list[object]:
    """What table "scalars" keeps: "T", "i", "f" and "c" for what stands elsewhere, JSON for the rest."""
    items = [_item(value) for value in args]
    return items + [[f"{name}=", _item(value)] for name, value in (kwargs or {}).items()]


def _item(value: Any) -> object:
    if isinstance(value, torch.Tensor):
        return "T"
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return "i" if -INT64 <= value < INT64 else {"int": str(value)}
    if isinstance(value, (list, tuple)):
        return [_item(item) for item in value]
    if isinstance(value, (float, complex)):
        return "f" if isinstance(value, float) else "c"
    if isinstance(value, str):
        return {"str": value}
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
        return {type(value).__name__: str(value)}
    if type(value) is groups.ScriptObject and (known := groups.payload_of(value)) is not None:
        return known
    return {"object": type(value).__name__}
