"""Facts of a batch that libraries know beside a model's arguments, as tensors: which cache slot a token fills.

Owns the functions that give them, which extensions add for a library that the program has imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from rltrace.recorder.digests.cuda_graphs import overrides_disabled

BatchFacts = Callable[[], Mapping[str, torch.Tensor]]
"""The facts of the batch that is about to be computed, by name; empty: its library computes none now."""


class FactSources:
    """What gives facts in this process."""

    def __init__(self) -> None:
        self._sources: list[BatchFacts] = []

    def add(self, source: BatchFacts) -> None:
        self._sources.append(source)

    def read(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor) of each fact. Raises what a source raises."""
        with overrides_disabled():
            for source in self._sources:
                yield from source().items()


sources = FactSources()
