"""Calls of modules whose rows are kept, followed from their beginning to their end in one thread.

Owns which calls a selector finds, their numbers and what encloses them. What a call was given is looked at before it
begins, since it may overwrite it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from rltrace.record.rows.keeper import RowKeeper
from rltrace.record.rows.tensors import RowDigests
from rltrace.record.rows.walk import MOST, Budget, ForwardNames, named_tensors
from rltrace.record.stream import StreamRecorder
from rltrace.select import Condition, Key, Range, Selector
from rltrace.trace.keptpack import Block, NewCall, NewTensor
from rltrace.trace.schema import CallFlag, Phase
from rltrace.trace.tensor_rows import Part

OF_CALLS = frozenset((Key.MODULE, Key.PHASE, Key.STEP, Key.STREAM))
"""What can be asked of a call; a selector that asks for anything else means ops."""

TOO_MANY = f"a call has more than {MOST:,} tensors, or too many things to look through"

Clause = tuple[Condition, ...]


def of_calls(selector: Selector) -> Selector:
    """What of a selector finds calls of modules."""
    return Selector(tuple(c for c in selector.clauses if all(condition.key in OF_CALLS for condition in c)))


def of_ops(selector: Selector) -> Selector:
    """What of a selector finds ops: not what asks for modules and nothing that only an op has, which means calls."""
    return Selector(tuple(c for c in selector.clauses if not _means_calls({condition.key for condition in c})))


def _means_calls(keys: set[Key]) -> bool:
    return Key.MODULE in keys and keys <= OF_CALLS


class Surroundings:
    """What a selector asks of everything but the op itself, made ready for one stream."""

    def __init__(self, selector: Selector, stream: StreamRecorder) -> None:
        self._stream = stream
        self._clauses = [
            clause
            for clause in selector.clauses
            if all(condition.matches_name(stream.name) for condition in clause if condition.key is Key.STREAM)
        ]
        self._asks_step = any(condition.key is Key.STEP for clause in self._clauses for condition in clause)
        self._by_names: dict[tuple[int, Phase], list[Clause]] = {}

    def find(self, module: int, phase: Phase) -> bool:
        """Whether what happens now, in a module and a phase, can be found."""
        if not self._clauses:
            return False
        clauses = self._by_names.get((module, phase))
        if clauses is None:
            path: Any = self._stream.process.tables.remembered["modules"][module]
            names = {Key.MODULE: path, Key.PHASE: phase.name.lower()}
            clauses = self._by_names[module, phase] = [
                clause
                for clause in self._clauses
                if all(condition.matches_name(names[condition.key]) for condition in clause if condition.key in names)
            ]
        if not clauses or not self._asks_step:
            return bool(clauses)
        step = self._stream.process.step
        return any(all(_holds(condition, step) for condition in clause) for clause in clauses)


def _holds(condition: Condition, step: int) -> bool:
    return condition.key is not Key.STEP or (isinstance(condition.value, Range) and condition.value.matches(step))


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
        stream: StreamRecorder,
        keeper: RowKeeper,
        digests: RowDigests,
        wanted: Surroundings,
        with_values: Surroundings,
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
        kept = self._wanted.find(current, phase)
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
        keep_value = self._with_values.find(call.module, call.phase)
        budget, found = Budget(), 0
        for name, value in values:
            for place, tensor in named_tensors(value, name, budget):
                found += 1
                if found > MOST:
                    break
                taken = self._digests.take(part, place, tensor, row, keep_value=keep_value, told_by=True)
                if taken is not None:
                    call.tensors.append(taken)
        if found > MOST or budget.spent:
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
    blocks: dict[int, Block] = {id(tensor.block): tensor.block for tensor in tensors}
    return sum(block.count for block in blocks.values() if block.digests is not None)
