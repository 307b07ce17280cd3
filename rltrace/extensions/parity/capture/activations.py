"""Activation capture: digests of the activation rows of selected ops and module calls.

Owns which tensors of an op are digested, and when: outputs and inputs right after the op's own digests, since the op
has not changed its inputs; inputs that it writes, before it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from rltrace.extensions.parity.capture.activation_tensors import (
    MAX_KNOWN,
    MAX_TENSORS,
    ActivationQueue,
    ForwardNames,
    RowDigests,
    WalkBudget,
    named_tensors,
)
from rltrace.extensions.parity.capture.call_facts import Called, Point, Points, sources
from rltrace.extensions.parity.module_names import HEADS, LOG_PROBABILITIES
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.capture.captures import Captures
from rltrace.recorder.capture.selection import StreamSelector
from rltrace.recorder.core.calls import Call
from rltrace.recorder.core.hooks import FixedCells, OpHook
from rltrace.recorder.core.modules import members
from rltrace.recorder.core.op_info import OpPlan
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.regions import RegionInputs
from rltrace.recorder.core.row_buffer import OVERWRITTEN, phase_bits
from rltrace.recorder.core.storages import address_of
from rltrace.recorder.digests.cuda_graphs import overrides_disabled
from rltrace.selectors import Key, Selector, parse_selectors
from rltrace.trace.format.activation_rows import POINT, SHARD, Part
from rltrace.trace.format.records import ActivationRequest
from rltrace.trace.format.schema import CallFlag, Phase, RowFlag

# --- calls ------------------------------------------------------------------------------------------------------------
#
# Calls of modules in one thread. Owns which calls a selector finds, their numbers and parents. The arguments of a call
# are digested before it begins, since it may overwrite them.


TOO_MANY = f"a call has more than {MAX_TENSORS:,} tensors, or too many things to look through"


NO_GRAD, GRAD = int(CallFlag.CALL), int(CallFlag.CALL | CallFlag.GRAD)

_BACKWARD = phase_bits(Phase.BACKWARD)

_WHOLE = ("",)
"""The name of what a call returns."""


class CallForm(NamedTuple):
    """What the calls of a module in one phase, within others or not, have in common."""

    module: int
    """Id in table "modules"."""
    phase: Phase
    class_: int
    """Id in table "names"."""
    is_recorded: bool
    valued: tuple[bool | Mapping[str, bool], bool | Mapping[str, bool]]
    """Whether values are recorded of inputs, and of outputs; where that is no bool, by the name of the tensor."""


@dataclass(slots=True)
class OpenCall:
    """A call that has begun."""

    number: int
    parent: OpenCall | None
    depth: int
    first_row: int
    form: CallForm
    owner: torch.nn.Module
    step: int = 0
    flags: int = NO_GRAD
    args: tuple[Any, ...] = ()
    tensors: bytearray = field(default_factory=bytearray)


class ValuedPlaces(dict[str, bool]):
    """By the name of a tensor of a module's calls, whether its value is recorded, since it may be logits or
    log-probabilities, or is a rank's part."""

    def __init__(self, part: Part, *, returns_logits: bool = False) -> None:
        super().__init__()
        self._part = part
        self._returns_logits = returns_logits

    def __missing__(self, place: str) -> bool:
        if len(self) >= MAX_KNOWN:
            self.clear()
        found = self[place] = self._is_valued(place)
        return found

    def _is_valued(self, place: str) -> bool:
        name = place.rpartition("/")[2]
        if place.startswith(POINT) and name.rpartition(SHARD)[1]:
            return True
        if self._part is Part.INPUT:
            return False
        if name.rpartition(".")[2] in ("logits", *LOG_PROBABILITIES):
            return True
        return name in ("", "0") and self._returns_logits


