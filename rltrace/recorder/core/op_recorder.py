"""From one dispatched op to one row: the hot path.

``observe`` runs once per op of the recorded program, so it has plain loops and local names instead of helpers; rare
cases are separate methods. It reads tensors and appends numbers to flat arrays. It keeps no reference to any tensor
once it has returned, and no failure of the recorder reaches the program.
"""

from __future__ import annotations

import sys
from _thread import start_new_thread
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.nn import Parameter
from xxhash import xxh3_64_intdigest

from rltrace.recorder.base.settings import NO_SNAPSHOT, SUBNORMAL
from rltrace.recorder.base.stack_space import check_stack_space
from rltrace.recorder.base.torch_function import OverriddenError, has_torch_function, torch_function_disabled
from rltrace.recorder.core import storages as storage_rules
from rltrace.recorder.core.call_sites import Anchor
from rltrace.recorder.core.calls import INT64, Call, flatten_arguments, op_tensors, tensor_signature
from rltrace.recorder.core.distributed_tensors import DistributedError, local_arguments
from rltrace.recorder.core.events import EventForm
from rltrace.recorder.core.op_info import Factor, OpPlan, Role
from rltrace.recorder.core.ops_without_rows import is_symbolic, is_torchscript_thread
from rltrace.recorder.core.process_state import FULL_STACK, ProcessState
from rltrace.recorder.core.row_buffer import (
    KIND_SHIFT,
    MIXED,
    NOTE_CELLS,
    OUTSIDE,
    OUTSIDE_READ,
    OVERWRITTEN,
    PHASE_BITS,
    PHASE_SHIFT,
    UNKNOWN,
    UNKNOWN_READ,
    BufferTables,
    DeferredDigest,
    RowBuffer,
    RowConsumer,
    phase_bits,
)
from rltrace.recorder.core.storages import View, overlaps_another, pack_read, pack_writer, row_of
from rltrace.recorder.digests.layouts import data_address
from rltrace.recorder.digests.readback import Pending
from rltrace.trace.format.schema import GENERATOR_SHIFT, SLOT_UNKNOWN, LinkNote, Phase, RowFlag

Tensor = torch.Tensor

MAX_SEPARATE_READS = 4
"""The inputs on a device of ops with more tensors than this are digested together."""

_MARKED, _RNG, _VIEW = int(RowFlag.MARKED), int(RowFlag.RNG), int(RowFlag.VIEW)
_OFFSET_NOTE = int(LinkNote.STORAGE_OFFSET)
_ALLOCATION, _OVERLAPPING = int(RowFlag.ALLOCATION), int(RowFlag.OVERLAPPING)
_BACKWARD = phase_bits(Phase.BACKWARD)

