"""A stream that also keeps values: what the selected ops returned and wrote, and what they read where that was asked.

Owns the moment at which bytes are copied. What an op returned or wrote is copied right after its digest was taken, and
checked against it; what it reads is copied afterwards, since the op has not touched it, but for what it is about to
write, which is copied before. Used only where values were asked for: other recordings run none of this.
"""

from __future__ import annotations

from ctypes import string_at
from typing import Any

import torch
from torch._ops import OpOverload

from rltrace.digest import digest_buffer
from rltrace.record.arguments import op_tensors
from rltrace.record.calls import Call
from rltrace.record.compiler.regions import RegionInputs
from rltrace.record.generators import generator_of
from rltrace.record.layouts import Layout
from rltrace.record.memory.lying import Lying, lying
from rltrace.record.memory.storages import address_of
from rltrace.record.plans import OpPlan
from rltrace.record.process import ProcessState
from rltrace.record.stream import RowTaker, StreamRecorder
from rltrace.record.values.copies import NoBytesError, bytes_of
from rltrace.record.values.keeper import Keeper
from rltrace.record.values.wanted import Wanted
from rltrace.select import Selector
from rltrace.trace.schema import LIMIT, LYING_SHIFT, Origin, RowFlag, ValueKind, pack_link
from rltrace.trace.valuepack import NewValue

CHANGED = "something wrote to the tensor while it was being kept"

OVERWRITTEN = pack_link(Origin.OVERWRITTEN)

_WITHOUT = RowFlag.VIEW | RowFlag.ALLOCATION

Tensor = torch.Tensor