class CallRows:
    """Records the module calls of one stream; its methods never raise."""

    def __init__(
        self,
        stream: OpRecorder,
        queue: ActivationQueue,
        digests: RowDigests,
        wanted: StreamSelector,
        with_values: StreamSelector,
        names: ForwardNames,
        *,
        with_logits: bool,
    ) -> None:
        """``with_logits``: values of logits, of log-probabilities and of parts that ranks have are recorded, too."""
        self._stream = stream
        self._queue = queue
        self._digests = digests
        self._with_logits = with_logits
        self._wanted = wanted
        self._with_values = with_values
        self._names = names
        self._open: list[OpenCall] = []
        self._begun = 0
        self._forms: dict[tuple[int, int, bool, type], CallForm] = {}
        """By module, phase as in the flags of a row, whether the call is within no other, and class; of the step at
        hand, if it matters."""
        self._by_step = wanted.has_steps or with_values.has_steps
        self._step = -1

    def begins(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int
    ) -> OpenCall | None:
        """``module`` is about to be called, within ``depth`` other calls."""
        if self._queue.stopped:
            return None
        try:
            return self._begin(module, args, kwargs, depth)
        except Exception as error:
            self._leave_out(error)
            return None

    def ended(self, call: OpenCall | None, result: object) -> None:
        """The call has returned ``result``."""
        if call is None or self._queue.stopped:
            return
        try:
            self._close(call)
            if call.form.is_recorded:
                row = self._stream.row
                self._take(call, Part.OUTPUT, _WHOLE, (result,), row)
                for find in self._sources_of(call):
                    self._take_points(call, self._points(find, call, call.args, result), row)
                self._finish(call, row)
        except Exception as error:
            self._leave_out(error)

    def raised(self, call: OpenCall | None) -> None:
        """The call has raised."""
        if call is None or self._queue.stopped:
            return
        try:
            self._close(call)
            if call.form.is_recorded:
                call.flags |= int(CallFlag.RAISED)
                self._finish(call, self._stream.row)
        except Exception as error:
            self._leave_out(error)

    def _begin(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int) -> OpenCall:
        stream, open_calls = self._stream, self._open
        while open_calls and open_calls[-1].depth >= depth:  # interrupted before it could end
            open_calls.pop()
        outer = open_calls[-1] if open_calls else None
        phase = stream.phase if torch._C._current_autograd_node() is None else _BACKWARD
        if self._by_step and stream.process.step != self._step:
            self._step = stream.process.step
            self._forms.clear()
        key = stream.modules.current, phase, outer is None, type(module)
        form, row = self._forms.get(key) or self._make_form(key, module), stream.row
        call = OpenCall(self._begun, outer, depth, row, form, module)
        self._begun += 1
        open_calls.append(call)
        if form.is_recorded:
            call.step, call.args = stream.process.step, args
            if torch.is_grad_enabled():
                call.flags = GRAD
            self._take(call, Part.INPUT, *self._names.arguments(module, args, kwargs), row)
            if outer is None:
                self._take_facts(call, row)
        return call

    def _make_form(self, key: tuple[int, int, bool, type], module: torch.nn.Module) -> CallForm:
        current, bits, is_outermost, kind = key
        phase = Phase.BACKWARD if bits == _BACKWARD else self._stream.current_phase
        if len(self._forms) >= MAX_KNOWN:
            self._forms.clear()
        recorded = self._wanted.may_find_in(current, phase)
        with_value = recorded and self._with_values.may_find_in(current, phase)
        valued: tuple[bool | Mapping[str, bool], bool | Mapping[str, bool]] = with_value, with_value
        if recorded and self._with_logits and not with_value:
            returns_logits = self._returns_logits(current, module, is_outermost)
            valued = ValuedPlaces(Part.INPUT), ValuedPlaces(Part.OUTPUT, returns_logits=returns_logits)
        form = CallForm(current, phase, self._digests.name(kind.__name__) if recorded else 0, recorded, valued)
        self._forms[key] = form
        return form

    def _take_facts(self, call: OpenCall, row: int) -> None:
        try:
            facts = sources.of_batch()
            self._take(call, Part.INPUT, tuple(facts), tuple(facts.values()), row)
        except Exception as error:  # of a library in a state that its adapter does not know
            self._leave_out_facts(error)

    def take_points(self, find: Points, args: tuple[Any, ...], result: Any) -> None:
        """As of ``call_facts.PointTaker``."""
        call = self._open[-1] if self._open and not self._queue.stopped else None
        if call is not None and call.form.is_recorded:
            self._take_points(call, self._points(find, call, args, result), self._stream.row)

    def _take_points(self, call: OpenCall, points: Iterable[Point], row: int) -> None:
        for part, name, tensor in points:
            self._take(call, part, (POINT + name,), (tensor,), row)

    def _points(self, find: Points, call: OpenCall, args: tuple[Any, ...], result: object) -> list[Point]:
        try:
            with overrides_disabled():
                return list(find(Called(call.owner, args, result, self._stream.modules.root_of)))
        except Exception as error:
            self._leave_out_facts(error)
            return []

    def _sources_of(self, call: OpenCall) -> Sequence[Points]:
        try:
            return sources.of_module(call.owner)
        except Exception as error:
            self._leave_out_facts(error)
            return ()

    def _leave_out_facts(self, error: Exception) -> None:
        why = f"facts of a library: {error or type(error).__name__}"
        self._queue.leave_out(why, self._stream.number, self._stream.row, 0)

    def _take(self, call: OpenCall, part: Part, names: Sequence[str], values: Sequence[object], row: int) -> None:
        """Add the tensors among ``values``, each with its name."""
        valued = call.form.valued[part is Part.OUTPUT]
        reader: Any = self._digests.reader
        is_native = reader is not None and not self._queue.is_full
        if is_native and reader.take_all(call.tensors, part, names, values, row, valued):
            return
        budget, count = WalkBudget(), 0
        for name, value in zip(names, values, strict=False):
            for place, tensor in named_tensors(value, name, budget):
                count += 1
                if count > MAX_TENSORS:
                    break
                with_value = valued if isinstance(valued, bool) else valued[place]
                new = self._digests.take(part, place, tensor, row, with_value=with_value)
                call.tensors += new or b""
        if count > MAX_TENSORS or budget.spent:
            self._queue.leave_out(TOO_MANY, self._stream.number, row, 0)

    def _returns_logits(self, number: int, module: torch.nn.Module, is_outermost: bool) -> bool:
        """Whether a module is a head, or a whole model without one."""
        name = self._stream.process.tables.words.module(number).rpartition(".")[2]
        has_head = any(inner in HEADS for inner, _ in members(module, "_modules"))
        return name in HEADS or (is_outermost and not has_head)

    def _leave_out(self, error: Exception) -> None:
        """A call could not be read: its rows are missing, the recording goes on."""
        self._queue.leave_out(f"a call of a module: {type(error).__name__}", self._stream.number, self._stream.row, 0)

    def _close(self, call: OpenCall) -> None:
        while self._open and self._open.pop() is not call:
            pass

    def _finish(self, call: OpenCall, end: int) -> None:
        module, phase, class_, _, _ = call.form
        number, parent = self._stream.number, 0 if call.parent is None else call.parent.number + 1
        row = (call.flags, number, call.number, parent, module, class_, call.step, phase, call.first_row, end)
        self._queue.add_call(number, row, call.tensors)


