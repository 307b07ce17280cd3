"""The rows of one thread that have not been committed yet, and what the row at hand needs of others.

Owns these fields and the layout of the flat arrays. Reads no tensor.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock
from array import array
from collections import deque
from collections.abc import Sequence
from threading import get_ident
from typing import Any, NamedTuple, Protocol

import torch

from rltrace.recorder.base.settings import NO_SNAPSHOT
from rltrace.recorder.base.torch_function import Overrides
from rltrace.recorder.core import torchscript_threads
from rltrace.recorder.core.call_sites import Anchor
from rltrace.recorder.core.hooks import OpHook
from rltrace.recorder.core.modules import ModuleStack
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.storages import address_of
from rltrace.recorder.digests.layouts import Layout, is_compound
from rltrace.recorder.digests.readback import Pending
from rltrace.trace.format.schema import Kind, Origin, Phase, pack_link

FIXED = 7
"""Numbers per row in ``fixed``: op, structure, site, module, scalars, flags with phase and kind above them, digests."""
Tensor = torch.Tensor

PHASE_SHIFT = 16
KIND_SHIFT = 24
NO_LIMIT = sys.maxsize


def phase_bits(phase: Phase, kind: Kind = Kind.OP) -> int:
    """What stands above the flags of a row."""
    return int(phase) << PHASE_SHIFT | int(kind) << KIND_SHIFT


_PHASE_BITS = [phase_bits(phase) for phase in sorted(Phase)]


OVERWRITTEN = pack_link(Origin.OVERWRITTEN)
UNKNOWN = pack_link(Origin.UNKNOWN)
OUTSIDE = pack_link(Origin.OUTSIDE)
MIXED = pack_link(Origin.MIXED)
UNKNOWN_READ = pack_link(Origin.UNKNOWN, read=True)
OUTSIDE_READ = pack_link(Origin.OUTSIDE, read=True)


class Later(NamedTuple):
    """A digest that is yet to come."""

    row: int
    place: int
    """Which of the row's digests, counted from 0."""
    pending: Pending


class RowTaker(Protocol):
    """Takes rows off the front of a stream."""

    def wake(self, stream: RowBuffer) -> None:
        """The stream's rows have reached its limit."""

    def trim(self, stream: RowBuffer) -> None:
        """Drop what a row that will never be has left behind."""


