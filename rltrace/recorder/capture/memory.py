"""Memory capture: where the tensors of the selected ops lie, and what that memory holds that none of these ops wrote.

With it the ops can be run again one after the other, each on what those before it left in memory (``rltrace rerun``).
Owns a number and a digest of every storage that they use. The digest is taken when an op has used the storage, and
compared when the next one begins: if it differs, something else wrote the memory (an op that is not selected, NumPy,
a collective, another process), and its bytes are recorded.

Ops that cannot be run again by themselves get no places: collectives, calls of code outside torch, compiled regions.
What they leave in memory is recorded where a later op reads it, like all else that comes from outside.
"""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch._ops import OpOverload

from rltrace.digest import digest_address, digest_buffer
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.capture.capture_queue import ValueQueue
from rltrace.recorder.capture.selection import StreamSelector
from rltrace.recorder.capture.values import OVERWRITTEN, NoBytesError, bytes_of, state_bytes
from rltrace.recorder.core.calls import Call, op_tensors
from rltrace.recorder.core.hooks import FixedCells, OpHook
from rltrace.recorder.core.op_info import OpPlan, Role, flat_tensors
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.regions import RegionInputs
from rltrace.recorder.core.storages import address_of
from rltrace.recorder.digests.layouts import Layout, Layouts, data_address
from rltrace.selectors import Key, Selector
from rltrace.trace.format.collectives import brings_data
from rltrace.trace.format.schema import (
    LIMIT,
    OVER_LIMIT,
    PLACEMENT_ALIGNMENT,
    PLACEMENT_SHIFT,
    TENSOR_SHIFT,
    Phase,
    PlacementBit,
    ValueKind,
)
from rltrace.trace.write.packers import NewValue

SWEEP_EVERY: Final = 4_096
"""Storages numbered anew before those that are no more are forgotten."""

NOT_ALONE: Final = (Role.VIEW, Role.IN_FLIGHT, Role.ARRIVED, Role.TO_HOST)
"""Roles of ops that are not run again: a view uses no memory, the others depend on other processes or on a device."""


@dataclass(slots=True, eq=False)
class NumberedStorage:
    """One storage that selected ops use."""

    number: int
    handle: int
    """A weak reference, which keeps the address from being reused."""
    digest: int | None = None
    """Of its bytes when an op had used it last; None: no op has left anything known in it."""


@dataclass(slots=True, eq=False)
class StorageUse:
    """What one op uses of a storage, before it runs."""

    storage: NumberedStorage
    digest: int
    layout: Layout
    """Of the storage's bytes."""
    content: bytes | None
    """The bytes, where they are not those that the last op left."""


@dataclass(slots=True, eq=False)
class OpMemory:
    """The memory of a running op."""

    plan: OpPlan
    uses: dict[int, StorageUse]
    """By address of the storage."""
    places: list[tuple[int, int, int]]
    """Of each tensor: address of its storage, alignment and bits of its placement, bytes from the start."""
    state: bytes | None
    """State of the generator that the op draws from."""


