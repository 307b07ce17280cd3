"""The rows of one thread that have not been committed yet, and what the row at hand needs of others.

Owns these fields and the layout of the flat arrays. Reads no tensor.
"""

from __future__ import annotations

import sys
from _thread import allocate_lock
from array import array
from collections import deque
from threading import get_ident
from typing import NamedTuple

from rltrace.record import beside
from rltrace.record.modules import ModuleStack
from rltrace.record.overrides import Overrides
from rltrace.record.process import ProcessState
from rltrace.record.readback import Pending
from rltrace.record.settings import NOT_ASKED
from rltrace.record.sites import Anchor
from rltrace.trace.schema import Kind, Origin, Phase, pack_link

FIXED = 7
"""Numbers per row in ``fixed``: op, structure, site, module, scalars, flags with phase and kind above them, digests."""
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


class OpenRows:
    """What a stream's rows are made in."""

    def __init__(self, process: ProcessState, number: int, name: str) -> None:
        self.process = process
        self.number = number
        self.name = name
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
        self.settings = NOT_ASKED
        """What the last op ran under."""
        self.asked_settings = 0
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
            self.process.missing(beside.FACT, f"{self.name} from row {self.row}")

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
