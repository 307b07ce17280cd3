"""The rows of one thread that have not been committed yet, and the state of the current row.

Owns these fields and the layout of the flat arrays.
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
from rltrace.recorder.core import ops_without_rows
from rltrace.recorder.core.hooks import OpHook
from rltrace.recorder.core.modules import ModuleStack
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.storages import WriterMaps, address_of, row_of
from rltrace.recorder.digests.layouts import Layout, data_address, is_compound
from rltrace.recorder.digests.readback import Pending
from rltrace.trace.format.schema import Kind, LinkNote, Origin, Phase, pack_link

FIXED = 7
"""Numbers per row in ``fixed``: op, structure, site, module, scalars, flags with phase and kind above them, digests."""
NOTE_CELLS = 4
"""Numbers per note in ``link_notes``: row, place, ``LinkNote``, value."""
Tensor = torch.Tensor

PHASE_SHIFT = 16
PHASE_BITS = 0xFF << PHASE_SHIFT
KIND_SHIFT = 24
NO_LIMIT = sys.maxsize


def phase_bits(phase: Phase, kind: Kind = Kind.OP) -> int:
    """The bits above the flags of a row."""
    return int(phase) << PHASE_SHIFT | int(kind) << KIND_SHIFT


_PHASES = sorted(Phase)
_PHASE_BITS = [phase_bits(phase) for phase in _PHASES]


OVERWRITTEN = pack_link(Origin.OVERWRITTEN)
UNKNOWN = pack_link(Origin.UNKNOWN)
OUTSIDE = pack_link(Origin.OUTSIDE)
MIXED = pack_link(Origin.MIXED)
UNKNOWN_READ = pack_link(Origin.UNKNOWN, read=True)
OUTSIDE_READ = pack_link(Origin.OUTSIDE, read=True)


class DeferredDigest(NamedTuple):
    """A digest that is not known yet."""

    row: int
    place: int
    """Which of the row's digests, counted from 0."""
    pending: Pending


class RowConsumer(Protocol):
    """Takes finished rows from the front of a stream."""

    def wake(self, stream: RowBuffer) -> None:
        """The stream's rows have reached its limit."""

    def trim(self, stream: RowBuffer) -> None:
        """Drop the cells of an unfinished row."""


class BufferTables(NamedTuple):
    """What the hot path of one stream reads and writes itself; a native engine has its own, with the same methods."""

    fixed: array[int]
    links: array[int]
    integers: array[int]
    floats: array[float]
    digests: array[int]
    link_notes: array[int]
    writer_maps: WriterMaps
    modules: ModuleStack

    @staticmethod
    def of(process: ProcessState) -> BufferTables:
        """Tables in Python."""
        maps, modules = process.storages.tables.new_writer_maps(), ModuleStack(process.module_names, [])
        return BufferTables(array("I"), array("q"), array("q"), array("d"), array("Q"), array("q"), maps, modules)


