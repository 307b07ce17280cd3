"""A region that torch's compiler has made, as the operator that a row is written of.

Owns what such a region looks like to the recorder: an operator whose one argument is the list of its inputs. What
happens inside is not seen; which inputs it writes, whether it draws and which kernels it runs it is told when it is
made (``inductor.py``). Knows nothing of the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from rltrace.trace.kernels.evidence import Evidence

BRACKET: Final = "rltrace region"
"""What a profile shows around each call of a region, as it shows something of torch's own around each op."""

_LET_GO = torch.empty(0)
"""Stands where a tensor was that nobody needs any more."""


class RegionName(str):
    """The name of a region's operator. Brings along what ran it: kernel evidence goes by the operator's name."""

    __slots__ = ("evidence",)
    evidence: Evidence

    def __new__(cls, name: str, evidence: Evidence) -> RegionName:
        made = super().__new__(cls, name)
        made.evidence = evidence
        return made


class RegionInputs(list[Any]):
    """The inputs of one call of a region.

    Compiled code empties the list it is given, so that memory is free again as soon as it has been used. So whoever
    takes this list apart to write a row notes its own list of tensors in ``held``, and has it emptied, too. The last
    tensor stays with the loop that went through them.
    """

    __slots__ = ("held", "run", "written")

    def __init__(self, inputs: list[Any], writes: tuple[int, ...], run: Callable[[], Any]) -> None:
        super().__init__(inputs)
        self.run = run
        self.held: list[torch.Tensor] | None = None
        places = [place for place, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        self.written = tuple(places.index(place) for place in sorted(writes) if place in places)
        """Places, among its tensors in order, of those that the region writes."""

    def to_keep(self) -> RegionInputs:
        """The same for whoever needs the tensors when the region has run; that one is not emptied."""
        kept = RegionInputs(list(self), (), self.run)
        kept.written = self.written
        return kept

    def let_go(self) -> None:
        """Keep what the region writes, and nothing else."""
        self.clear()
        for place in range(len(self.held or ())):
            if place not in self.written:
                self.held[place] = _LET_GO  # type: ignore[index]


class Region:
    """Regions of one kind: what they write, draw and run is the same."""

    def __init__(self, name: RegionName, *, writes: bool, draws: bool, forget_reads: Callable[[], None]) -> None:
        self.name = name
        self.writes = writes
        """Some of its inputs: each call says which."""
        self.draws = draws
        self._forget_reads = forget_reads

    @property
    def region(self) -> Region:
        """Itself; a stand-in for an operator says so, too."""
        return self

    def __call__(self, inputs: RegionInputs) -> Any:
        inputs.let_go()
        try:
            return inputs.run()
        except BaseException:  # there will be no row, and whose reading it stood for is no longer known
            self._forget_reads()
            raise

    def __str__(self) -> str:
        return self.name


def region_of(func: Any) -> Region | None:
    """The region that ``func`` is, or stands in for."""
    return getattr(func, "region", None)
