"""Memory that the program hands out of torch: to NumPy, through DLPack, to other processes.

Owns what stands in for the few methods that do so while ops are recorded. From then on others can write that memory
without an op, so it is digested at every use: as long as the NumPy array lives (its views keep it alive), else for
good. What leaves by a bare address (``data_ptr``) cannot be seen.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from rltrace.record.memory.storages import Storages, address_of
from rltrace.record.overrides import unasked

Fail = Callable[[Exception], None]


class Aliases:
    """Follows what is handed out, from ``watch`` to ``ignore``."""

    def __init__(self, storages: Storages, fail: Fail) -> None:
        self._storages = storages
        self._fail = fail
        self._undo: list[Callable[[], None]] = []

    def watch(self) -> None:
        if self._undo:
            return
        self._after(torch.Tensor, "numpy", self._to_array)
        self._after(torch.Tensor, "__dlpack__", self._for_good)
        for holder in (torch, torch.utils.dlpack):
            self._after(holder, "to_dlpack", self._for_good)
        for name in ("share_memory_", "_share_fd_cpu_", "_share_filename_cpu_"):
            self._after(torch.UntypedStorage, name, self._shared)

    def ignore(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _after(self, holder: Any, name: str, note: Callable[..., None]) -> None:
        """Call ``note`` with what ``holder.name`` returned and what it was called on."""
        original = getattr(holder, name, None)
        if original is None:  # another version of torch
            return
        own = name in vars(holder)
        fail = self._fail

        @functools.wraps(original)
        def handing_out(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            try:
                with unasked():
                    note(result, *args[:1])
            except Exception as error:
                fail(error)
            return result

        setattr(holder, name, handing_out)
        self._undo.append(lambda: setattr(holder, name, original) if own else delattr(holder, name))

    def _to_array(self, array: Any, tensor: torch.Tensor) -> None:
        address = address_of(tensor)
        if address and tensor.is_cpu:
            self._storages.aliased(address, tensor.untyped_storage(), array)

    def _for_good(self, _capsule: Any, tensor: torch.Tensor) -> None:
        self._to_array(None, tensor)

    def _shared(self, _what: Any, storage: torch.UntypedStorage) -> None:
        if storage.device.type == "cpu":
            self._storages.aliased(storage._cdata, storage)