class NumberedStorages:
    """The storages of one process. Its threads take turns."""

    def __init__(self, layouts: Layouts) -> None:
        self.lock = threading.RLock()
        self.ops = 0
        """Selected ops so far: their order over all threads."""
        self.too_large = False
        """Whether no memory is recorded, as it is known to be over the limit."""
        self._layouts = layouts
        self._known: dict[int, NumberedStorage] = {}
        self._numbered = 0

    def knows(self, address: int) -> bool:
        """Whether the storage at an address has a number."""
        return address in self._known

    def at(self, address: int) -> NumberedStorage:
        """The storage with a number at an address."""
        return self._known[address]

    def of(self, tensor: torch.Tensor) -> NumberedStorage:
        """The storage of a tensor. Raises NoBytesError where it has none."""
        address = address_of(tensor)
        if not address:
            raise NoBytesError
        known = self._known.get(address)
        if known is None:
            raw: Any = tensor.untyped_storage()
            known = self._known[address] = NumberedStorage(self._numbered, raw._weak_ref())
            self._numbered += 1
            if self._numbered % SWEEP_EVERY == 0:
                self._sweep()
        return known

    def read(self, raw: torch.UntypedStorage) -> tuple[int, Layout, torch.Tensor]:
        """Digest and layout of a storage's bytes, and the tensor of them. Raises NoBytesError."""
        whole = torch.empty(0, dtype=torch.uint8, device=raw.device).set_(raw, 0, (raw.nbytes(),), (1,))
        layout = self._layouts.of(whole)
        if whole.is_cpu and layout.nbytes:
            return digest_address(whole.data_ptr(), layout.nbytes, layout.seed), layout, whole
        return digest_buffer(bytes_of(whole, layout), layout.seed), layout, whole

    def expect(self, tensors: Iterable[torch.Tensor], queue: ValueQueue, stream: OpRecorder) -> None:
        """A window begins in which all of these are read: where they alone are over the limit, record no memory at
        all, rather than a part that nothing can be done with.
        """
        sizes: dict[int, int] = {}
        with torch_function_disabled(), torch.no_grad():
            for tensor in tensors:
                try:
                    plain = getattr(tensor, "_local_tensor", tensor)
                    if (address := address_of(plain)) and address not in sizes:
                        sizes[address] = plain.untyped_storage().nbytes()
                except (NoBytesError, NotImplementedError, RuntimeError):
                    continue
        if sum(sizes.values()) > queue.request.limit:
            self.too_large = True
            for size in filter(None, sizes.values()):
                queue.leave_out(OVER_LIMIT, stream.number, stream.row, size)

    def _sweep(self) -> None:
        expired: Any = torch.UntypedStorage._expired
        for address in [address for address, known in self._known.items() if expired(known.handle)]:
            torch.UntypedStorage._free_weak_ref(self._known.pop(address).handle)


