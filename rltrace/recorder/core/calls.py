"""Calls: an operator with arguments of one signature, and everything about a row that follows from the two.

Owns the tables "ops", "structures" and "scalars" and, for the committer, how many cells of each kind a row has.
"""

from __future__ import annotations

import contextlib
import sys
from array import array
from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch.nn import Parameter

from rltrace.portable_keys import portable_key
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.base.torch_function import OverriddenError, has_torch_function
from rltrace.recorder.core.distributed_tensors import DistributedError, inner_name, layout_payload, local_arguments
from rltrace.recorder.core.op_info import (
    LABELS,
    OpPlan,
    WrittenPlaces,
    make_plan,
    new_results,
    plan_of_call,
    written_places,
)
from rltrace.recorder.core.regions import RegionInputs, RegionName, region_of
from rltrace.recorder.digests.layouts import Layout, Layouts, dtype_name, shape_of
from rltrace.trace.format.events import TEXTS

# --- groups -----------------------------------------------------------------------------------------------------------
#
# Process groups and reduction ops, which c10d passes to collectives as objects: in a call's signature and in table
# "scalars". Objects that cannot be read are recorded by type only.


GROUP_ARGUMENT = "group_name"
"""Argument of a functional collective with the name of its group."""

ScriptObject = torch.ScriptObject


def signature_of(value: Any) -> object:
    """Hashable identity of a process group or reduction op; None for other objects."""
    try:
        kind = value._type().name()
        if kind == "ProcessGroup":
            return str(torch.distributed.ProcessGroup.unbox(value).group_name)
        return int(value._get_method("op")()) if kind == "ReduceOp" else None
    except Exception:  # another build or version of torch
        return None


def payload_of(value: Any) -> dict[str, object] | None:
    """Its entry in table "scalars": ``{"group": "0", "rank": 1, "ranks": [0, 1]}``, ``{"reduce": "SUM"}``."""
    try:
        kind = value._type().name()
        if kind == "ProcessGroup":
            return _group(torch.distributed.ProcessGroup.unbox(value))
        if kind == "ReduceOp":
            number = int(value._get_method("op")())
            return {"reduce": torch.distributed.ReduceOp.RedOpType(number).name}
    except Exception:
        return None
    return None


def named_group(name: object) -> dict[str, object] | None:
    """The entry of a group that a functional collective names."""
    try:
        if not isinstance(name, str):
            return None
        return _group(torch._C._distributed_c10d._resolve_process_group(name))  # type: ignore[arg-type]
    except Exception:
        return None


def _group(group: Any) -> dict[str, object]:
    """``rank`` is this process's, ``ranks`` are all members', both global."""
    name = str(group.group_name)
    members = sys.modules["torch.distributed.distributed_c10d"]._world.pg_group_ranks.get(group)
    if not members:
        return {"group": name}
    ranks = [rank for rank, _ in sorted(members.items(), key=lambda member: member[1])]
    return {"group": name, "rank": ranks[group.rank()], "ranks": ranks}


# --- arguments --------------------------------------------------------------------------------------------------------
#
# The arguments of an op, as tensors in order, numbers, and a signature: a flat tuple with dtype, shape, strides and
# device of each tensor, the types of numbers (their values are cells, so that a changing learning rate adds no table
# entries), and the values of everything else. ``1``, ``True`` and ``1.0`` are distinct. Never calls ``str`` on an
# unknown object: a storage prints its bytes.


Tensor = torch.Tensor
INT64 = 2**63

_BY_VALUE = (int, str, torch.dtype, torch.device, torch.layout, torch.memory_format)