class Hand:
    """What is at hand of the op that is running, if its row may be wanted."""

    __slots__ = ("args", "early", "kwargs", "lying", "outputs", "plan", "state")

    def __init__(self, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
        self.plan = plan
        self.args = args
        self.kwargs = kwargs
        self.state: bytes | None = None
        """Of the generator that the op draws from, before it does."""
        self.early: dict[int, bytes | str] = {}
        """Inputs that the op may change, copied before it ran, by place; or why they have no bytes."""
        self.lying: dict[int, Lying] = {}
        """How its tensors lay in memory before it ran, by place."""
        self.outputs: list[Tensor] = []
        """Each has a digest in the row, in this order."""


class KeepingStream(StreamRecorder):
    """The rows of one thread, and values of those that a selector finds."""

    def __init__(
        self,
        process: ProcessState,
        number: int,
        name: str,
        committer: RowTaker,
        *,
        keeper: Keeper,
        selector: Selector,
    ) -> None:
        super().__init__(process, number, name, committer)
        self._keeper = keeper
        self._wanted = Wanted(selector, self)
        self._hand: Hand | None = None
        self._finish_row = self._add_fixed
        self._add_fixed = self._keep_and_finish  # type: ignore[assignment]

    def observe(
        self, by: Any, func: OpOverload, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, /
    ) -> Any:
        """Run one op, write its row, and keep its values if they are wanted."""
        before = self._hand
        try:
            self._hand = self._prepare(func, args, kwargs)
            return super().observe(by, func, types, args, kwargs)
        finally:
            self._hand = before  # no tensor is held on to

    def _prepare(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Hand | None:
        try:
            plan = self.process.calls.plan(func)
            if not self._wanted.may_find(plan.id, plan.name):
                return None
            if self._keeper.asked.inputs and args and type(args[0]) is RegionInputs:
                args = (args[0].to_keep(),)
            hand = Hand(plan, args, kwargs)
            if plan.draws:
                hand.state = state_bytes(args, kwargs or {})
            if self._keeper.asked.inputs and not plan.is_view:
                hand.lying = lying(op_tensors(args, kwargs))
                if plan.writes_any:
                    self._copy_early(hand)
        except Exception as error:
            self.process.fail(error)
            return None
        return hand

    def _copy_early(self, hand: Hand) -> None:
        """Copy what lies in a storage that the op writes to."""
        for place, tensor in self.in_written_memory(hand).items():
            hand.early[place] = _bytes_or_why(tensor, self.process.layouts.of(tensor))

    @staticmethod
    def in_written_memory(hand: Hand) -> dict[int, Tensor]:
        """Tensor arguments that lie in a storage that the op writes to, by place."""
        plan = hand.plan
        named = plan.named(hand.args, hand.kwargs)
        written = {address_of(tensor) for name in plan.writes for tensor in op_tensors((named.get(name),), None)}
        tensors = op_tensors(hand.args, hand.kwargs)
        if hand.args and type(hand.args[0]) is RegionInputs:
            written = {address_of(tensors[place]) for place in hand.args[0].written}
        return {place: tensor for place, tensor in enumerate(tensors) if address_of(tensor) in written}

    # --- what the recorder underneath finds out, as it does ---------------------------------------------------------

    def _reads_at_once(self) -> bool:
        return self._hand is not None or super()._reads_at_once()

    def _fresh(self, out: Tensor, plan: OpPlan, tensors: list[Tensor], slot: int) -> None:
        digested = self._digested
        super()._fresh(out, plan, tensors, slot)
        if self._hand is not None and self._digested > digested:
            self._hand.outputs.append(out)

    def _written(
        self, call: Call, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> tuple[int, int]:
        digested = self._digested
        found = super()._written(call, tensors, args, kwargs)
        if self._hand is not None and self._digested - digested == len(call.written):
            self._hand.outputs += [tensors[place] for place in call.written]
        return found

    def _interrupted(self, call: Call | None, tensors: list[Tensor]) -> None:
        self._keeper.forget(self.number, self.row)
        super()._interrupted(call, tensors)

    def _keep_and_finish(self, fixed: tuple[int, int, int, int, int, int, int]) -> None:
        """Stands in for the last statement of a row: what belongs to it is handed over before the row is there."""
        hand = self._hand
        if hand is not None:
            op, structure, site, module, _, flags, _ = fixed
            found = self._wanted.finds(op, hand.plan.name, structure, site, module, flags)
            if found and not flags & _WITHOUT:
                self._keep(hand)
        self._finish_row(fixed)

    # --- keeping ------------------------------------------------------------------------------------------------------

    def _keep(self, hand: Hand) -> None:
        count = len(hand.outputs)
        digests = self.digests[len(self.digests) - count :].tolist()
        if hand.plan.draws:
            self._keep_state(hand.state, self.digests[-count - 1])
        for place, (tensor, digest) in enumerate(zip(hand.outputs, digests, strict=True)):
            if digest and not self._keeper.knows(digest):  # 0: a library's workspace
                self._keep_output(tensor, digest, place)
        if self._keeper.asked.inputs:
            self._keep_lying(hand)
            tensors = op_tensors(hand.args, hand.kwargs)
            for place, tensor in enumerate(tensors):
                if self.links[place - len(tensors)] != OVERWRITTEN:
                    self._keep_input(tensor, place, hand)

    def _keep_state(self, state: bytes | None, digest: int) -> None:
        """Keep a generator's state; one that nobody can ask for (a device's) has the digest 0."""
        if state is None or digest_buffer(state, 0) != digest or self._keeper.knows(digest):
            return
        self._hand_over(ValueKind.GENERATOR, digest, 0, 0, state)

    def _keep_lying(self, hand: Hand) -> None:
        for place, lies in hand.lying.items():
            if not lies.is_plain(place) and self._keeper.has_room(0):  # where there is none, the inputs will say so
                told = lies.alignment << LYING_SHIFT | lies.bits
                held = (self.number, self.row, place, told, b"", lies.offset)
                self._keeper.keep(NewValue(ValueKind.LYING, lies.with_, *held))

    def _keep_output(self, tensor: Tensor, digest: int, place: int) -> None:
        layout = self.process.layouts.of(tensor)
        if not self._has_room(layout.nbytes):
            return
        data = _bytes_or_why(tensor, layout)
        if isinstance(data, str):
            self._leave(data, layout.nbytes)
        elif digest_buffer(data, layout.seed) != digest:
            self._leave(CHANGED, layout.nbytes)
        else:
            self._hand_over(ValueKind.OUTPUT, digest, place, layout.id, data)

    def _keep_input(self, tensor: Tensor, place: int, hand: Hand) -> None:
        layout = self.process.layouts.of(tensor)
        if not self._has_room(layout.nbytes):
            return
        data = hand.early.get(place) or _bytes_or_why(tensor, layout)
        if isinstance(data, str):
            self._leave(data, layout.nbytes)
            return
        digest = digest_buffer(data, layout.seed)
        if self._keeper.knows(digest):
            self._hand_over(ValueKind.SAME_INPUT, digest, place, 0, b"")
        else:
            self._hand_over(ValueKind.INPUT, digest, place, layout.id, data)

    def _has_room(self, size: int) -> bool:
        if self._keeper.has_room(size):
            return True
        self._leave(LIMIT, size)
        return False

    def _leave(self, why: str, size: int) -> None:
        self._keeper.leave(why, self.number, self.row, size)

    def _hand_over(self, kind: ValueKind, digest: int, place: int, layout: int, data: bytes) -> None:
        self._keeper.keep(NewValue(kind, digest, self.number, self.row, place, layout, data))


def _bytes_or_why(tensor: Tensor, layout: Layout) -> bytes | str:
    try:
        return bytes_of(tensor, layout)
    except NoBytesError as error:
        return str(error)


def state_bytes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes | None:
    """The state of the generator that an op is about to draw from."""
    generator = generator_of(args, kwargs)
    if generator is None:
        return None
    state = generator.get_state()
    return string_at(state.data_ptr(), state.numel())
