"""An operator called with arguments of one signature: everything about a row that follows from the two, made once.

Owns the tables "ops", "structures" and "scalars" and what the committer derives from their ids: how many cells of each
kind a row has.
"""

from __future__ import annotations

from array import array
from typing import Any

import torch
from torch._ops import OpOverload

from rltrace.identity import portable_key
from rltrace.record.arguments import skeleton
from rltrace.record.compiler.regions import RegionName, region_of
from rltrace.record.groups import GROUP_ARGUMENT, named_group
from rltrace.record.layouts import Layout, Layouts
from rltrace.record.operators import LABELS
from rltrace.record.plans import OpPlan, WrittenPlaces, make_plan, plan_of_call, written_places
from rltrace.record.tables import Tables

Signature = tuple[object, ...]
"""``id()`` of the operator (hashing an operator itself runs Python code) and the parts of ``arguments.py``."""


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
        """Places of those it does not read, though it may write them."""
        self.factor = written.factor
        """What its first tensor is multiplied by: 0 means that it is not read."""
        self.layouts = layouts
        """Of its tensors, in order."""
        self.structure = structure
        self.scalars = scalars


class Calls:
    """All calls of one process."""

    def __init__(self, tables: Tables, layouts: Layouts) -> None:
        self._tables = tables
        self._layouts = layouts
        self._plans: dict[int, OpPlan] = {}
        self.known: dict[Signature, Call] = {}
        """The hot path looks here itself."""
        self.op_names: list[str] = []
        """By id in table "ops"."""
        self.structure_sizes = array("q")
        """Tensors per structure, by id."""
        self.structure_devices: list[str] = []
        """Device type of the first tensor, by id of the structure."""
        self.scalar_counts = array("q")
        """Integers and floats per skeleton, by id: two numbers each."""
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
        """Intern a call not seen before; ``integers`` and ``floats`` are how many numbers its arguments hold."""
        layouts = tuple(self._layouts.of(tensor) for tensor in tensors)
        on_device = [layout.later or not tensor.is_cpu for tensor, layout in zip(tensors, layouts, strict=True)]
        plan = plan_of_call(self.plan(func), args, kwargs, on_device)
        call = Call(
            plan,
            layouts,
            written_places(plan, args, kwargs),
            self.structure(layouts, tensors),
            self.scalars(_said(plan, args, kwargs), integers, floats),
        )
        self.known[signature] = call
        return call

    def structure(self, layouts: tuple[Layout, ...], tensors: list[torch.Tensor]) -> int:
        """Id in table "structures" of tensors with these layouts."""
        keys = [self._tables.key_of("layouts", layout.id) for layout in layouts]
        number = self._tables.intern("structures", portable_key("structures", keys), [layout.id for layout in layouts])
        _put(self.structure_sizes, number, len(layouts), 0)
        _put(self.structure_devices, number, tensors[0].device.type if tensors else "cpu", "cpu")
        return number

    def scalars(self, payload: list[object], integers: int, floats: int) -> int:
        """Id in table "scalars" of a skeleton."""
        number = self._tables.intern_payload("scalars", payload)
        _put(self.scalar_counts, 2 * number, integers, 0)
        _put(self.scalar_counts, 2 * number + 1, floats, 0)
        return number

    def plan(self, func: OpOverload) -> OpPlan:
        """What is known of an operator, read from its schema at the first call."""
        plan = self._plans.get(id(func))
        if plan is None:
            region = region_of(func)
            name = str(func) if region is None else region.name
            plan = self._plans[id(func)] = make_plan(self._op(name), func)
        return plan

    def _op(self, name: str) -> int:
        if isinstance(name, RegionName):  # each has kernels of its own
            number = self._tables.add("ops", portable_key("ops", str(name)), str(name))
        else:
            number = self._tables.intern_payload("ops", name)
        _put(self.op_names, number, name, "")
        return number


def _said(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> list[object]:
    """The skeleton of a call, its labels left out, the members of a group that it names put in."""
    said = skeleton(args, kwargs)
    if GROUP_ARGUMENT in plan.arguments and (place := plan.arguments.index(GROUP_ARGUMENT)) < len(args):
        said[place] = named_group(args[place]) or said[place]
    for place in LABELS.get(plan.schema, ()):
        if place < len(args):
            said[place] = {"object": "label"}
    return said


def _put(sequence: Any, at: int, value: Any, filler: Any) -> None:
    while len(sequence) <= at:
        sequence.append(filler)
    sequence[at] = value