def flatten_arguments(
    values: Any, signature: list[object], tensors: list[torch.Tensor], integers: array[int], floats: array[float]
) -> tuple[int, int]:
    """Sort ``values`` into ``tensors``, ``integers`` and ``floats`` and append their signature to ``signature``.

    Returns the numbers of integers and floats. Raises OverriddenError where a tensor has a ``__torch_function__``, and
    DistributedError where one is distributed or in flight.
    """
    integer_count = float_count = 0
    for value in values:
        kind = type(value)
        if kind is Tensor or kind is Parameter:
            tensors.append(value)
            signature += tensor_signature(value)
        elif kind is int and -INT64 <= value < INT64:
            integers.append(value)
            integer_count += 1
            signature.append(int)
        elif kind is float:
            floats.append(value)
            float_count += 1
            signature.append(float)
        elif value is None or kind is bool:
            signature += kind, value
        elif kind is list or kind is tuple or kind is RegionInputs:
            if kind is RegionInputs and value.row_tensors is None:
                value.row_tensors = tensors
            signature.append("[")
            try:
                inner = flatten_arguments(value, signature, tensors, integers, floats)
            except OverriddenError as error:
                raise type(error)(integer_count + error.integers, float_count + error.floats) from None
            integer_count += inner[0]
            float_count += inner[1]
            signature.append("]")
        elif isinstance(value, torch.Tensor):
            if inner_name(kind) is not None:  # type: ignore[arg-type]  # a class is hashable
                raise DistributedError(integer_count, float_count)
            if has_torch_function(value):
                raise OverriddenError(integer_count, float_count)
            tensors.append(value)
            signature.append(kind)
            signature += tensor_signature(value)
        elif isinstance(value, complex):
            floats.extend((value.real, value.imag))
            float_count += 2
            signature.append(complex)
        else:
            signature.append(kind)
            if isinstance(value, _BY_VALUE):
                signature.append(value)
            elif kind is ScriptObject:
                signature.append(signature_of(value))
    return integer_count, float_count


def op_tensors(args: Any, kwargs: dict[str, Any] | None) -> list[torch.Tensor]:
    """The tensors among the arguments of an op, in the order of its row; of distributed ones those of this process."""
    values = *args, *(kwargs or {}).values()
    try:
        tensors: list[torch.Tensor] = []
        flatten_arguments(values, [], tensors, array("q"), array("d"))
    except DistributedError:
        return op_tensors(local_arguments(values), None)
    return tensors


def tensor_signature(tensor: torch.Tensor) -> tuple[object, ...]:
    """Signature of one tensor; without strides where it has none (sparse, nested, lazy)."""
    if not tensor.is_nested:
        with contextlib.suppress(RuntimeError, ValueError):
            return tensor.dtype, tensor.shape, tensor.stride(), tensor.is_cpu or tensor.device
    return tensor.dtype, tuple(shape_of(tensor)), tensor.layout, tensor.is_cpu or tensor.device


def skeleton(args: Any, kwargs: dict[str, Any] | None) -> list[object]:
    """Entry of table "scalars": "T", "i", "f" and "c" for tensors and numbers, which have cells, JSON for the rest."""
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
    if type(value) is ScriptObject and (known := payload_of(value)) is not None:
        return known
    return {"object": type(value).__name__}


# --- calls ------------------------------------------------------------------------------------------------------------


Signature = tuple[object, ...]
"""``id()`` of the operator (hashing an operator itself runs Python code) and the signature of its arguments."""


