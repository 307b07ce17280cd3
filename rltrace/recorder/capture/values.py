"""Value capture: the bytes that selected ops return and write, and those that they read where that is requested.

Owns the moment at which bytes are copied. What an op returned or wrote is copied right after its digest was taken, and
checked against it. What it reads is copied afterwards too, since the op has not changed it; what it is about to write
is copied before.
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
from rltrace.recorder.core.hooks import FixedCells, OpHook
from rltrace.recorder.core.op_info import OpPlan
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.placement import TensorPlacement, placements
from rltrace.recorder.core.regions import RegionInputs
from rltrace.recorder.core.storages import address_of
from rltrace.recorder.digests.accelerator import waiting_allowed
from rltrace.recorder.digests.cuda_graphs import is_captured
from rltrace.recorder.digests.layouts import Layout, Layouts, dtype_name, is_compound, logical_bytes
from rltrace.recorder.digests.rng_state import generator_of
from rltrace.selectors import Selector
from rltrace.trace.format import dtypes
from rltrace.trace.format.records import LeftOut, ValueRequest, add_up
from rltrace.trace.format.schema import LIMIT, PLACEMENT_SHIFT, Origin, RowFlag, ValueKind, pack_link
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
            if value.kind not in (ValueKind.SAME_INPUT, ValueKind.PLACEMENT):
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
    """An op that is running, with what had to be copied before it ran."""

    __slots__ = ("args", "early", "kwargs", "lying", "plan", "state")

    def __init__(self, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.plan = plan
        self.args = args
        self.kwargs = kwargs
        self.state: bytes | None = None
        """Of the generator that the op draws from, before it does."""
        self.early: dict[int, bytes | str] = {}
        """Inputs that the op may change, copied before it ran, by place; or why they have no bytes."""
        self.lying: dict[int, TensorPlacement] = {}
        """How its tensors lay in memory before it ran, by place."""

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among its arguments, in the order of its row."""
        return op_tensors(self.args, self.kwargs)

    def in_written_memory(self) -> dict[int, Tensor]:
        """Tensor arguments that lie in a storage that the op writes to, by place."""
        named, tensors = self.plan.named(self.args, self.kwargs), self.tensors
        written = {address_of(tensor) for name in self.plan.writes for tensor in op_tensors((named.get(name),), None)}
        if self.args and type(self.args[0]) is RegionInputs:
            written = {address_of(tensors[place]) for place in self.args[0].written}
        return {place: tensor for place, tensor in enumerate(tensors) if address_of(tensor) in written}

    def copy_early(self, layouts: Layouts) -> None:
        """Copy what lies in a storage that the op writes to; before it runs."""
        for place, tensor in self.in_written_memory().items():
            self.early[place] = _bytes_or_why(tensor, layouts.of(tensor))


class ValueCopier:
    """Puts the values of one stream's ops into the queue, checked against the digests of their rows."""

    def __init__(self, stream: OpRecorder, queue: ValueQueue) -> None:
        self._stream = stream
        self._queue = queue
        self._layouts = stream.process.layouts

    def record(self, op: OpInFlight, results: list[Tensor]) -> None:
        """Record ``op``, whose row the stream is about to finish; each of ``results`` has a digest at its end."""
        count, written = len(results), self._stream.digests
        digests = written[len(written) - count :].tolist()
        if op.plan.draws:
            self._state(op.state, written[-count - 1])
        for place, (tensor, digest) in enumerate(zip(results, digests, strict=True)):
            if digest and not self._queue.knows(digest):  # 0: a library's workspace
                self._output(tensor, digest, place)
        if self._queue.asked.inputs:
            self._placements(op)
            tensors = op.tensors
            for place, tensor in enumerate(tensors):
                if self._stream.links[place - len(tensors)] != OVERWRITTEN:
                    self._input(tensor, place, op)

    def _state(self, state: bytes | None, digest: int) -> None:
        """A generator's state; one that cannot be read (a device's) has the digest 0."""
        if state is None or digest_buffer(state, 0) != digest or self._queue.knows(digest):
            return
        self._add(ValueKind.GENERATOR, digest, 0, 0, state)

    def _placements(self, op: OpInFlight) -> None:
        for place, lies in op.lying.items():
            if not lies.is_plain(place) and self._queue.has_room(0):  # where there is none, the inputs will say so
                bits = lies.alignment << PLACEMENT_SHIFT | lies.bits
                cells = (self._stream.number, self._stream.row, place, bits, b"", lies.offset)
                self._queue.keep(NewValue(ValueKind.PLACEMENT, lies.with_, *cells))

    def _output(self, tensor: Tensor, digest: int, place: int) -> None:
        layout = self._layouts.of(tensor)
        if not self._has_room(layout.nbytes):
            return
        data = _bytes_or_why(tensor, layout)
        if isinstance(data, str):
            self._leave(data, layout.nbytes)
        elif digest_buffer(data, layout.seed) != digest:
            self._leave(CHANGED, layout.nbytes)
        else:
            self._add(ValueKind.OUTPUT, digest, place, layout.id, data)

    def _input(self, tensor: Tensor, place: int, op: OpInFlight) -> None:
        layout = self._layouts.of(tensor)
        if not self._has_room(layout.nbytes):
            return
        data = op.early.get(place) or _bytes_or_why(tensor, layout)
        if isinstance(data, str):
            self._leave(data, layout.nbytes)
            return
        digest = digest_buffer(data, layout.seed)
        if self._queue.knows(digest):
            self._add(ValueKind.SAME_INPUT, digest, place, 0, b"")
        else:
            self._add(ValueKind.INPUT, digest, place, layout.id, data)

    def _has_room(self, size: int) -> bool:
        if self._queue.has_room(size):
            return True
        self._leave(LIMIT, size)
        return False

    def _leave(self, why: str, size: int) -> None:
        self._queue.leave(why, self._stream.number, self._stream.row, size)

    def _add(self, kind: ValueKind, digest: int, place: int, layout: int, data: bytes) -> None:
        self._queue.keep(NewValue(kind, digest, self._stream.number, self._stream.row, place, layout, data))


class ValueCapture(OpHook[OpInFlight]):
    """Records the values of the ops of one stream that a selector finds."""

    def __init__(self, stream: OpRecorder, queue: ValueQueue, selector: Selector) -> None:
        self._stream = stream
        self._queue = queue
        self._wanted = Wanted(selector, stream)
        self._values = ValueCopier(stream, queue)

    def begin(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpInFlight | None:
        process, inputs = self._stream.process, self._queue.asked.inputs
        plan = process.calls.plan(func)
        if not self._wanted.may_find(plan.id, plan.name):
            return None
        if inputs and args and type(args[0]) is RegionInputs:
            args = (args[0].to_keep(),)
        op = OpInFlight(plan, args, kwargs)
        if plan.draws:
            op.state = state_bytes(args, kwargs)
        if inputs and not plan.is_view:
            op.lying = placements(op.tensors)
            if plan.writes_any:
                op.copy_early(process.layouts)
        return op

    def finish(self, cells: FixedCells, call: Call, tensors: list[Tensor], out: Any) -> None:
        op = self.op
        if op is None:
            return
        number, structure, site, module, _, flags, _ = cells
        found = self._wanted.finds(number, op.plan.name, structure, site, module, flags)
        if found and not flags & _WITHOUT:
            written, returned = call.results(tensors, out)
            self._values.record(op, written + returned)

    def drop(self) -> None:
        self._queue.forget(self._stream.number, self._stream.row)


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