# --- stream -----------------------------------------------------------------------------------------------------------


Tensor = torch.Tensor

OP_BUDGET = 1 << 30
"""All arguments of an op are walked, however many."""

_WITHOUT = RowFlag.VIEW | RowFlag.ALLOCATION


class _Op:
    """A running op that may be selected."""

    __slots__ = ("early", "inputs", "may_rows", "may_values", "plan")

    def __init__(self, plan: OpPlan, inputs: list[tuple[str, Tensor]], may_rows: bool, may_values: bool) -> None:
        self.plan = plan
        self.inputs = inputs
        self.may_rows = may_rows
        self.may_values = may_values
        self.early: dict[str, bytes | None] = {}
        """By name, inputs that the op may change, digested before it ran."""


def _inputs_of(plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Tensor]]:
    """(argument name, tensor) of an op's inputs, in the order of its row."""
    if args and type(args[0]) is RegionInputs:
        return list(named_tensors(list(args[0].retained()), budget=WalkBudget(OP_BUDGET)))
    found: list[tuple[str, Tensor]] = []
    for name, value in plan.named(args, kwargs).items():
        if type(value) is Tensor or type(value) is torch.nn.Parameter:
            found.append((name, value))
        elif value is not None and type(value) not in (int, float, bool):
            found += named_tensors(value, name, WalkBudget(OP_BUDGET))
    return found


