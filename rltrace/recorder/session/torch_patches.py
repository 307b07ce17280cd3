"""Patches of torch while ops are recorded: modules, aliases, subclasses, compiled functions, composite operators.

Owns that they are installed and removed together, and in which order; at level ``step``, where no op is seen, the one
of ``torch.Tensor.item`` alone. Knows no steps and no windows.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from types import CodeType
from typing import Any, Final, Protocol

import torch
from torch import distributed

from rltrace.extension import extensions
from rltrace.recorder.base.dispatch_mode import recorder_disabled, recorder_is_next
from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.base.weak_id_dict import WeakIdDict
from rltrace.recorder.core.call_sites import Sites, is_internal
from rltrace.recorder.core.compiled import CompiledCalls
from rltrace.recorder.core.distributed_tensors import ShardingPropagation
from rltrace.recorder.core.modules import ModuleCalls, ModuleStack
from rltrace.recorder.core.op_info import flat_tensors
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.storages import Flight, Storages, address_of
from rltrace.recorder.streams.series import SeriesSampler

# --- composites -------------------------------------------------------------------------------------------------------
#
# Operators that call others and also write memory themselves: each is recorded as one op. A dispatch mode sees only the
# ops that such an operator calls, so its results would stay unwritten memory and its state would have a stale link.
# Called below autograd, where these operators do nothing (they compute integers), the operator reaches the mode whole.


NAMES: Final = ("_sobol_engine_draw", "_sobol_engine_ff_", "_sobol_engine_initialize_state_", "_sobol_engine_scramble_")
"""Functions of module ``torch``, each of which calls the ``aten`` operator of its name."""


class Composites:
    """Dispatches these operators whole, from ``install`` to ``uninstall``."""

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self) -> None:
        for name in () if self._patches else NAMES:
            self._patches.wrap(torch, name, _dispatch_whole)

    def uninstall(self) -> None:
        self._patches.undo_all()


def _dispatch_whole(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return original(*args, **kwargs)


# --- subclasses -------------------------------------------------------------------------------------------------------
#
# Tensor subclasses whose class the program calls, which torch refuses while any dispatch mode is active: for
# ``MyTensor([1.0])`` torch creates a tensor and turns it into ``MyTensor``, but under a mode that tensor is the result
# of an op and already a Python object. All other constructors (``as_subclass``, ``_make_subclass``) work under a mode.


_original: Any = torch.Tensor.__new__


def _new(cls: type[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
    """``torch.Tensor.__new__`` as it works without the recorder."""
    if cls is torch.Tensor or not recorder_is_next():
        return _original(cls, *args, **kwargs)
    if args and isinstance(args[0], torch.Tensor):
        with recorder_disabled():  # an alias of that tensor, which needs no row
            return _original(cls, *args, **kwargs)
    tensor = _original(torch.Tensor, *args, **kwargs)  # an op, with its row, or outside data
    return torch.Tensor._make_subclass(cls, tensor)


class _Constructor:
    """``torch.Tensor.__new__`` for the program. torch's compiler looks it up too, and must find the original."""

    def __get__(self, _instance: object, owner: type) -> Any:
        if owner is torch.Tensor and sys._getframe(1).f_globals.get("__name__", "").startswith("torch."):
            return _original
        return _new


class SubclassCalls:
    """Patches the constructor, from ``install`` to ``uninstall``."""

    def __init__(self) -> None:
        self._is_installed = False

    def install(self) -> None:
        current = vars(torch.Tensor).get("__new__")
        if isinstance(current, _Constructor):  # of the process that forked this one
            self._is_installed = True
        elif current is None:
            self._is_installed = True
            torch.Tensor.__new__ = _Constructor()  # type: ignore[assignment]

    def uninstall(self) -> None:
        if self._is_installed and isinstance(vars(torch.Tensor).get("__new__"), _Constructor):
            self._is_installed = False
            del torch.Tensor.__new__  # TensorBase has the original


# --- aliases ----------------------------------------------------------------------------------------------------------
#
# Memory that the program shares with NumPy, through DLPack, or with other processes. Others can write it without an op,
# so it is digested at every use: as long as the NumPy array is alive (its views keep it alive), else permanently. What
# is shared by address (``data_ptr``) is seen where a C function gets it through ctypes (``extensions/launches``).
# Also memory that is freed and allocated again under its tensors, as FSDP does: it is unwritten then.


Fail = Callable[[Exception], None]


