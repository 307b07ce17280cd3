"""What is watched in a process only while its ops become rows: modules, aliases, subclasses, compiled functions.

Owns that these begin and end together, and in which order. Knows no steps and no windows: the session says when.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

import torch

from rltrace.recorder.base.dispatch_mode import recorder_disabled, recorder_is_next
from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.core.compiled import CompiledCalls
from rltrace.recorder.core.modules import ModuleCalls, ModuleStack
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.storages import Storages, address_of

# --- composites -------------------------------------------------------------------------------------------------------
#
# Operators that are made of others and write memory with code of their own in between: each recorded as one op.
#
# A dispatch mode sees only the ops that such an operator calls. What the operator itself writes belongs to none of
# them: its results would stay unwritten memory, its state would change behind a stale link. Below autograd, where these
# operators do nothing (they are integer work), the mode is handed the operator as it was called. Owns their table and
# what stands in for them while ops are recorded.


NAMES: Final = ("_sobol_engine_draw", "_sobol_engine_ff_", "_sobol_engine_initialize_state_", "_sobol_engine_scramble_")
"""Functions of module ``torch``, each of which calls the ``aten`` operator of its name."""


class Composites:
    """Hands these operators on as a whole, from ``install`` to ``uninstall``."""

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self) -> None:
        for name in () if self._patches else NAMES:
            self._patches.wrap(torch, name, _as_one)

    def uninstall(self) -> None:
        self._patches.undo_all()


def _as_one(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return original(*args, **kwargs)


# --- subclasses -------------------------------------------------------------------------------------------------------
#
# Subclasses of Tensor that a program makes by calling them, which torch refuses while any dispatch mode is active.
#
# ``MyTensor([1.0])`` has torch make a tensor and turn it into ``MyTensor``. Under a mode what torch made has come out
# of an op as a Python object already, and cannot become another. Owns what stands in for ``torch.Tensor.__new__`` while
# there may be modes of the recorder; all other constructors (``as_subclass``, ``_make_subclass``) work under a mode.


_original: Any = torch.Tensor.__new__


def _new(cls: type[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
    """What ``torch.Tensor.__new__`` does, the recorder aside."""
    if cls is torch.Tensor or not recorder_is_next():
        return _original(cls, *args, **kwargs)
    if args and isinstance(args[0], torch.Tensor):
        with recorder_disabled():  # an alias of what is there; nothing that a row would be needed for
            return _original(cls, *args, **kwargs)
    made = _original(torch.Tensor, *args, **kwargs)  # memory from an op or from outside: that op has its row
    return torch.Tensor._make_subclass(cls, made)


class _Constructor:
    """``torch.Tensor.__new__`` for the program. torch's compiler looks it up as well, and has to find its own."""

    def __get__(self, _instance: object, owner: type) -> Any:
        if owner is torch.Tensor and sys._getframe(1).f_globals.get("__name__", "").startswith("torch."):
            return _original
        return _new


class SubclassCalls:
    """The stand-in, from ``install`` to ``uninstall``."""

    def __init__(self) -> None:
        self._standing = False

    def install(self) -> None:
        there = vars(torch.Tensor).get("__new__")
        if isinstance(there, _Constructor):  # of the process that this one is a fork of
            self._standing = True
        elif there is None:
            self._standing = True
            torch.Tensor.__new__ = _Constructor()  # type: ignore[assignment]

    def uninstall(self) -> None:
        if self._standing and isinstance(vars(torch.Tensor).get("__new__"), _Constructor):
            self._standing = False
            del torch.Tensor.__new__  # its own stands in TensorBase


# --- aliases ----------------------------------------------------------------------------------------------------------
#
# Memory that the program hands out of torch: to NumPy, through DLPack, to other processes.
#
# Owns what stands in for the few methods that do so while ops are recorded. From then on others can write that memory
# without an op, so it is digested at every use: as long as the NumPy array lives (its views keep it alive), else for
# good. What leaves by a bare address (``data_ptr``) cannot be seen.


Fail = Callable[[Exception], None]


class Aliases:
    """Follows what is handed out, from ``install`` to ``uninstall``."""

    def __init__(self, storages: Storages, fail: Fail) -> None:
        self._storages = storages
        self._fail = fail
        self._patches = Patches()

    def install(self) -> None:
        if self._patches:
            return
        self._after(torch.Tensor, "numpy", self._to_array)
        self._after(torch.Tensor, "__dlpack__", self._for_good)
        for holder in (torch, torch.utils.dlpack):
            self._after(holder, "to_dlpack", self._for_good)
        for name in ("share_memory_", "_share_fd_cpu_", "_share_filename_cpu_"):
            self._after(torch.UntypedStorage, name, self._shared)

    def uninstall(self) -> None:
        self._patches.undo_all()

    def _after(self, holder: Any, name: str, note: Callable[..., None]) -> None:
        """Call ``note`` with what ``holder.name`` returned and what it was called on."""
        fail = self._fail

        def handing_out(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            try:
                with torch_function_disabled():
                    note(result, *args[:1])
            except Exception as error:
                fail(error)
            return result

        self._patches.wrap(holder, name, handing_out)

    def _to_array(self, array: Any, tensor: torch.Tensor) -> None:
        address = address_of(tensor)
        if address and tensor.is_cpu:
            self._storages.record_alias(address, tensor.untyped_storage(), array)

    def _for_good(self, _capsule: Any, tensor: torch.Tensor) -> None:
        self._to_array(None, tensor)

    def _shared(self, _what: Any, storage: torch.UntypedStorage) -> None:
        if storage.device.type == "cpu":
            self._storages.record_alias(storage._cdata, storage)


# --- instruments ------------------------------------------------------------------------------------------------------


class TorchPatches:
    """Those of one process."""

    def __init__(
        self,
        process: ProcessState,
        modules_here: Callable[[], ModuleStack | None],
        fail: Callable[[Exception], None],
        *,
        with_hooks: bool = False,
    ) -> None:
        """``with_hooks``: each stream may look at what its modules are called with, and at what they return."""
        self._process = process
        self.modules = ModuleCalls(process.module_names, modules_here, with_hooks=with_hooks)
        self._aliases = Aliases(process.storages, fail)
        self._subclasses = SubclassCalls()
        self._composites = Composites()
        self._compiled = CompiledCalls(process)

    def install(self) -> None:
        self.modules.install()
        self._aliases.install()
        self._subclasses.install()  # until the end: a silent mode is in the way as much as one that observes
        self._composites.install()
        self._compiled.install()

    def uninstall(self) -> None:
        """Until ``install`` is called again."""
        self.modules.uninstall()
        self._aliases.uninstall()
        self._composites.uninstall()
        self._compiled.uninstall()

    def remove(self, *, but_subclasses: bool = False) -> None:
        """For good. ``but_subclasses``: those stay watched."""
        self.uninstall()
        self.modules.remove()
        self._process.graphs.uninstall()
        self._process.readback.leave_to_parent()
        if not but_subclasses:
            self._subclasses.uninstall()
