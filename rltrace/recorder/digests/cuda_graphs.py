"""CUDA graphs of the program: while one is captured, the recorder must not use the device.

Work enqueued on a captured stream becomes part of the graph, and in CUDA's default mode a wait or a query from *any*
thread makes the capture fail. So the recorder's threads enter a lock for either, and a capture begins only when none is
inside.
"""

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.torch_function import torch_function_disabled

_DisableTorchDispatch: Any = torch._C._DisableTorchDispatch
_set_grad_enabled, _is_grad_enabled = torch._C._set_grad_enabled, torch.is_grad_enabled

SECONDS = 60.0
"""A capture begins after so long at the latest: it may fail then, but the program does not hang."""


class CaptureLock:
    """Shut while any thread captures a graph."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._captures = 0

    @property
    def is_shut(self) -> bool:
        return self._captures > 0

    def shut(self) -> None:
        """A capture is about to begin; returns when no thread is inside."""
        with self._changed:
            self._captures += 1
            self._changed.wait_for(lambda: not self._inside, SECONDS)

    def open(self) -> None:
        """The capture has ended, or did not begin."""
        with self._changed:
            self._captures -= 1

    @contextmanager
    def inside(self) -> Iterator[bool]:
        """Yields whether the device may be used inside; False: a graph is being captured."""
        with self._changed:
            allowed = not self._captures
            self._inside += allowed
        try:
            yield allowed
        finally:
            if allowed:
                with self._changed:
                    self._inside -= 1
                    self._changed.notify_all()


def is_captured(device: torch.device) -> bool:
    """Whether this thread's work on the device is being captured into a graph, or the device has failed."""
    if device.type != "cuda":
        return False
    try:
        return torch.cuda.is_current_stream_capturing()
    except RuntimeError:
        return True


class overrides_disabled:  # noqa: N801  as functions of contextlib, which take twice as long
    """Modes, subclasses and autograd of the program are off inside."""

    __slots__ = ("_dispatch", "_function", "_grad")

    def __enter__(self) -> None:
        self._dispatch = _DisableTorchDispatch()
        self._function = torch_function_disabled()
        self._dispatch.__enter__()
        self._function.__enter__()
        self._grad = _is_grad_enabled()
        if self._grad:
            _set_grad_enabled(False)

    def __exit__(self, *error: Any) -> None:
        if self._grad:
            _set_grad_enabled(True)
        self._function.__exit__(*error)
        self._dispatch.__exit__(*error)


# --- graphs -----------------------------------------------------------------------------------------------------------
#
# Patches of ``torch.cuda.CUDAGraph``, installed at the first digest on a device. A capture shuts the gate. It computes
# nothing: its ops write at each replay, so after the capture and after each replay the writers of those storages are
# unknown; after the replay of a graph whose capture was not followed, all writers are.


OnUnseenWrite = Callable[[Iterable[int] | None], None]
"""Called with the addresses of storages that were written by no op; None: any may have been."""


Fail = Callable[[Exception], None]


class Graphs:
    """The CUDA graphs of one process."""

    def __init__(
        self, gate: CaptureLock, on_unseen_write: OnUnseenWrite, fail: Fail, graph: type = torch.cuda.CUDAGraph
    ) -> None:
        """``graph``: the class to patch."""
        self._gate = gate
        self._on_unseen_write = on_unseen_write
        self._fail = fail
        self._graph = graph
        self._written: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()
        """Addresses that a graph writes, by graph whose capture was followed from beginning to end."""
        self._capturing: dict[int, set[int]] = {}
        """The same by ``id`` of a graph that is being captured."""
        self._patches = Patches()

    def install(self) -> None:
        if self._patches:
            return
        for name, around in (("capture_begin", self._begin), ("capture_end", self._end), ("replay", self._replay)):
            self._patches.wrap(self._graph, name, _graph_method(around))

    def uninstall(self) -> None:
        self._patches.undo_all()

    def add_write(self, address: int) -> None:
        """An op that is being captured will write the storage at each replay."""
        for written in list(self._capturing.values()):  # of several captures at a time it may be part of any
            written.add(address)

    def _begin(self, call: Callable[[], Any], graph: Any) -> Any:
        self._gate.shut()
        self._capturing[id(graph)] = set()
        try:
            return call()
        except BaseException:
            self._finish(graph)
            raise

    def _end(self, call: Callable[[], Any], graph: Any) -> Any:
        try:
            return call()
        finally:
            written = self._finish(graph)
            if written is not None:
                self._written[graph] = written
            self._report_write(written)

    def _report_write(self, addresses: set[int] | None) -> None:
        try:
            self._on_unseen_write(addresses)
        except Exception as error:  # must not reach the program
            self._fail(error)

    def _finish(self, graph: Any) -> set[int] | None:
        written = self._capturing.pop(id(graph), None)
        if written is not None:  # its capture began after ``install``
            self._gate.open()
        return written

    def _replay(self, call: Callable[[], Any], graph: Any) -> Any:
        try:
            return call()
        finally:
            self._report_write(self._written.get(graph))


def _graph_method(around: Callable[..., Any]) -> Callable[..., Any]:
    def method(original: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any) -> Any:
        return around(functools.partial(original, graph, *args, **kwargs), graph)

    return method
