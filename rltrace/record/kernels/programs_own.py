"""Profilers that the recorded program starts itself: the recorder's steps aside before, and may go on after.

Owns what stands in for the functions of torch that begin and end one: ``torch.profiler``, ``torch.autograd.profiler``,
its older form, ``emit_nvtx`` and ``emit_itt`` all call these. Kineto runs one session at a time, and a session of the
program's own must neither fail nor hold anything of the recorder's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Final

import torch

BEGIN: Final = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")
END: Final = ("_disable_profiler", "_disable_profiler_legacy")

MODULES: Final = ("torch._C._autograd", "torch.autograd", "torch.autograd.profiler", "torch.autograd.profiler_legacy")
"""All that have these functions under their names."""


class ProgramsOwn:
    """Those of one process, from ``watch`` to ``ignore``. What began before is not known here."""

    def __init__(self, begins: Callable[[], None]) -> None:
        """``begins``: called before each, in the thread that starts it; must not raise."""
        self.running = False
        """One has been prepared, or started, and has not ended."""
        self._begins = begins
        self._undo: list[Callable[[], None]] = []

    def watch(self) -> None:
        for name in (*BEGIN, *END):
            original: Callable[..., Any] = getattr(torch._C._autograd, name)
            stand_in = self._around(original, begins=name in BEGIN)
            for module in (sys.modules.get(module) for module in MODULES):
                if getattr(module, name, None) is original:
                    self._put(module, name, original, stand_in)

    def ignore(self) -> None:
        self.running = False
        while self._undo:
            self._undo.pop()()

    def _around(self, original: Callable[..., Any], *, begins: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            if begins:
                self.running = True
                self._begins()
                return original(*args, **kwargs)
            try:
                return original(*args, **kwargs)
            finally:
                self.running = False

        return stand_in

    def _put(self, module: Any, name: str, original: Callable[..., Any], stand_in: Callable[..., Any]) -> None:
        def undo() -> None:
            if getattr(module, name, None) is stand_in:
                setattr(module, name, original)

        setattr(module, name, stand_in)
        self._undo.append(undo)
