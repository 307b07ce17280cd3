"""Facts that libraries know beside the arguments and results of a call, as tensors.

Of a batch, which cache slot a token fills; of a module, what the checkpoint calls it and what it computes for others.
Owns the functions that give them, which extensions add for a library that the program has imported.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from rltrace.recorder.base.dispatch_mode import current_observer
from rltrace.recorder.base.weak_id_dict import WeakIdDict
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
HasPoints = Callable[[torch.nn.Module], bool]


class FactSources:
    """What gives facts in this process."""

    def __init__(self) -> None:
        self._batches: list[BatchFacts] = []
        self._points: list[tuple[Points, HasPoints]] = []
        self._of_modules: WeakIdDict[torch.nn.Module, tuple[Points, ...]] = WeakIdDict()

    def add(
        self, batch: BatchFacts | None = None, points: Points | None = None, has_points: HasPoints = lambda _: True
    ) -> None:
        """``has_points``: whether calls of a module may have ``points``, asked once of each."""
        self._batches += [] if batch is None else [batch]
        self._points += [] if points is None else [(points, has_points)]
        self._of_modules = WeakIdDict()

    def of_batch(self) -> dict[str, torch.Tensor]:
        """By name. Raises what a source raises."""
        with overrides_disabled():
            return {name: fact for source in self._batches for name, fact in source().items()}

    def of_module(self, module: torch.nn.Module) -> tuple[Points, ...]:
        """What gives the points of a module's calls. Raises what a source raises."""
        known = self._of_modules.get(module)
        if known is None:
            known = tuple(points for points, has_points in self._points if has_points(module))
            self._of_modules[module] = known
        return known


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