class Aliases:
    """Records which storages are shared, from ``install`` to ``uninstall``."""

    def __init__(self, storages: Storages, fail: Fail) -> None:
        self._storages = storages
        self._fail = fail
        self._patches = Patches()

    def install(self) -> None:
        if self._patches:
            return
        self._patches.replace(torch.Tensor, "numpy", self._exposing(torch.Tensor.numpy))
        self._after(torch.Tensor, "__dlpack__", self._share_tensor)
        for holder in (torch, torch.utils.dlpack):
            self._after(holder, "to_dlpack", self._share_tensor)
        for name in ("frombuffer", "from_dlpack"):
            self._patches.wrap(torch, name, _as_op)
        for name in ("share_memory_", "_share_fd_cpu_", "_share_filename_cpu_"):
            self._after(torch.UntypedStorage, name, self._share_storage)
        self._patches.wrap(torch.UntypedStorage, "resize_", self._resize)

    def uninstall(self) -> None:
        self._patches.undo_all()

    def _after(self, holder: Any, name: str, share: Callable[[Any], None]) -> None:
        """Call ``share`` with the object that ``holder.name`` was called on."""

        def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            try:
                with torch_function_disabled():
                    share(*args[:1])
            except Exception as error:
                self._fail(error)
            return result

        self._patches.wrap(holder, name, around)

    def _exposing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``Tensor.numpy``, called often: its arrays share the tensor's memory."""
        patches, expose, fail = self._patches, self._storages.tables.expose, self._fail

        @functools.wraps(original)
        def numpy(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            array = original(tensor, *args, **kwargs)
            try:
                if patches:
                    expose(tensor, array)
            except Exception as error:
                fail(error)
            return array

        return numpy

    def _resize(self, original: Callable[..., Any], storage: torch.UntypedStorage, /, *args: Any, **kwargs: Any) -> Any:
        before = storage.nbytes()
        result = original(storage, *args, **kwargs)
        try:
            self._storages.record_size(storage, before)
        except Exception as error:
            self._fail(error)
        return result

    def _share_tensor(self, tensor: torch.Tensor) -> None:
        address = address_of(tensor)
        if address and tensor.is_cpu:
            self._storages.record_shared(address, tensor.untyped_storage())

    def _share_storage(self, storage: torch.UntypedStorage) -> None:
        if storage.device.type == "cpu":
            self._storages.record_shared(storage._cdata, storage)


def _as_op(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run the op that ``from_numpy`` runs: its row shows where memory from outside became a tensor."""
    tensor = original(*args, **kwargs)
    torch.ops.aten.lift_fresh.default(tensor)
    return tensor


# --- works ------------------------------------------------------------------------------------------------------------
#
# What collectives of ``torch.distributed`` return, and what the program waits with. Between the two the tensors that a
# collective receives into are in flight: other processes write them, and what a reader finds there is a matter of time.
# Works that torch makes in C++ (DDP's reducer) are waited for there, and a device's tensors are ordered by its streams:
# neither is seen here, and neither counts as in flight.


COLLECTIVES: Final = (
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "broadcast",
    "allgather",
    "_allgather_base",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "all_gather_single",
    "all_gather_single_coalesced",
    "gather",
    "scatter",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
    "recv",
    "recv_anysource",
)
"""Methods of a process group that receive into their first argument."""

WAITS: Final = ("wait", "synchronize", "block_current_stream", "get_future", "get_future_result", "result")
"""Methods of a work after which its tensors may be read. Who asks for a future waits with that."""

POLLS: Final = ("is_completed", "is_success")
"""The same where they return True."""


class Works:
    """The works of this process whose tensors are in flight, from ``install`` to ``uninstall``."""

    def __init__(self, storages: Storages, fail: Callable[[Exception], None]) -> None:
        self._storages = storages
        self._fail = fail
        self._patches = Patches()
        self._flights: WeakIdDict[Any, list[Flight]] = WeakIdDict()

    def install(self) -> None:
        if self._patches or not distributed.is_available():
            return
        for holder, names, after in (
            (distributed.ProcessGroup, COLLECTIVES, self._sent),
            (distributed.ProcessGroup, ("barrier",), self._met),
            (distributed.Work, WAITS, self._waited),
            (distributed.Work, POLLS, self._polled),
        ):
            for name in names:
                original = getattr(holder, name, None)
                if original is not None:
                    self._patches.replace(holder, name, self._followed_by(name, original, after))

    def uninstall(self) -> None:
        self._patches.undo_all()

    def _followed_by(self, name: str, original: Callable[..., Any], after: Callable[..., None]) -> Callable[..., Any]:
        """A method of a class in C++ that calls ``after`` with its result and its arguments."""
        patches, fail = self._patches, self._fail

        def method(this: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = original(this, *args, **kwargs)
            if patches:
                try:
                    with torch_function_disabled():
                        after(result, this, *args)
                except Exception as error:
                    fail(error)
            return result

        # pybind11 takes it for an override of a subclass in Python, unless the method of that name is calling
        method.__code__ = method.__code__.replace(co_name=name)
        return functools.wraps(original)(method)

    def _sent(self, work: Any, _group: Any, received: Any = (), *more: Any) -> None:
        is_waited_for_at_once = any(getattr(options, "asyncOp", True) is False for options in more)
        if type(work) is distributed.Work and not is_waited_for_at_once:  # of a subclass in Python no wait is seen
            flights = [self._storages.begin_flight(tensor) for tensor in flat_tensors(received) if tensor.is_cpu]
            self._flights[work] = [flight for flight in flights if flight is not None]

    def _met(self, work: Any, *_: Any) -> None:
        """A barrier, which in gloo is done when all earlier works are."""
        if type(work) is distributed.Work:
            self._flights[work] = self._storages.flights()

    def _waited(self, _result: Any, work: Any, *_: Any) -> None:
        for flight in self._flights.get(work) or ():
            self._storages.end_flight(flight)

    def _polled(self, is_done: bool, work: Any, *_: Any) -> None:
        if is_done:
            self._waited(None, work)


# --- all patches ------------------------------------------------------------------------------------------------------


class Patched(Protocol):
    """Something of torch that is patched while ops are recorded."""

    def install(self) -> None: ...

    def uninstall(self) -> None: ...


class TorchPatches:
    """The patches of one process."""

    def __init__(
        self,
        process: ProcessState,
        modules_here: Callable[[], ModuleStack | None],
        fail: Callable[[Exception], None],
        *,
        with_calls: bool = False,
        library: Any = None,
    ) -> None:
        """``with_calls``: hooks of streams see the arguments and results of module calls. ``library``: of the native
        engine."""
        self._process = process
        self.modules = ModuleCalls(process.module_names, modules_here, with_hooks=with_calls, library=library)
        self._subclasses = SubclassCalls()
        self._patches: Sequence[Patched] = (
            self.modules,
            Aliases(process.storages, fail),
            Composites(),
            CompiledCalls(process),
            *(resolve_name(name)(process) for extension in extensions() for name in extension.patches),
            ShardingPropagation(fail),
            Works(process.storages, fail),
        )

    def install(self) -> None:
        self._subclasses.install()  # until the end: a silenced mode interferes as much as an active one
        for patched in self._patches:
            patched.install()

    def uninstall(self) -> None:
        """Until ``install`` is called again."""
        for patched in self._patches:
            patched.uninstall()

    def remove(self, *, but_subclasses: bool = False) -> None:
        """Undo permanently. ``but_subclasses``: the subclass constructor stays patched."""
        self.uninstall()
        self.modules.remove()
        self._process.graphs.uninstall()
        self._process.readback.leave_to_parent()
        if not but_subclasses:
            self._subclasses.uninstall()


MAX_CODES: Final = 4_096


class ItemReads:
    """A number for each read of a tensor by the program with ``.item()``, from ``install`` to ``remove``.

    Reads by torch itself, as every optimizer makes them, cost one look-up and are not recorded. ``float(tensor)`` is
    not patched: torch's warning, where the tensor requires gradients, would name the patch, not the program's line.
    """

    def __init__(self, series: SeriesSampler, sites: Sites, fail: Callable[[Exception], None]) -> None:
        self._series = series
        self._sites = sites
        self._fail = fail
        self._patches = Patches()
        self._is_program: dict[CodeType, bool] = {}
        """By the code that reads a number: whether it is the program's."""

    def install(self) -> None:
        self._patches.replace(torch.Tensor, "item", self._reading(torch.Tensor.item))

    def remove(self) -> None:
        self._patches.undo_all()

    def _reading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        patches, is_program, fail = self._patches, self._is_program, self._fail

        @functools.wraps(original)
        def item(tensor: torch.Tensor) -> Any:
            number = original(tensor)
            kind = type(number)
            if kind is float or kind is int:
                try:
                    frame = sys._getframe(1)
                    if patches and (is_program.get(frame.f_code) or self._is_of_program(frame.f_code)):
                        site = self._sites.of_stack(frame)
                        self._series.read(site, self._sites.calls.get(site, ""), number)
                except Exception as error:
                    fail(error)
            return number

        return item

    def _is_of_program(self, code: CodeType) -> bool:
        found = self._is_program.get(code)
        if found is None:
            if len(self._is_program) >= MAX_CODES:  # a program that makes code as it runs
                self._is_program.clear()
            found = self._is_program[code] = not is_internal(code)
        return found
