"""Who wrote the bytes an op reads: each storage's last writer, what came from outside, what nobody has written yet.

Owns every table keyed on a storage's address. While an entry stands, one C++ weak reference keeps that address from
being used again, and holds no memory of the tensor itself; so an address never names two storages, and when entries of
dead storages are dropped can never be seen in a row. A link may be unknown or mixed, never wrong.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from rltrace.recorder.digests.layouts import Layout
from rltrace.trace.format.schema import pack_link

SWEEP_EVERY: Final = 4_096
_LARGEST_MASK: Final = 64 * 2**20
"""Storages above this many elements are followed as a whole: marked until one op has written all of them."""

View = tuple[int, int]
"""(storage offset, layout id): two tensors of one storage with the same view hold the same bytes."""


class Storage:
    """What is known of one storage that one whole write does not describe."""

    __slots__ = ("aliases", "foreign", "mask", "nbytes", "partial")

    def __init__(self, nbytes: int, foreign: bool) -> None:
        self.nbytes = nbytes
        self.foreign = foreign
        """Memory that others can write without torch knowing, for good: of NumPy arrays, shared, handed to DLPack."""
        self.aliases: dict[int, Any] | None = None
        """Weak references to the living NumPy arrays that torch made of it; None: none since it was written whole."""
        self.partial: View | None = None
        """What its last writer wrote; None: all of it."""
        self.mask: NDArray[np.bool_] | bool = True
        """Which elements have been written since the storage was allocated; True: all, False: none."""

    @property
    def external(self) -> bool:
        """Others can write it now, so it is digested at every use."""
        return self.foreign or bool(self.aliases)

    @property
    def exposed(self) -> bool:
        """Others may have written it since its last writer did."""
        return self.foreign or self.aliases is not None


def pack_writer(row: int, slot: int) -> int:
    """Who wrote a storage, so that ``(reader_row << 12) - pack_writer(…)`` is the reader's link."""
    return (row << 12) - (slot << 2)


def pack_read(row: int, place: int) -> int:
    """Who read a view, as which input, so that ``(reader_row << 12) - pack_read(…)`` is a later reader's link."""
    return -pack_link(-row, place, known=True)


def _forget(living: dict[int, Any], number: int, _array: object) -> None:
    """Called as a NumPy array dies, in whatever thread: one step under the interpreter's lock."""
    living.pop(number, None)


def row_of(writer: int) -> int:
    """The row of a packed writer."""
    return (writer + 0xFFF) >> 12


class _Empty(dict[int, int]):
    """Stands in for ``Writers.current`` where every input is to be read: it is told of writers and knows of none."""

    def __init__(self, told: dict[int, int]) -> None:
        self._told = told

    def __setitem__(self, address: int, writer: int) -> None:
        self._told[address] = writer


class Writers:
    """Who wrote each storage, for the rows of one stream."""

    __slots__ = ("current", "earlier", "opened")

    def __init__(self, *, verify_inputs: bool = False) -> None:
        self.earlier: dict[int, int] = {}
        """By address: last writers of all storages that this stream wrote and ``current`` lacks."""
        self.current: dict[int, int] = _Empty(self.earlier) if verify_inputs else {}
        """By address: storages that one op of the current step wrote as a whole, none of them ``special``. The hot path
        looks here itself."""
        self.opened = 0
        """Rows before it wrote nothing: they say what a window began with, and stand for whoever wrote it."""

    def of(self, address: int) -> int | None:
        """The last writer (``pack_writer``), whenever it wrote; None where another stream did, or nobody."""
        found = self.current.get(address)
        return self.earlier.get(address) if found is None else found

    def set_apart(self, address: int) -> None:
        """The storage has become special: its last writer alone does not describe it."""
        writer = self.current.pop(address, None)
        if writer is not None:
            self.earlier[address] = writer

    def step_ends(self) -> None:
        self.earlier.update(self.current)
        self.current.clear()

    def drop(self, address: int) -> None:
        self.current.pop(address, None)
        self.earlier.pop(address, None)

    def drop_row(self, row: int) -> None:
        """A row that was to be has not come about."""
        for table in (self.current, self.earlier):
            for address in [a for a, writer in table.items() if row_of(writer) == row]:
                del table[address]


