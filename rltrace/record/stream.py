"""From one dispatched op to one row: the hot path.

Owns the rows of one thread that have not been committed yet. Every statement here runs once per op of the recorded
program, so plain loops and local names stand where elsewhere a helper would; whatever is rare has a method of its
own. It reads tensors and appends numbers to flat arrays. It keeps no reference to any tensor once ``observe`` has
returned, and no failure of its own ever reaches the program.
"""

from __future__ import annotations

import sys
from _thread import start_new_thread
from array import array
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.nn import Parameter
from xxhash import xxh3_64_intdigest

from rltrace.record.arguments import INT64, op_tensors, take_apart, tensor_parts
from rltrace.record.beside import is_symbolic, runs_beside
from rltrace.record.calls import Call
from rltrace.record.events import Happening, RowTaker
from rltrace.record.memory import storages as storage_rules
from rltrace.record.memory.storages import SWEEP_EVERY
from rltrace.record.open_rows import OVERWRITTEN, PHASE_SHIFT, phase_bits
from rltrace.record.overrides import OverriddenError, unasked, would_be_asked
from rltrace.record.plans import OpPlan, Role
from rltrace.record.process import FULL_STACK
from rltrace.record.reading import Reading
from rltrace.record.room import need_room
from rltrace.record.settings import NOT_ASKED, SUBNORMAL
from rltrace.record.sites import Anchor
from rltrace.record.writing import Writing, tensors_in
from rltrace.trace.schema import GENERATOR_SHIFT, SLOT_UNKNOWN, Phase, RowFlag

_MARKED, _RNG, _VIEW = int(RowFlag.MARKED), int(RowFlag.RNG), int(RowFlag.VIEW)
_BACKWARD = phase_bits(Phase.BACKWARD)

Tensor = torch.Tensor
_storage_address = torch._C._storage_address  # type: ignore[attr-defined]
_current_node = torch._C._current_autograd_node
_get_frame = sys._getframe
_get_ident = get_ident
_is_inference = torch.is_inference_mode_enabled
_has_onednn = torch._C._get_mkldnn_enabled
_would_be_asked = would_be_asked
_start_thread = start_new_thread  # of C, as is waiting for a lock: neither needs room on the stack


__all__ = ["RowTaker", "StreamRecorder"]


class StreamRecorder(Reading, Writing, Happening):
    """Rows of one thread. Used by that thread alone; the committer takes finished rows off the front."""

    # --- the hot path -----------------------------------------------------------------------------------------------

    def observe(
        self, _by: Any, func: OpOverload, _types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, /
    ) -> Any:
        """Run one op and write its row."""
        if _get_ident() != self.owner and runs_beside(2):
            self.passed_by()
            return func(*args, **kwargs) if kwargs else func(*args)
        if _would_be_asked(None):
            return self._overrides.observe(self.observe, _by, func, _types, args, kwargs)
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
                        self._add_link(self._input(call, tensors, address, links))
                    links += 1
                for place in call.overwritten:
                    self.links[place - links] = OVERWRITTEN

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
            except ValueError:  # a thread without Python below: the autograd engine's own
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
        except OverriddenError as error:
            self._take_back([], 0, integers + error.integers, floats + error.floats)
            return self._overrides.observe(self.observe, _by, func, _types, args, kwargs)
        except Exception as error:
            try:
                need_room(error)
                if is_symbolic(error, tensors):
                    self._take_back(tensors, links, integers, floats)
                else:
                    process.fail(error)
            except RecursionError:
                _start_thread(self._lose, (args, kwargs))
                self._lost.acquire()
                func = getattr(func, "_op", func)  # a frame less
            return func(*args, **kwargs) if kwargs else func(*args)
        except BaseException:  # Ctrl-C, between two statements above
            self._interrupted(None, tensors)
            raise

        try:
            out = func(*args, **kwargs) if kwargs else func(*args)
        except RecursionError:  # the op's own, or there is no room to call it
            _start_thread(self._lose, (args, kwargs))
            self._lost.acquire()
            raise
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
                flags |= self._not_computed(call, tensors, out)
            settings = self.settings
            if (
                not settings.is_unchanged()
                or _is_inference() is not settings.inference
                or (SUBNORMAL == 0.0) is not settings.flushes
                or _has_onednn() is not settings.onednn
            ):
                self._settings_changed()
            self._add_fixed((plan.id, call.structure, site, module, call.scalars, flags, self._digested))
            self.row = row + 1
            if row >= self.limit:
                self._committer.wake(self)
        except Exception as error:
            try:
                need_room(error)
                process.fail(error)
            except RecursionError:
                _start_thread(self._lose, (args, kwargs))
                self._lost.acquire()
        except BaseException:
            self._interrupted(call, tensors)
            raise
        return out

    def _fresh(self, out: Tensor, plan: OpPlan, tensors: list[Tensor], slot: int) -> None:
        """An output that no argument aliases: digest it and follow its storage."""
        try:
            layout = self._layouts[out.dtype, out.shape, out.stride(), out.is_cpu or out.device]
        except (KeyError, RuntimeError, TypeError):
            layout = self.process.layouts.of(out)
        small = layout.small
        try:
            if small is not None and type(out) is Tensor:
                digest = xxh3_64_intdigest(small(out.data_ptr()), layout.seed)
            elif layout.later:
                digest = self._later(out, layout)
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
        for item in tensors_in(out):
            self._fresh(item, plan, tensors, min(slot, SLOT_UNKNOWN))
            if slot in plan.scratch:
                self._no_result()
            slot += 1

    def _take_back(self, tensors: list[Tensor], links: int, integers: int, floats: int) -> None:
        """The op raised: no row will stand for what has been appended and read for it.

        Counted from the end, since the committer may take from the front meanwhile.
        """
        if self.raised is not None:
            self.raised.append(self.row)
        for cells, count in (
            (self.links, links),
            (self.integers, integers),
            (self.floats, floats),
            (self.digests, self._digested),
        ):
            if count:
                del cells[-count:]
        self.drop_later(self.row)
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

    def _settings_changed(self) -> None:
        """The op at hand ran under other settings than the last one, or nobody has asked yet."""
        before = self.settings
        if before is NOT_ASKED:
            self.asked_settings = self.row
        self.settings = self.process.settings.now(ask_all=before is NOT_ASKED)
        if not self.epochs or self.epochs[-1][1] != self.settings.number:
            self.epochs.append((self.row, self.settings.number))

    def _lose(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
        """The stack of the stream's thread is full (RecursionError): the row at hand will never be.

        Called in a thread of its own, which has room, while that thread waits for ``_lost``. Nobody knows what the op
        has written, or will have when it has run without a row.
        """
        try:
            with unasked():
                self._interrupted(None, [])
                for tensor in op_tensors(args, kwargs):
                    self._writers.drop(storage_rules.address_of(tensor))
            self.process.missing(FULL_STACK, f"{self.name} at row {self.row}")
        except Exception as error:
            self.process.fail(error)
        finally:
            self._lost.release()

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
