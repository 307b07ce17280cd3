"""While a program captures a graph of its device, nothing of the recorder's may reach that device.

Owns that one question, for all threads: what is enqueued on a stream that is being captured becomes part of the graph,
and in CUDA's default mode a wait or a query from *any* thread makes the capture fail. So who is about to do either
passes here, and a capture begins only when nobody is inside.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rltrace.recorder.base.patching import Patches

SECONDS = 60.0
"""A capture begins after so long at the latest, whoever is inside: it may fail then, but the program does not hang."""


class CaptureLock:
    """Shut while a graph is being captured, by whichever thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._captures = 0

    @property
    def is_shut(self) -> bool:
        return self._captures > 0

    def shut(self) -> None:
        """A capture is about to begin; returns when nobody is inside."""
        with self._changed:
            self._captures += 1
            self._changed.wait_for(lambda: not self._inside, SECONDS)

    def open(self) -> None:
        """It has ended, or did not begin."""
        with self._changed:
            self._captures -= 1

    @contextmanager
    def inside(self) -> Iterator[bool]:
        """Within, what is asked of a device disturbs no capture; False: a capture is under way, ask nothing."""
        with self._changed:
            may = not self._captures
            self._inside += may
        try:
            yield may
        finally:
            if may:
                with self._changed:
                    self._inside -= 1
                    self._changed.notify_all()


def is_captured(device: torch.device) -> bool:
    """Whether what is done on this device now, in this thread, becomes part of a graph of the program's; or nothing can
    be done there any more, since it has failed."""
    if device.type != "cuda":
        return False
    try:
        return torch.cuda.is_current_stream_capturing()
    except RuntimeError:
        return True


@contextmanager
def unseen() -> Iterator[None]:
    """What is done with tensors inside, no mode, subclass or autograd of the program takes part in."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
        yield


# --- graphs -----------------------------------------------------------------------------------------------------------
#
# Graphs of a device that the program captures and replays: what they write, no op is seen to write.
#
# Owns what stands in for the methods of ``torch.cuda.CUDAGraph`` from the first digest on a device on. A capture shuts
# the gate. It computes nothing: what its ops are said to write is written at each replay, so after the capture and
# after each replay nobody is known to have written it. Of a graph whose capture was not followed, anything may be.


Unseen = Callable[[Iterable[int] | None], None]
"""Told of the addresses of storages that were written by no op; None: of any."""


Fail = Callable[[Exception], None]


class Graphs:
    """Those of one process."""

    def __init__(self, gate: CaptureLock, unseen: Unseen, fail: Fail, graph: type = torch.cuda.CUDAGraph) -> None:
        """``graph``: the class that captures."""
        self._gate = gate
        self._told = unseen
        self._fail = fail
        self._graph = graph
        self._written: weakref.WeakKeyDictionary[Any, set[int]] = weakref.WeakKeyDictionary()
        """By graph that was captured from beginning to end: what it writes."""
        self._capturing: dict[int, set[int]] = {}
        """The same of those that are being captured, by ``id``."""
        self._patches = Patches()

    def install(self) -> None:
        if self._patches:
            return
        for name, around in (("capture_begin", self._begin), ("capture_end", self._end), ("replay", self._replay)):
            self._patches.wrap(self._graph, name, _of_a_graph(around))

    def uninstall(self) -> None:
        self._patches.undo_all()

    def wrote(self, address: int) -> None:
        """An op that is being captured writes the storage there, whenever its graph is replayed."""
        for written in list(self._capturing.values()):  # of several at a time it may be either's
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
            self._unseen(written)

    def _unseen(self, addresses: set[int] | None) -> None:
        try:
            self._told(addresses)
        except Exception as error:  # never in place of what the program did
            self._fail(error)

    def _finish(self, graph: Any) -> set[int] | None:
        written = self._capturing.pop(id(graph), None)
        if written is not None:  # it began while this was watched
            self._gate.open()
        return written

    def _replay(self, call: Callable[[], Any], graph: Any) -> Any:
        try:
            return call()
        finally:
            self._unseen(self._written.get(graph))


def _of_a_graph(around: Callable[..., Any]) -> Callable[..., Any]:
    def method(original: Callable[..., Any], graph: Any, *args: Any, **kwargs: Any) -> Any:
        return around(functools.partial(original, graph, *args, **kwargs), graph)

    return method
