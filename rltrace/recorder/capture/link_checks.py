"""Checks of links: memory that changed between its last recorded use and its next one (``record --check-links``).

Owns a digest of every page of memory that recorded ops use, taken when an op has used it. Each op's memory is compared
as the op begins, what it does not write once more when it has run, and all living memory at the end of a step. A page
that differs was written by no op that rltrace saw, or by an op against its schema. The same table knows which op wrote
memory last, whatever the recorder's own tables say: a link to outside that should lead to that op is lost.

Memory that no op has written and that changes within one call, in which it was allocated and is read, is a fault of
another kind: code of torch fills it so, as DDP does with sizes of buckets, and no code of the program ran meanwhile.

Not checked: memory that torch did not allocate (NumPy arrays, mapped files, batches of workers), which others may write
as they like and which ops digest at every use; memory on devices; memory that a collective is writing; workspaces.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Final

import torch
from torch._ops import OpOverload

from rltrace.digest import digest_address, digest_pages
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.core.calls import Call, op_tensors
from rltrace.recorder.core.hooks import FixedCells, OpHook
from rltrace.recorder.core.op_info import Role, new_results
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.regions import RegionInputs
from rltrace.recorder.core.row_buffer import OUTSIDE, OUTSIDE_READ
from rltrace.recorder.core.storages import address_of
from rltrace.trace.format.records import MAX_LINK_FAULTS, FaultKind, LinkFault, Place

PAGE: Final = 1 << 20
"""Bytes of memory with one digest: an op that uses a part of a large buffer has no more than its pages read."""

SWEEP_EVERY: Final = 4_096
"""Storages followed anew, at least, before those that died are forgotten."""

Pages = range


@dataclass(slots=True, eq=False)
class CheckedMemory:
    """The memory of one storage as it was when an op had used it last."""

    handle: int
    """A weak reference, which keeps the address from being reused."""
    start: int
    nbytes: int
    allocation: Place | None
    """The op that returned it; None: it existed before."""
    writer: Place | None = None
    """The op that wrote it last; until one does, the op that allocated it."""
    used: Place | None = None
    """The op that used it last."""
    digests: dict[int, int] = field(default_factory=dict)
    """By page, those that an op has used."""
    is_ours: bool = True
    """torch allocated it."""
    is_arriving: bool = False
    """A collective may be writing it."""
    is_in_flight: bool = False
    """Until an op has waited for it; else until an op computes with it."""
    turn: int = 0
    """Number of times that an op began or ended to use it."""
    streams: set[int] = field(default_factory=set)
    """Streams of which an op is using it now, and may be writing it."""


@dataclass(slots=True, eq=False)
class Use:
    """What an op uses of one storage."""

    place: int
    """Which of the op's tensors; of its results, which of those."""
    memory: CheckedMemory
    pages: Pages
    writer: Place | None
    """That of the memory, as the op begins."""
    turn: int = 0


