"""From one dispatched op to one row: the hot path.

Owns the rows of one thread that have not been committed yet. Every statement here runs once per op of the recorded
program, so plain loops and local names stand where elsewhere a helper would; whatever is rare has a method of its
own. It reads tensors and appends numbers to flat arrays. It keeps no reference to any tensor once ``observe`` has
returned, and no failure of its own ever reaches the program.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator
from types import FrameType
from typing import Any, Protocol

import torch
from torch._ops import OpOverload
from torch.nn import Parameter
from xxhash import xxh3_64_intdigest

from rltrace.record import partial_writes
from rltrace.record import storages as storage_rules
from rltrace.record.arguments import INT64, take_apart, tensor_parts
from rltrace.record.calls import Call
from rltrace.record.layouts import Layout
from rltrace.record.modules import ModuleStack
from rltrace.record.overlaps import overlaps_another
from rltrace.record.plans import Factor, OpPlan, Role
from rltrace.record.process import ProcessState
from rltrace.record.sites import Anchor
from rltrace.record.storages import SWEEP_EVERY, View, pack_read, pack_writer, row_of
from rltrace.trace.schema import GENERATOR_SHIFT, SLOT_UNKNOWN, Kind, Origin, Phase, RowFlag, pack_link

FIXED = 7
"""Numbers per row in ``fixed``: op, structure, site, module, scalars, flags with phase and kind above them, digests."""
PHASE_SHIFT = 16
KIND_SHIFT = 24

_MARKED, _RNG, _VIEW, _ALLOCATION, _OVERLAPPING = (
    int(RowFlag.MARKED),
    int(RowFlag.RNG),
    int(RowFlag.VIEW),
    int(RowFlag.ALLOCATION),
    int(RowFlag.OVERLAPPING),
)


def phase_bits(phase: Phase, kind: Kind = Kind.OP) -> int:
    """What stands above the flags of a row."""
    return int(phase) << PHASE_SHIFT | int(kind) << KIND_SHIFT


_BACKWARD = phase_bits(Phase.BACKWARD)
_OVERWRITTEN = pack_link(Origin.OVERWRITTEN)
_UNKNOWN = pack_link(Origin.UNKNOWN)
_OUTSIDE = pack_link(Origin.OUTSIDE)
_MIXED = pack_link(Origin.MIXED)
_UNKNOWN_READ = pack_link(Origin.UNKNOWN, read=True)
_OUTSIDE_READ = pack_link(Origin.OUTSIDE, read=True)

Tensor = torch.Tensor
_storage_address = torch._C._storage_address  # type: ignore[attr-defined]
_current_node = torch._C._current_autograd_node
_get_frame = sys._getframe
_get_num_threads = torch.get_num_threads


class RowTaker(Protocol):
    """Who takes rows off the front of a stream."""

    def wake(self, stream: StreamRecorder) -> None:
        """The stream's rows have reached its limit."""

    def trim(self, stream: StreamRecorder) -> None:
        """Drop what a row that will never be has left behind."""