class Call:
    """One operator and one signature."""

    __slots__ = ("factor", "layouts", "overwritten", "plan", "scalars", "structure", "written")

    def __init__(
        self, plan: OpPlan, layouts: tuple[Layout, ...], written: WrittenPlaces, structure: int, scalars: int
    ) -> None:
        self.plan = plan
        self.written = written.all
        """Places, among its tensors, of those it writes."""
        self.overwritten = written.unread
        """Places of those it does not read, whether or not it writes them."""
        self.factor = written.factor
        """The factor of its first tensor: where it is 0, that tensor is not read."""
        self.layouts = layouts
        """Layouts of its tensors, in order."""
        self.structure = structure
        self.scalars = scalars

    def results(self, tensors: Sequence[torch.Tensor], out: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """(written, returned) of a call on ``tensors``: the tensors with a digest at the end of its row, in order."""
        if self.plan.is_view or not self.plan.computes:
            return [], []
        written = [] if self.plan.arrives else [tensors[place] for place in self.written]
        return written, new_results(self.plan, out)


class Calls:
    """All calls of one process."""

    def __init__(self, tables: Tables, layouts: Layouts) -> None:
        self._tables = tables
        self._layouts = layouts
        self._plans: dict[int, OpPlan] = {}
        self.known: dict[Signature, Call] = {}
        """Read by the hot path itself."""
        self.op_names: list[str] = []
        """By id in table "ops"."""
        self.structure_sizes = array("q")
        """Tensors per structure, by id."""
        self.structure_devices: list[str] = []
        """Device type of the first tensor, by id of the structure."""
        self.integer_counts, self.float_counts = array("q"), array("q")
        """Integers, and floats, per skeleton, by id. Two arrays, as commits read them while a number is added."""
        self.no_op = self._op("")
        """Id in table "ops" of rows that are no op."""
        self.structure((), [])
        self.scalars([], 0, 0)

    def make(
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        signature: Signature,
        tensors: list[torch.Tensor],
        integers: int,
        floats: int,
    ) -> Call:
        """Intern a call not seen before; ``integers`` and ``floats`` count the numbers among its arguments."""
        whole = getattr(func, "global_layouts", None) or [None] * len(tensors)
        layouts = tuple(
            self._layouts.of(tensor) if found is None else self._layouts.of_distributed(layout_payload(found), tensor)
            for tensor, found in zip(tensors, whole, strict=True)
        )
        on_device = [layout.later or not tensor.is_cpu for tensor, layout in zip(tensors, layouts, strict=True)]
        plan = plan_of_call(self.plan(func), args, kwargs, on_device)
        call = Call(
            plan,
            layouts,
            written_places(plan, args, kwargs),
            self.structure(layouts, tensors),
            self.scalars(_skeleton_of_call(plan, args, kwargs), integers, floats),
        )
        self.known[signature] = call
        return call

    def structure(self, layouts: tuple[Layout, ...], tensors: list[torch.Tensor]) -> int:
        """Id in table "structures" of tensors with these layouts."""
        keys = [self._tables.key_of("layouts", layout.id) for layout in layouts]
        number = self._tables.intern("structures", portable_key("structures", keys), [layout.id for layout in layouts])
        _set_padded(self.structure_sizes, number, len(layouts), 0)
        _set_padded(self.structure_devices, number, tensors[0].device.type if tensors else "cpu", "cpu")
        return number

    def scalars(self, payload: list[object], integers: int, floats: int, texts: Sequence[tuple[str, str]] = ()) -> int:
        """Id in table "scalars" of a skeleton; ``texts`` are added to it, and are not in its key."""
        if texts:
            key, payload = portable_key("scalars", payload), [*payload, {TEXTS: dict(texts)}]
            number = self._tables.add("scalars", key, payload)
        else:
            number = self._tables.intern_payload("scalars", payload)
        _set_padded(self.integer_counts, number, integers, 0)
        _set_padded(self.float_counts, number, floats, 0)
        return number

    def plan(self, func: OpOverload) -> OpPlan:
        """The plan of an operator, made from its schema at the first call."""
        plan = self._plans.get(id(func))
        if plan is None:
            region = region_of(func)
            name = str(func) if region is None else region.name
            plan = self._plans[id(func)] = make_plan(self._op(name), func)
            if plan.schema and plan.arguments:
                schema = {"op": plan.id, "arguments": list(plan.arguments)}
                if plan.results:
                    schema["results"] = list(plan.results)
                self._tables.intern("schemas", self._tables.key_of("ops", plan.id), schema)
        return plan

    def _op(self, name: str) -> int:
        if isinstance(name, RegionName):  # regions have different kernels under one name
            number = self._tables.add("ops", portable_key("ops", str(name)), str(name))
        else:
            number = self._tables.intern_payload("ops", name)
        _set_padded(self.op_names, number, name, "")
        return number


def _skeleton_of_call(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> list[object]:
    """The skeleton of a call, without labels, with the members of a group that it names."""
    items = skeleton(args, kwargs)
    if GROUP_ARGUMENT in plan.arguments and (place := plan.arguments.index(GROUP_ARGUMENT)) < len(args):
        items[place] = named_group(args[place]) or items[place]
    for place in LABELS.get(plan.schema, ()):
        if place < len(args):
            items[place] = {"object": "label"}
    return items


def _set_padded(sequence: Any, at: int, value: Any, filler: Any) -> None:
    while len(sequence) <= at:
        sequence.append(filler)
    sequence[at] = value
