"""Works: what collectives of ``torch.distributed`` return, and what the program waits with.

Between the two the tensors that a collective receives into are in flight: other processes write them, and what a reader
finds there is a matter of time. Owns when that begins and ends for collectives that Python calls. Works that torch
makes in C++ (DDP's reducer) are waited for there, and tensors on a device are ordered by its streams: neither is seen
here, and neither counts as in flight.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch import distributed

from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.base.weak_id_dict import WeakIdDict
from rltrace.recorder.core.storages import Flight, Storages

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
            flights = [self._storages.begin_flight(tensor) for tensor in _tensors_in(received) if tensor.is_cpu]
            self._flights[work] = [flight for flight in flights if flight is not None]

    def _met(self, work: Any, *_: Any) -> None:
        """A barrier, which in gloo is done when all earlier works are."""
        if type(work) is distributed.Work:
            self._flights[work] = self._storages.flights()

    def _waited(self, _result: Any, work: Any, *_: Any) -> None:
        self._end(self._flights.get(work) or ())

    def _end(self, flights: Iterable[Flight]) -> None:
        for flight in flights:
            self._storages.end_flight(flight)

    def _polled(self, is_done: bool, work: Any, *_: Any) -> None:
        if is_done:
            self._waited(None, work)


def _tensors_in(received: Any) -> Iterator[torch.Tensor]:
    if isinstance(received, torch.Tensor):
        yield received
    elif isinstance(received, (list, tuple)):
        for item in received:
            yield from _tensors_in(item)