class RowBuffer:
    """The rows of one thread that have not been committed, as flat arrays, and the state for writing them."""

    def __init__(self, process: ProcessState, number: int, name: str, tables: BufferTables | None = None) -> None:
        tables = tables or BufferTables.of(process)
        self.process = process
        self.number = number
        self.name = name
        self.hooks: Sequence[OpHook[Any]] = ()
        """Called for every op, in this order."""
        self.owner = get_ident()
        """Ident of the thread whose rows these are."""
        self.has_torchscript_ops = False
        """TorchScript has run ops in threads that it forked from this one."""
        self.row = 0
        """Rows finished so far, from the start of the stream."""
        self.limit = 0
        """When ``row`` reaches it, the committer is woken; set by the committer."""
        self.wake_by = NO_LIMIT
        """Upper bound of ``limit``; set by the profiler."""
        self.raised_rows: list[int] | None = None
        """For each op that raised, the row that it would have had; None: not noted."""
        self.fixed, self.links, self.digests = tables.fixed, tables.links, tables.digests
        self.integers, self.floats = tables.integers, tables.floats
        self.link_notes = tables.link_notes
        """Notes on links, flat: row, place among the tensor arguments, ``LinkNote``, value."""
        self.later: deque[DeferredDigest] = deque()
        """Digests that are not known yet, in order: of the rows that are not committed, and the current one."""
        self._prefetched: dict[int, Pending | None] = {}
        """By place: inputs of the op of row ``_prefetched_row`` whose digests were deferred ahead of their cells."""
        self._prefetched_row = -1
        self.modules = tables.modules
        self.anchors = self.modules.anchors
        self.phase = phase_bits(Phase.OTHER)
        """Phase and kind of rows outside of backward."""
        self.site = 0
        """Id of the call site of the current op."""
        self.settings = NO_SNAPSHOT
        """Settings of the last op."""
        self.settings_read_at = 0
        """Row at which all settings were read last."""
        self.epochs: list[tuple[int, int]] = []
        """(first row, id in table "settings") wherever the settings changed."""
        self.steps: list[tuple[int, int]] = [(0, process.step)]
        """(first row, step) wherever the step changed while rows were written."""
        self._writers = process.storages.add_writers(tables.writer_maps)
        self._node_number = -1
        self._node_module = 0
        self._attempt_depth: int | None = None
        self._marked = False
        """The current op reads memory that may never have been written."""
        self._arrivals = 0
        """Rows so far in which other processes sent tensors."""
        self._digested = 0
        """Digests appended for the current op."""
        self._overrides = Overrides()
        self._row_dropped = allocate_lock()
        """Released once each time a row has been dropped."""
        self._row_dropped.acquire()
        # one attribute away, for the hot path
        self._calls = process.calls.known
        self._sites = process.sites.known
        self._layouts = process.layouts.known
        self._handles = process.storages.handles
        self._add_recent = process.storages.tables.add_recent
        self._current = self._writers.current
        self._add_fixed = self.fixed.extend
        self._add_link = self.links.append
        self._add_integer = self.integers.append
        self._add_float = self.floats.append
        self._add_digest = self.digests.append

    def begin_step(self, step: int) -> None:
        """Rows are of this step from now on."""
        if self.steps[-1][0] == self.row:
            self.steps[-1] = (self.row, step)
        else:
            self.steps.append((self.row, step))

    def run_callbacks(self) -> None:
        """Its rows are of callbacks of futures from now on."""
        self._writers.are_of_callbacks = True

    def _outside_link(self, address: int) -> int:
        """The link of an input that no op wrote; it names the row in which other processes sent it, if they did."""
        arrival = self.process.storages.arrival(address)
        if arrival is None:
            return OUTSIDE_READ
        if arrival[0] != self.number:
            self._writers.relayed[self.row] = arrival
            return OUTSIDE_READ
        return pack_link(Origin.OUTSIDE, self._arrivals - arrival[1] + 1, read=True)

    def _mixed_link(self, place: int, address: int, writer: int) -> int:
        """The link of an input that several ops wrote; notes the last one, and whether other bytes are from outside."""
        value = (self.row - row_of(writer)) << 1 | self.process.storages.special[address].rest_from_outside
        self.link_notes.extend((self.row, place, int(LinkNote.LAST_WRITER), value))
        return MIXED

    def _elsewhere_link(self, address: int) -> int:
        """The link of an input that another stream wrote; it names the row in which other processes sent what that
        stream computed it from, if they did."""
        arrival = self.process.storages.relayed_arrival(address, self.number)
        return UNKNOWN_READ if arrival is None else pack_link(Origin.UNKNOWN, self._arrivals - arrival + 1, read=True)

    def record_torchscript_op(self) -> None:
        """An op ran in a TorchScript thread and gets no row."""
        if not self.has_torchscript_ops and not ops_without_rows.is_thread_of_a_backend():
            self.has_torchscript_ops = True
            self.process.report_missing(ops_without_rows.FACT, f"{self.name} from row {self.row}")

    def drop_deferred(self, row: int, place: int = 0) -> None:
        """Forget deferred digests from this cell on."""
        self._prefetched_row = -1
        later = self.later
        try:
            while later and later[-1][:2] >= (row, place):
                later.pop()
        except IndexError:  # the committer emptied it from the front
            pass

    def enter_phase(self, phase: Phase) -> None:
        self.phase = _PHASE_BITS[phase]

    @property
    def current_phase(self) -> Phase:
        return _PHASES[self.phase >> PHASE_SHIFT & 0xFF]

    # --- deferred digests -------------------------------------------------------------------------------------------
    #
    # A row may be written before the digest of a tensor on a device is known: its cell is 0 until then, and ``later``
    # names row, cell and pending digest. The committer fills it in.

    def _digest_of(self, tensor: Tensor, layout: Layout) -> int:
        """The digest for the cell that is appended next; 0 where it is deferred."""
        return self._defer_one(tensor, layout) if layout.later else self.process.digests.with_layout(tensor, layout)

    def _defer_one(self, tensor: Tensor, layout: Layout) -> int:
        """The digest of a tensor on a device, for the cell that is appended next; 0 where it is deferred."""
        [pending] = self._defer([tensor], [layout])
        return self._pending_cell(pending, tensor, layout)

    def _defer(self, tensors: Sequence[Tensor], layouts: Sequence[Layout]) -> Sequence[Pending | None]:
        """Defer the digests of tensors of one device, as they are now; None for a tensor that cannot be deferred."""
        readback, graphs = self.process.readback, self.process.graphs
        graphs.install()
        if readback.is_shut(tensors[0].device):
            for tensor in tensors:
                graphs.add_write(address_of(tensor))
            return [readback.unread()] * len(tensors)
        deferred: list[Pending | None] = [None] * len(tensors)
        if not any(hook.needs_digests() for hook in self.hooks):
            plain = [i for i, tensor in enumerate(tensors) if _is_plain(tensor, layouts[i])]
            put = readback.defer([tensors[i] for i in plain], [layouts[i] for i in plain]) if plain else None
            for i, pending in zip(plain, put or (), strict=False):
                deferred[i] = pending
        return deferred

    def _pending_cell(self, pending: Pending | None, tensor: Tensor, layout: Layout) -> int:
        """The cell that is appended next: 0 for a pending digest, else the digest itself, waited for."""
        if pending is None:
            return self.process.digests.with_layout(tensor, layout)
        self.later.append(DeferredDigest(self.row, self._digested, pending))
        return 0

    def _clear_digest(self) -> None:
        """Set the digest appended last to 0: it is of no result."""
        self.digests[-1] = 0
        self.drop_deferred(self.row, self._digested - 1)


def _is_plain(tensor: Tensor, layout: Layout) -> bool:
    """Whether it has bytes in memory: not compound, not empty, no zero tensor, its storage not freed."""
    kind = type(tensor)
    if (kind is not Tensor and kind is not torch.nn.Parameter) or is_compound(tensor):
        return False
    try:
        return bool(layout.nbytes) and not tensor._is_zerotensor() and bool(data_address(tensor))
    except RuntimeError:  # a wrapper without memory
        return False
