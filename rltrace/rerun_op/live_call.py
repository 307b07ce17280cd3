"""A call that a running program makes, as a case: its inputs copied, so that it can be made again and again.

Owns what has to be copied when. Inputs that the op leaves alone can be copied once it has run; those in memory that it
writes, and the generator's state, have to be copied before, by whoever knows that it is about to run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload

from rltrace.errors import UsageError
from rltrace.recorder.capture.values import NoBytesError, bytes_of
from rltrace.recorder.core.op_info import OpPlan, written_places
from rltrace.recorder.core.placement import TensorPlacement
from rltrace.recorder.digests.layouts import Layout, dtype_name
from rltrace.rerun_op.recorded_op import fill, lay_out, returned_places
from rltrace.rerun_op.runner import OpCase, RngState
from rltrace.trace.format.schema import PlacementBit
from rltrace.trace.read.values import StoredPlacement

LARGEST = 1 << 30
"""Bytes of inputs above which an op is not called again: they are copied for every call."""


@dataclass(frozen=True)
class LiveCall:
    """One call, and what of it was copied before the op ran."""

    func: OpOverload
    plan: OpPlan
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    tensors: Sequence[torch.Tensor]
    """Those among its arguments, in order."""
    layouts: Sequence[Layout]
    """Of each."""
    lying: Mapping[int, TensorPlacement]
    """How they lay in memory, by place."""
    unread: frozenset[int] = frozenset()
    """Places of those that it only overwrites."""
    early: Mapping[int, bytes | str] = field(default_factory=dict)
    """Inputs that were copied before it ran, by place; or why they were not."""
    state: bytes | None = None
    """Of the generator that it draws from, before it did."""


def live_case(call: LiveCall) -> OpCase:
    """The case of a call, which holds none of its tensors. Raises UsageError where it cannot be made again."""
    if call.plan.arrives or not (call.plan.computes or call.plan.role.value == "number"):
        raise UsageError("it computes nothing (a view or an allocation)")
    size = sum(layout.nbytes for layout in call.layouts)
    if size > LARGEST:
        raise UsageError(f"its inputs have {size:,} bytes, more than {LARGEST:,}")
    memory = lay_out([_layout(tensor) for tensor in call.tensors], {k: _place(v) for k, v in call.lying.items()})
    for place, (tensor, layout) in enumerate(zip(call.tensors, call.layouts, strict=True)):
        if place not in call.unread:
            fill(memory, place, _bytes(call, place, tensor, layout))
    written = written_places(call.plan, call.args, call.kwargs).all
    again = _again(call.func, call.args, call.kwargs)
    places = written, returned_places(call.plan)
    return OpCase(again, memory.tensors, memory.storages, memory.alignments, *places, _generator(call))


def _bytes(call: LiveCall, place: int, tensor: torch.Tensor, layout: Layout) -> bytes:
    """What the op read. Raises UsageError."""
    data: bytes | str | None = call.early.get(place)
    if data is None:
        try:
            data = bytes_of(tensor, layout)
        except NoBytesError as error:
            data = str(error)
    if isinstance(data, str):
        raise UsageError(f"input {place}: {data}")
    return data


def _layout(tensor: torch.Tensor) -> tuple[str, Sequence[int], Sequence[int], str]:
    if tensor.is_nested or tensor.layout is not torch.strided:
        raise UsageError("a tensor that consists of several (sparse, nested) cannot be reconstructed")
    shape, strides = tuple(map(int, tensor.shape)), tuple(map(int, tensor.stride()))
    return dtype_name(tensor.dtype), shape, strides, str(tensor.device)


def _place(lies: TensorPlacement) -> StoredPlacement:
    bits = lies.bits
    return StoredPlacement(
        lies.shared_with,
        lies.offset,
        lies.alignment,
        bool(bits & PlacementBit.CONJUGATED),
        bool(bits & PlacementBit.NEGATED),
    )


def _generator(call: LiveCall) -> RngState | None:
    if not call.plan.draws:
        return None
    if call.state is None:
        raise UsageError("the RNG state that it drew from was not recorded")
    given = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, torch.Generator)]
    device = given[0].device if given else _device(call)
    return RngState(str(device), np.frombuffer(call.state, np.uint8), bool(given))


def _device(call: LiveCall) -> torch.device | str:
    return call.tensors[0].device if call.tensors else call.kwargs.get("device") or "cpu"


def _again(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls the op with other tensors in the places of these."""
    skeleton = [_without_tensors(value) for value in args]
    named = {name: _without_tensors(value) for name, value in kwargs.items()}

    def call(tensors: list[torch.Tensor], generator: torch.Generator | None) -> Any:
        fresh = iter(tensors)
        positional = [_filled(value, fresh, generator) for value in skeleton]
        return func(*positional, **{name: _filled(value, fresh, generator) for name, value in named.items()})

    return call


class _Hole:
    """Stands where a tensor, or the generator, was."""

    def __init__(self, is_generator: bool) -> None:
        self.is_generator = is_generator


def _without_tensors(value: Any) -> Any:
    if isinstance(value, (torch.Tensor, torch.Generator)):
        return _Hole(isinstance(value, torch.Generator))
    return [_without_tensors(item) for item in value] if isinstance(value, (list, tuple)) else value


def _filled(value: Any, tensors: Any, generator: torch.Generator | None) -> Any:
    if isinstance(value, _Hole):
        return generator if value.is_generator else next(tensors)
    return [_filled(item, tensors, generator) for item in value] if isinstance(value, list) else value