class Storages:
    """All storages of one process."""

    def __init__(self, *, verify_inputs: bool = False) -> None:
        self._verify_inputs = verify_inputs
        self.handles: dict[int, int] = {}
        """Weak references, by the address of the StorageImpl: all that are followed."""
        self.special: dict[int, Storage] = {}
        """By address: those that their last writer alone does not describe."""
        self.reads: dict[int, dict[View, tuple[int, int, int]]] = {}
        """By address: views digested in the current step with nothing written since, with the stream, the row and
        ``pack_read`` of where that was."""
        self._unseen: set[int] = set()
        """Addresses of storages that were written by nobody who is known, at some time."""
        self._arrived: dict[int, tuple[int, int]] = {}
        """By address, where no op has written since: the stream that had it sent by other processes, and with the how
        manieth of its rows that have anything sent."""
        self._writers: list[Writers] = []
        self.young: list[int] = []
        """Addresses followed since the last sweep."""
        self._sweep_at = 4 * SWEEP_EVERY

    def new_writers(self) -> Writers:
        """For a stream's rows."""
        writers = Writers(verify_inputs=self._verify_inputs)
        self._writers.append(writers)
        return writers

    def follow_new(self, address: int, tensor: torch.Tensor) -> None:
        """Start to follow the memory that an op has just allocated."""
        raw: Any = tensor.untyped_storage()
        self.handles[address] = raw._weak_ref()
        young = self.young
        young.append(address)
        if len(young) >= SWEEP_EVERY:
            self.sweep()

    def follow_outside(self, address: int, tensor: torch.Tensor) -> bool:
        """Start to follow memory that no recorded op allocated; True if others can write it behind torch's back."""
        self.follow_new(address, tensor)
        raw = tensor.untyped_storage()
        if raw.device.type != "cpu" or (raw.resizable() and not raw.is_shared()):
            return False
        self.special[address] = Storage(raw.nbytes(), foreign=True)
        return True

    def aliased(self, address: int, raw: Any, array: Any = None) -> None:
        """Memory has been handed out of torch: to a NumPy ``array`` while that lives, or (None) to anyone for good."""
        if address not in self.handles:
            self.handles[address] = raw._weak_ref()
            self.young.append(address)
        storage = self._special(address, raw)
        self.reads.pop(address, None)
        if array is None:
            storage.foreign = True
            return
        living = storage.aliases = {} if storage.aliases is None else storage.aliases
        number = id(array)
        living[number] = weakref.ref(array, partial(_forget, living, number))

    def special_of(self, address: int, tensor: torch.Tensor) -> Storage:
        """The entry of a followed storage that its last writer alone does not describe; made when there is none."""
        return self.special.get(address) or self._special(address, tensor.untyped_storage())

    def _special(self, address: int, raw: torch.UntypedStorage) -> Storage:
        storage = self.special.get(address)
        if storage is None:
            storage = self.special[address] = Storage(raw.nbytes(), foreign=False)
            for writers in self._writers:
                writers.set_apart(address)
        return storage

    def no_longer_special(self, address: int) -> None:
        """All of it has been written by one op, and nobody else can write it."""
        del self.special[address]

    def arrives(self, address: int, tensor: torch.Tensor, stream: int, arrival: int) -> None:
        """Another process writes the tensor, now or soon: no op has written it, and it is not unwritten.

        ``arrival``: with the how manieth row of the stream that has anything sent.
        """
        if address not in self.handles:
            self.follow_outside(address, tensor)
        self._arrived[address] = stream, arrival
        self.reads.pop(address, None)
        for writers in self._writers:
            writers.drop(address)
        storage = self.special.get(address)
        if storage is not None:
            storage.partial = None
            mark_written(storage, tensor)

    def arrival(self, address: int, stream: int) -> int | None:
        """With the how manieth row of the stream other processes sent what no op wrote; None: they did not."""
        found = self._arrived.get(address)
        return found[1] if found is not None and found[0] == stream else None

    def unseen_write(self, addresses: Iterable[int] | None) -> None:
        """These storages were written, and by no op; None: any may have been."""
        if addresses is None:
            addresses = {address for writers in self._writers for address in (*writers.current, *writers.earlier)}
        self.reads.clear()
        for address in addresses:
            self._unseen.add(address)
            for writers in self._writers:
                writers.drop(address)

    def written_elsewhere(self, address: int) -> bool:
        """Whether any stream's op wrote the storage, or something that was not seen."""
        if address in self._unseen:
            return True
        found = ((writers.of(address), writers.opened) for writers in self._writers)
        return any(writer is not None and row_of(writer) >= opened for writer, opened in found)

    def written_by(self, writers: Writers, address: int, writer: int, plain: bool) -> None:
        """An op of the stream that ``writers`` belongs to has written the storage."""
        self.reads.pop(address, None)
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

    def step_ends(self) -> None:
        self.reads.clear()
        for writers in self._writers:
            writers.step_ends()

    def sweep(self) -> None:
        """Drop what has died. Young entries each time, all of them when their number has doubled."""
        handles, special, reads, writers = self.handles, self.special, self.reads, self._writers
        arrived = self._arrived
        whole = len(handles) >= self._sweep_at
        expired: Any = torch.UntypedStorage._expired
        free: Any = torch.UntypedStorage._free_weak_ref
        for address in list(handles) if whole else self.young:
            handle = handles.get(address)
            if handle is not None and expired(handle):
                for table in writers:
                    if table.current.pop(address, None) is None:
                        table.earlier.pop(address, None)
                special.pop(address, None)
                reads.pop(address, None)
                if arrived:
                    arrived.pop(address, None)
                self._unseen.discard(address)
                del handles[address]
                free(handle)
        self.young.clear()
        if whole:
            self._sweep_at = max(4 * SWEEP_EVERY, 2 * len(handles))

    def clear(self) -> None:
        """Forget everything (recording stops, or starts anew after a gap)."""
        for handle in self.handles.values():
            torch.UntypedStorage._free_weak_ref(handle)
        for tables in (self.handles, self.special, self.reads, self._arrived, self._unseen, self.young):
            tables.clear()
        for writers in self._writers:
            writers.current.clear()
            writers.earlier.clear()