class LinkChecks:
    """The memory that the ops of one process use. Its threads take turns."""

    def __init__(self, process: ProcessState, report: Callable[[LinkFault], None]) -> None:
        self._process = process
        self._report = report
        self._lock = threading.RLock()
        self._known: dict[int, CheckedMemory] = {}
        """By address of the StorageImpl."""
        self._sweep_at = SWEEP_EVERY
        self._reported = 0
        self._begun: dict[int, Sequence[Use]] = {}
        """By stream: what the op uses that has begun and not finished."""
        self._calls: dict[int, tuple[int, int]] = {}
        """By stream: the call that ran its last ops, and the first of their rows."""
        process.storages.size_changed = self._forget

    # --- one op -------------------------------------------------------------------------------------------------------

    def begin(self, here: Place, tensors: Sequence[torch.Tensor]) -> list[Use]:
        """An op is about to use ``tensors``: compare their memory. Returns what is checked of it."""
        stream = here[0]
        with self._lock:
            # where its last op raised, or this one runs within it, it is not known what that left in memory
            for use in self._begun.pop(stream, ()):
                use.memory.streams.discard(stream)
                use.memory.digests.clear()
            uses = self._begun[stream] = self._uses(tensors, None)
            for use in uses:
                if use.memory.streams - {stream}:
                    self._read(use.memory, use.pages)
                elif not use.memory.is_arriving:
                    self._compare(use.memory, use.pages, here, use.place)
                use.memory.streams.add(stream)
            self._end_turn(uses, here)
            return uses

    def called(self, here: Place, call: int) -> None:
        """The op of a row is about to run; ``call``: identifies all Python frames, and where each of them is."""
        stream, row = here
        if self._calls.get(stream, (None, 0))[0] != call:
            self._calls[stream] = call, row

    def finish(self, here: Place, uses: Sequence[Use], call: Call, links: Sequence[int], out: Any) -> None:
        """The op has run and returned ``out``; ``uses``: what ``begin`` returned, ``links``: those of its row."""
        plan = call.plan
        with self._lock:
            alone = {id(use.memory) for use in uses if use.memory.streams == {here[0]} and use.turn == use.memory.turn}
            self._begun.pop(here[0], None)
            for use in uses:
                use.memory.streams.discard(here[0])
            self._check_links(here, uses, links)
            own = {id(use.memory) for use in uses}
            results = [use for use in self._uses(new_results(plan, out), here) if id(use.memory) not in own]
            written = [use for use in uses if use.place in call.written]
            changed = {id(use.memory) for use in (*written, *results)}
            for use in uses:
                if id(use.memory) in changed or plan.role is Role.ALLOCATION:
                    continue
                if plan.schema and not use.memory.is_arriving and id(use.memory) in alone:
                    self._compare(use.memory, use.pages, here, use.place, by_op=True)
                else:  # another thread uses it, too, or a region that may overwrite what is read no more
                    self._read(use.memory, use.pages)
                in_flight = use.memory.is_in_flight or self._process.storages.is_in_flight(use.memory.handle)
                use.memory.is_arriving = use.memory.is_arriving and (in_flight or not plan.computes)
            for use in results:
                if use.place in plan.scratch:  # a workspace, which the op's backward overwrites as it reads it
                    use.memory.is_ours = False
            arrives = plan.arrives or plan.role is Role.IN_FLIGHT
            for use in (*written, *results):
                use.memory.is_arriving, use.memory.is_in_flight = arrives, plan.role is Role.IN_FLIGHT
                use.memory.writer = None if arrives else here
                if not arrives:
                    self._read(use.memory, use.pages)
            if plan.role is Role.ARRIVED:
                for use in uses:
                    use.memory.is_arriving, use.memory.is_in_flight, use.memory.writer = False, False, here
                    self._read(use.memory, use.pages)
            self._end_turn([*uses, *results], here)

    def _check_links(self, here: Place, uses: Sequence[Use], links: Sequence[int]) -> None:
        """Report links to outside of memory that a recorded op is known to have written last."""
        for use in uses:
            if use.writer is not None and use.place < len(links) and links[use.place] in (OUTSIDE, OUTSIDE_READ):
                self._add(use.memory, here, use.place, FaultKind.LINK, use.writer)

    def _uses(self, tensors: Iterable[torch.Tensor], allocation: Place | None) -> list[Use]:
        """What an op uses of the memory of ``tensors``, which the op at ``allocation`` returned."""
        found = []
        for place, tensor in enumerate(tensors):
            for part in _parts(tensor):
                use = self._use(place, part, allocation)
                if use is not None:
                    found.append(use)
        return found

    def _use(self, place: int, tensor: torch.Tensor, allocation: Place | None) -> Use | None:
        address = address_of(tensor) if tensor.is_cpu else 0
        if not address:
            return None
        try:
            raw: Any = tensor.untyped_storage()
            start, nbytes = raw.data_ptr(), raw.nbytes()
        except (RuntimeError, TypeError):  # a wrapper without memory, symbolic sizes
            return None
        memory = self._known.get(address)
        if memory is None:
            memory = self._known[address] = CheckedMemory(
                raw._weak_ref(), start, nbytes, allocation, allocation, allocation
            )
            memory.is_ours = bool(raw.resizable())
            if len(self._known) >= self._sweep_at:
                self._sweep()
        if (memory.start, memory.nbytes) != (start, nbytes):
            if memory.nbytes != nbytes or not self._is_handed_out(memory):
                memory.digests.clear()  # allocated anew; else it was moved, to be shared with other processes
            memory.start, memory.nbytes = start, nbytes
        if not start or not nbytes or not memory.is_ours:
            return None
        return Use(place, memory, _pages_of(tensor, nbytes), memory.writer)

    def _compare(
        self, memory: CheckedMemory, pages: Iterable[int], here: Place | None, place: int | None, *, by_op: bool = False
    ) -> None:
        """Report pages that differ from when they were used last, and take them as they are from now on."""
        before = {page: memory.digests[page] for page in pages if page in memory.digests}
        self._read(memory, pages)
        if any(memory.digests[page] != digest for page, digest in before.items()):
            self._add(memory, here, place, FaultKind.OP if by_op else FaultKind.WRITE, here if by_op else memory.used)

    def _add(
        self, memory: CheckedMemory, here: Place | None, place: int | None, kind: FaultKind, used: Place | None
    ) -> None:
        if self._reported >= MAX_LINK_FAULTS:
            return
        self._reported += 1
        content = digest_pages([memory.digests[page] for page in sorted(memory.digests)], memory.nbytes)
        handed_out, step, size = self._is_handed_out(memory), self._process.step, memory.nbytes
        if kind is FaultKind.WRITE and here is not None and self._is_of_same_call(memory, here[0]):
            kind = FaultKind.CALL
        self._report(
            LinkFault(kind, here, place, step, used, memory.writer, memory.allocation, handed_out, size, content)
        )

    def _is_of_same_call(self, memory: CheckedMemory, stream: int) -> bool:
        """Whether the stream's current call has allocated the memory, and no op has written it."""
        made = memory.allocation
        return made is not None and made == memory.writer and made[0] == stream and made[1] >= self._calls[stream][1]

    def _forget(self, address: int) -> None:
        """The storage has other memory now."""
        with self._lock:
            memory = self._known.get(address)
            if memory is not None:
                memory.digests.clear()

    def _is_handed_out(self, memory: CheckedMemory) -> bool:
        special = self._process.storages.special.get(memory.handle)
        return special is not None and bool(special.exposed)

    @staticmethod
    def _read(memory: CheckedMemory, pages: Iterable[int]) -> None:
        for page in pages:
            at = page * PAGE
            memory.digests[page] = digest_address(memory.start + at, min(PAGE, memory.nbytes - at), 0)

    @staticmethod
    def _end_turn(uses: Iterable[Use], here: Place) -> None:
        for use in uses:
            use.memory.turn += 1
            use.memory.used = here
        for use in uses:
            use.turn = use.memory.turn

    # --- all memory ---------------------------------------------------------------------------------------------------

    def check_all(self) -> None:
        """Compare all living memory: a step has ended, or the recording of ops does."""
        with self._lock, torch_function_disabled():
            self._sweep()
            for memory in self._known.values():
                raw: Any = torch.UntypedStorage._new_with_weak_ptr(memory.handle)
                if raw is None or not memory.is_ours or memory.is_arriving:
                    continue
                if memory.streams:  # an op of another thread is using it, or has raised
                    memory.digests.clear()
                    continue
                if (raw.data_ptr(), raw.nbytes()) == (memory.start, memory.nbytes):
                    self._compare(memory, list(memory.digests), None, None)

    def forget_all(self) -> None:
        """What happens to memory is not seen for a while."""
        with self._lock:
            for memory in self._known.values():
                torch.UntypedStorage._free_weak_ref(memory.handle)
            self._known.clear()

    def _sweep(self) -> None:
        """Forget memory that is no more."""
        expired: Any = torch.UntypedStorage._expired
        for address in [address for address, memory in self._known.items() if expired(memory.handle)]:
            torch.UntypedStorage._free_weak_ref(self._known.pop(address).handle)
        self._sweep_at = len(self._known) + SWEEP_EVERY