class StreamRecorder:
    """Rows of one thread. Used by that thread alone; the committer takes finished rows off the front."""

    def __init__(self, process: ProcessState, number: int, name: str, committer: RowTaker) -> None:
        self.process = process
        self.number = number
        self.name = name
        self._committer = committer
        self.row = 0
        """Rows finished so far, from the start of the stream."""
        self.limit = 0
        """When ``row`` reaches it, the committer is woken; set by the committer."""
        self.fixed = array("I")
        self.links = array("q")
        self.integers = array("q")
        self.floats = array("d")
        self.digests = array("Q")
        self.anchors: list[Anchor] = []
        self.modules = ModuleStack(process.module_names, self.anchors)
        self.phase = phase_bits(Phase.OTHER)
        """Phase and kind that rows are given outside of backward."""
        self.threads = -1
        self.epochs: list[tuple[int, int]] = []
        """(first row, thread count) wherever the thread count of kernels changed."""
        self.steps: list[tuple[int, int]] = [(0, process.step)]
        """(first row, step) wherever the step changed while rows were written."""
        self._writers = process.storages.new_writers()
        self._node_number = -1
        self._node_module = 0
        self._attempt_depth: int | None = None
        self._marked = False
        """The op at hand reads memory that may never have been written."""
        self._digested = 0
        """Digests appended for the op at hand."""
        # what the hot path uses of others, one attribute away
        self._calls = process.calls.known
        self._sites = process.sites.known
        self._layouts = process.layouts.known
        self._handles = process.storages.handles
        self._young = process.storages.young
        self._current = self._writers.current
        self._add_fixed = self.fixed.extend
        self._add_link = self.links.append
        self._add_integer = self.integers.append
        self._add_float = self.floats.append
        self._add_digest = self.digests.append

    # --- the hot path -----------------------------------------------------------------------------------------------

    def observe(
        self, _by: Any, func: OpOverload, _types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, /
    ) -> Any:
        """Run one op and write its row."""
        process = self.process
        tensors: list[Tensor] = []
        links = integers = floats = self._digested = 0  # cells appended so far
        try:
            row = self.row
            parts: list[object] = [id(func)]
            if kwargs:
                parts.append(tuple(kwargs))
            for value in (*args, *kwargs.values()) if kwargs else args:
                kind = type(value)
                if kind is Tensor or kind is Parameter:
                    tensors.append(value)
                    try:
                        parts += value.dtype, value.shape, value.stride(), value.is_cpu or value.device
                    except RuntimeError:
                        parts += tensor_parts(value)
                elif kind is float:
                    self._add_float(value)
                    floats += 1
                    parts.append(float)
                elif kind is int and -INT64 <= value < INT64:
                    self._add_integer(value)
                    integers += 1
                    parts.append(int)
                elif value is None or kind is bool:
                    parts += kind, value
                else:
                    more_integers, more_floats = take_apart((value,), parts, tensors, self.integers, self.floats)
                    integers += more_integers
                    floats += more_floats
            signature = tuple(parts)
            call = self._calls.get(signature)
            if call is None:
                call = process.calls.make(func, args, kwargs, signature, tensors, integers, floats)
            plan = call.plan
            is_view = plan.is_view

            if tensors:
                self._marked = False
                here = row << 12
                current = self._current
                for tensor in tensors:
                    try:
                        address = _storage_address(tensor)
                    except NotImplementedError:  # sparse, opaque
                        address = 0
                    writer = current.get(address)
                    if writer is not None:
                        self._add_link(here - writer)
                    elif is_view:
                        self._add_link(self._view_link(address))
                    else:
                        self._add_link(self._input(call, tensor, address, links))
                    links += 1
                for place in call.overwritten:
                    self.links[place - links] = _OVERWRITTEN

            flags = 0
            if plan.draws:
                digest, number = process.generators.before_op(args, kwargs or {})
                self._add_digest(digest)
                self._digested += 1
                flags = _RNG | number << GENERATOR_SHIFT

            node = _current_node()
            if node is None:
                module = self.modules.current
                flags |= self.phase
            else:
                number = node._sequence_nr()
                if number != self._node_number:
                    self._node_number = number
                    self._node_module = self.modules.of_node(number)
                module = self.modules.current or self._node_module  # a checkpointed forward runs in backward
                flags |= _BACKWARD

            stack: list[int] = []
            frame: Any = _get_frame(1)
            first = frame
            below = None
            if self.anchors:
                anchor = self.anchors[-1]
                stop = anchor.frame
                while frame is not stop and frame is not None:
                    stack += id(frame.f_code), frame.f_lasti
                    frame = frame.f_back
                if frame is not None:
                    stack.append(anchor.prefix or process.sites.prefix(self.anchors))
                elif node is not None:  # a thread of the autograd engine's own, working for the call of backward
                    below = stop
                    stack.append(anchor.prefix or process.sites.prefix(self.anchors))
                elif self._attempt_depth is not None:
                    flags = self._attempt_raised(flags)
            else:
                while frame is not None:
                    stack += id(frame.f_code), frame.f_lasti
                    frame = frame.f_back
            site_key = tuple(stack)
            site = self._sites.get(site_key)
            if site is None:
                site = process.sites.make(site_key, first, below)
            del first, frame, below
        except Exception as error:
            process.fail(error)
            return func(*args, **kwargs) if kwargs else func(*args)
        except BaseException:  # Ctrl-C, between two statements above
            self._interrupted(None, tensors)
            raise

        try:
            out = func(*args, **kwargs) if kwargs else func(*args)
        except BaseException:
            self._take_back(tensors, links, integers, floats)
            raise

        try:
            if is_view:
                flags |= _VIEW
            elif plan.computes:
                slot = 0
                if call.written:
                    slot, overlapping = self._written(call, tensors, args, kwargs)
                    flags |= overlapping
                if plan.returns_new:
                    if type(out) is Tensor:
                        self._fresh(out, plan, tensors, slot)
                    elif out is not None:
                        self._fresh_several(out, plan, tensors, slot)
                if tensors and self._marked:
                    flags |= _MARKED
            elif plan.role is Role.NUMBER:
                flags |= _number(out, self.integers, self.floats)
                if self._marked:
                    flags |= _MARKED
            else:
                flags |= self._not_computed(call, out)
            threads = _get_num_threads()
            if threads != self.threads:
                self.threads = threads
                self.epochs.append((row, threads))
            self._add_fixed((plan.id, call.structure, site, module, call.scalars, flags, self._digested))
            self.row = row + 1
            if row >= self.limit:
                self._committer.wake(self)
        except Exception as error:
            process.fail(error)
        except BaseException:
            self._interrupted(call, tensors)
            raise
        return out

    def _fresh(self, out: Tensor, plan: OpPlan, tensors: list[Tensor], slot: int) -> None:
        """An output that no argument aliases: digest it and follow its storage."""
        try:
            layout = self._layouts[out.dtype, out.shape, out.stride(), out.is_cpu or out.device]
        except (KeyError, RuntimeError):
            layout = self.process.layouts.of(out)
        small = layout.small
        try:
            if small is not None and type(out) is Tensor:
                digest = xxh3_64_intdigest(small(out.data_ptr()), layout.seed)
            else:
                digest = self.process.digests.with_layout(out, layout)
        except RuntimeError:  # a sparse scalar looks like a dense one until it is asked for its memory
            digest = self.process.digests.with_layout(out, layout)
        self._add_digest(digest)
        self._digested += 1
        try:
            address = _storage_address(out)
        except NotImplementedError:
            return
        handles = self._handles
        if address in handles or not address:
            return  # the op handed back memory it was given
        raw: Any = out.untyped_storage()
        handles[address] = raw._weak_ref()
        self._current[address] = (self.row << 12) - (slot << 2)  # pack_writer
        young = self._young
        young.append(address)
        if len(young) >= SWEEP_EVERY:
            self.process.storages.sweep()
        if plan.copies and tensors and self._marked:
            self._copy_marks(tensors[0], out)

    # --- what is rare ---------------------------------------------------------------------------------------------

    def _fresh_several(self, out: Any, plan: OpPlan, tensors: list[Tensor], slot: int) -> None:
        """Several outputs, those aside that are arguments the op wrote."""
        if plan.aliased and isinstance(out, tuple):
            out = [item for item, aliased in zip(out, plan.aliased, strict=True) if not aliased]
        for item in _flat(out):
            self._fresh(item, plan, tensors, min(slot, SLOT_UNKNOWN))
            if slot in plan.scratch:
                self.digests[-1] = 0
            slot += 1

    def _input(self, call: Call, tensor: Tensor, address: int, place: int) -> int:
        """Link of an input whose bytes were not all written by one op of this step; digests them where that decides."""
        if place in call.overwritten or (place == 0 and call.factor is not None and self._is_zero(call.factor)):
            return _OVERWRITTEN
        role = call.plan.role
        if role is Role.ALLOCATION or role is Role.ARRIVED:
            return _UNKNOWN if role is Role.ALLOCATION else _OUTSIDE
        storages, row, layout = self.process.storages, self.row, call.layouts[place]
        seen = storages.reads.get(address)
        if seen is not None and address not in storages.special:  # nobody has written it since: the usual case, first
            read = seen.get((tensor.storage_offset(), layout.id))  # type: ignore[arg-type]
            if read is not None and read[0] == self.number and read[1] != row:
                return (row << 12) - read[2]
        if not address:
            return self._unknown_input(tensor, layout, address, (0, 0), place)
        view = storage_rules.view_of(tensor, layout)
        storage = storages.special.get(address)
        if storage is None:
            if address not in storages.handles:
                return self._unknown_input(tensor, layout, address, view, place)
            external = exposed = False
            whole = True
        else:
            external, exposed = storage.external, storage.exposed
            if storage.mask is not True and not storage_rules.is_written(storage, tensor):
                if call.plan.partial and place in call.written:
                    return _MIXED  # passed through; whether anything unwritten is left, ``_written`` finds out
                self._marked = True
            whole = storage.partial is None or storage.partial == view
        writer = self._writers.of(address)
        trusted = not external and not self.process.verify_inputs
        if writer is not None and whole and trusted and not exposed and self._is_of_step(writer, address):
            return (row << 12) - writer
        seen = storages.reads.get(address)
        if seen is not None and trusted:
            read = seen.get(view)
            if read is not None and read[0] == self.number and read[1] != row:  # twice in one op: read twice
                return (row << 12) - read[2]
        self._add_digest(self.process.digests.with_layout(tensor, layout))
        self._digested += 1
        if trusted:
            if seen is None:
                seen = storages.reads[address] = {}
            seen[view] = (self.number, row, pack_read(row, place))
        if writer is not None:
            return ((row << 12) - writer if whole else _MIXED) | 1
        return _UNKNOWN_READ if storages.written_elsewhere(address) else _OUTSIDE_READ

    def _is_zero(self, factor: Factor) -> bool:
        """Whether the op at hand has the number 0 there."""
        numbers: array[int] | array[float] = self.floats if factor.is_float else self.integers
        return numbers[-factor.from_end] == 0

    def _unknown_input(self, tensor: Tensor, layout: Layout, address: int, view: View, place: int) -> int:
        """Memory that no recorded op wrote, seen for the first time."""
        storages = self.process.storages
        self._add_digest(self.process.digests.with_layout(tensor, layout))
        self._digested += 1
        if not address:
            return _UNKNOWN_READ
        if not storages.follow_outside(address, tensor) and not self.process.verify_inputs:
            storages.reads[address] = {view: (self.number, self.row, pack_read(self.row, place))}
        return _OUTSIDE_READ

    def _is_of_step(self, writer: int, address: int) -> bool:
        """Whether the last write of a storage fell into the current step of this stream."""
        return address in self._current or row_of(writer) >= max(self.steps[-1][0], self._writers.opened)

    def _view_link(self, address: int) -> int:
        """A view reads nothing: its link only says who wrote what it looks at."""
        writer = self._writers.of(address)
        if not address:
            return _UNKNOWN
        if writer is None:
            return _UNKNOWN if self.process.storages.written_elsewhere(address) else _OUTSIDE
        special = self.process.storages.special.get(address)
        if special is not None and special.partial is not None:
            return _MIXED
        return (self.row << 12) - writer

    def _written(
        self, call: Call, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> tuple[int, int]:
        """Digest every argument that the op wrote and make it the last writer of their storages.

        Returns how many, and the flag of ops whose memory to write and memory to read overlap.
        """
        process, storages, plan = self.process, self.process.storages, call.plan
        if plan.arrives:
            for place in call.written:
                address = storage_rules.address_of(tensors[place])
                if address:
                    storages.arrives(address, tensors[place])
            return 0, 0
        slot, flags = -1, 0
        for place in call.written:
            slot += 1
            tensor = tensors[place]
            layout = process.layouts.of(tensor) if plan.writes_out else call.layouts[place]  # out= may resize
            self._add_digest(process.digests.with_layout(tensor, layout))
            self._digested += 1
            address = storage_rules.address_of(tensor)
            if not address:
                continue
            if address not in storages.handles:
                storages.follow_outside(address, tensor)
            special = storages.special.get(address)
            nbytes = tensor.untyped_storage().nbytes()
            whole = layout.dense and layout.nbytes >= nbytes
            plain = special is None and whole and not self._marked
            storages.written_by(self._writers, address, pack_writer(self.row, min(slot, SLOT_UNKNOWN)), plain)
            if plain:
                if len(tensors) == 2 and call.layouts[1 - place] is not layout and overlaps_another(tensors, place):
                    flags = _OVERLAPPING
                continue
            if overlaps_another(tensors, place):
                flags = _OVERLAPPING
            special = special or storages.special_of(address, tensor)
            if special.nbytes != nbytes:
                storage_rules.resized(special, nbytes)
            special.partial = None if whole else storage_rules.view_of(tensor, layout)
            copied = plan.copies and self._marked and len(tensors) > 1 and self._copy_marks(tensors[1], tensor)
            if plan.partial:
                given = plan.named(args, kwargs)
                if special.mask is not True and not partial_writes.mark_touched(special, tensor, plan.schema, given):
                    self._marked = True
            elif not copied:
                storage_rules.mark_written(special, tensor)
            if special.partial is None and special.mask is True and not special.external:
                storages.no_longer_special(address)
        return slot + 1, flags

    def _copy_marks(self, source: Tensor, target: Tensor) -> bool:
        """``source``, partly unwritten, was copied into ``target``; True if that was so."""
        storages = self.process.storages
        origin = storages.special.get(storage_rules.address_of(source))
        if origin is None or origin.mask is True:
            return False
        storage_rules.copy_written(origin, source, storages.special_of(_storage_address(target), target), target)
        return True

    def _not_computed(self, call: Call, out: Any) -> int:
        """Take up what an op returned whose bytes are not there yet, or came from elsewhere; the row's flags."""
        role = call.plan.role
        if role is Role.ALLOCATION:
            self._allocated(call, out)
            return _ALLOCATION
        if role is Role.ARRIVED:
            self._arrived(out)
        else:
            for tensor in _flat(out):
                address = storage_rules.address_of(tensor)
                if address:
                    self.process.storages.arrives(address, tensor)
        return _MARKED if self._marked else 0

    def _arrived(self, out: Any) -> None:
        """Other processes have written ``out``: it comes from outside, and whoever reads it has it from this op."""
        came = list(_flat(out))  # what the op was given, in that order
        digests = [self.process.digests.of(tensor) for tensor in came]
        for place, digest in enumerate(digests, len(self.links) - len(came)):
            if self.links[place] == _OUTSIDE:
                self.links[place] = _OUTSIDE_READ
                self._add_digest(digest)
                self._digested += 1
        self.digests.extend(digests)
        self._digested += len(digests)
        for slot, tensor in enumerate(came):
            self._follow_arrived(tensor, min(slot, SLOT_UNKNOWN))

    def _follow_arrived(self, tensor: Tensor, slot: int) -> None:
        storages = self.process.storages
        address = storage_rules.address_of(tensor)
        if not address:
            return
        if address not in storages.handles:
            storages.follow_outside(address, tensor)
        whole = storage_rules.covers(tensor, tensor.untyped_storage().nbytes())
        special = storages.special.get(address) if whole else storages.special_of(address, tensor)
        if special is not None:
            special.partial = None if whole else storage_rules.view_of(tensor, self.process.layouts.of(tensor))
        storages.written_by(self._writers, address, pack_writer(self.row, slot), plain=special is None)

    def _allocated(self, call: Call, out: Any) -> None:
        """Memory nobody has written: follow what becomes of it."""
        storages, plan = self.process.storages, call.plan
        for tensor in _flat(out):
            address = storage_rules.address_of(tensor)
            if not address:
                continue
            if plan.resizes and address in storages.handles:
                storages.reads.pop(address, None)
                nbytes = tensor.untyped_storage().nbytes()
                known = address in storages.special
                storage = storages.special_of(address, tensor)
                if not known:  # how large it was nobody noted; what the tensor spanned was there
                    spanned = int(tensor.storage_offset()) * tensor.element_size() + call.layouts[0].nbytes
                    storage.nbytes = min(nbytes, spanned)
                storage_rules.resized(storage, nbytes)
            elif not plan.writes_any and address not in storages.handles:
                storages.follow_new(address, tensor)
                self._current[address] = pack_writer(self.row, 0)
                storages.special_of(address, tensor).mask = False

    def _take_back(self, tensors: list[Tensor], links: int, integers: int, floats: int) -> None:
        """The op raised: no row will stand for what has been appended and read for it.

        Counted from the end, since the committer may take from the front meanwhile.
        """
        for cells, count in (
            (self.links, links),
            (self.integers, integers),
            (self.floats, floats),
            (self.digests, self._digested),
        ):
            if count:
                del cells[-count:]
        for tensor in tensors:
            self.process.storages.reads.pop(storage_rules.address_of(tensor), None)

    def _interrupted(self, call: Call | None, tensors: list[Tensor]) -> None:
        """Something like Ctrl-C came while a row was being written: that row will never be.

        ``call`` where its op has run already. What it wrote then counts as written by nobody known.
        """
        self._committer.trim(self)
        storages = self.process.storages
        storages.reads.clear()
        self._writers.drop_row(self.row)
        for place in () if call is None else call.written:
            self._writers.drop(storage_rules.address_of(tensors[place]))

    def begin_attempt(self, caller: FrameType) -> None:
        """An optimizer's step begins: ops above ``caller`` share the stack below it."""
        self.end_attempt()
        self._attempt_depth = len(self.anchors)
        self.anchors.append(Anchor(caller))

    def end_attempt(self) -> None:
        if self._attempt_depth is not None:
            del self.anchors[self._attempt_depth :]
            self._attempt_depth = None

    def _attempt_raised(self, flags: int) -> int:
        """The optimizer's step that was under way is no longer on the stack; the row's flags, corrected."""
        self.end_attempt()
        self.phase = phase_bits(self.process.phase)
        return flags & ((1 << PHASE_SHIFT) - 1) | self.phase

    def found(self, bits: int, name: str, owner: str, tensor: Tensor) -> None:
        """A row for a tensor that a window finds written; whoever reads it later is linked to that row."""
        storages = self.process.storages
        self.event(bits, name, owner, [self.process.digests.of(tensor)], tensor)
        address = storage_rules.address_of(tensor)
        if not address:
            return
        if address not in storages.handles:
            storages.follow_outside(address, tensor)
        if storage_rules.covers(tensor, tensor.untyped_storage().nbytes()):
            self._writers.earlier[address] = pack_writer(self.row - 1, 0)
        self._writers.opened = self.row

    def event(self, bits: int, name: str, owner: str, digests: list[int], tensor: Tensor | None) -> None:
        """A row that is no op: ``bits`` of phase_bits, what happened, to whom, and the digests read there."""
        process = self.process
        scalars = process.calls.scalars([name], 0, 0)
        structure = 0
        if tensor is not None:
            structure = process.calls.structure((process.layouts.of(tensor),), [tensor])
            self.links.append(_OUTSIDE_READ)
        self.digests.extend(digests)
        module = process.tables.intern_payload("modules", owner)
        self.fixed.extend((process.calls.no_op, structure, 0, module, scalars, bits, len(digests)))
        self.row += 1


def _flat(out: Any) -> Iterator[Tensor]:
    """The tensors that an op returned, in order."""
    if isinstance(out, Tensor):
        yield out
    elif isinstance(out, (tuple, list)):
        for item in out:
            yield from _flat(item)


def _number(out: Any, integers: array[int], floats: array[float]) -> int:
    """Put the Python number an op returned behind its arguments' numbers; the flag that says which kind it is."""
    if isinstance(out, bool):
        integers.append(int(out))
        return int(RowFlag.VALUE_BOOL)
    if isinstance(out, int) and -(2**63) <= out < 2**63:
        integers.append(out)
        return int(RowFlag.VALUE_INTEGER)
    if isinstance(out, complex):
        floats.extend((out.real, out.imag))
        return int(RowFlag.VALUE_COMPLEX)
    floats.append(float(out))
    return int(RowFlag.VALUE_FLOAT)
