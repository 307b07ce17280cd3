"""Facts that libraries know beside the arguments and results of a call, as tensors.

Of a batch, which cache slot a token fills; of a module, the parts that the checkpoint has as modules of their own. Owns
the functions that give them, which extensions add for a library that the program has imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch

from rltrace.recorder.digests.cuda_graphs import overrides_disabled
from rltrace.trace.format.activation_rows import POINT, Part

BatchFacts = Callable[[], Mapping[str, torch.Tensor]]
"""The facts of the batch that is about to be computed, by name; empty: its library computes none now."""


Points = Callable[[torch.nn.Module, torch.nn.Module, object], Iterable[tuple[Part, str, torch.Tensor]]]
"""Of the outermost module, a module that it has called, and the result: (part, name, tensor) of each point, the name as
after ``activation_rows.POINT``."""


class FactSources:
    """What gives facts in this process."""

    def __init__(self) -> None:
        self._batches: list[BatchFacts] = []
        self._points: list[Points] = []

    def add(self, batch: BatchFacts | None = None, points: Points | None = None) -> None:
        self._batches += [] if batch is None else [batch]
        self._points += [] if points is None else [points]

    def of_batch(self) -> list[tuple[str, torch.Tensor]]:
        """(name, tensor) of each fact. Raises what a source raises."""
        with overrides_disabled():
            return [fact for source in self._batches for fact in source().items()]

    def of_call(
        self, root: torch.nn.Module, module: torch.nn.Module, result: object
    ) -> list[tuple[Part, str, torch.Tensor]]:
        """(part, name, tensor) of each point. Raises what a source raises."""
        if not self._points:
            return []
        with overrides_disabled():
            found = [point for source in self._points for point in source(root, module, result)]
        return [(part, POINT + name, tensor) for part, name, tensor in found]


sources = FactSources()
