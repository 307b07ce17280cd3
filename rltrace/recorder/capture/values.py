"""A stream that also keeps values: what the selected ops returned and wrote, and what they read where that was asked.

Owns the moment at which bytes are copied. What an op returned or wrote is copied right after its digest was taken, and
checked against it; what it reads is copied afterwards, since the op has not touched it, but for what it is about to
write, which is copied before. Used only where values were asked for: other recordings run none of this.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import c_char, string_at
from typing import Any, Final

import torch
from torch._ops import OpOverload

from rltrace.digest import digest_buffer
from rltrace.recorder.base.torch_function import unasked
from rltrace.recorder.capture.selection import Wanted
from rltrace.recorder.core.calls import Call, op_tensors
from rltrace.recorder.core.events import RowTaker
from rltrace.recorder.core.op_info import OpPlan
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.placement import TensorPlacement, placements
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.regions import RegionInputs
from rltrace.recorder.core.storages import address_of
from rltrace.recorder.digests.accelerator import waiting_allowed
from rltrace.recorder.digests.cuda_graphs import is_captured
from rltrace.recorder.digests.layouts import Layout, dtype_name, is_compound, logical_bytes
from rltrace.recorder.digests.rng_state import generator_of
from rltrace.selectors import Selector
from rltrace.trace.format import dtypes
from rltrace.trace.format.records import LeftOut, ValueRequest, add_up
from rltrace.trace.format.schema import LIMIT, LYING_SHIFT, Origin, RowFlag, ValueKind, pack_link
from rltrace.trace.write.packers import NewValue, NewValues

# --- keeper -----------------------------------------------------------------------------------------------------------
#
# The values of one process that are to be kept, from the op that had them to the commit that writes them.
#
# Owns the limit, what of it is used, and the count of what was left out. Knows nothing of torch: it is handed bytes.


OVERHEAD: Final = 64
"""Bytes that a value counts for besides its own: its row in the index."""

HASTE: Final = 1 << 25
"""Bytes waiting for a commit at which one is asked for,"""

MOST: Final = 1 << 28
"""and at which the program waits until it has been made."""

KNOWN: Final = 1 << 19
"""Digests that are known to have been kept: at least so many, at most twice. A value forgotten is kept once more."""


class ValueQueue:
    """Values on their way; used by all threads of the program and by the committer."""

    def __init__(self, asked: ValueRequest) -> None:
        self.asked = asked
        self.hurry: Callable[[], None] = lambda: None
        """Asks for a commit; set by the committer."""
        self.wait: Callable[[], None] = lambda: None
        """Waits for one."""
        self.waiting = 0
        """Bytes that no commit has taken yet."""
        self._lock = threading.Lock()
        self._streams: dict[int, deque[NewValue]] = {}
        self._left: list[LeftOut] = []
        self._used = 0
        self._full = False
        self._known: set[int] = set()
        self._older: set[int] = set()

    @property
    def behind(self) -> bool:
        """Whether what waits is still too much to go on."""
        return self.waiting > MOST // 2

    def knows(self, digest: int) -> bool:
        """Whether a value with this digest has been kept before. False is possible for one kept long ago."""
        return digest in self._known or digest in self._older

    def has_room(self, size: int) -> bool:
        """Whether a value of so many bytes may be kept; from the first one on that may not, none may."""
        if self._used + size + OVERHEAD > self.asked.limit:
            self._full = True
        return not self._full

    def keep(self, value: NewValue) -> None:
        """Take a value in. Its row must be finished next; ``has_room`` has just said yes."""
        size = len(value.data) + OVERHEAD
        own = self._streams.setdefault(value.stream, deque())
        if self.waiting > MOST and not (own and own[-1].row == value.row):  # no commit takes an unfinished row's
            self.wait()
        with self._lock:
            self._used += size
            self.waiting += size
            own.append(value)
            if value.kind not in (ValueKind.SAME_INPUT, ValueKind.LYING):
                self._known.add(value.digest)
                if len(self._known) >= KNOWN:
                    self._older, self._known = self._known, set()
        if self.waiting > HASTE:
            self.hurry()

    def leave(self, why: str, stream: int, row: int, size: int) -> None:
        """A value was asked for and is not kept."""
        with self._lock:
            self._left = add_up([*self._left, LeftOut(why, stream, row, row, 1, size)])

    def forget(self, stream: int, row: int) -> None:
        """That row will never be: an interrupt came while it was written."""
        with self._lock:
            own = self._streams.get(stream, deque())
            while own and own[-1].row >= row and own[-1].kind is not ValueKind.WITH_ROWS:
                value = own.pop()
                self._known.discard(value.digest)
                self._used -= len(value.data) + OVERHEAD
                self.waiting -= len(value.data) + OVERHEAD

    def take(self, stream: int, end: int) -> NewValues:
        """Values of the stream's rows before ``end``, and what has been left out since the last time."""
        with self._lock:
            own, values = self._streams.get(stream, deque()), []
            while own and own[0].row < end + (own[0].kind is ValueKind.WITH_ROWS):  # that one needs no row of its own
                values.append(own.popleft())
            self.waiting -= sum(len(value.data) + OVERHEAD for value in values)
            left = [entry for entry in self._left if entry.stream == stream]
            self._left = [entry for entry in self._left if entry.stream != stream]
        return NewValues(values, left)


