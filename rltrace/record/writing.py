"""What an op has done to memory: what it wrote, allocated or had sent, and who is to be named for it from now on.

Owns the digests of written arguments and the marks of memory that nobody has written. Each op that writes passes here;
what returns new memory only is in ``stream.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from rltrace.record.calls import Call
from rltrace.record.deferring import Deferring
from rltrace.record.memory import partial_writes
from rltrace.record.memory import storages as storage_rules
from rltrace.record.memory.overlaps import overlaps_another
from rltrace.record.memory.storages import pack_writer
from rltrace.record.open_rows import OUTSIDE, Later
from rltrace.record.plans import Role
from rltrace.record.readback import Pending
from rltrace.trace.schema import SLOT_UNKNOWN, RowFlag

Tensor = torch.Tensor
_MARKED, _ALLOCATION, _OVERLAPPING = int(RowFlag.MARKED), int(RowFlag.ALLOCATION), int(RowFlag.OVERLAPPING)
_storage_address = torch._C._storage_address  # type: ignore[attr-defined]


class Writing(Deferring):
    """Effects of ops."""

    def _written(
        self, call: Call, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> tuple[int, int]:
        """Digest every argument that the op wrote and make it the last writer of their storages.

        Returns how many, and the flag of ops whose memory to write and memory to read overlap.
        """
        process, storages, plan = self.process, self.process.storages, call.plan
        if plan.arrives:
            self._sent(tensors[place] for place in call.written)
            return 0, 0
        slot, flags = -1, 0
        several: Sequence[Pending | None] = ()
        for place in call.written:
            slot += 1
            tensor = tensors[place]
            layout = process.layouts.of(tensor) if plan.writes_out else call.layouts[place]  # out= may resize
            if layout.later:
                several = several or self._put_off_written(call, tensors)
                self._add_digest(
                    self._expect(several[slot], tensor, layout) if several else self._later(tensor, layout)
                )
            else:
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

    def _put_off_written(self, call: Call, tensors: list[Tensor]) -> Sequence[Pending | None]:
        """Digests of all that was written, where all of it lies on one device; else of none."""
        found, layouts = [tensors[place] for place in call.written], [call.layouts[place] for place in call.written]
        if call.plan.writes_out or not all(layout.later for layout in layouts) or len({t.device for t in found}) > 1:
            return ()
        return self._put_off(found, layouts)

    def _copy_marks(self, source: Tensor, target: Tensor) -> bool:
        """``source``, partly unwritten, was copied into ``target``; True if that was so."""
        storages = self.process.storages
        origin = storages.special.get(storage_rules.address_of(source))
        if origin is None or origin.mask is True:
            return False
        storage_rules.copy_written(origin, source, storages.special_of(_storage_address(target), target), target)
        return True

    def _not_computed(self, call: Call, tensors: list[Tensor], out: Any) -> int:
        """Take up what an op returned whose bytes are not there yet, or came from elsewhere; the row's flags."""
        role = call.plan.role
        if role is Role.ALLOCATION:
            self._allocated(call, out)
            return _ALLOCATION
        if role is Role.TO_HOST:
            self._copied_to_host(call, tensors, out)
        elif role is Role.ARRIVED:
            self._arrived(out)
        else:
            self._sent(tensors_in(out))
        return _MARKED if self._marked else 0

    def _copied_to_host(self, call: Call, tensors: list[Tensor], out: Any) -> None:
        """Memory of the host that a device writes, some time: what it will hold is what the device has, where that is
        copied as it is, and unknown else. When it holds it is the program's to know: it is digested at every use."""
        storages, half = self.process.storages, len(tensors) // 2
        targets, sources = (tensors[:half], tensors[half:]) if call.written else (list(tensors_in(out)), tensors)
        for slot, (target, source) in enumerate(zip(targets, sources, strict=True)):
            if (target.dtype, target.shape) == (source.dtype, source.shape):
                self._add_digest(self._digest_of(source, self.process.layouts.of(source)))
            else:
                self.later.append(Later(self.row, self._digested, self.process.readback.unread()))
                self._add_digest(0)
            self._digested += 1
            address = storage_rules.address_of(target)
            if not address:
                continue
            raw = target.untyped_storage()
            storages.aliased(address, raw)
            special = storages.special_of(address, target)
            whole = storage_rules.covers(target, raw.nbytes())
            special.partial = None if whole else storage_rules.view_of(target, self.process.layouts.of(target))
            storage_rules.mark_written(special, target)
            storages.written_by(self._writers, address, pack_writer(self.row, min(slot, SLOT_UNKNOWN)), plain=False)

    def _sent(self, tensors: Iterable[Tensor]) -> None:
        """Other processes write the tensors, now or soon; whoever reads one has it from this row."""
        self._arrivals += 1
        for tensor in tensors:
            address = storage_rules.address_of(tensor)
            if address:
                self.process.storages.arrives(address, tensor, self.number, self._arrivals)

    def _arrived(self, out: Any) -> None:
        """Other processes have written ``out``: it comes from outside, and whoever reads it has it from this op."""
        came = list(tensors_in(out))  # what the op was given, in that order
        digests = [self.process.digests.of(tensor) for tensor in came]
        for place, digest in enumerate(digests, len(self.links) - len(came)):
            if self.links[place] == OUTSIDE:
                self.links[place] = self._outside_link(storage_rules.address_of(came[place - len(self.links)]))
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
        for tensor in tensors_in(out):
            address = storage_rules.address_of(tensor)
            if not address:
                continue
            if plan.resizes:
                if address not in storages.handles:  # memory that ``set_`` gave it
                    storages.follow_outside(address, tensor)
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


def tensors_in(out: Any) -> Iterator[Tensor]:
    """The tensors that an op returned, in order."""
    if isinstance(out, Tensor):
        yield out
    elif isinstance(out, (tuple, list)):
        for item in out:
            yield from tensors_in(item)
