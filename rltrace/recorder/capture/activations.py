"""A stream that also keeps rows of tensors: those of the ops that were selected, and of the calls of modules.

Owns what of an op is looked at, and when. What it returned or wrote is, right after its digest was taken; what it reads
is then, too, since the op has not touched it, but for what it is about to write, which is before it runs. Put in front
of whichever kind of stream a recording has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._ops import OpOverload

from rltrace.recorder.capture.activation_tensors import (
    MAX_TENSORS,
    ActivationQueue,
    ForwardNames,
    RowDigests,
    WalkBudget,
    named_tensors,
)
from rltrace.recorder.capture.selection import Wanted
from rltrace.recorder.capture.values import ValueQueue, ValueRecorder
from rltrace.recorder.core.calls import Call
from rltrace.recorder.core.events import RowTaker
from rltrace.recorder.core.op_info import OpPlan
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.regions import RegionInputs
from rltrace.recorder.core.row_buffer import OVERWRITTEN
from rltrace.recorder.core.storages import address_of
from rltrace.selectors import Key, Selector
from rltrace.trace.format.activation_rows import Part
from rltrace.trace.format.schema import CallFlag, Phase, RowFlag
from rltrace.trace.write.packers import DigestBlock, NewCall, NewOp, NewTensor

# --- calls ------------------------------------------------------------------------------------------------------------
#
# Calls of modules whose rows are kept, followed from their beginning to their end in one thread.
#
# Owns which calls a selector finds, their numbers and what encloses them. What a call was given is looked at before it
# begins, since it may overwrite it.


TOO_MANY = f"a call has more than {MAX_TENSORS:,} tensors, or too many things to look through"


@dataclass(slots=True)
class OpenCall:
    """A call that has begun."""

    number: int
    parent: int | None
    depth: int
    first_row: int
    module: int
    phase: Phase
    kept: bool
    class_: int = 0
    step: int = 0
    grad: bool = False
    tensors: list[NewTensor] = field(default_factory=list)


class CallRows:
    """The calls of modules of one stream; its methods never raise an error of their own."""

    def __init__(
        self,
        stream: OpRecorder,
        keeper: ActivationQueue,
        digests: RowDigests,
        wanted: Wanted,
        with_values: Wanted,
        names: ForwardNames,
    ) -> None:
        self._stream = stream
        self._keeper = keeper
        self._digests = digests
        self._wanted = wanted
        self._with_values = with_values
        self._names = names
        self._open: list[OpenCall] = []
        self._begun = 0

    def begins(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int
    ) -> OpenCall | None:
        """``module`` is about to be called, within ``depth`` other calls."""
        if self._keeper.stopped:
            return None
        try:
            return self._begin(module, args, kwargs, depth)
        except Exception as error:
            self._lose(error)
            return None

    def ended(self, call: OpenCall | None, result: object) -> None:
        """The call has returned ``result``."""
        if call is None or self._keeper.stopped:
            return
        try:
            self._close(call)
            if call.kept:
                self._take(call, Part.OUTPUT, [("", result)])
                self._finish(call, 0)
        except Exception as error:
            self._lose(error)

    def raised(self, call: OpenCall | None) -> None:
        """The call has raised."""
        if call is None or self._keeper.stopped:
            return
        try:
            self._close(call)
            if call.kept:
                self._finish(call, CallFlag.RAISED)
        except Exception as error:
            self._lose(error)

    def _begin(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int) -> OpenCall:
        stream, open_calls = self._stream, self._open
        while open_calls and open_calls[-1].depth >= depth:  # an interrupt came before it could end
            open_calls.pop()
        parent = open_calls[-1].number if open_calls else None
        current = stream.modules.current
        phase = stream.current_phase if torch._C._current_autograd_node() is None else Phase.BACKWARD
        kept = self._wanted.may_find_in(current, phase)
        call = OpenCall(self._begun, parent, depth, stream.row, current, phase, kept)
        self._begun += 1
        open_calls.append(call)
        if kept:
            call.class_ = self._digests.name(type(module).__name__)
            call.step = stream.process.step
            call.grad = torch.is_grad_enabled()
            self._take(call, Part.INPUT, self._names.arguments(module, args, kwargs))
        return call

    def _take(self, call: OpenCall, part: Part, values: Iterable[tuple[str, object]]) -> None:
        row = self._stream.row
        keep_value = self._with_values.may_find_in(call.module, call.phase)
        budget, found = WalkBudget(), 0
        for name, value in values:
            for place, tensor in named_tensors(value, name, budget):
                found += 1
                if found > MAX_TENSORS:
                    break
                taken = self._digests.take(part, place, tensor, row, keep_value=keep_value, told_by=True)
                if taken is not None:
                    call.tensors.append(taken)
        if found > MAX_TENSORS or budget.spent:
            self._keeper.leave(TOO_MANY, self._stream.number, row, 0)

    def _lose(self, error: Exception) -> None:
        """Something about a call could not be found out: its rows are missing, the recording goes on."""
        self._keeper.leave(f"a call of a module: {type(error).__name__}", self._stream.number, self._stream.row, 0)

    def _close(self, call: OpenCall) -> None:
        while self._open and self._open.pop() is not call:
            pass

    def _finish(self, call: OpenCall, flags: int) -> None:
        stream = self._stream
        flags |= CallFlag.CALL | (CallFlag.GRAD if call.grad else 0)
        made = NewCall(
            stream.number,
            call.number,
            call.parent,
            call.module,
            call.class_,
            call.step,
            int(call.phase),
            int(flags),
            call.first_row,
            stream.row,
            call.tensors,
        )
        self._keeper.keep(made, new_digests(call.tensors))


def new_digests(tensors: Iterable[NewTensor]) -> int:
    """Digests that are in no commit yet, counted once for each tensor."""
    blocks: dict[int, DigestBlock] = {id(tensor.block): tensor.block for tensor in tensors}
    return sum(block.count for block in blocks.values() if block.digests is not None)


# --- stream -----------------------------------------------------------------------------------------------------------


Tensor = torch.Tensor

MOST_OF_OP = 1 << 30
"""An op is given what it works on, however much."""

_WITHOUT = RowFlag.VIEW | RowFlag.ALLOCATION


@dataclass(frozen=True)
class ActivationPlan:
    """What a recording's streams keep of rows, and where to."""

    keeper: ActivationQueue
    selector: Selector
    values: ValueQueue
    """Takes the values of tensors whose rows are kept, where they are wanted;"""
    with_values: Selector
    """and of which calls and ops they are."""
    names: ForwardNames


