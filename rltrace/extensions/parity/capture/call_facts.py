"""Facts that libraries know beside the arguments and results of a call, as tensors.

Of a batch, which cache slot a token fills; of a module, what the checkpoint calls it and what it computes for others.
Owns the functions that give them, which extensions add for a library that the program has imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from rltrace.recorder.base.dispatch_mode import current_observer
from rltrace.recorder.digests.cuda_graphs import overrides_disabled
from rltrace.trace.format.activation_rows import Part

BatchFacts = Callable[[], Mapping[str, torch.Tensor]]
"""The facts of the batch that is about to be computed, by name; empty: its library computes none now."""


@dataclass(slots=True)
class Called:
    """A call of a module that has returned."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    result: Any
    root_of: Callable[[torch.nn.Module], torch.nn.Module]

    @property
    def root(self) -> torch.nn.Module:
        """The outermost module that holds ``module``, which may be this one."""
        return self.root_of(self.module)


Point = tuple[Part, str, torch.Tensor]
"""(part, name, tensor), the name as after ``activation_rows.POINT``."""
Points = Callable[[Called], Iterable[Point]]


class FactSources:
    """What gives facts in this process."""

    def __init__(self) -> None:
        self._batches: list[BatchFacts] = []
        self._points: list[Points] = []

    def add(self, batch: BatchFacts | None = None, points: Points | None = None) -> None:
        self._batches += [] if batch is None else [batch]
        self._points += [] if points is None else [points]

    @property
    def gives_points(self) -> bool:
        return bool(self._points)

    def of_batch(self) -> list[tuple[str, torch.Tensor]]:
        """(name, tensor) of each fact. Raises what a source raises."""
        with overrides_disabled():
            return [fact for source in self._batches for fact in source().items()]

    def of_call(self, call: Called) -> list[Point]:
        """The points of a call. Raises what a source raises."""
        return [point for source in self._points for point in source(call)]


sources = FactSources()


class PointTaker(Protocol):
    """Records points of the module calls of a stream."""

    def take_points(self, find: Points, args: tuple[Any, ...], result: Any) -> None:
        """Record what ``find`` returns of the innermost call that is running, with what was called within it."""


def declare(find: Points, args: tuple[Any, ...], result: Any) -> None:
    """Record points of what the innermost running module of this thread has just called, a function of its own."""
    observer = current_observer()
    stack = getattr(getattr(observer, "stream", observer), "modules", None)
    for hook in getattr(stack, "call_hooks", ()):
        if hasattr(hook, "take_points"):
            hook.take_points(find, args, result)
