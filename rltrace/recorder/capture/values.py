"""Value capture: the bytes that selected ops return and write, and those that they read where that is requested.

Owns the moment at which bytes are copied. What an op returned or wrote is copied right after its digest was taken, and
checked against it. What it reads is copied afterwards too, since the op has not changed it; what it is about to write
is copied before. A re-execution also needs where the arguments of an op lay: an input that is written may share memory
with another, and kernels choose their loops by alignment.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_char, string_at
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from rltrace.digest import digest_buffer
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.capture.capture_queue import NO_DTYPE, ValueQueue
from rltrace.recorder.capture.selection import StreamSelector
from rltrace.recorder.core.calls import Call, op_tensors
from rltrace.recorder.core.hooks import FixedCells, OpHook
from rltrace.recorder.core.op_info import OpPlan
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.regions import RegionInputs
from rltrace.recorder.core.storages import address_of
from rltrace.recorder.digests.accelerator import waiting_allowed
from rltrace.recorder.digests.cuda_graphs import is_captured
from rltrace.recorder.digests.layouts import Layout, Layouts, data_address, dtype_name, is_compound, logical_bytes
from rltrace.recorder.digests.rng_state import generator_of
from rltrace.selectors import Selector
from rltrace.trace.format import dtypes
from rltrace.trace.format.schema import (
    LIMIT,
    PLACEMENT_ALIGNMENT,
    PLACEMENT_SHIFT,
    Origin,
    Phase,
    PlacementBit,
    RowFlag,
    ValueKind,
    pack_link,
)
from rltrace.trace.write.packers import NewValue


@dataclass(frozen=True, slots=True)
class TensorPlacement:
    """Placement of one tensor argument."""

    shared_with: int
    """Place of the first argument in the same storage; its own place where it is the first."""
    offset: int
    """Bytes from the lowest address at which an argument in this storage begins."""
    alignment: int
    """That lowest address modulo PLACEMENT_ALIGNMENT."""
    bits: PlacementBit

    def is_plain(self, place: int) -> bool:
        """Whether it shares no storage, is aligned as by an allocator, and is not lazily conjugated or negated."""
        return self.shared_with == place and not self.offset and not self.alignment and not self.bits


def placements(tensors: Sequence[torch.Tensor]) -> dict[int, TensorPlacement]:
    """Placements by place; without tensors that have no address (sparse, nested, a subclass, on device meta, empty)."""
    storages: dict[int, int] = {}
    lowest: dict[int, int] = {}
    found = []
    with torch._C.DisableTorchFunctionSubclass():
        for place, tensor in enumerate(tensors):
            try:
                storage, address = torch._C._storage_address(tensor), data_address(tensor)  # type: ignore[attr-defined]
            except (NotImplementedError, RuntimeError):
                continue
            if not storage or not address:
                continue
            first = storages.setdefault(storage, place)
            lowest[first] = min(address, lowest.get(first, address))
            bits = PlacementBit(tensor.is_conj() * PlacementBit.CONJUGATED | tensor.is_neg() * PlacementBit.NEGATED)
            found.append((place, first, address, bits))
    return {
        place: TensorPlacement(first, address - lowest[first], lowest[first] % PLACEMENT_ALIGNMENT, bits)
        for place, first, address, bits in found
    }


# --- copies -----------------------------------------------------------------------------------------------------------
#
# The logical bytes of a tensor, from which its digest is computed. Owns which tensors have plain bytes, and the reason
# why others have none. Runs outside of autograd and of any mode; never changes the tensor or its version.


COMPOUND = "a tensor that consists of several (sparse, nested, quantized, a subclass) has no plain bytes"
NO_MEMORY = "the tensor has no memory (meta, or its storage was given back)"
CAPTURED = "the program was being captured into a graph of a device"


DTYPES = frozenset(
    dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype) and dtypes.itemsize(dtype_name(dtype)) is not None
)


class NoBytesError(Exception):
    """The value of a tensor cannot be captured; the message is the reason."""


def bytes_of(tensor: torch.Tensor, layout: Layout) -> bytes:
    """The logical bytes of ``tensor``, wherever it lives. Raises NoBytesError."""
    address = _address(tensor, layout)
    if address:
        return string_at(address, layout.nbytes)
    with torch_function_disabled(), torch.no_grad():
        found = _of_unusual(tensor, layout)
        return string_at(data_address(found), layout.nbytes) if isinstance(found, torch.Tensor) else found


@contextmanager
def read_in_place(tensor: torch.Tensor, layout: Layout) -> Iterator[memoryview]:
    """The same, copied only where it must be: for tensors too large to be held twice. Raises NoBytesError."""
    found: torch.Tensor | bytes = tensor
    address = _address(tensor, layout)
    if not address:
        with torch_function_disabled(), torch.no_grad():
            found = _of_unusual(tensor, layout)
            address = data_address(found) if isinstance(found, torch.Tensor) else 0
    yield memoryview((c_char * layout.nbytes).from_address(address)) if address else memoryview(bytes(found))
    del found  # it has held the memory until here


def _address(tensor: torch.Tensor, layout: Layout) -> int:
    """Address of the logical bytes in this process's memory; 0: they must be copied. Raises NoBytesError."""
    if tensor.dtype not in DTYPES:
        raise NoBytesError(COMPOUND if tensor.is_quantized else NO_DTYPE)
    kind = type(tensor)
    if layout.dense and (kind is torch.Tensor or kind is torch.nn.Parameter) and not tensor.is_neg():
        try:
            return data_address(tensor)
        except RuntimeError:  # a sparse scalar looks dense until its memory is read
            pass
    return 0


