"""Rows that are no ops: what happened around the ops, at its place among them.

Owns how such a row is made. An event has a form, which is made once (what happened, to whom, the names of what is told
of it) and written often, with a cell for each name. Anything in ``rltrace.recorder`` writes one so::

    SCALED = EventForm(Kind.VALUE, "GradScaler 0", floats=("scale",), integers=("growth_tracker",))
    ...
    session.event(SCALED, integers=(tracker,), floats=(scale,))

An event tells what came in from outside of torch, and that matters only where an op takes it in. So a difference
between two runs in the cells of an event alone is no divergence (``RowFlag.MARKED``): it is counted and listed, and it
is the origin of what differs because of it. That an event is there at all is compared like an op's being there.
*Evidence* is not compared at all, and is in no hash: what differs between unchanged runs, such as the state of a
generator that nobody has seeded, or what an extra event in one of two runs shifts, such as a count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

import torch

from rltrace.recorder.core import storages as storage_rules
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.row_buffer import KIND_SHIFT, OUTSIDE_READ, PHASE_SHIFT, RowBuffer
from rltrace.recorder.core.storages import pack_writer
from rltrace.trace.format.schema import GENERATOR_SHIFT, Kind, RowFlag

Tensor = torch.Tensor
_PHASE = 0xFF << PHASE_SHIFT
_MARKED = int(RowFlag.MARKED)


@dataclass(frozen=True, eq=False, slots=True)
class EventForm:
    """What events of one form have in common. Two forms are never equal: make each once and keep it.

    All of it is identity: two runs whose events differ in any of these had different things happen to them. So none of
    it may hold an address, a process id or a count of what timing decides.
    """

    kind: Kind
    what: str
    """What it happened to, in words: ``environment 3``."""
    owner: str = ""
    """What stands in the row's module column: whose it is."""
    counts: tuple[str, ...] = ()
    """Names of whole numbers from 0 to 2**64 that are evidence; with ``evidence`` at most 63."""
    evidence: tuple[str, ...] = ()
    """Of digests that are."""
    digests: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    """Of whole numbers between -2**63 and 2**63."""
    floats: tuple[str, ...] = ()

    def skeleton(self) -> list[object]:
        """Its entry in table "scalars"."""
        cells = {"n": self.counts, "e": self.evidence, "d": self.digests, "i": self.integers, "f": self.floats}
        return [self.what, *([f"{name}=", letter] for letter, names in cells.items() for name in names)]


class RowTaker(Protocol):
    """Who takes rows off the front of a stream."""

    def wake(self, stream: RowBuffer) -> None:
        """The stream's rows have reached its limit."""

    def trim(self, stream: RowBuffer) -> None:
        """Drop what a row that will never be has left behind."""


class EventRows(RowBuffer):
    """Rows of events in one thread's stream."""

    def __init__(self, process: ProcessState, number: int, name: str, committer: RowTaker) -> None:
        super().__init__(process, number, name)
        self._committer = committer
        self._forms: dict[EventForm, tuple[int, int]] = {}
        """By form: its ids in tables "modules" and "scalars"."""

    def happened(
        self,
        form: EventForm,
        evidence: Sequence[int],
        digests: Sequence[int],
        integers: Sequence[int],
        floats: Sequence[float],
        frame: FrameType,
    ) -> None:
        """Write one event, called from ``frame``. Never while an op of this thread is under way."""
        ids = self._forms.get(form) or self._intern(form)
        flags = self.phase & _PHASE | form.kind << KIND_SHIFT | len(evidence) << GENERATOR_SHIFT | _MARKED
        site = self._site(frame)
        try:
            self.digests.extend((*evidence, *digests))
            self.integers.extend(integers)
            self.floats.extend(floats)
            self.fixed.extend((self.process.calls.no_op, 0, site, *ids, flags, len(evidence) + len(digests)))
            self.row += 1
        except BaseException:  # Ctrl-C, between two of them
            self._committer.trim(self)
            raise
        if self.row > self.limit:
            self._committer.wake(self)

    def _intern(self, form: EventForm) -> tuple[int, int]:
        process = self.process
        scalars = process.calls.scalars(form.skeleton(), len(form.integers), len(form.floats))
        ids = self._forms[form] = process.tables.intern_payload("modules", form.owner), scalars
        return ids

    def _site(self, first: FrameType) -> int:
        """The call site of ``first``, walked like that of an op."""
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

    # --- tensors that a window finds ----------------------------------------------------------------------------------

    def found(self, bits: int, name: str, owner: str, tensor: Tensor) -> None:
        """A row for a tensor that a window finds written; whoever reads it later is linked to that row."""
        storages = self.process.storages
        self.opening(bits, name, owner, [self.process.digests.of(tensor)], tensor)
        address = storage_rules.address_of(tensor)
        if not address:
            return
        if address not in storages.handles:
            storages.follow_outside(address, tensor)
        if storage_rules.covers(tensor, tensor.untyped_storage().nbytes()):
            self._writers.earlier[address] = pack_writer(self.row - 1, 0)
        self._writers.opened = self.row

    def opening(self, bits: int, name: str, owner: str, digests: list[int], tensor: Tensor | None) -> None:
        """A row of what a window begins with: ``bits`` of phase_bits, what it is, whose, and its digests."""
        process = self.process
        scalars = process.calls.scalars([name], 0, 0)
        structure = 0
        if tensor is not None:
            structure = process.calls.structure((process.layouts.of(tensor),), [tensor])
            self.links.append(OUTSIDE_READ)
        self.digests.extend(digests)
        module = process.tables.intern_payload("modules", owner)
        self.fixed.extend((process.calls.no_op, structure, 0, module, scalars, bits, len(digests)))
        self.row += 1
