"""Writers of storages: each storage's last writer, data from outside, unwritten elements.

Owns every table keyed on a storage's address. An entry holds a C++ weak reference, which keeps the address from being
reused and holds none of the tensor's memory; so an address never names two storages, and the time at which entries of
dead storages are dropped never affects a row. A link may be unknown or mixed, never wrong.
"""

import math
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.digests.layouts import Layout
from rltrace.trace.format.schema import pack_link

SWEEP_EVERY: Final = 4_096
"""Storages followed between two sweeps, at most."""
SWEEP_BYTES: Final = 16 << 20
"""Host memory of those, at most. What torch keeps of a dead storage that is followed lies between tensors, whose memory
cannot be joined again so long: that of a transformer's update doubled."""
SWEEP_BYTES_EACH: Final = 8 << 10
"""So many more for each storage that is followed: all of them are looked at."""
_MAX_MASK: Final = 64 * 2**20
"""Larger storages, in elements, are followed as a whole: marked until one op has written all of them."""

View = tuple[int, int]
"""(storage offset, layout id): two tensors of one storage with the same view hold the same bytes."""


class Storage:
    """State of a storage that is not described by one whole write."""

    __slots__ = ("aliases", "foreign", "mask", "nbytes", "partial", "rest_from_outside")

    def __init__(self, nbytes: int, foreign: bool) -> None:
        self.nbytes = nbytes
        self.foreign = foreign
        """Code outside torch can write it from now on: memory of a NumPy array, shared, exported by DLPack."""
        self.aliases: list[weakref.ref[Any]] | None = None
        """The NumPy arrays that torch made of it, those that died too; None: none since it was written whole."""
        self.partial: View | None = None
        """The view that its last writer wrote; None: all of it."""
        self.rest_from_outside = False
        """Where it is written in part: whether the elements that no op has written came from outside."""
        self.mask: NDArray[np.bool_] | bool = True
        """Which elements have been written since the storage was allocated; True: all, False: none."""

    @property
    def external(self) -> bool:
        """Whether code outside torch can write it now, so that it is digested at every use."""
        return self.foreign or any(alias() is not None for alias in self.aliases or ())

    @property
    def exposed(self) -> bool:
        """Whether code outside torch may have written it since its last writer did."""
        return self.foreign or self.aliases is not None


class StridedElements(NamedTuple):
    """Which elements of a storage a tensor consists of."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    itemsize: int

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return self.itemsize

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def storage_offset(self) -> int:
        return self.offset


@dataclass(frozen=True, eq=False)
class Flight:
    """Elements that a collective may be writing."""

    address: int
    elements: StridedElements


def pack_writer(row: int, slot: int) -> int:
    """The writer of a storage, so that ``(reader_row << 12) - pack_writer(…)`` is the reader's link."""
    return (row << 12) - (slot << 2)


def pack_read(row: int, place: int) -> int:
    """A read of a view as an input, so that ``(reader_row << 12) - pack_read(…)`` is a later reader's link."""
    return -pack_link(-row, place, known=True)


def row_of(writer: int) -> int:
    """The row of a packed writer."""
    return (writer + 0xFFF) >> 12


class Reads:
    """Views digested as inputs in the current step, of storages not written since."""

    def __init__(self) -> None:
        self._views: dict[int, dict[View, tuple[int, int, int]]] = {}

    def find(self, address: int, view: View) -> tuple[int, int, int] | None:
        """Stream, row and ``pack_read`` of the read of a view; None where it has not been read."""
        views = self._views.get(address)
        return None if views is None else views.get(view)

    def add(self, address: int, view: View, stream: int, row: int, packed: int) -> None:
        self._views.setdefault(address, {})[view] = stream, row, packed

    def pop(self, address: int) -> None:
        """The storage has been written, or exposed."""
        self._views.pop(address, None)

    def __contains__(self, address: int) -> bool:
        return address in self._views

    def clear(self) -> None:
        self._views.clear()


class WriterMaps:
    """By address: last writers of storages, for one stream (``Writers``)."""

    def __init__(self) -> None:
        self.current: dict[int, int] = {}
        self.earlier: dict[int, int] = {}