# --- copies -----------------------------------------------------------------------------------------------------------
#
# The logical bytes of a tensor, copied out: what its digest was made of.
#
# Owns which tensors have plain bytes to keep, and the word for why another has none. Outside of autograd and of any
# mode, like a digest; never changes the tensor or its version.


COMPOUND = "a tensor that consists of several (sparse, nested, quantized, a subclass) has no plain bytes"
NO_MEMORY = "the tensor has no memory (meta, or its storage was given back)"
CAPTURED = "the program was being captured into a graph of a device"
NO_DTYPE = "its dtype has no separate bytes"


KEPT = frozenset(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and dtypes.itemsize(dtype_name(dtype)) is not None
)


class NoBytesError(Exception):
    """A tensor whose value cannot be kept; the text says why."""


def bytes_of(tensor: torch.Tensor, layout: Layout) -> bytes:
    """The logical bytes of ``tensor``, wherever it lives. Raises NoBytesError."""
    address = _address(tensor, layout)
    if address:
        return string_at(address, layout.nbytes)
    with unasked(), torch.no_grad():
        found = _of_unusual(tensor, layout)
        return string_at(found.data_ptr(), layout.nbytes) if isinstance(found, torch.Tensor) else found


@contextmanager
def read_in_place(tensor: torch.Tensor, layout: Layout) -> Iterator[memoryview]:
    """The same without a copy that is not needed: for tensors too large to be held twice. Raises NoBytesError."""
    found: torch.Tensor | bytes = tensor
    address = _address(tensor, layout)
    if not address:
        with unasked(), torch.no_grad():
            found = _of_unusual(tensor, layout)
            address = found.data_ptr() if isinstance(found, torch.Tensor) else 0
    yield memoryview((c_char * layout.nbytes).from_address(address)) if address else memoryview(bytes(found))
    del found  # until here the memory was its own


def _address(tensor: torch.Tensor, layout: Layout) -> int:
    """Where the logical bytes lie in this process's memory as they are; 0: nowhere. Raises NoBytesError."""
    if tensor.dtype not in KEPT:
        raise NoBytesError(COMPOUND if tensor.is_quantized else NO_DTYPE)
    kind = type(tensor)
    if layout.dense and (kind is torch.Tensor or kind is torch.nn.Parameter) and not tensor.is_neg():
        try:
            return tensor.data_ptr()
        except RuntimeError:  # a sparse scalar looks like a dense one until it is asked for its memory
            pass
    return 0


def _of_unusual(tensor: torch.Tensor, layout: Layout) -> torch.Tensor | bytes:
    """The bytes, or a contiguous tensor of them in this process's memory."""
    if is_compound(tensor):
        raise NoBytesError(COMPOUND)
    if tensor.device.type == "meta":
        raise NoBytesError(NO_MEMORY)
    if is_captured(tensor.device):
        raise NoBytesError(CAPTURED)
    if not layout.nbytes:
        return b""
    if tensor._is_zerotensor():
        return bytes(layout.nbytes)
    plain = logical_bytes(tensor)
    if not plain.data_ptr():
        raise NoBytesError(NO_MEMORY)
    with waiting_allowed(plain.device):
        return plain.cpu()


# --- keeping ----------------------------------------------------------------------------------------------------------


CHANGED = "something wrote to the tensor while it was recorded"

OVERWRITTEN = pack_link(Origin.OVERWRITTEN)

_WITHOUT = RowFlag.VIEW | RowFlag.ALLOCATION

Tensor = torch.Tensor


class OpInFlight:
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
        self.lying: dict[int, TensorPlacement] = {}
        """How its tensors lay in memory before it ran, by place."""
        self.outputs: list[Tensor] = []
        """Each has a digest in the row, in this order."""


class ValueRecorder(OpRecorder):
    """The rows of one thread, and values of those that a selector finds."""

    def __init__(
        self,
        process: ProcessState,
        number: int,
        name: str,
        committer: RowTaker,
        *,
        keeper: ValueQueue,
        selector: Selector,
    ) -> None:
        super().__init__(process, number, name, committer)
        self._keeper = keeper
        self._wanted = Wanted(selector, self)
        self._hand: OpInFlight | None = None
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

    def _prepare(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> OpInFlight | None:
        try:
            plan = self.process.calls.plan(func)
            if not self._wanted.may_find(plan.id, plan.name):
                return None
            if self._keeper.asked.inputs and args and type(args[0]) is RegionInputs:
                args = (args[0].to_keep(),)
            hand = OpInFlight(plan, args, kwargs)
            if plan.draws:
                hand.state = state_bytes(args, kwargs or {})
            if self._keeper.asked.inputs and not plan.is_view:
                hand.lying = placements(op_tensors(args, kwargs))
                if plan.writes_any:
                    self._copy_early(hand)
        except Exception as error:
            self.process.fail(error)
            return None
        return hand

    def _copy_early(self, hand: OpInFlight) -> None:
        """Copy what lies in a storage that the op writes to."""
        for place, tensor in self.in_written_memory(hand).items():
            hand.early[place] = _bytes_or_why(tensor, self.process.layouts.of(tensor))

    @staticmethod
    def in_written_memory(hand: OpInFlight) -> dict[int, Tensor]:
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

    def _keep(self, hand: OpInFlight) -> None:
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

    def _keep_lying(self, hand: OpInFlight) -> None:
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

    def _keep_input(self, tensor: Tensor, place: int, hand: OpInFlight) -> None:
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