class ActivationCapture(OpHook[_Op]):
    """Digests the activation rows of the ops of one stream that a selector finds."""

    def __init__(
        self, stream: OpRecorder, queue: ActivationQueue, digests: RowDigests, selector: Selector, with_values: Selector
    ) -> None:
        """The values of the activations of ops that ``with_values`` finds are recorded, too."""
        self._stream = stream
        self._queue = queue
        self._digests = digests
        self._wanted_rows = StreamSelector(selector.op_clauses, stream)
        self._wanted_values = StreamSelector(with_values, stream)
        self.wants_by_step = self._wanted_rows.has_steps or self._wanted_values.has_steps
        self._counts_occurrences = Key.NTH in selector.keys | with_values.keys
        """Whether a selector has an occurrence: then ops that cannot be found are counted, too."""

    def wants(self, plan: OpPlan, module: int, phase: Phase) -> bool:
        """Values are of ops whose rows are recorded, too."""
        found = self._wanted_rows.may_find_here(plan.id, plan.name, module, phase)
        counted = self._counts_occurrences and self._wanted_values.may_find(plan.id, plan.name)
        return not plan.is_view and (found or counted)

    def begin(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Op | None:
        if self._queue.stopped:
            return None
        plan = self._stream.process.calls.plan(func)
        if plan.is_view:
            return None
        rows = self._wanted_rows.may_find(plan.id, plan.name)
        values = self._wanted_values.may_find(plan.id, plan.name)
        if not rows and not (values and self._counts_occurrences):
            return None
        is_here = rows and self._wanted_rows.may_find_in(*self._module_and_phase())
        if not is_here and not self._counts_occurrences:
            return None
        op = _Op(plan, _inputs_of(plan, args, kwargs), rows, values)
        if is_here and plan.writes_any:
            written, row = self._written_memory(plan, op.inputs, args, kwargs), self._stream.row
            for name, tensor in op.inputs:
                if address_of(tensor) in written:
                    op.early[name] = self._digests.take(Part.INPUT, name, tensor, row, within_op=True)
        return op

    def _module_and_phase(self) -> tuple[int, Phase]:
        """Of the op that is about to run."""
        node = torch._C._current_autograd_node()
        modules = self._stream.modules
        if node is None:
            return modules.current, self._stream.current_phase
        return modules.current or modules.of_node(node._sequence_nr()), Phase.BACKWARD

    @staticmethod
    def _written_memory(
        plan: OpPlan, inputs: list[tuple[str, Tensor]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> set[int]:
        """Addresses of the storages that the op writes to."""
        if args and type(args[0]) is RegionInputs:
            return {address_of(inputs[place][1]) for place in args[0].written}
        named = plan.named(args, kwargs)
        arguments = (named_tensors(named.get(name), budget=WalkBudget(OP_BUDGET)) for name in plan.writes)
        return {address_of(tensor) for tensors in arguments for _, tensor in tensors}

    def finish(self, cells: FixedCells, call: Call, tensors: list[Tensor], out: Any) -> None:
        op = self.op
        if op is None or cells[5] & _WITHOUT:
            return
        ids = (cells[0], op.plan.name, cells[1], cells[2], cells[3], cells[5])
        found = op.may_rows and self._wanted_rows.finds(*ids)
        with_values = op.may_values and self._wanted_values.finds(*ids)
        if found:
            self._record(op, *call.results(tensors, out), out, with_value=with_values)

    def drop(self) -> None:
        self._queue.forget(self._stream.number, self._stream.row)

    def _record(self, op: _Op, written: list[Tensor], returned: list[Tensor], out: Any, *, with_value: bool) -> None:
        recorded: list[bytes | None] = []
        stream, take, row = self._stream, self._digests.take, self._stream.row
        for place, (name, tensor) in enumerate(op.inputs, -len(op.inputs)):
            if stream.links[place] == OVERWRITTEN:
                continue  # its bytes do not matter, and may be anything
            if name in op.early:
                recorded.append(op.early[name])
            else:
                recorded.append(take(Part.INPUT, name, tensor, row, within_op=True, with_value=with_value))
        outputs = [*written, *returned]
        names = {id(tensor): name for name, tensor in op.inputs} if written else {}
        names |= {id(tensor): name for name, tensor in returned_names(op.plan.func, out)} if returned else {}
        digests = [stream.digests[place] for place in range(len(stream.digests) - len(outputs), len(stream.digests))]
        for tensor, digest in zip(outputs, digests, strict=True):
            if digest:  # 0: a library's workspace
                name = names.get(id(tensor), "")
                recorded.append(
                    take(Part.OUTPUT, name, tensor, row, digest=digest, within_op=True, with_value=with_value)
                )
        found = b"".join(filter(None, recorded))
        if found:
            self._queue.add_op(stream.number, row, found)


def returned_names(func: OpOverload, out: Any) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of several tensors that an op returned: the name in its schema, else the index."""
    if not isinstance(out, (tuple, list)):
        return
    returns = getattr(getattr(func, "_schema", None), "returns", ())
    names = [returned.name or str(i) for i, returned in enumerate(returns)] if len(returns) > 1 else []
    for i, item in enumerate(out):
        yield from named_tensors(item, names[i] if i < len(names) else str(i))


# --- captures ---------------------------------------------------------------------------------------------------------


def add_rows(captures: Captures, options: RecordOptions, process: ProcessState) -> Captures:
    """The captures of a process, with those of the activation rows that the options request."""
    assert captures.values is not None  # some rows are known by values
    values = captures.values
    queue = ActivationQueue(ActivationRequest(options.rows, options.row_axes, options.rows_limit))
    rows, names = parse_selectors(options.rows), ForwardNames()
    with_values = parse_selectors(options.values) if options.values else Selector(())

    def of_stream(stream: OpRecorder) -> ActivationCapture:
        digests = RowDigests(stream.process, stream.number, queue, values)
        calls, valued = (StreamSelector(one.call_clauses, stream) for one in (rows, with_values))
        hook = CallRows(stream, queue, digests, calls, valued, names, with_logits=options.parity)
        stream.modules.call_hooks.append(hook)
        return ActivationCapture(stream, queue, digests, rows, with_values)

    return captures._replace(hooks=[of_stream, *captures.hooks], activations=queue)