class StorageTables:
    """The tables that the hot path reads and writes itself; a native engine has its own, with these methods."""

    def __init__(self) -> None:
        self.handles: dict[int, int] = {}
        """Weak references to all storages that are followed, by the address of the StorageImpl."""
        self.special: dict[int, Storage] = {}
        """By address: storages that their last writer alone does not describe."""
        self.reads = Reads()
        self._recent: list[int] = []
        """Addresses followed since the last sweep."""
        self._recent_bytes = 0
        """Of their host memory."""
        self.has_rare_entries = False
        """Other tables than these and ``special`` have entries by address."""
        self._writer_maps: list[WriterMaps] = []
        self._sweep_at = 4 * SWEEP_EVERY
        self._sweeping = Lock()

    def new_writer_maps(self) -> WriterMaps:
        """Maps for a new stream."""
        self._writer_maps.append(WriterMaps())
        return self._writer_maps[-1]

    def add_recent(self, address: int, nbytes: int) -> bool:
        """A storage with so many bytes in host memory is in ``handles`` now; returns whether a sweep is due."""
        self._recent.append(address)
        self._recent_bytes += nbytes
        return len(self._recent) >= SWEEP_EVERY or self._are_many_bytes()

    def _are_many_bytes(self) -> bool:
        return self._recent_bytes >= max(SWEEP_BYTES, SWEEP_BYTES_EACH * len(self.handles))

    def add_special(self, address: int, nbytes: int, foreign: bool) -> Storage:
        """Add a storage to ``special``: its last writer alone does not describe it any more."""
        storage = self.special[address] = Storage(nbytes, foreign)
        for maps in self._writer_maps:
            writer = maps.current.pop(address, None)
            if writer is not None:
                maps.earlier[address] = writer
        return storage

    def expose(self, tensor: torch.Tensor, array: Any) -> None:
        """NumPy shares the tensor's memory, while ``array`` lives."""
        with torch_function_disabled():
            address = address_of(tensor)
            if not address or not tensor.is_cpu:
                return
            raw: Any = tensor.untyped_storage()
        if address not in self.handles:
            self.handles[address] = raw._weak_ref()
            self.add_recent(address, raw.nbytes())
        storage = self.special.get(address) or self.add_special(address, raw.nbytes(), False)
        self.reads.pop(address)
        living = [alias for alias in storage.aliases or () if alias() is not None]
        storage.aliases = [*living, weakref.ref(array)]

    def sweep(self) -> list[int]:
        """Drop entries of dead storages, but those in ``special``: the recent ones each time, all when their number has
        doubled, or where the recent ones are large. Returns their addresses; none while another thread does so, or what
        a signal has interrupted."""
        if not self._sweeping.acquire(blocking=False):
            return []
        try:
            return self._sweep()
        finally:
            self._sweeping.release()

    def _sweep(self) -> list[int]:
        whole = len(self.handles) >= self._sweep_at or self._are_many_bytes()
        expired: Any = torch.UntypedStorage._expired
        free: Any = torch.UntypedStorage._free_weak_ref
        dead = []
        for address in list(self.handles) if whole else self._recent:
            handle = self.handles.get(address)
            if handle is not None and expired(handle):
                for maps in self._writer_maps:
                    if maps.current.pop(address, None) is None:
                        maps.earlier.pop(address, None)
                self.reads.pop(address)
                del self.handles[address]
                free(handle)
                dead.append(address)
        self._recent.clear()
        self._recent_bytes = 0
        if whole:
            self._sweep_at = max(4 * SWEEP_EVERY, 2 * len(self.handles))
        return dead

    def clear(self) -> None:
        """Drop all entries, but those in ``special``."""
        for handle in self.handles.values():
            torch.UntypedStorage._free_weak_ref(handle)
        for table in (self.handles, self.reads, self._recent):
            table.clear()
        for maps in self._writer_maps:
            maps.current.clear()
            maps.earlier.clear()


