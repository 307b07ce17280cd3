"""Where the bytes came from that an op reads: the link of each input that one whole write does not describe.

Owns when an input is digested. All of it is rare, once for most tensors in a step; what is not is in ``stream.py``.
"""

from __future__ import annotations

from array import array

import torch

from rltrace.record.calls import Call
from rltrace.record.deferring import Deferring
from rltrace.record.memory import storages as storage_rules
from rltrace.record.memory.storages import View, pack_read, row_of
from rltrace.record.open_rows import (
    MIXED,
    OUTSIDE,
    OUTSIDE_READ,
    OVERWRITTEN,
    UNKNOWN,
    UNKNOWN_READ,
)
from rltrace.record.plans import Factor, Role

Tensor = torch.Tensor

FEW = 4
"""Up to so many inputs each is put off by itself."""


class Reading(Deferring):
    """Links of inputs."""

    def _input(self, call: Call, tensors: list[Tensor], address: int, place: int) -> int:
        """Link of an input whose bytes were not all written by one op of this step; digests them where that decides."""
        tensor = tensors[place]
        if place in call.overwritten or (place == 0 and call.factor is not None and self._is_zero(call.factor)):
            return OVERWRITTEN
        role = call.plan.role
        if role is Role.ALLOCATION or role is Role.ARRIVED:
            return UNKNOWN if role is Role.ALLOCATION else OUTSIDE
        storages, row, layout = self.process.storages, self.row, call.layouts[place]
        seen = storages.reads.get(address)
        if seen is not None and address not in storages.special:  # nobody has written it since: the usual case, first
            read = seen.get((tensor.storage_offset(), layout.id))  # type: ignore[arg-type]
            if read is not None and read[0] == self.number and read[1] != row:
                return (row << 12) - read[2]
        if not address:
            return self._unknown_input(call, tensors, address, (0, 0), place)
        view = storage_rules.view_of(tensor, layout)
        storage = storages.special.get(address)
        if storage is None:
            if address not in storages.handles:
                return self._unknown_input(call, tensors, address, view, place)
            external = exposed = False
            whole = True
        else:
            external, exposed = storage.external, storage.exposed
            if storage.mask is not True and not storage_rules.is_written(storage, tensor):
                if call.plan.partial and place in call.written:
                    return MIXED  # passed through; whether anything unwritten is left, ``_written`` finds out
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
        if layout.later and self.process.readback.is_shut(tensor.device):
            return UNKNOWN if writer is None else (row << 12) - writer if whole else MIXED
        if layout.later:
            self._add_digest(self._read_later(call, tensors, place))
        else:
            self._add_digest(self.process.digests.with_layout(tensor, layout))
        self._digested += 1
        if trusted:
            if seen is None:
                seen = storages.reads[address] = {}
            seen[view] = (self.number, row, pack_read(row, place))
        if writer is not None:
            return ((row << 12) - writer if whole else MIXED) | 1
        if storages.written_elsewhere(address):
            return UNKNOWN_READ
        return OUTSIDE_READ if external else self._outside_link(address)

    def _read_later(self, call: Call, tensors: list[Tensor], place: int) -> int:
        """The digest of an input on a device; of an op with many (an optimizer's) all that will be read are put off
        with the first of them, in as few launches."""
        tensor, layouts = tensors[place], call.layouts
        if len(tensors) <= FEW:
            return self._later(tensor, layouts[place])
        if self._ahead_of != self.row or place not in self._ahead:
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
            put = self._put_off([tensors[i] for i in together], [layouts[i] for i in together])
            self._ahead, self._ahead_of = dict(zip(together, put, strict=True)), self.row
        return self._expect(self._ahead.pop(place), tensor, layouts[place])

    def _is_zero(self, factor: Factor) -> bool:
        """Whether the op at hand has the number 0 there."""
        numbers: array[int] | array[float] = self.floats if factor.is_float else self.integers
        return numbers[-factor.from_end] == 0

    def _unknown_input(self, call: Call, tensors: list[Tensor], address: int, view: View, place: int) -> int:
        """Memory that no recorded op wrote, seen for the first time."""
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
            storages.reads[address] = {view: (self.number, self.row, pack_read(self.row, place))}
        return OUTSIDE_READ

    def _is_of_step(self, writer: int, address: int) -> bool:
        """Whether the last write of a storage fell into the current step of this stream."""
        return address in self._current or row_of(writer) >= max(self.steps[-1][0], self._writers.opened)

    def _view_link(self, address: int) -> int:
        """A view reads nothing: its link only says who wrote what it looks at."""
        writer = self._writers.of(address)
        if not address:
            return UNKNOWN
        if writer is None:
            return UNKNOWN if self.process.storages.written_elsewhere(address) else OUTSIDE
        special = self.process.storages.special.get(address)
        if special is not None and special.partial is not None:
            return MIXED
        return (self.row << 12) - writer