class LinkCheckHook(OpHook[list[Use]]):
    """Has the memory of every op of one stream checked. Views use no memory."""

    def __init__(self, stream: OpRecorder, checks: LinkChecks) -> None:
        self._stream = stream
        self._checks = checks

    def begin(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Use] | None:
        stream = self._stream
        here = stream.number, stream.row
        self._checks.called(here, _current_call())
        if stream.process.calls.plan(func).is_view:
            return None
        if args and type(args[0]) is RegionInputs:  # its tensors are listed once, for the row
            tensors = [value for value in args[0] if isinstance(value, torch.Tensor)]
        else:
            tensors = op_tensors(args, kwargs)
        return self._checks.begin(here, tensors)

    def needs_digests(self) -> bool:
        return False

    def finish(self, cells: FixedCells, call: Call, tensors: list[torch.Tensor], out: Any) -> None:
        if self.op is not None:
            links = self._stream.links
            own = list(links[len(links) - len(tensors) :])
            self._checks.finish((self._stream.number, self._stream.row), self.op, call, own, out)


def _current_call() -> int:
    """Identifies the Python frames of the program in this thread, and the instruction that each of them is at."""
    frames: list[int] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith("rltrace."):
            frames += id(frame.f_code), frame.f_lasti
        frame = frame.f_back
    return hash(tuple(frames))


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with memory that a tensor is made of: itself, or what a subclass wraps."""
    if type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter:
        yield tensor
        return
    with torch_function_disabled():
        flatten = getattr(tensor, "__tensor_flatten__", None)
        inner = [tensor] if flatten is None else [getattr(tensor, name) for name in flatten()[0]]
    for part in inner:
        if part is tensor:
            yield part
        elif isinstance(part, torch.Tensor):
            yield from _parts(part)


def _pages_of(tensor: torch.Tensor, nbytes: int) -> Pages:
    """The pages in which ``tensor`` has elements."""
    if tensor.is_nested:  # it has no sizes
        return range(-(-nbytes // PAGE))
    if not tensor.numel() or tensor.layout is not torch.strided:
        return range(0)
    size = tensor.element_size()
    first = int(tensor.storage_offset()) * size
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end = min(first + (last + 1) * size, nbytes)
    return range(first // PAGE, -(-end // PAGE))