class _WriteOnlyDict(dict[int, int]):
    """``Writers.current`` where every input is digested: passes writers on to another table, and is always empty."""

    def __init__(self, writers: dict[int, int]) -> None:
        self._writers = writers

    def __setitem__(self, address: int, writer: int) -> None:
        self._writers[address] = writer


class Writers:
    """The last writer of each storage, for the rows of one stream."""

    __slots__ = ("are_of_callbacks", "current", "earlier", "relayed", "window_rows")

    def __init__(self, maps: WriterMaps, *, verify_inputs: bool = False) -> None:
        self.earlier = maps.earlier
        """By address: last writers of the storages that this stream wrote and that are not in ``current``."""
        self.current = _WriteOnlyDict(self.earlier) if verify_inputs else maps.current
        """By address: storages that one op of the current step wrote as a whole, none of them ``special``. Read by the
        hot path itself."""
        self.window_rows = 0
        """Rows before this one wrote nothing: they record the state at the beginning of a window."""
        self.relayed: dict[int, tuple[int, int]] = {}
        """By row of this step: what it read of another stream's collective, as in ``Storages``."""
        self.are_of_callbacks = False
        """Callbacks of collectives wrote them."""

    def relayed_to(self, row: int, stream: int) -> int | None:
        """The number of the arrival in ``stream`` that this row computed from; None: from none. A callback is run with
        what was sent, and may begin further collectives: all that it writes afterwards is computed from it."""
        rows = (row,) if not self.are_of_callbacks else (read for read in reversed(list(self.relayed)) if read <= row)
        found = next((self.relayed[read] for read in rows if self.relayed.get(read, (None,))[0] == stream), None)
        return None if found is None else found[1]

    def of(self, address: int) -> int | None:
        """The last writer (``pack_writer``), of any step; None where another stream wrote it, or no op did."""
        found = self.current.get(address)
        return self.earlier.get(address) if found is None else found

    def end_step(self) -> None:
        self.earlier.update(self.current)
        self.current.clear()
        self.relayed.clear()

    def drop(self, address: int) -> None:
        self.current.pop(address, None)
        self.earlier.pop(address, None)

    def drop_row(self, row: int) -> None:
        """Forget the writes of a row that was dropped."""
        for table in (self.current, self.earlier):
            for address in [a for a, writer in table.items() if row_of(writer) == row]:
                del table[address]


