"""Compiled regions, as operators that rows are written of.

To the recorder a region is an operator whose one argument is the list of its inputs. Ops inside are not seen; which
inputs it writes, whether it draws random numbers and which kernels it runs is passed in (``compiled.py``). Does not
depend on the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from rltrace.trace.kernels.evidence import Evidence

BRACKET: Final = "rltrace region"
"""The profiler range around each call of a region, as torch has one around each op."""

_RELEASED = torch.empty(0)
"""Replaces tensors that are no longer needed."""


class RegionName(str):
    """The name of a region's operator, with its kernel evidence: that is looked up by the operator's name."""

    __slots__ = ("evidence", "settings")
    evidence: Evidence
    settings: tuple[str, ...]
    """Settings of torch that its code depends on as well, where it runs on a CPU."""

    def __new__(cls, name: str, evidence: Evidence, settings: tuple[str, ...] = ("isa", "threads")) -> RegionName:
        region_name = super().__new__(cls, name)
        region_name.evidence = evidence
        region_name.settings = settings
        return region_name


class RegionInputs(list[Any]):
    """The inputs of one call of a region.

    Compiled code empties its list of inputs, so that memory is freed as soon as it has been used. So the list of
    tensors from which a row is written is set as ``row_tensors`` and emptied as well; only a loop variable may still
    hold the last tensor.
    """

    __slots__ = ("row_tensors", "run", "written")

    def __init__(self, inputs: list[Any], writes: tuple[int, ...], run: Callable[[], Any]) -> None:
        super().__init__(inputs)
        self.run = run
        self.row_tensors: list[torch.Tensor] | None = None
        places = [place for place, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
        self.written = tuple(places.index(place) for place in sorted(writes) if place in places)
        """Places of the tensors that the region writes, among its tensors in order."""

    def retained(self) -> RegionInputs:
        """A copy that keeps the tensors when the region has run."""
        inputs = RegionInputs(list(self), (), self.run)
        inputs.written = self.written
        return inputs

    def release(self) -> None:
        """Drop all tensors but those that the region writes."""
        self.clear()
        for place in range(len(self.row_tensors or ())):
            if place not in self.written:
                self.row_tensors[place] = _RELEASED  # type: ignore[index]


class Region:
    """Regions that write, draw and run the same."""

    written: Mapping[str, bool] = MappingProxyType({})
    """Names of the arguments that it writes, as ``OpPlan.writes``."""
    returns_new = True

    def __init__(self, name: RegionName, *, writes: bool, draws: bool, forget_reads: Callable[[], None]) -> None:
        self.name = name
        self.writes = writes
        """Writes some of its inputs (``RegionInputs.written``)."""
        self.draws = draws
        self._forget_reads = forget_reads

    @property
    def region(self) -> Region:
        """Itself; an ``OpWrapper`` of it has this attribute, too."""
        return self

    def __call__(self, inputs: RegionInputs) -> Any:
        inputs.release()
        try:
            return inputs.run()
        except BaseException:  # there will be no row, and links to its reads would be wrong
            self._forget_reads()
            raise

    def __str__(self) -> str:
        return self.name


def region_of(func: Any) -> Region | None:
    """The region that ``func`` is, or wraps; None for an operator."""
    return getattr(func, "region", None)