class MemoryCapture(OpHook[OpMemory]):
    """Records the memory of the ops of one stream that a selector finds."""

    def __init__(self, stream: OpRecorder, queue: ValueQueue, storages: NumberedStorages, selector: Selector) -> None:
        self._stream = stream
        self._queue = queue
        self._storages = storages
        self._wanted = StreamSelector(selector, stream)
        self.wants_by_step = self._wanted.has_steps

    def wants(self, plan: OpPlan, module: int, phase: Phase) -> bool:
        return self._wanted.may_find_here(plan.id, plan.name, module, phase)

    def begin(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpMemory | None:
        plan = self._stream.process.calls.plan(func)
        if not self._wanted.may_find(plan.id, plan.name) or self._storages.too_large or not _runs_alone(plan, args):
            return None
        with self._storages.lock, torch_function_disabled(), torch.no_grad():
            try:
                return self._before(plan, args, kwargs)
            except (NoBytesError, NotImplementedError, RuntimeError):  # sparse, a subclass, on meta
                return None

    def _before(self, plan: OpPlan, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpMemory:
        tensors = op_tensors(args, kwargs)
        op = OpMemory(plan, {}, [], state_bytes(args, kwargs) if plan.draws else None)
        for tensor in tensors:
            storage, address = self._storages.of(tensor), address_of(tensor)
            op.places.append(_place(tensor, address, is_output=False))
            if address not in op.uses and plan.role is not Role.ALLOCATION:
                op.uses[address] = self._use(storage, tensor.untyped_storage())
        return op

    def _use(self, storage: NumberedStorage, raw: torch.UntypedStorage) -> StorageUse:
        digest, layout, whole = self._storages.read(raw)
        if digest == storage.digest:
            return StorageUse(storage, digest, layout, None)
        content = bytes_of(whole, layout)  # a collective in flight may have written more since the digest was taken
        return StorageUse(storage, digest_buffer(content, layout.seed), layout, content)

    def finish(self, cells: FixedCells, call: Call, tensors: list[torch.Tensor], out: Any) -> None:
        op = self.op
        if op is None or call.plan.is_view:  # of distributed tensors: the ops that compute are later rows
            return
        number, structure, site, module, _, flags, _ = cells
        if not self._wanted.finds(number, op.plan.name, structure, site, module, flags):
            return
        with self._storages.lock, torch_function_disabled(), torch.no_grad():
            results = list(flat_tensors(out))
            if not all(map(address_of, results)):  # one without memory: later ops find the others' bytes in the trace
                return
            try:
                self._after(op, call, tensors, results)
            except (NoBytesError, NotImplementedError, RuntimeError):
                self._leave_out("a result has no plain bytes", 0)

    def _after(self, op: OpMemory, call: Call, tensors: list[torch.Tensor], returned: list[torch.Tensor]) -> None:
        allocates = op.plan.role is Role.ALLOCATION
        results = [
            tensor
            for tensor in returned
            if (address := address_of(tensor)) not in op.uses and not (allocates and self._storages.knows(address))
        ]
        places = [_place(tensor, address_of(tensor), is_output=True) for tensor in results]
        read = self._read_storages(op, tensors)
        for address, use in op.uses.items():
            if use.content is None or address not in read or self._content(use):
                use.storage.digest = use.digest
        if op.state is not None and not self._queue.knows(digest := digest_buffer(op.state, 0)):
            self._add(ValueKind.GENERATOR, digest, (0, 0), 0, op.state)
        order, layouts = self._storages.ops << 32, self._stream.process.layouts
        self._storages.ops += 1
        named = [*zip(tensors, op.places, strict=True), *zip(results, places, strict=True)]
        for i, (tensor, (_, place, offset)) in enumerate(named):
            index = i if i < len(tensors) else next(k for k, item in enumerate(returned) if item is tensor)
            storage = self._storages.of(tensor).number
            place |= index << TENSOR_SHIFT
            self._add(ValueKind.TENSOR, order | storage, (place, offset), layouts.of(tensor).id)
        if allocates:
            return
        for tensor in (*(tensors[place] for place in call.written), *results):
            self._storages.of(tensor).digest = self._storages.read(tensor.untyped_storage())[0]

    def _read_storages(self, op: OpMemory, tensors: Sequence[torch.Tensor]) -> set[int]:
        """Addresses of storages with bytes that the op does not overwrite."""
        links, count = self._stream.links, len(tensors)
        return {
            address
            for place, (tensor, (address, _, _)) in enumerate(zip(tensors, op.places, strict=True))
            if links[place - count] != OVERWRITTEN or tensor.nbytes < tensor.untyped_storage().nbytes()
        }

    def _content(self, use: StorageUse) -> bool:
        """Record what a storage holds before the row. Returns whether there is room for it."""
        content, number = use.content or b"", use.storage.number
        if self._queue.knows(use.digest):
            self._add(ValueKind.CONTENT, use.digest, (number, 0), use.layout.id)
        elif self._queue.has_room(len(content)):
            self._add(ValueKind.STORAGE, use.digest, (number, 0), use.layout.id, content)
        else:
            self._leave_out(LIMIT, len(content))
            return False
        return True

    def drop(self) -> None:
        self._queue.forget(self._stream.number, self._stream.row)

    def _add(self, kind: ValueKind, digest: int, where: tuple[int, int], layout: int, data: bytes = b"") -> None:
        """``where``: place and offset."""
        place, offset = where
        self._queue.add(NewValue(kind, digest, self._stream.number, self._stream.row, place, layout, data, offset))

    def _leave_out(self, why: str, size: int) -> None:
        self._queue.leave_out(why, self._stream.number, self._stream.row, size)


def reads_all(selector: Selector) -> bool:
    """Whether a selector of whole steps finds what reads all parameters, and all optimizer state."""
    return selector.keys <= {Key.STEP}


def _runs_alone(plan: OpPlan, args: tuple[Any, ...]) -> bool:
    """Whether an op can be run again with nothing but its arguments."""
    region = bool(args) and type(args[0]) is RegionInputs
    if brings_data(plan.name):
        return False
    return bool(plan.schema) and not (plan.role in NOT_ALONE or plan.arrives or plan.is_launch or region)


def _place(tensor: torch.Tensor, address: int, *, is_output: bool) -> tuple[int, int, int]:
    start = tensor.untyped_storage().data_ptr()
    bits = tensor.is_conj() * PlacementBit.CONJUGATED | tensor.is_neg() * PlacementBit.NEGATED
    bits |= is_output * PlacementBit.OUTPUT | start % PLACEMENT_ALIGNMENT << PLACEMENT_SHIFT
    return address, int(bits), data_address(tensor) - start if tensor.numel() else 0