class Storages:
    """All storages of one process."""

    def __init__(self, tables: StorageTables | None = None, *, verify_inputs: bool = False) -> None:
        self._verify_inputs = verify_inputs
        self.tables = tables or StorageTables()
        self.handles, self.special = self.tables.handles, self.tables.special
        self.reads = self.tables.reads
        self._unseen_writes: set[int] = set()
        """Addresses of storages with a write by no op."""
        self._arrived: dict[int, tuple[int, int]] = {}
        """By address, where no op has written since: the stream to which other processes sent it, and the number of
        that row among the stream's rows with arrivals."""
        self._in_flight: dict[int, list[Flight]] = {}
        """By address: flights that have not ended."""
        self._writers: list[Writers] = []
        self.size_changed: Callable[[int], None] | None = None
        """Called with the address of a storage that has other memory now."""

    def add_writers(self, maps: WriterMaps) -> Writers:
        """The writers of a new stream."""
        writers = Writers(maps, verify_inputs=self._verify_inputs)
        self._writers.append(writers)
        return writers

    def follow_new(self, address: int, tensor: torch.Tensor) -> None:
        """Start following memory that an op has just allocated."""
        raw: Any = tensor.untyped_storage()
        self.handles[address] = raw._weak_ref()
        if self.tables.add_recent(address, raw.nbytes() if tensor.is_cpu else 0):
            self.sweep()

    def follow_outside(self, address: int, tensor: torch.Tensor) -> bool:
        """Start following memory that no recorded op allocated; True if code outside torch can write it."""
        self.follow_new(address, tensor)
        raw = tensor.untyped_storage()
        if raw.device.type != "cpu" or (raw.resizable() and not raw.is_shared()):
            return False
        self.tables.add_special(address, raw.nbytes(), True)
        return True

    def record_shared(self, address: int, raw: Any) -> None:
        """Code outside torch can write this memory from now on."""
        if address not in self.handles:
            self.handles[address] = raw._weak_ref()
            self.tables.add_recent(address, 0)
        self._special(address, raw).foreign = True
        self.reads.pop(address)

    def record_size(self, raw: torch.UntypedStorage, before: int) -> None:
        """``UntypedStorage.resize_``, which is no op, has changed the size of this memory from ``before`` bytes."""
        address, nbytes = raw._cdata, raw.nbytes()
        if self.size_changed is not None:
            self.size_changed(address)
        if address not in self.handles or (nbytes <= before and address not in self.special):
            return
        self.reads.pop(address)
        storage = self._special(address, raw)
        storage.nbytes = before
        record_resize(storage, nbytes)

    def special_of(self, address: int, tensor: torch.Tensor) -> Storage:
        """The entry in ``special`` of a followed storage, created where there is none."""
        return self.special.get(address) or self._special(address, tensor.untyped_storage())

    def _special(self, address: int, raw: torch.UntypedStorage) -> Storage:
        return self.special.get(address) or self.tables.add_special(address, raw.nbytes(), False)

    def drop_special(self, address: int) -> None:
        """One op has written all of it, and code outside torch cannot write it."""
        del self.special[address]

    def record_arrival(
        self, address: int, tensor: torch.Tensor, stream: int, arrival: int, *, in_flight: bool = False
    ) -> None:
        """Another process writes the tensor, now or soon: it counts as written, though by no op.

        ``arrival``: number of this row among the stream's rows with arrivals. ``in_flight``: it is unwritten until an
        op has waited for it.
        """
        if address not in self.handles:
            self.follow_outside(address, tensor)
        self._arrived[address] = stream, arrival
        self.tables.has_rare_entries = True
        self.reads.pop(address)
        for writers in self._writers:
            writers.drop(address)
        storage = self.special_of(address, tensor) if in_flight else self.special.get(address)
        if storage is not None:
            storage.partial = None
            if not in_flight:
                mark_written(storage, tensor)
            elif covers(tensor, storage.nbytes):
                storage.mask = False

    def begin_flight(self, tensor: torch.Tensor) -> Flight | None:
        """A collective may be writing the tensor, in which ``record_arrival`` was called: it is unwritten until the
        flight ends. None: that was not recorded, or its elements cannot be followed."""
        address = address_of(tensor)
        if address not in self._arrived:
            return None
        storage = self.special_of(address, tensor)
        if not mark_unwritten(storage, tensor):
            return None
        elements = StridedElements(
            tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.element_size()
        )
        flight = Flight(address, elements)
        self._in_flight.setdefault(address, []).append(flight)
        return flight

    def end_flight(self, flight: Flight) -> None:
        """The program has waited: the elements are written, unless the memory is another's by now."""
        address, flights = flight.address, self._in_flight.get(flight.address, [])
        if flight not in flights:
            return
        flights.remove(flight)
        if not flights:
            self._in_flight.pop(address, None)
        self.reads.pop(address)
        storage = self.special.get(address)
        if storage is None:
            return
        mark_written(storage, flight.elements)
        if storage.mask is True and storage.partial is None and not storage.external:
            self.drop_special(address)

    def flights(self) -> list[Flight]:
        """All that have not ended."""
        return [flight for flights in list(self._in_flight.values()) for flight in flights]

    def is_in_flight(self, address: int) -> bool:
        """Whether a collective may be writing the storage."""
        return address in self._in_flight

    def arrival(self, address: int) -> tuple[int, int] | None:
        """The stream to which other processes sent it, and the number, among that stream's rows with arrivals, of the
        row in which they did; None: they did not."""
        return self._arrived.get(address)

    def relayed_arrival(self, address: int, stream: int) -> int | None:
        """The number of such a row of ``stream``, where another stream computed the storage's bytes from what was sent,
        as a callback of a collective does; None: it did not."""
        for writers in self._writers:
            writer = writers.of(address) if writers.relayed else None
            found = None if writer is None else writers.relayed_to(row_of(writer), stream)
            if found is not None:
                return found
        return None

    def record_unseen_write(self, addresses: Iterable[int] | None) -> None:
        """These storages were written by no op; None: any may have been."""
        if addresses is None:
            addresses = {address for writers in self._writers for address in (*writers.current, *writers.earlier)}
        self.reads.clear()
        self.tables.has_rare_entries = True
        for address in addresses:
            self._unseen_writes.add(address)
            for writers in self._writers:
                writers.drop(address)

    def written_elsewhere(self, address: int) -> bool:
        """Whether an op of any stream, or an unseen write, wrote the storage."""
        if address in self._unseen_writes:
            return True
        found = ((writers.of(address), writers.window_rows) for writers in self._writers)
        return any(writer is not None and row_of(writer) >= window_rows for writer, window_rows in found)

    def is_unwritten(self, writers: Writers, address: int) -> bool:
        """Whether no op has written the storage; ``writers``: of the stream that is about to."""
        return writers.of(address) is None and not self.written_elsewhere(address)

    def record_write(self, writers: Writers, address: int, writer: int, plain: bool) -> None:
        """An op of the stream that ``writers`` belongs to has written the storage."""
        self.reads.pop(address)
        if len(self._writers) > 1:
            for others in self._writers:
                if others is not writers:
                    others.drop(address)
        if plain:
            writers.earlier.pop(address, None)
            writers.current[address] = writer
        else:
            writers.current.pop(address, None)
            writers.earlier[address] = writer

    def end_step(self) -> None:
        self.reads.clear()
        for writers in self._writers:
            writers.end_step()

    def sweep(self) -> None:
        """Drop entries of dead storages."""
        self.forget(self.tables.sweep())

    def forget(self, dead: Iterable[int]) -> None:
        """Drop what the tables of the hot path do not hold of dead storages."""
        for address in dead:
            self.special.pop(address, None)
            self._arrived.pop(address, None)
            self._in_flight.pop(address, None)
            self._unseen_writes.discard(address)

    def clear(self) -> None:
        """Forget everything (recording stops, or restarts after a gap)."""
        self.tables.clear()
        self.special.clear()
        self._arrived.clear()
        self._in_flight.clear()
        self._unseen_writes.clear()