class RowBuffer:
    """The rows of one thread that have not been committed, as flat arrays, and the state they are made with."""

    def __init__(self, process: ProcessState, number: int, name: str) -> None:
        self.process = process
        self.number = number
        self.name = name
        self.hooks: Sequence[OpHook[Any]] = ()
        """Called for every op, in this order."""
        self.owner = get_ident()
        """The thread whose rows these are."""
        self.beside = False
        """TorchScript has run ops beside this thread."""
        self.row = 0
        """Rows finished so far, from the start of the stream."""
        self.limit = 0
        """When ``row`` reaches it, the committer is woken; set by the committer."""
        self.most = NO_LIMIT
        """Row at which the committer is woken at the latest, where somebody else waits for that."""
        self.raised: list[int] | None = None
        """Where there is such a list: for each op that raised, and so has no row, the row that it would have had."""
        self.fixed = array("I")
        self.links = array("q")
        self.integers = array("q")
        self.floats = array("d")
        self.digests = array("Q")
        self.later: deque[Later] = deque()
        """Which of the digests are yet to come, in their order: of the rows that are not committed, and the one at
        hand."""
        self._ahead: dict[int, Pending | None] = {}
        """By place: inputs of the op of row ``_ahead_of`` that have been put off and are yet to be met."""
        self._ahead_of = -1
        self.anchors: list[Anchor] = []
        self.modules = ModuleStack(process.module_names, self.anchors)
        self.phase = phase_bits(Phase.OTHER)
        """Phase and kind that rows are given outside of backward."""
        self.site = 0
        """Id of the call site of the op at hand."""
        self.settings = NO_SNAPSHOT
        """What the last op ran under."""
        self.settings_read_at = 0
        """Row at which all settings were asked for last."""
        self.epochs: list[tuple[int, int]] = []
        """(first row, id in table "settings") wherever the settings changed."""
        self.steps: list[tuple[int, int]] = [(0, process.step)]
        """(first row, step) wherever the step changed while rows were written."""
        self._writers = process.storages.new_writers()
        self._node_number = -1
        self._node_module = 0
        self._attempt_depth: int | None = None
        self._marked = False
        """The op at hand reads memory that may never have been written."""
        self._arrivals = 0
        """Rows so far that took in what other processes send."""
        self._digested = 0
        """Digests appended for the op at hand."""
        self._overrides = Overrides()
        self._lost = allocate_lock()
        """Free for a moment when a row has been given up."""
        self._lost.acquire()
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

    def _outside_link(self, address: int) -> int:
        """The link of bytes from outside that are read here; it says with which row other processes sent them."""
        arrival = self.process.storages.arrival(address, self.number)
        if arrival is None:
            return OUTSIDE_READ
        return pack_link(Origin.OUTSIDE, self._arrivals - arrival + 1, read=True)

    def passed_by(self) -> None:
        """An op ran beside this thread, on one of TorchScript's, and is no row."""
        if not self.beside:
            self.beside = True
            self.process.missing(torchscript_threads.FACT, f"{self.name} from row {self.row}")

    def drop_later(self, row: int, place: int = 0) -> None:
        """Cells from this one on will never be, or be others."""
        self._ahead_of = -1
        later = self.later
        try:
            while later and later[-1][:2] >= (row, place):
                later.pop()
        except IndexError:  # the committer takes from the front meanwhile
            pass

    def enter_phase(self, phase: Phase) -> None:
        self.phase = _PHASE_BITS[phase]

    @property
    def current_phase(self) -> Phase:
        return Phase(self.phase >> PHASE_SHIFT & 0xFF)

    # --- deferred digests -------------------------------------------------------------------------------------------
    #
    # Of a tensor on a device, in a row that is written before its digest is known: a 0 stands in its place, and
    # ``later`` says of which row's which cell, and what it comes from. The committer puts the digest in.

    def _digest_of(self, tensor: Tensor, layout: Layout) -> int:
        """For the cell that is appended next."""
        return self._later(tensor, layout) if layout.later else self.process.digests.with_layout(tensor, layout)

    def _later(self, tensor: Tensor, layout: Layout) -> int:
        """The digest of a tensor on a device, for the cell that is appended next; 0 where it is yet to come."""
        [pending] = self._put_off([tensor], [layout])
        return self._expect(pending, tensor, layout)

    def _put_off(self, tensors: Sequence[Tensor], layouts: Sequence[Layout]) -> Sequence[Pending | None]:
        """What will be the digests of tensors of one device, as they are now; None for one that cannot be put off."""
        readback, graphs = self.process.readback, self.process.graphs
        graphs.install()
        if readback.is_shut(tensors[0].device):
            for tensor in tensors:
                graphs.wrote(address_of(tensor))
            return [readback.unread()] * len(tensors)
        found: list[Pending | None] = [None] * len(tensors)
        if not self._reads_at_once():
            plain = [i for i, tensor in enumerate(tensors) if _is_plain(tensor, layouts[i])]
            put = readback.put([tensors[i] for i in plain], [layouts[i] for i in plain]) if plain else None
            for i, pending in zip(plain, put or (), strict=False):
                found[i] = pending
        return found

    def _expect(self, pending: Pending | None, tensor: Tensor, layout: Layout) -> int:
        """Of the cell that is appended next; the digest itself where it had to be waited for."""
        if pending is None:
            return self.process.digests.with_layout(tensor, layout)
        self.later.append(Later(self.row, self._digested, pending))
        return 0

    def _reads_at_once(self) -> bool:
        """Whether a hook needs the digests of the row at hand while it is written."""
        return any(hook.needs_digests() for hook in self.hooks)

    def _no_result(self) -> None:
        """The digest appended last is of nothing that counts."""
        self.digests[-1] = 0
        self.drop_later(self.row, self._digested - 1)


def _is_plain(tensor: Tensor, layout: Layout) -> bool:
    """Whether its bytes lie in memory of its own: not of a compound tensor, of no elements, of zeros not written down,
    of a storage that was given back."""
    kind = type(tensor)
    if (kind is not Tensor and kind is not torch.nn.Parameter) or is_compound(tensor):
        return False
    try:
        return bool(layout.nbytes) and not tensor._is_zerotensor() and bool(tensor.data_ptr())
    except RuntimeError:  # a wrapper, which has no memory
        return False