def address_of(tensor: torch.Tensor) -> int:
    """Address of the StorageImpl; 0 where a tensor has no storage (sparse, opaque)."""
    try:
        return torch._C._storage_address(tensor)  # type: ignore[attr-defined, no-any-return]
    except NotImplementedError:
        return 0


def view_of(tensor: torch.Tensor, layout: Layout) -> View:
    return (int(tensor.storage_offset()), layout.id)


def covers(tensor: torch.Tensor, nbytes: int) -> bool:
    """Whether ``tensor`` spans every byte of its storage of ``nbytes``."""
    return tensor.numel() * tensor.element_size() >= nbytes and _is_dense(tensor)


def mark_written(storage: Storage, tensor: torch.Tensor) -> None:
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


def resized(storage: Storage, nbytes: int) -> None:
    """The memory has another size now; what was added nobody has written."""
    before, storage.nbytes = storage.nbytes, nbytes
    if nbytes <= before or storage.mask is False:
        return
    size = 1 if storage.mask is True else before // len(storage.mask)
    if nbytes % size or nbytes // size > _LARGEST_MASK:
        storage.mask = False
        return
    mask = np.ones(before, dtype=np.bool_) if storage.mask is True else storage.mask
    storage.mask = np.concatenate([mask, np.zeros(nbytes // size - len(mask), dtype=np.bool_)])


def is_written(storage: Storage, tensor: torch.Tensor) -> bool:
    """Whether every element of ``tensor`` has been written."""
    if storage.mask is True or tensor.numel() == 0:
        return True
    if storage.mask is False:
        return False
    mask = elements_of(storage, tensor)
    return mask is not None and bool(_strided(mask, tensor).all())


def copy_written(source: Storage, read: torch.Tensor, target: Storage, written: torch.Tensor) -> None:
    """``read`` was copied into ``written``: what was unwritten there is unwritten here."""
    there = elements_of(source, read) if source.mask is not False else None
    here = elements_of(target, written, fresh=covers(written, target.nbytes))
    if here is None:
        target.mask = False
        return
    seen: Any = False if there is None else _strided(there, read)
    view = _strided(here, written)
    try:
        view[...] = seen
    except ValueError:  # copy_ broadcasts in ways NumPy does not
        view[...] = False
    target.mask = here


def elements_of(storage: Storage, tensor: torch.Tensor, fresh: bool = False) -> NDArray[np.bool_] | None:
    """The mask in elements of ``tensor``'s size, made or converted when need be; None where it cannot be followed."""
    size = tensor.element_size()
    elements = storage.nbytes // size
    if elements > _LARGEST_MASK or storage.nbytes % size or _end(tensor) > elements:
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


def _end(tensor: torch.Tensor) -> int:
    """One past its last element, counted in elements from the start of the storage."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last) + 1


def _strided(mask: NDArray[np.bool_], tensor: torch.Tensor) -> NDArray[np.bool_]:
    view: NDArray[np.bool_] = np.lib.stride_tricks.as_strided(
        mask[tensor.storage_offset() :], shape=tuple(tensor.shape), strides=tuple(tensor.stride()), writeable=True
    )
    return view


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie one after the other in some order of its dimensions: no gap, none twice."""
    expected = 1
    for stride, size in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True


# --- overlaps ---------------------------------------------------------------------------------------------------------
#
# Ops that write memory which they also read, element against other element: what comes out depends on their order.
#
# ``t[:, :-1].copy_(t[:, 1:])`` is such a copy; torch refuses the plainest of them and lets the others pass. Owns the
# question whether two views share elements. Reads addresses only, never memory.


MAX_TENSORS: Final = 8
"""Ops with more tensors are not examined: that would take each pair of them."""
MAX_WORK: Final = 10_000
"""Steps of the search for a shared element; past it none is claimed."""


def overlaps_another(tensors: Sequence[torch.Tensor], written: int) -> bool:
    """Whether what an op writes shares elements with another view among its tensors."""
    if len(tensors) > MAX_TENSORS:
        return False
    tensor = tensors[written]
    address = address_of(tensor)
    for other in tensors:
        if other is not tensor and address_of(other) == address and _share_elements(tensor, other):
            return True
    return False


def _share_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two views of one storage have elements in common; the very same view has none that matter."""
    if a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride():
        return False
    try:
        return bool(np.shares_memory(_outline(a), _outline(b), max_work=MAX_WORK))  # type: ignore[arg-type]  # any number does
    except np.exceptions.TooHardError:
        return False


class _Memory:
    """What NumPy needs to know of a tensor's memory without touching it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * size for stride in tensor.stride()),
            "typestr": f"|V{size}",
            "data": (tensor.data_ptr(), True),
        }


def _outline(tensor: torch.Tensor) -> Any:
    return np.asarray(_Memory(tensor))


# --- partial writes ---------------------------------------------------------------------------------------------------
#
# Ops that write some elements of an argument and leave the others as they were: which ones, exactly.
#
# Owns the table of such ops and what each does to a tensor of booleans in place of the numbers: indexing by all rows
# fills a buffer, by some rows it does not. Only asked about memory that is not known to be written as a whole.


Touch = Callable[[torch.Tensor, Mapping[str, Any]], object]


def _index_put(touched: torch.Tensor, given: Mapping[str, Any]) -> object:
    if given.get("accumulate"):
        return None
    return torch.ops.aten.index_put_.default(touched, given["indices"], torch.tensor(True))  # None among the indices


def _put(touched: torch.Tensor, given: Mapping[str, Any]) -> object:
    index = given["index"]
    return None if given.get("accumulate") else touched.put_(index, torch.ones_like(index, dtype=torch.bool))


def _scatter(touched: torch.Tensor, given: Mapping[str, Any]) -> object:
    return None if "reduce" in given else touched.scatter_(given["dim"], given["index"], True)


def _reduced(touched: torch.Tensor, given: Mapping[str, Any]) -> object:
    return None if given.get("include_self", True) else touched.scatter_(given["dim"], given["index"], True)


def _reduced_along(touched: torch.Tensor, given: Mapping[str, Any]) -> object:
    return None if given.get("include_self", True) else _along(touched, given)


def _along(touched: torch.Tensor, given: Mapping[str, Any]) -> object:
    return touched.index_fill_(given["dim"], given["index"], True)


def _masked(touched: torch.Tensor, given: Mapping[str, Any]) -> object:
    return touched.masked_fill_(given["mask"], True)


def _diagonal(touched: torch.Tensor, given: Mapping[str, Any]) -> object:
    return touched.fill_diagonal_(True, given.get("wrap", False))


def _nothing(_touched: torch.Tensor, _given: Mapping[str, Any]) -> object:
    """Adds to what is there: what nobody wrote stays unwritten."""
    return None


TOUCH: Mapping[str, Touch] = MappingProxyType(
    {
        "aten::index_put_": _index_put,
        "aten::_index_put_impl_": _index_put,
        "aten::put_": _put,
        "aten::scatter_": _scatter,
        "aten::index_copy_": _along,
        "aten::index_fill_": _along,
        "aten::masked_fill_": _masked,
        "aten::masked_scatter_": _masked,
        "aten::fill_diagonal_": _diagonal,
        "aten::index_add_": _nothing,
        "aten::index_reduce_": _reduced_along,
        "aten::scatter_add_": _nothing,
        "aten::scatter_reduce_": _reduced,
    }
)
"""By schema name."""


def mark_touched(storage: Storage, tensor: torch.Tensor, schema: str, given: Mapping[str, Any]) -> bool:
    """Note which elements of ``tensor`` an op called with ``given`` has written; whether all of them have been by now.

    Where the op's indices are on a device, asking them would make the program wait: nothing is noted.
    """
    mask = elements_of(storage, tensor)
    if mask is None or not tensor.is_cpu:
        return False
    touched = torch.from_numpy(mask).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    TOUCH[schema](touched, given)
    storage.mask = True if bool(mask.all()) else mask
    return bool(touched.all())