def address_of(tensor: torch.Tensor) -> int:
    """Address of the StorageImpl; 0 where a tensor has no storage (sparse, opaque)."""
    try:
        return torch._C._storage_address(tensor)  # type: ignore[attr-defined, no-any-return]
    except NotImplementedError:
        return 0


def view_of(tensor: torch.Tensor, layout: Layout) -> View:
    return (int(tensor.storage_offset()), layout.id)


def covers(tensor: torch.Tensor | StridedElements, nbytes: int) -> bool:
    """Whether ``tensor`` spans every byte of its storage of ``nbytes``."""
    return tensor.numel() * tensor.element_size() >= nbytes and (_is_jagged(tensor) or _is_dense(tensor))


def mark_written(storage: Storage, tensor: torch.Tensor | StridedElements) -> None:
    """Every element of ``tensor`` has been written; exact for any strided view."""
    if storage.mask is True:
        return
    if covers(tensor, storage.nbytes):
        storage.mask = True
        return
    mask = elements_of(storage, tensor)
    if mask is None:
        return
    _strided(mask, tensor)[...] = True
    storage.mask = True if bool(mask.all()) else mask


def mark_unwritten(storage: Storage, tensor: torch.Tensor) -> bool:
    """No element of ``tensor`` has been written; False where that cannot be followed."""
    if covers(tensor, storage.nbytes):
        storage.mask = False
        return True
    mask = elements_of(storage, tensor)
    if mask is None:
        return False
    _strided(mask, tensor)[...] = False
    storage.mask = mask
    return True