def _of_unusual(tensor: torch.Tensor, layout: Layout) -> torch.Tensor | bytes:
    """The logical bytes, or a contiguous tensor of them in this process's memory."""
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
    if not data_address(plain):
        raise NoBytesError(NO_MEMORY)
    with waiting_allowed(plain.device):
        return plain.cpu()


# --- capture ----------------------------------------------------------------------------------------------------------


CHANGED = "something wrote to the tensor while it was recorded"

OVERWRITTEN = pack_link(Origin.OVERWRITTEN)

_WITHOUT = RowFlag.VIEW | RowFlag.ALLOCATION

Tensor = torch.Tensor


class OpInFlight:
    """A running op, with what had to be copied before it ran."""

    __slots__ = ("args", "early", "kwargs", "lying", "plan", "state")

    def __init__(self, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.plan = plan
        self.args = args
        self.kwargs = kwargs
        self.state: bytes | None = None
        """State of the generator that the op draws from, before it ran."""
        self.early: dict[int, tuple[Layout, bytes | str]] = {}
        """By place, inputs that the op may change: layout and bytes before it ran, or why they have none."""
        self.lying: dict[int, TensorPlacement] = {}
        """By place, where its tensors were in memory before it ran."""

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among its arguments, in the order of its row."""
        return op_tensors(self.args, self.kwargs)

    def copy_early(self, layouts: Layouts) -> None:
        """Copy the tensor arguments whose storage the op writes to, before it runs."""
        named, tensors = self.plan.named(self.args, self.kwargs), self.tensors
        written = {address_of(tensor) for name in self.plan.writes for tensor in op_tensors((named.get(name),), None)}
        if self.args and type(self.args[0]) is RegionInputs:
            written = {address_of(tensors[place]) for place in self.args[0].written}
        for place, tensor in enumerate(tensors):
            if address_of(tensor) in written:
                layout = layouts.of(tensor)
                self.early[place] = layout, _bytes_or_reason(tensor, layout)


class ValueCopier:
    """Adds the values of one stream's ops to the queue, after comparing them with the digests of their rows."""

    def __init__(self, stream: OpRecorder, queue: ValueQueue) -> None:
        self._stream = stream
        self._queue = queue
        self._layouts = stream.process.layouts

    def record(self, op: OpInFlight, results: list[Tensor]) -> None:
        """Record ``op``, whose row the stream is about to finish; each of ``results`` has a digest at its end."""
        count, written = len(results), self._stream.digests
        digests = [written[place] for place in range(len(written) - count, len(written))]  # an array, or the library's
        if op.plan.draws:
            self._state(op.state, written[-count - 1])
        for place, (tensor, digest) in enumerate(zip(results, digests, strict=True)):
            if digest and not self._queue.knows(digest):  # 0: a library's workspace
                self._output(tensor, digest, place)
        if self._queue.request.inputs:
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
        for place, placement in op.lying.items():
            if not placement.is_plain(place) and self._queue.has_room(0):  # else the inputs are left out, with a reason
                bits = placement.alignment << PLACEMENT_SHIFT | placement.bits
                cells = (self._stream.number, self._stream.row, place, bits, b"", placement.offset)
                self._queue.add(NewValue(ValueKind.PLACEMENT, placement.shared_with, *cells))

    def _output(self, tensor: Tensor, digest: int, place: int) -> None:
        layout = self._layouts.of(tensor)
        if not self._has_room(layout.nbytes):
            return
        data = _bytes_or_reason(tensor, layout)
        if isinstance(data, str):
            self._leave_out(data, layout.nbytes)
        elif digest_buffer(data, layout.seed) != digest:
            self._leave_out(CHANGED, layout.nbytes)
        else:
            self._add(ValueKind.OUTPUT, digest, place, layout.id, data)

    def _input(self, tensor: Tensor, place: int, op: OpInFlight) -> None:
        layout, data = op.early.get(place) or (self._layouts.of(tensor), None)
        if not self._has_room(layout.nbytes):
            return
        data = _bytes_or_reason(tensor, layout) if data is None else data
        if isinstance(data, str):
            self._leave_out(data, layout.nbytes)
            return
        digest = digest_buffer(data, layout.seed)
        if self._queue.knows(digest):
            self._add(ValueKind.SAME_INPUT, digest, place, 0, b"")
        else:
            self._add(ValueKind.INPUT, digest, place, layout.id, data)

    def _has_room(self, size: int) -> bool:
        if self._queue.has_room(size):
            return True
        self._leave_out(LIMIT, size)
        return False

    def _leave_out(self, why: str, size: int) -> None:
        self._queue.leave_out(why, self._stream.number, self._stream.row, size)

    def _add(self, kind: ValueKind, digest: int, place: int, layout: int, data: bytes) -> None:
        self._queue.add(NewValue(kind, digest, self._stream.number, self._stream.row, place, layout, data))


class ValueCapture(OpHook[OpInFlight]):
    """Records the values of the ops of one stream that a selector finds."""

    def __init__(self, stream: OpRecorder, queue: ValueQueue, selector: Selector) -> None:
        self._stream = stream
        self._queue = queue
        self._wanted = StreamSelector(selector, stream)
        self.wants_by_step = self._wanted.has_steps
        self._values = ValueCopier(stream, queue)

    def wants(self, plan: OpPlan, module: int, phase: Phase) -> bool:
        return self._wanted.may_find_here(plan.id, plan.name, module, phase)

    def begin(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpInFlight | None:
        process, inputs = self._stream.process, self._queue.request.inputs
        plan = process.calls.plan(func)
        if not self._wanted.may_find(plan.id, plan.name):
            return None
        if inputs and args and type(args[0]) is RegionInputs:
            args = (args[0].retained(),)
        op = OpInFlight(plan, args, kwargs)
        if plan.draws:
            op.state = state_bytes(args, kwargs)
        if inputs and not plan.is_view:
            op.lying = placements(op.tensors)
            if plan.writes_any:
                op.copy_early(process.layouts)
        return op

    def inputs_written(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.op is not None:
            self.op = self.begin(func, args, kwargs)

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


def _bytes_or_reason(tensor: Tensor, layout: Layout) -> bytes | str:
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