_current_node = torch._C._current_autograd_node
_get_frame = sys._getframe
_get_ident = get_ident
_is_inference = torch.is_inference_mode_enabled
_has_onednn = torch._C._get_mkldnn_enabled
_storage_offset = torch.Tensor.storage_offset
_storage_address = torch._C._storage_address  # type: ignore[attr-defined]
_has_torch_function = has_torch_function
_data_address = data_address
_modes_left: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""Number of dispatch modes below the one that handles an op."""
_start_thread = start_new_thread  # in C, as is waiting for a lock: neither needs space on the stack


class OpRecorder(RowBuffer):
    """Writes the rows of one thread. Used only by that thread; the committer takes finished rows from the front."""

    def __init__(
        self, process: ProcessState, number: int, name: str, committer: RowConsumer, tables: BufferTables | None = None
    ) -> None:
        super().__init__(process, number, name, tables)
        self.fail = process.fail
        self._committer = committer
        self._forms: dict[tuple[EventForm, int], tuple[int, int, int, int, int]] = {}
        """The cells in ``fixed`` of events but site and phase: op, module, scalars, flags, digests; by form."""

    # --- the hot path -----------------------------------------------------------------------------------------------

    def observe(
        self, _by: Any, func: OpOverload, _types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, /
    ) -> Any:
        """Run one op and write its row."""
        if _get_ident() != self.owner and is_torchscript_thread(2):
            self.record_torchscript_op()
            return func(*args, **kwargs) if kwargs else func(*args)
        if _has_torch_function(None):
            return self._overrides.observe(self.observe, _by, func, _types, args, kwargs)
        process = self.process
        tensors: list[Tensor] = []
        links = integers = floats = self._digested = 0  # cells appended so far
        try:
            row = self.row
            key: list[object] = [id(func)]
            if kwargs:
                key.append(tuple(kwargs))
            for value in (*args, *kwargs.values()) if kwargs else args:
                kind = type(value)
                if kind is Tensor or kind is Parameter:
                    tensors.append(value)
                    try:
                        key += value.dtype, value.shape, value.stride(), value.is_cpu or value.device
                    except RuntimeError:
                        key += tensor_signature(value)
                elif kind is float:
                    self._add_float(value)
                    floats += 1
                    key.append(float)
                elif kind is int and -INT64 <= value < INT64:
                    self._add_integer(value)
                    integers += 1
                    key.append(int)
                elif value is None or kind is bool:
                    key += kind, value
                else:
                    more_integers, more_floats = flatten_arguments((value,), key, tensors, self.integers, self.floats)
                    integers += more_integers
                    floats += more_floats
            signature = tuple(key)
            call = self._calls.get(signature)
            if call is None:
                call = process.calls.make(func, args, kwargs, signature, tensors, integers, floats)
            plan = call.plan
            is_view = plan.is_view

            if tensors:
                self._marked = False
                row_bits = row << 12
                current = self._current
                for tensor in tensors:
                    try:
                        address = _storage_address(tensor)
                    except NotImplementedError:  # sparse, opaque
                        address = 0
                    writer = current.get(address)
                    if writer is not None:
                        self._add_link(row_bits - writer)
                    elif is_view:
                        self._add_link(self._view_link(address))
                    else:
                        self._add_link(self._input(call, tensors, address, links))
                    links += 1
                for place in call.overwritten:
                    self.links[place - links] = OVERWRITTEN
                if not is_view and any(map(_storage_offset, tensors)):
                    for place, tensor in enumerate(tensors):
                        if offset := int(_storage_offset(tensor)):
                            self.link_notes.extend((row, place, _OFFSET_NOTE, offset))

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
            frame: Any
            try:
                frame = _get_frame(1)
            except ValueError:  # a thread of the autograd engine, without Python frames
                frame = None
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
                elif node is not None:  # a thread of the autograd engine, working for the call of backward
                    below = stop
                    stack.append(anchor.prefix or process.sites.prefix(self.anchors))
                elif self._attempt_depth is not None:
                    flags = self._drop_attempt(flags)
            else:
                while frame is not None:
                    stack += id(frame.f_code), frame.f_lasti
                    frame = frame.f_back
            site_key = tuple(stack)
            site = self._sites.get(site_key)
            if site is None:
                site = process.sites.make(site_key, first, below)
            self.site = site
            del first, frame, below
        except OverriddenError as error:
            self._roll_back([], 0, integers + error.integers, floats + error.floats)
            if type(error) is DistributedError:
                return self._observe_distributed(_by, func, _types, args, kwargs)
            return self._overrides.observe(self.observe, _by, func, _types, args, kwargs)
        except Exception as error:
            try:
                check_stack_space(error)
                if is_symbolic(error, tensors):
                    self._roll_back(tensors, links, integers, floats)
                else:
                    process.fail(error)
            except RecursionError:
                _start_thread(self._drop_row, (args, kwargs))
                self._row_dropped.acquire()
                func = getattr(func, "_op", func)  # one frame less
            return func(*args, **kwargs) if kwargs else func(*args)
        except BaseException:  # Ctrl-C, between two statements above
            self._interrupted(None, tensors)
            raise

        try:
            out = func(*args, **kwargs) if kwargs else func(*args)
        except RecursionError:  # raised by the op, or for lack of space to call it
            _start_thread(self._drop_row, (args, kwargs))
            self._row_dropped.acquire()
            raise
        except BaseException:
            self._roll_back(tensors, links, integers, floats)
            raise

        try:
            if is_view:
                flags |= _VIEW
            elif plan.computes:
                slot = 0
                if call.written:
                    slot, overlapping = self._record_written(call, tensors, args, kwargs)
                    flags |= overlapping
                if plan.returns_new:
                    if type(out) is Tensor:
                        self._fresh(out, plan, tensors, slot)
                    elif out is not None:
                        self._fresh_several(out, plan, tensors, slot)
                if tensors and self._marked:
                    flags |= _MARKED
            elif plan.role is Role.NUMBER:
                flags |= _append_number(out, self.integers, self.floats)
                if self._marked:
                    flags |= _MARKED
            else:
                flags |= self._record_uncomputed(call, tensors, out)
            settings = self.settings
            if (  # ``Snapshot.is_current``, inlined
                not settings.is_unchanged()
                or _is_inference() is not settings.inference
                or (SUBNORMAL == 0.0) is not settings.flushes
                or _has_onednn() is not settings.onednn
            ):
                self._update_settings()
            cells = (plan.id, call.structure, site, module, call.scalars, flags, self._digested)
            if self.hooks:
                for hook in self.hooks:
                    hook.finish(cells, call, tensors, out)
            self._add_fixed(cells)
            self.row = row + 1
            if row >= self.limit:
                self._committer.wake(self)
        except Exception as error:
            try:
                check_stack_space(error)
                process.fail(error)
            except RecursionError:
                _start_thread(self._drop_row, (args, kwargs))
                self._row_dropped.acquire()
        except BaseException:
            self._interrupted(call, tensors)
            raise
        return out

    def _fresh(self, out: Tensor, plan: OpPlan, tensors: list[Tensor], slot: int) -> None:
        """Digest an output that aliases no argument, and follow its storage."""
        try:
            layout = self._layouts[out.dtype, out.shape, out.stride(), out.is_cpu or out.device]
        except (KeyError, RuntimeError, TypeError):
            layout = self.process.layouts.of(out)
        small = layout.small
        try:
            if small is not None and type(out) is Tensor:
                digest = xxh3_64_intdigest(small(_data_address(out)), layout.seed)
            elif layout.later:
                digest = self._defer_one(out, layout)
            else:
                digest = self.process.digests.with_layout(out, layout)
        except RuntimeError:  # a sparse scalar looks dense until its address is read
            digest = self.process.digests.with_layout(out, layout)
        self._add_digest(digest)
        self._digested += 1
        try:
            address = _storage_address(out)
        except NotImplementedError:
            return
        handles = self._handles
        if address in handles or not address:
            return  # the op returned memory of an argument
        raw: Any = out.untyped_storage()
        handles[address] = raw._weak_ref()
        self._current[address] = (self.row << 12) - (slot << 2)  # pack_writer
        if self._add_recent(address, layout.nbytes if layout.dense else 0):
            self.process.storages.sweep()
        if plan.copies and tensors and self._marked:
            self._copy_marks(tensors[0], out)

    # --- rare cases -----------------------------------------------------------------------------------------------

    def _observe_distributed(
        self, by: Any, func: OpOverload, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> Any:
        """Write the row of an op on distributed tensors, and leave the op to their class, which runs others."""
        if by is None or _modes_left():  # a mode of the program below the recorder's would not see the op
            for tensor in op_tensors(args, kwargs):
                self._writers.drop(storage_rules.address_of(tensor))
            return func(*args, **kwargs) if kwargs else func(*args)
        with torch_function_disabled():
            whole = self.process.distributed_ops.of(func, args, kwargs)
            if whole is None:
                return NotImplemented
            kwargs = {name: local_arguments(value) for name, value in (kwargs or {}).items()}
            return self.observe(by, whole, types, local_arguments(args), kwargs)  # type: ignore[arg-type]  # called like an operator

    def _fresh_several(self, out: Any, plan: OpPlan, tensors: list[Tensor], slot: int) -> None:
        """Several outputs, without those that are arguments the op wrote."""
        if plan.aliased and isinstance(out, tuple):
            out = [item for item, aliased in zip(out, plan.aliased, strict=True) if not aliased]
        for item in tensors_in(out):
            self._fresh(item, plan, tensors, min(slot, SLOT_UNKNOWN))
            if slot in plan.scratch:
                self._clear_digest()
            slot += 1

    def _roll_back(self, tensors: list[Tensor], links: int, integers: int, floats: int) -> None:
        """The op raised and gets no row: drop its cells, and forget its reads.

        Cells are counted from the end, since the committer may take from the front meanwhile.
        """
        if self.raised_rows is not None:
            self.raised_rows.append(self.row)
        for cells, count in (
            (self.links, links),
            (self.integers, integers),
            (self.floats, floats),
            (self.digests, self._digested),
        ):
            if count:
                del cells[-count:]
        notes = self.link_notes
        while notes and notes[-NOTE_CELLS] >= self.row:
            del notes[-NOTE_CELLS:]
        self.drop_deferred(self.row)
        self._writers.relayed.pop(self.row, None)
        for tensor in tensors:
            self.process.storages.reads.pop(storage_rules.address_of(tensor))

    def _interrupted(self, call: Call | None, tensors: list[Tensor]) -> None:
        """An exception such as Ctrl-C came while a row was being written: drop that row.

        ``call``: set where its op has run already. The writer of its outputs is then unknown.
        """
        for hook in self.hooks:
            hook.drop()
        self._committer.trim(self)
        storages = self.process.storages
        storages.reads.clear()
        self._writers.drop_row(self.row)
        for place in () if call is None else call.written:
            self._writers.drop(storage_rules.address_of(tensors[place]))

    def _update_settings(self) -> None:
        """The current op ran under other settings than the last one, or they have not been read yet."""
        before = self.settings
        if before is NO_SNAPSHOT:
            self.settings_read_at = self.row
        self.settings = self.process.settings.now(read_all=before is NO_SNAPSHOT)
        self._add_epoch()

    def _add_epoch(self) -> None:
        """Rows are of these settings from the current one on."""
        if not self.epochs or self.epochs[-1][1] != self.settings.number:
            self.epochs.append((self.row, self.settings.number))

    def _drop_row(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
        """The stack of the stream's thread is full (RecursionError): drop the current row.

        Runs in a new thread, which has stack space, while the stream's thread waits for ``_row_dropped``. Writers of
        the op's tensors are forgotten: it may have written any, or will once it has run without a row.
        """
        try:
            with torch_function_disabled():
                self._interrupted(None, [])
                for tensor in op_tensors(args, kwargs):
                    self._writers.drop(storage_rules.address_of(tensor))
            self.process.report_missing(FULL_STACK, f"{self.name} at row {self.row}")
        except Exception as error:
            self.process.fail(error)
        finally:
            self._row_dropped.release()

    def begin_attempt(self, caller: FrameType) -> None:
        """An optimizer's step begins: ops above ``caller`` share the stack below it."""
        self.end_attempt()
        self._attempt_depth = len(self.anchors)
        self.anchors.append(Anchor(caller))

    def end_attempt(self) -> None:
        if self._attempt_depth is not None:
            del self.anchors[self._attempt_depth :]
            self._attempt_depth = None

    def _drop_attempt(self, flags: int) -> int:
        """The current optimizer step is no longer on the stack; returns the row's corrected flags."""
        self.end_attempt()
        self.phase = phase_bits(self.process.phase)
        return flags & ((1 << PHASE_SHIFT) - 1) | self.phase

    # --- inputs -------------------------------------------------------------------------------------------------------

    def _input(self, call: Call, tensors: list[Tensor], address: int, place: int) -> int:
        """Link of an input that no single op of this step wrote as a whole; digests it where no writer is known."""
        tensor = tensors[place]
        if place in call.overwritten or (place == 0 and call.factor is not None and self._is_zero(call.factor)):
            return OVERWRITTEN
        role = call.plan.role
        if role is Role.ALLOCATION or role is Role.ARRIVED:
            return UNKNOWN if role is Role.ALLOCATION else OUTSIDE
        storages, row, layout = self.process.storages, self.row, call.layouts[place]
        if address not in storages.special:  # not written since: the usual case, first
            read = storages.reads.find(address, (tensor.storage_offset(), layout.id))  # type: ignore[arg-type]
            if read is not None and read[0] == self.number and read[1] != row:
                return (row << 12) - read[2]
        if not address:
            return self._unknown_input(call, tensors, address, (0, 0), place)
        view = storage_rules.view_of(tensor, layout)
        storage = storages.special.get(address)
        if storage is None:
            if address not in storages.handles:
                return self._unknown_input(call, tensors, address, view, place)
            external = exposed = in_flight = False
            whole = True
        else:
            external, exposed, in_flight = storage.external, storage.exposed, False
            if storage.mask is not True and not storage_rules.is_written(storage, tensor):
                if call.plan.partial and place in call.written:
                    return MIXED  # passed through; ``_record_written`` checks whether anything unwritten is left
                if call.plan.is_launch and place in call.written:
                    return OVERWRITTEN if storage.mask is False else MIXED
                if call.plan.is_custom and storage.mask is False:  # against its schema: there is nothing to read
                    call.written = tuple(sorted({*call.written, place}))
                    return OVERWRITTEN
                self._marked = True
                in_flight = storages.arrival(address) is not None  # it may have other bytes at the next read
            whole = storage.partial is None or storage.partial == view
        writer = self._writers.of(address)
        trusted = not external and not in_flight and not self.process.verify_inputs
        if writer is not None and whole and trusted and not exposed and self._is_of_current_step(writer, address):
            return (row << 12) - writer
        if trusted:
            read = storages.reads.find(address, view)
            if read is not None and read[0] == self.number and read[1] != row:  # twice in one op: read twice
                return (row << 12) - read[2]
        if layout.later and self.process.readback.is_shut(tensor.device):
            return UNKNOWN if writer is None else self._written_link(place, address, writer, whole)
        if layout.later:
            self._add_digest(self._read_later(call, tensors, place))
        else:
            self._add_digest(self.process.digests.with_layout(tensor, layout))
        self._digested += 1
        if trusted:
            storages.reads.add(address, view, self.number, row, pack_read(row, place))
        if writer is not None:
            return self._written_link(place, address, writer, whole) | 1
        if storages.written_elsewhere(address):
            return self._elsewhere_link(address)
        return OUTSIDE_READ if external else self._outside_link(address)

    def _written_link(self, place: int, address: int, writer: int, whole: bool) -> int:
        """The link of an input with a last writer; ``whole``: that op wrote all of it."""
        return (self.row << 12) - writer if whole else self._mixed_link(place, address, writer)

    def _read_later(self, call: Call, tensors: list[Tensor], place: int) -> int:
        """The digest of an input on a device. For an op with many inputs (an optimizer's), the digests of all that will
        be read are deferred with the first of them, in few launches."""
        tensor, layouts = tensors[place], call.layouts
        if len(tensors) <= MAX_SEPARATE_READS:
            return self._defer_one(tensor, layouts[place])
        if self._prefetched_row != self.row or place not in self._prefetched:
            device, known, reads = tensor.device, self._current, self.process.storages.reads
            together = [
                i
                for i in range(place, len(tensors))
                if i == place
                or (
                    layouts[i].later
                    and i not in call.overwritten
                    and tensors[i].device == device
                    and (address := storage_rules.address_of(tensors[i])) not in known
                    and address not in reads
                )
            ]
            put = self._defer([tensors[i] for i in together], [layouts[i] for i in together])
            self._prefetched, self._prefetched_row = dict(zip(together, put, strict=True)), self.row
        return self._pending_cell(self._prefetched.pop(place), tensor, layouts[place])

    def _is_zero(self, factor: Factor) -> bool:
        """Whether this factor of the current op is 0."""
        numbers: array[int] | array[float] = self.floats if factor.is_float else self.integers
        return numbers[-factor.from_end] == 0

    def _unknown_input(self, call: Call, tensors: list[Tensor], address: int, view: View, place: int) -> int:
        """Link of an input that no recorded op wrote, seen for the first time; digests it."""
        storages, tensor, layout = self.process.storages, tensors[place], call.layouts[place]
        if layout.later and self.process.readback.is_shut(tensor.device):
            return UNKNOWN
        if layout.later:
            self._add_digest(self._read_later(call, tensors, place))
        else:
            self._add_digest(self.process.digests.with_layout(tensor, layout))
        self._digested += 1
        if not address:
            return UNKNOWN_READ
        if not storages.follow_outside(address, tensor) and not self.process.verify_inputs:
            storages.reads.add(address, view, self.number, self.row, pack_read(self.row, place))
        return self._finished_link(call, tensors) if call.plan.copies and call.written else OUTSIDE_READ

    def _finished_link(self, call: Call, tensors: list[Tensor]) -> int:
        """Link of the source of a copy, memory that no op has written. Where the copy goes to memory that a collective
        was to write, and that was neither read nor written since, the process group finishes the collective with it, as
        gloo does for a reduce-scatter when the program waits: the source came with the collective."""
        storages, target = self.process.storages, storage_rules.address_of(tensors[call.written[0]])
        if target in storages.reads or storages.written_elsewhere(target):
            return OUTSIDE_READ
        return self._outside_link(target)

    def _is_of_current_step(self, writer: int, address: int) -> bool:
        """Whether the last write of a storage was in the current step of this stream."""
        return address in self._current or row_of(writer) >= max(self.steps[-1][0], self._writers.window_rows)

    def _view_link(self, address: int) -> int:
        """Link of a view's input: a view reads nothing, its link only names the writer of its bytes."""
        writer = self._writers.of(address)
        if not address:
            return UNKNOWN
        if writer is None:
            return UNKNOWN if self.process.storages.written_elsewhere(address) else OUTSIDE
        special = self.process.storages.special.get(address)
        if special is not None and special.partial is not None:
            return MIXED
        return (self.row << 12) - writer

    # --- outputs ------------------------------------------------------------------------------------------------------

    def _record_written(
        self, call: Call, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> tuple[int, int]:
        """Digest every argument that the op wrote and make it the last writer of their storages.

        Returns their number, and the flag of ops whose written and read memory overlap.
        """
        process, storages, plan = self.process, self.process.storages, call.plan
        if plan.arrives:
            self._follow_sent(tensors[place] for place in call.written)
            return 0, 0
        slot, flags = -1, 0
        several: Sequence[Pending | None] = ()
        for place in call.written:
            slot += 1
            tensor = tensors[place]
            layout = process.layouts.of(tensor) if plan.may_reshape else call.layouts[place]
            if layout.later:
                several = several or self._defer_written(call, tensors)
                self._add_digest(
                    self._pending_cell(several[slot], tensor, layout) if several else self._defer_one(tensor, layout)
                )
            else:
                self._add_digest(process.digests.with_layout(tensor, layout))
            self._digested += 1
            address = storage_rules.address_of(tensor)
            if not address or not tensor.numel():  # ``buffer[n:].fill_(0)`` of a full buffer writes nothing
                continue
            if address not in storages.handles:
                storages.follow_outside(address, tensor)
            special = storages.special.get(address)
            nbytes = tensor.untyped_storage().nbytes()
            whole = layout.dense and layout.nbytes >= nbytes
            is_first_part = not whole and (special is None or special.partial is None)
            rest_from_outside = is_first_part and storages.is_unwritten(self._writers, address)
            plain = special is None and whole and not self._marked
            storages.record_write(self._writers, address, pack_writer(self.row, min(slot, SLOT_UNKNOWN)), plain)
            if plain:
                if len(tensors) == 2 and call.layouts[1 - place] is not layout and overlaps_another(tensors, place):
                    flags = _OVERLAPPING
                continue
            if overlaps_another(tensors, place):
                flags = _OVERLAPPING
            special = special or storages.special_of(address, tensor)
            if special.nbytes != nbytes:
                storage_rules.record_resize(special, nbytes)
            if is_first_part:
                special.rest_from_outside = rest_from_outside
            special.partial = None if whole else storage_rules.view_of(tensor, layout)
            copied = plan.copies and self._marked and len(tensors) > 1 and self._copy_marks(tensors[1], tensor)
            if plan.partial:
                named = plan.named(args, kwargs)
                if special.mask is not True and not storage_rules.mark_partial_write(
                    special, tensor, plan.schema, named
                ):
                    self._marked = True
            elif not copied:
                storage_rules.mark_written(special, tensor)
            if special.partial is None and special.mask is True and not special.external:
                storages.drop_special(address)
        return slot + 1, flags

    def _defer_written(self, call: Call, tensors: list[Tensor]) -> Sequence[Pending | None]:
        """Defer the digests of all written tensors together, where all are on one device; else none: ()."""
        written, layouts = [tensors[place] for place in call.written], [call.layouts[place] for place in call.written]
        if call.plan.may_reshape or not all(layout.later for layout in layouts) or len({t.device for t in written}) > 1:
            return ()
        return self._defer(written, layouts)

    def _copy_marks(self, source: Tensor, target: Tensor) -> bool:
        """Copy the marks of ``source``, which was copied into ``target``; False where all of it is written."""
        storages = self.process.storages
        origin = storages.special.get(storage_rules.address_of(source))
        if origin is None or origin.mask is True:
            return False
        storage_rules.copy_written(origin, source, storages.special_of(_storage_address(target), target), target)
        return True

    def _record_uncomputed(self, call: Call, tensors: list[Tensor], out: Any) -> int:
        """Record an output whose bytes are not there yet, or come from another process; returns the row's flags."""
        role = call.plan.role
        if role is Role.ALLOCATION:
            self._follow_allocated(call, out)
            return _ALLOCATION
        if role is Role.TO_HOST:
            self._record_host_copies(call, tensors, out)
        elif role is Role.ARRIVED:
            self._record_arrived(out)
        else:
            self._follow_sent(tensors_in(out), in_flight=role is Role.IN_FLIGHT)
        return _MARKED if self._marked else 0

    def _record_host_copies(self, call: Call, tensors: list[Tensor], out: Any) -> None:
        """Record copies to the host that finish later. The digest is that of the source where the copy does not convert
        it, else unknown. Only the program knows when the copy is done, so the host memory is digested at every use."""
        storages, half = self.process.storages, len(tensors) // 2
        targets, sources = (tensors[:half], tensors[half:]) if call.written else (list(tensors_in(out)), tensors)
        for slot, (target, source) in enumerate(zip(targets, sources, strict=True)):
            if (target.dtype, target.shape) == (source.dtype, source.shape):
                self._add_digest(self._digest_of(source, self.process.layouts.of(source)))
            else:
                self.later.append(DeferredDigest(self.row, self._digested, self.process.readback.unread()))
                self._add_digest(0)
            self._digested += 1
            address = storage_rules.address_of(target)
            if not address:
                continue
            raw = target.untyped_storage()
            storages.record_shared(address, raw)
            special = storages.special_of(address, target)
            whole = storage_rules.covers(target, raw.nbytes())
            special.partial = None if whole else storage_rules.view_of(target, self.process.layouts.of(target))
            storage_rules.mark_written(special, target)
            storages.record_write(self._writers, address, pack_writer(self.row, min(slot, SLOT_UNKNOWN)), plain=False)

    def _follow_sent(self, tensors: Iterable[Tensor], *, in_flight: bool = False) -> None:
        """Other processes write the tensors, now or soon; later readers link to this row."""
        self._arrivals += 1
        for tensor in tensors:
            address = storage_rules.address_of(tensor)
            if address:
                self.process.storages.record_arrival(address, tensor, self.number, self._arrivals, in_flight=in_flight)

    def _record_arrived(self, out: Any) -> None:
        """Other processes have written ``out``: it is outside data, and later readers link to this op."""
        arrived = list(tensors_in(out))  # the op's inputs, in order
        digests = [self.process.digests.of(tensor) for tensor in arrived]
        for place, digest in enumerate(digests, len(self.links) - len(arrived)):
            if self.links[place] == OUTSIDE:
                self.links[place] = self._outside_link(storage_rules.address_of(arrived[place - len(self.links)]))
                self._add_digest(digest)
                self._digested += 1
        self.digests.extend(digests)
        self._digested += len(digests)
        for slot, tensor in enumerate(arrived):
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
            storage_rules.mark_written(special, tensor)
            if special.partial is None and special.mask is True and not special.external:
                storages.drop_special(address)
                special = None
        storages.record_write(self._writers, address, pack_writer(self.row, slot), plain=special is None)

    def _follow_allocated(self, call: Call, out: Any) -> None:
        """Follow memory that is allocated and unwritten."""
        storages, plan = self.process.storages, call.plan
        for tensor in tensors_in(out):
            address = storage_rules.address_of(tensor)
            if not address:
                continue
            if plan.resizes:
                if address not in storages.handles:  # memory from ``set_``
                    storages.follow_outside(address, tensor)
                storages.reads.pop(address)
                nbytes = tensor.untyped_storage().nbytes()
                known = address in storages.special
                storage = storages.special_of(address, tensor)
                if not known:  # its former size was not recorded; it was at least what the tensor spanned
                    spanned = int(tensor.storage_offset()) * tensor.element_size() + call.layouts[0].nbytes
                    storage.nbytes = min(nbytes, spanned)
                storage_rules.record_resize(storage, nbytes)
            elif not plan.writes_any and address not in storages.handles:
                storages.follow_new(address, tensor)
                self._current[address] = pack_writer(self.row, 0)
                storages.special_of(address, tensor).mask = False

    # --- events -------------------------------------------------------------------------------------------------------

    def write_event(
        self,
        form: EventForm,
        evidence: Sequence[int],
        digests: Sequence[int],
        integers: Sequence[int],
        floats: Sequence[float],
        frame: FrameType,
    ) -> None:
        """Write one event, called from ``frame``. Never while an op of this thread is being handled.

        ``evidence``: that of its form, then cells with values of its fields.
        """
        cells = self._forms.get((form, len(evidence))) or self._intern(form, len(evidence))
        op, module, scalars, flags, digested = cells
        row, site = self.row, self._site_of(frame)
        try:
            self.digests.extend((*evidence, *digests))
            for integer in integers:
                self._add_integer(integer)
            for number in floats:
                self._add_float(number)
            self._add_fixed((op, 0, site, module, scalars, self.phase & PHASE_BITS | flags, digested))
            self.row = row + 1
        except BaseException:  # Ctrl-C, between two statements
            self._committer.trim(self)
            raise
        if row >= self.limit:
            self._committer.wake(self)

    def _intern(self, form: EventForm, evidence: int) -> tuple[int, int, int, int, int]:
        calls = self.process.calls
        scalars = calls.scalars(form.skeleton(), len(form.integers), len(form.floats), form.texts)
        module = self.process.tables.intern_payload("modules", form.owner)
        flags = form.kind << KIND_SHIFT | evidence << GENERATOR_SHIFT | _MARKED
        cells = self._forms[form, evidence] = calls.no_op, module, scalars, flags, evidence + len(form.digests)
        return cells

    def _site_of(self, first: FrameType) -> int:
        """The call site of ``first``, walked as for an op."""
        anchor = self.anchors[-1] if self.anchors else None
        frame: FrameType | None = first
        stack: list[int] = []
        while frame is not None and (anchor is None or frame is not anchor.frame):
            stack += id(frame.f_code), frame.f_lasti
            frame = frame.f_back
        if anchor is not None and frame is not None:
            stack.append(anchor.prefix or self.process.sites.prefix(self.anchors))
        key = tuple(stack)
        site = self._sites.get(key)
        return self.process.sites.make(key, first) if site is None else site

    def write_window_tensor(self, bits: int, name: str, owner: str, tensor: Tensor) -> None:
        """Write a row for a tensor at the beginning of a window; later readers link to it."""
        storages = self.process.storages
        self.write_window_row(bits, name, owner, [self.process.digests.of(tensor)], tensor)
        address = storage_rules.address_of(tensor)
        if not address:
            return
        if address not in storages.handles:
            storages.follow_outside(address, tensor)
        if storage_rules.covers(tensor, tensor.untyped_storage().nbytes()):
            self._writers.earlier[address] = pack_writer(self.row - 1, 0)
        self._writers.window_rows = self.row

    def write_window_row(self, bits: int, name: str, owner: str, digests: list[int], tensor: Tensor | None) -> None:
        """Write a row for state at the beginning of a window: phase bits, name, owner's path and digests."""
        process = self.process
        scalars = process.calls.scalars([name], 0, 0)
        structure = 0
        if tensor is not None:
            structure = process.calls.structure((process.layouts.of(tensor),), [tensor])
            self.links.append(OUTSIDE_READ)
        self.digests.extend(digests)
        module = process.tables.intern_payload("modules", owner)
        cells = (process.calls.no_op, structure, 0, module, scalars, bits, len(digests))
        self.fixed.extend(cells)
        self.row += 1
        for hook in self.hooks:
            hook.window_row(cells, self.row - 1, name, owner, digests, tensor)

    def forget_writer(self, tensor: Tensor) -> None:
        """Forget the writer of a tensor that was overwritten by no op: its next reader digests it."""
        self._writers.drop(storage_rules.address_of(tensor))


def tensors_in(out: Any) -> Iterator[Tensor]:
    """The tensors that an op returned, in order."""
    if isinstance(out, Tensor):
        yield out
    elif isinstance(out, (tuple, list)):
        for item in out:
            yield from tensors_in(item)


def _append_number(out: Any, integers: array[int], floats: array[float]) -> int:
    """Append the Python number that an op returned to its arguments' numbers; returns the flag of its type."""
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