def record_resize(storage: Storage, nbytes: int) -> None:
    """The memory has another size now; added elements are unwritten."""
    before, storage.nbytes = storage.nbytes, nbytes
    if storage.mask is False or (storage.mask is True and nbytes <= before):
        return
    size = 1 if storage.mask is True else before // max(len(storage.mask), 1)
    if not before or nbytes % size or nbytes // size > _MAX_MASK:
        storage.mask = False
        return
    mask = np.ones(before, dtype=np.bool_) if storage.mask is True else storage.mask
    storage.mask = np.concatenate([mask, np.zeros(max(0, nbytes // size - len(mask)), dtype=np.bool_)])[
        : nbytes // size
    ]


def is_written(storage: Storage, tensor: torch.Tensor) -> bool:
    """Whether every element of ``tensor`` has been written."""
    if storage.mask is True or tensor.numel() == 0:
        return True
    if storage.mask is False:
        return False
    mask = elements_of(storage, tensor)
    return mask is not None and bool(_strided(mask, tensor).all())


def copy_written(source: Storage, read: torch.Tensor, target: Storage, written: torch.Tensor) -> None:
    """``read`` was copied into ``written``: unwritten elements stay unwritten."""
    source_mask = elements_of(source, read) if source.mask is not False else None
    target_mask = elements_of(target, written, fresh=covers(written, target.nbytes))
    if target_mask is None:
        target.mask = False
        return
    copied: Any = False if source_mask is None else _strided(source_mask, read)
    view = _strided(target_mask, written)
    try:
        view[...] = copied
    except ValueError:  # copy_ broadcasts in ways NumPy does not
        view[...] = False
    target.mask = target_mask


def elements_of(
    storage: Storage, tensor: torch.Tensor | StridedElements, fresh: bool = False
) -> NDArray[np.bool_] | None:
    """The mask in elements of ``tensor``'s size, created or converted as needed; None where it cannot be followed."""
    size = tensor.element_size()
    elements = storage.nbytes // size
    if _is_jagged(tensor):
        return None
    if elements > _MAX_MASK or storage.nbytes % size or _end(tensor) > elements:
        return None
    if isinstance(storage.mask, bool) or fresh:
        return np.full(elements, storage.mask is True and not fresh, dtype=np.bool_)
    if len(storage.mask) == elements:
        return storage.mask
    if elements % len(storage.mask) == 0:  # narrower elements than before
        return storage.mask.repeat(elements // len(storage.mask))
    if len(storage.mask) % elements == 0:
        wide: NDArray[np.bool_] = np.asarray(storage.mask.reshape(elements, -1).all(axis=1))
        return wide
    return None


def _is_jagged(tensor: torch.Tensor | StridedElements) -> bool:
    """Whether some of its sizes and strides are no numbers: its elements lie in the storage of its parts."""
    return isinstance(tensor, torch.Tensor) and tensor.is_nested


def _end(tensor: torch.Tensor | StridedElements) -> int:
    """One past its last element, counted in elements from the start of the storage."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last) + 1


def _strided(mask: NDArray[np.bool_], tensor: torch.Tensor | StridedElements) -> NDArray[np.bool_]:
    return np.ndarray(tuple(tensor.shape), np.bool_, mask, int(tensor.storage_offset()), tuple(tensor.stride()))


def _is_dense(tensor: torch.Tensor | StridedElements) -> bool:
    """Whether its elements are adjacent in some order of its dimensions: no gap, no overlap."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


# --- overlaps ---------------------------------------------------------------------------------------------------------
#
# Ops that write elements which they also read as others: the result depends on the order of elements.
# ``t[:, :-1].copy_(t[:, 1:])`` is one; torch refuses only the obvious ones. Reads addresses only, never memory.


MAX_TENSORS: Final = 8
"""Ops with more tensors are not examined: the cost is quadratic."""
MAX_WORK: Final = 10_000
"""Steps of the search for a shared element; past it none is reported."""


def overlaps_another(tensors: Sequence[torch.Tensor], written: int) -> bool:
    """Whether the tensor at place ``written`` shares elements with another of an op's tensors."""
    if len(tensors) > MAX_TENSORS:
        return False
    tensor = tensors[written]
    address = address_of(tensor)
    for other in tensors:
        if other is not tensor and address_of(other) == address and _share_elements(tensor, other):
            return True
    return False


def _share_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two different views of one storage have elements in common."""
    if not a.numel() or not b.numel() or _is_jagged(a) or _is_jagged(b):  # NumPy before 2.4 takes no address 0
        return False
    if a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride():
        return False
    try:
        return bool(np.shares_memory(_as_array(a), _as_array(b), max_work=MAX_WORK))  # type: ignore[arg-type]  # any number does
    except np.exceptions.TooHardError:
        return False


class _Memory:
    """A tensor's memory for NumPy, by address."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
            "typestr": f"|V{size}",
            "data": (tensor.data_ptr(), True),
        }


def _as_array(tensor: torch.Tensor) -> Any:
    return np.asarray(_Memory(tensor))


# --- partial writes ---------------------------------------------------------------------------------------------------
#
# Ops that write some elements of an argument: which ones, found by running a similar op on the mask of written
# elements. Only used for memory that is not known to be written as a whole.


PartialWrite = Callable[[torch.Tensor, Mapping[str, Any]], object]


def _index_put(mask: torch.Tensor, arguments: Mapping[str, Any]) -> object:
    if arguments.get("accumulate"):
        return None
    return torch.ops.aten.index_put_.default(mask, arguments["indices"], torch.tensor(True))  # None among the indices


def _put(mask: torch.Tensor, arguments: Mapping[str, Any]) -> object:
    index = arguments["index"]
    return None if arguments.get("accumulate") else mask.put_(index, torch.ones_like(index, dtype=torch.bool))


def _scatter(mask: torch.Tensor, arguments: Mapping[str, Any]) -> object:
    reduces = "reduce" in arguments and arguments.get("include_self", True)
    return None if reduces else mask.scatter_(arguments["dim"], arguments["index"], True)


def _index_reduce(mask: torch.Tensor, arguments: Mapping[str, Any]) -> object:
    return None if arguments.get("include_self", True) else _index_fill(mask, arguments)


def _index_fill(mask: torch.Tensor, arguments: Mapping[str, Any]) -> object:
    return mask.index_fill_(arguments["dim"], arguments["index"], True)


def _masked_fill(mask: torch.Tensor, arguments: Mapping[str, Any]) -> object:
    return mask.masked_fill_(arguments["mask"], True)


def _add(_mask: torch.Tensor, _arguments: Mapping[str, Any]) -> object:
    """Adds to the old elements: unwritten ones stay unwritten."""
    return None


PARTIAL_WRITES: Mapping[str, PartialWrite] = MappingProxyType(
    {
        "aten::index_put_": _index_put,
        "aten::_index_put_impl_": _index_put,
        "aten::put_": _put,
        "aten::scatter_": _scatter,
        "aten::index_copy_": _index_fill,
        "aten::index_fill_": _index_fill,
        "aten::masked_fill_": _masked_fill,
        "aten::masked_scatter_": _masked_fill,
        "aten::fill_diagonal_": lambda mask, arguments: mask.fill_diagonal_(True, arguments.get("wrap", False)),
        "aten::index_add_": _add,
        "aten::index_reduce_": _index_reduce,
        "aten::scatter_add_": _add,
        "aten::scatter_reduce_": _scatter,
    }
)
"""By schema name."""


def mark_partial_write(storage: Storage, tensor: torch.Tensor, schema: str, arguments: Mapping[str, Any]) -> bool:
    """Mark the elements of ``tensor`` that an op called with ``arguments`` has written; whether all are written now.

    Where the op's indices are on a device, reading them would make the program wait: nothing is marked. The same where
    no ``arguments`` are at hand.
    """
    mask = elements_of(storage, tensor)
    if mask is None or not tensor.is_cpu or not arguments:
        return False
    view = torch.from_numpy(mask).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    PARTIAL_WRITES[schema](view, arguments)
    storage.mask = True if bool(mask.all()) else mask
    return bool(view.all())
