"""Logged scalars at level ``step``, where no op is seen: numbers that the program reads with ``.item()``.

Owns the patch of ``torch.Tensor.item``. Reads by torch itself, as every optimizer makes them, cost one look-up and are
not recorded. Where ops are recorded, their rows have these numbers. ``float(tensor)`` is not patched: torch's warning,
where the tensor requires gradients, would name the patch instead of the program's line.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any, Final

import torch

from rltrace.recorder.base.patching import Patches
from rltrace.recorder.core.call_sites import Sites, is_internal
from rltrace.recorder.streams.series import SeriesSampler

MAX_CODES: Final = 4_096


class ItemReads:
    """A number for each read of a tensor by the program, with its call site, from ``install`` to ``remove``."""

    def __init__(self, series: SeriesSampler, sites: Sites, fail: Callable[[Exception], None]) -> None:
        self._series = series
        self._sites = sites
        self._fail = fail
        self._patches = Patches()
        self._is_program: dict[CodeType, bool] = {}
        """By the code that reads a number: whether it is the program's."""

    def install(self) -> None:
        self._patches.replace(torch.Tensor, "item", self._reading(torch.Tensor.item))

    def remove(self) -> None:
        self._patches.undo_all()

    def _reading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        patches, is_program, fail = self._patches, self._is_program, self._fail

        @functools.wraps(original)
        def item(tensor: torch.Tensor) -> Any:
            number = original(tensor)
            kind = type(number)
            if kind is float or kind is int:
                try:
                    frame = sys._getframe(1)
                    if patches and (is_program.get(frame.f_code) or self._is_of_program(frame.f_code)):
                        site = self._sites.of_stack(frame)
                        self._series.read(site, self._sites.calls.get(site, ""), number)
                except Exception as error:
                    fail(error)
            return number

        return item

    def _is_of_program(self, code: CodeType) -> bool:
        found = self._is_program.get(code)
        if found is None:
            if len(self._is_program) >= MAX_CODES:  # a program that makes code as it runs
                self._is_program.clear()
            found = self._is_program[code] = not is_internal(code)
        return found