class _Op:
    """The op that is running, if its row may be wanted."""

    __slots__ = ("early", "inputs", "may_rows", "may_values", "outputs", "plan", "several", "written")

    def __init__(self, plan: OpPlan, inputs: list[tuple[str, Tensor]], may_rows: bool, may_values: bool) -> None:
        self.plan = plan
        self.inputs = inputs
        self.may_rows = may_rows
        self.may_values = may_values
        self.early: dict[str, NewTensor | None] = {}
        """Inputs that the op may change, taken before it ran, by name."""
        self.written: list[Tensor] = []
        self.outputs: list[Tensor] = []
        """Those that are new. Each written one, then each of these, has a digest in the row, in this order."""
        self.several: object = None
        """What it returned, where that is no single tensor."""


def _inputs_of(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """The tensors that an op is given, in the order of its row, each by the operator's name for it."""
    if args and type(args[0]) is RegionInputs:
        return list(named_tensors(list(args[0].to_keep()), budget=WalkBudget(MOST_OF_OP)))
    found: list[tuple[str, Tensor]] = []
    for name, value in plan.named(args, kwargs).items():
        if type(value) is Tensor or type(value) is torch.nn.Parameter:
            found.append((name, value))
        elif value is not None and type(value) not in (int, float, bool):
            found += named_tensors(value, name, WalkBudget(MOST_OF_OP))
    return found


class ActivationRecorder(OpRecorder):
    """Mixed in before the class of a stream."""

    def __init__(
        self,
        process: ProcessState,
        number: int,
        name: str,
        committer: RowTaker,
        *,
        row_plan: ActivationPlan,
        **others: Any,
    ) -> None:
        super().__init__(process, number, name, committer, **others)
        self._row_keeper = row_plan.keeper
        self._row_digests = RowDigests(process, number, row_plan.keeper, row_plan.values)
        self._wanted_rows = Wanted(row_plan.selector.of_ops, self)
        self._wanted_values = Wanted(row_plan.with_values, self)
        self._counts = Key.NTH in row_plan.selector.keys | row_plan.with_values.keys
        """Whether it matters how manieth an op is: then those are to be counted, too, that cannot be found."""
        self._op: _Op | None = None
        self.modules.calls = CallRows(
            self,
            row_plan.keeper,
            self._row_digests,
            Wanted(row_plan.selector.of_calls, self),
            Wanted(row_plan.with_values.of_calls, self),
            row_plan.names,
        )
        self._finish_below = self._add_fixed
        self._add_fixed = self._keep_rows_and_finish  # type: ignore[assignment]

    def observe(
        self, by: Any, func: OpOverload, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, /
    ) -> Any:
        """Run one op, write its row, and keep its tensors' rows if they are wanted."""
        before = self._op
        try:
            self._op = self._prepare_rows(func, args, kwargs or {})
            return super().observe(by, func, types, args, kwargs)
        finally:
            self._op = before  # no tensor is held on to

    def _prepare_rows(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Op | None:
        if self._row_keeper.stopped:
            return None
        try:
            plan = self.process.calls.plan(func)
            if plan.is_view:
                return None
            rows = self._wanted_rows.may_find(plan.id, plan.name)
            values = self._wanted_values.may_find(plan.id, plan.name)
            if not rows and not (values and self._counts):
                return None
            here = rows and self._wanted_rows.may_find_in(*self._surrounded_by())
            if not here and not self._counts:
                return None
            op = _Op(plan, _inputs_of(plan, args, kwargs), rows, values)
            if here and plan.writes_any:
                written = self._written_memory(plan, op.inputs, args, kwargs)
                for name, tensor in op.inputs:
                    if address_of(tensor) in written:
                        op.early[name] = self._row_digests.take(Part.INPUT, name, tensor, self.row, within_op=True)
        except Exception as error:
            self.process.fail(error)
            return None
        return op

    def _surrounded_by(self) -> tuple[int, Phase]:
        """Module and phase of the op that is about to run."""
        node = torch._C._current_autograd_node()
        if node is None:
            return self.modules.current, self.current_phase
        return self.modules.current or self.modules.of_node(node._sequence_nr()), Phase.BACKWARD

    @staticmethod
    def _written_memory(
        plan: OpPlan, inputs: list[tuple[str, Tensor]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> set[int]:
        """Addresses of the storages that the op writes to."""
        if args and type(args[0]) is RegionInputs:
            return {address_of(inputs[place][1]) for place in args[0].written}
        named = plan.named(args, kwargs)
        given = (named_tensors(named.get(name), budget=WalkBudget(MOST_OF_OP)) for name in plan.writes)
        return {address_of(tensor) for tensors in given for _, tensor in tensors}

    # --- what the recorder underneath finds out, as it does ---------------------------------------------------------

    def _reads_at_once(self) -> bool:
        return self._op is not None or super()._reads_at_once()

    def _fresh(self, out: Tensor, plan: OpPlan, tensors: list[Tensor], slot: int) -> None:
        digested = self._digested
        super()._fresh(out, plan, tensors, slot)
        if self._op is not None and self._digested > digested:
            self._op.outputs.append(out)

    def _fresh_several(self, out: Any, plan: OpPlan, tensors: list[Tensor], slot: int) -> None:
        if self._op is not None:
            self._op.several = out
        super()._fresh_several(out, plan, tensors, slot)

    def _written(
        self, call: Call, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> tuple[int, int]:
        digested = self._digested
        found = super()._written(call, tensors, args, kwargs)
        if self._op is not None and self._digested - digested == len(call.written):
            self._op.written = [tensors[place] for place in call.written]
        return found

    def _interrupted(self, call: Call | None, tensors: list[Tensor]) -> None:
        self._row_keeper.forget(self.number, self.row)
        super()._interrupted(call, tensors)

    def _keep_rows_and_finish(self, fixed: tuple[int, int, int, int, int, int, int]) -> None:
        """Stands in for the last statement of a row: what belongs to it is handed over before the row is there."""
        op = self._op
        if op is not None and not fixed[5] & _WITHOUT:
            ids = (fixed[0], op.plan.name, fixed[1], fixed[2], fixed[3], fixed[5])
            found = op.may_rows and self._wanted_rows.finds(*ids)
            with_values = op.may_values and self._wanted_values.finds(*ids)
            if found:
                self._keep_rows(op, keep_value=with_values)
        self._finish_below(fixed)

    def _keep_rows(self, op: _Op, *, keep_value: bool) -> None:
        taken: list[NewTensor | None] = []
        take, row = self._row_digests.take, self.row
        for place, (name, tensor) in enumerate(op.inputs, -len(op.inputs)):
            if self.links[place] == OVERWRITTEN:
                continue  # its bytes do not matter, and may be anything
            if name in op.early:
                taken.append(op.early[name])
            else:
                taken.append(take(Part.INPUT, name, tensor, row, within_op=True, keep_value=keep_value))
        outputs = [*op.written, *op.outputs]
        names = {id(tensor): name for name, tensor in op.inputs} if op.written else {}
        names |= _names_of_returned(op)
        for tensor, digest in zip(outputs, self.digests[len(self.digests) - len(outputs) :].tolist(), strict=True):
            if digest:  # 0: a library's workspace
                name = names.get(id(tensor), "")
                taken.append(take(Part.OUTPUT, name, tensor, row, digest=digest, within_op=True, keep_value=keep_value))
        tensors = [tensor for tensor in taken if tensor is not None]
        if tensors:
            self._row_keeper.keep(NewOp(self.number, row, tensors), new_digests(tensors))


class ValueActivationRecorder(ActivationRecorder, ValueRecorder):
    """Values and rows."""


def _names_of_returned(op: _Op) -> dict[int, str]:
    """Where each tensor of several that an op returned stands, by ``id``: as its schema says, or by its place."""
    if not isinstance(op.several, (tuple, list)):
        return {}
    returns = getattr(getattr(op.plan.func, "_schema", None), "returns", ())
    said = [returned.name or str(i) for i, returned in enumerate(returns)] if len(returns) > 1 else []
    found: dict[int, str] = {}
    for i, item in enumerate(op.several):
        for name, tensor in named_tensors(item, said[i] if i < len(said) else str(i)):
            found[id(tensor)] = name
    return found
