"""What is known of an operator before it is called: read once from its schema, kept for every later call.

Owns the classes of operators (views, allocations, overwrites). Never looks at a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from rltrace.record.compiler.regions import RegionInputs, region_of
from rltrace.record.memory.partial_writes import TOUCH
from rltrace.record.operators import (
    ALLOCATIONS,
    ARRIVED,
    ARRIVING,
    COPIES,
    FACTORS,
    HIDDEN_WRITES,
    IN_FLIGHT,
    IN_TRAINING,
    NON_BLOCKING,
    OVERWRITES,
    RESIZES,
    SCRATCH,
    VIEWS,
)


class Role(Enum):
    """How a row of the op is written."""

    COMPUTE = "compute"
    VIEW = "view"
    ALLOCATION = "allocation"
    NUMBER = "number"
    IN_FLIGHT = "in flight"
    ARRIVED = "arrived"
    TO_HOST = "to host"


@dataclass(slots=True)
class OpPlan:
    """One operator overload, as the recorder sees it."""

    id: int
    """In table "ops"."""
    func: OpOverload
    """Kept, so that its ``id()`` stays its own."""
    name: str
    role: Role
    is_view: bool
    computes: bool
    draws: bool
    """Tagged ``nondeterministic_seeded``: draws from a generator."""
    writes: Mapping[str, bool]
    """Names of the arguments it writes; True: without reading them."""
    arguments: tuple[str, ...]
    """Names of all arguments that can be passed by position, in order."""
    writes_out: bool
    """Some of them are ``out=``: it may resize what it writes."""
    writes_any: bool
    copies: bool
    partial: bool
    """Leaves elements of what it writes as they were (``partial_writes.py``)."""
    arrives: bool
    """What it writes comes from other processes (``operators.ARRIVING``)."""
    resizes: bool
    returns_new: bool
    """Returns tensors besides the arguments it writes."""
    aliased: tuple[bool, ...]
    """Which of several returns are arguments that it wrote; empty where none is."""
    scratch: tuple[int, ...]
    """Which of several returns are workspaces."""
    schema: str
    """``aten::addmm``; empty for a higher-order operator."""

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
        """The arguments of one call by name."""
        return {**dict(zip(self.arguments, args, strict=False)), **(kwargs or {})}


def plan_of_call(
    plan: OpPlan, args: Sequence[Any], kwargs: Mapping[str, Any] | None, on_device: Sequence[bool]
) -> OpPlan:
    """The same for one call: what is copied to the host without waiting is not there when the op returns.

    ``on_device``: which of the call's tensors lie on a device.
    """
    if plan.schema not in NON_BLOCKING or not any(on_device):
        return plan
    named = plan.named(args, kwargs)
    if not named.get("non_blocking"):
        return plan
    device = named.get("device")
    to_host = device is not None and torch.device(device).type == "cpu"
    if plan.writes_any:
        to_host = not all(on_device[: len(on_device) // 2])
    return replace(plan, role=Role.TO_HOST, computes=False) if to_host else plan


class WrittenPlaces(NamedTuple):
    """Places, among the tensors of a call in order, of those that are written."""

    all: tuple[int, ...]
    unread: tuple[int, ...]
    """Those that are not read, though they may be written."""
    factor: Factor | None = None


class Factor(NamedTuple):
    """The number that a call multiplies its first tensor by."""

    is_float: bool
    from_end: int
    """Its place among the call's numbers of that type, counted from the last one, which is 1."""


def make_plan(op_id: int, func: OpOverload) -> OpPlan:
    """Read the schema of ``func``. Works for ATen, custom and higher-order operators alike."""
    schema = getattr(func, "_schema", None)
    if schema is None:  # a higher-order operator or a compiled region: what it does inside is not seen
        region = region_of(func)
        return OpPlan(
            op_id,
            func,
            op_name(func) if region is None else region.name,
            Role.COMPUTE,
            is_view=False,
            computes=True,
            draws=region is not None and region.draws,
            writes={},
            arguments=(),
            writes_out=False,
            writes_any=region is not None and region.writes,
            copies=False,
            partial=False,
            arrives=False,
            resizes=False,
            returns_new=True,
            aliased=(),
            scratch=(),
            schema="",
        )
    hidden = HIDDEN_WRITES.get(schema.name, ())
    overwrites = schema.name in OVERWRITES
    writes = {
        a.name: overwrites or a.is_out
        for a in schema.arguments
        if (a.alias_info is not None and a.alias_info.is_write) or a.name in hidden
    }
    arriving = ARRIVING.get(schema.name, {})
    writes.update(arriving)
    aliased = tuple(r.alias_info is not None and r.alias_info.is_write for r in schema.returns)
    role = _role(func)
    return OpPlan(
        id=op_id,
        func=func,
        name=op_name(func),
        role=role,
        is_view=role is Role.VIEW,
        computes=role is Role.COMPUTE,
        draws=torch.Tag.nondeterministic_seeded in func.tags,
        writes=writes,
        arguments=tuple(a.name for a in schema.arguments if not a.kwarg_only),
        writes_out=any(a.is_out for a in schema.arguments),
        writes_any=bool(writes),
        copies=schema.name in COPIES,
        partial=schema.name in TOUCH,
        resizes=schema.name in RESIZES,
        arrives=bool(arriving),
        returns_new=not arriving and (not writes or bool(hidden) or not all(aliased)),
        aliased=aliased if len(aliased) > 1 and any(aliased) else (),
        scratch=SCRATCH.get(schema.name, ()),
        schema=schema.name,
    )


def written_places(plan: OpPlan, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> WrittenPlaces:
    """Which of the tensors in ``args`` and ``kwargs``, counted in order, the op writes, and which it does not read."""
    if args and type(args[0]) is RegionInputs:
        return WrittenPlaces(args[0].written, ())
    written: list[int] = []
    unread: list[int] = []
    in_training = IN_TRAINING.get(plan.schema, ())
    trains = bool(in_training) and bool(plan.named(args, kwargs).get("training"))
    at = 0
    for name, value in [*zip(plan.arguments, args, strict=False), *(kwargs or {}).items()]:
        end = at + _tensors_in(value)
        if name in plan.writes and (trains or name not in in_training):
            written += range(at, end)
        if plan.writes.get(name) or (name in in_training and (name in plan.writes or not trains)):
            unread += range(at, end)
        at = end
    factor = _factor(args, kwargs or {}) if plan.schema in FACTORS else None
    return WrittenPlaces(tuple(written), tuple(unread), factor)


def _factor(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Factor | None:
    beta = kwargs.get("beta")
    if type(beta) not in (int, float):
        return None
    names = list(kwargs)
    later = [kwargs[name] for name in names[names.index("beta") :]]
    return Factor(type(beta) is float, sum(type(value) is type(beta) for value in later))


def _tensors_in(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(_tensors_in(item) for item in value)
    return int(isinstance(value, torch.Tensor))


def op_name(func: OpOverload) -> str:
    """``aten.addmm.default``."""
    return str(func)


def _role(func: OpOverload) -> Role:
    name = func._schema.name
    if name == "aten::_local_scalar_dense":
        return Role.NUMBER
    if name in ALLOCATIONS:
        return Role.ALLOCATION
    if name in IN_FLIGHT:
        return Role.IN_FLIGHT
    if name in ARRIVED:
        return Role.ARRIVED
    if name in VIEWS or func.is_view or torch.Tag.inplace_view in func.tags:
        return Role.VIEW
    return Role.COMPUTE
