"""A call of a running program as a case that can be called again.

Owns the copies of its inputs. Inputs that the op does not write are copied after it ran; inputs that share memory with
what it writes, and the RNG state, must be copied before, by the caller.
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
from rltrace.recorder.core.regions import region_of
from rltrace.recorder.digests.layouts import Layout, dtype_name
from rltrace.rerun_op.recorded_op import fill, lay_out, returned_places
from rltrace.rerun_op.runner import OpCase, RngState
from rltrace.trace.format.schema import PlacementBit
from rltrace.trace.read.values import StoredPlacement

MAX_INPUT_BYTES = 1 << 30
"""An op with larger inputs is not called again: they are copied for every call."""


@dataclass(frozen=True)
class LiveCall:
    """One call, and the copies made before the op ran."""

    func: OpOverload
    plan: OpPlan
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    tensors: Sequence[torch.Tensor]
    """Its tensor arguments, in order."""
    layouts: Sequence[Layout]
    """Of each tensor."""
    placements: Mapping[int, TensorPlacement]
    """Of the tensors, by index."""
    unread: frozenset[int] = frozenset()
    """Indices of tensors that the op only overwrites."""
    copies: Mapping[int, bytes | str] = field(default_factory=dict)
    """Bytes of inputs copied before the op ran, by index; a text: why they were not."""
    state: bytes | None = None
    """RNG state before the op; None: not copied."""


def live_case(call: LiveCall) -> OpCase:
    """The case of a call; refers to none of its tensors. Raises UsageError where it cannot be repeated."""
    if call.plan.arrives or not (call.plan.computes or call.plan.role.value == "number"):
        raise UsageError("it computes nothing (a view or an allocation)")
    region = region_of(call.func)
    if region is not None and region.why_not_again:
        raise UsageError(region.why_not_again)
    size = sum(layout.nbytes for layout in call.layouts)
    if size > MAX_INPUT_BYTES:
        raise UsageError(f"its inputs have {size:,} bytes, more than {MAX_INPUT_BYTES:,}")
    memory = lay_out([_layout(tensor) for tensor in call.tensors], {k: _place(v) for k, v in call.placements.items()})
    for place, (tensor, layout) in enumerate(zip(call.tensors, call.layouts, strict=True)):
        if place not in call.unread:
            fill(memory, place, _bytes(call, place, tensor, layout))
    written = written_places(call.plan, call.args, call.kwargs).all
    repeated = _rebind(call.func, call.args, call.kwargs)
    places = written, returned_places(call.plan)
    return OpCase(repeated, memory.tensors, memory.storages, memory.alignments, *places, _generator(call))


def _bytes(call: LiveCall, place: int, tensor: torch.Tensor, layout: Layout) -> bytes:
    """The bytes of one input. Raises UsageError."""
    data: bytes | str | None = call.copies.get(place)
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


def _place(placement: TensorPlacement) -> StoredPlacement:
    bits = placement.bits
    return StoredPlacement(
        placement.shared_with,
        placement.offset,
        placement.alignment,
        bool(bits & PlacementBit.CONJUGATED),
        bool(bits & PlacementBit.NEGATED),
    )


def _generator(call: LiveCall) -> RngState | None:
    if not call.plan.draws:
        return None
    if call.state is None:
        raise UsageError("the RNG state that it drew from was not recorded")
    passed = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, torch.Generator)]
    device = passed[0].device if passed else _device(call)
    return RngState(str(device), np.frombuffer(call.state, np.uint8), bool(passed))


def _device(call: LiveCall) -> torch.device | str:
    return call.tensors[0].device if call.tensors else call.kwargs.get("device") or "cpu"


def _rebind(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A function that calls the op with other tensors and another generator."""
    skeleton = [_without_tensors(value) for value in args]
    named = {name: _without_tensors(value) for name, value in kwargs.items()}

    def call(tensors: list[torch.Tensor], generator: torch.Generator | None) -> Any:
        fresh = iter(tensors)
        positional = [_filled(value, fresh, generator) for value in skeleton]
        return func(*positional, **{name: _filled(value, fresh, generator) for name, value in named.items()})

    return call


class _Placeholder:
    """Replaces a tensor, or the generator, among the arguments."""

    def __init__(self, is_generator: bool) -> None:
        self.is_generator = is_generator


def _without_tensors(value: Any) -> Any:
    if isinstance(value, (torch.Tensor, torch.Generator)):
        return _Placeholder(isinstance(value, torch.Generator))
    return [_without_tensors(item) for item in value] if isinstance(value, (list, tuple)) else value


def _filled(value: Any, tensors: Any, generator: torch.Generator | None) -> Any:
    if isinstance(value, _Placeholder):
        return generator if value.is_generator else next(tensors)
    return [_filled(item, tensors, generator) for item in value] if isinstance(value, list) else value
