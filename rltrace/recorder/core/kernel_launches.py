"""Launch rows: calls of code outside torch's dispatcher that reads and writes tensors, each recorded as one op.

Owns what such a row has in common; what calls such code is in an extension.

What code outside torch reads and writes is in no schema. So every tensor that it may write is digested after the call,
and counts as written by it; as it may leave some of it as it is, the bytes before are an input, unless no op has
written them: then they are no input, and the memory counts as written.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from torch._C._profiler import _RecordFunctionFast

from rltrace.recorder.base.dispatch_mode import current_observer, popped_modes, pushed_modes
from rltrace.recorder.core.calls import op_tensors
from rltrace.recorder.core.regions import BRACKET, Region, RegionName
from rltrace.recorder.core.storages import Storages, address_of

# --- arguments --------------------------------------------------------------------------------------------------------


ADDRESSES: Final = range(1 << 40, 1 << 47)
"""Whole numbers that are taken for addresses of a process on 64-bit Linux (a handle, a stream)."""


class Address:
    """In place of an address among the arguments of a row: it differs from run to run."""


def without_address(value: Any) -> Any:
    """An argument, which may be an address that no tensor has."""
    return Address() if type(value) is int and value in ADDRESSES else value


# --- launches ---------------------------------------------------------------------------------------------------------


UNSEEN: Final = "launches.unseen"
"""A fact: calls of code outside torch without rows, as their arguments could not be read."""


class KernelLaunch(Region):
    """Launches of one kernel in one configuration, as an operator."""

    def __init__(
        self, name: RegionName, written: Mapping[str, bool], storages: Storages, *, returns_new: bool = False
    ) -> None:
        """``written``: the arguments that it may write, False for each."""
        super().__init__(name, writes=True, draws=False, forget_reads=storages.reads.clear)
        self.written = written
        self.returns_new = returns_new
        self._storages = storages
        self._program = threading.local()

    def run(self, call: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``call``, which the program makes in this thread, as an op with these arguments. Ops inside are no rows."""
        observer = current_observer()
        if observer is None:
            return call()
        with popped_modes() as others:

            def program() -> Any:
                with pushed_modes(others):
                    return call()

            self._program.call = program
            try:
                with _RecordFunctionFast(BRACKET):
                    return observer.observe(None, self, (), args, kwargs)  # type: ignore[arg-type]  # called like an operator
            finally:
                self._program.call = None

    def pending(self) -> Callable[[], Any]:
        """The call that the program makes in this thread, which is about to run."""
        call: Callable[[], Any] = self._program.call
        return call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call, self._program.call = self._program.call, None
        try:
            return call()
        except BaseException:  # there will be no row, and any tensor may have been written
            self._storages.record_unseen_write([address_of(tensor) for tensor in op_tensors(args, kwargs)])
            raise
