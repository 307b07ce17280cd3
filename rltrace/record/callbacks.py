"""Callbacks of futures: they run in whatever thread completes the future, or at once in the one that asks for them.

Which it is, timing decides; so what they compute is written to streams of their own in both cases, without the stack of
whom they happened to interrupt. Owns the standing in for ``Future.then`` and ``add_done_callback``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

Run = Callable[[Callable[[Any], Any], Any], Any]

NAME = "pool:future"
"""What their streams are called: they have no order, like those of a pool's threads."""

_TAKING_CALLBACKS = "then", "add_done_callback"


class Callbacks:
    """While ops are recorded, callbacks given to futures are run by ``run(callback, future)``."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._undo: list[Callable[[], None]] = []

    def watch(self) -> None:
        future: Any = torch._C.Future
        for name in () if self._undo else _TAKING_CALLBACKS:
            original = getattr(future, name)
            setattr(future, name, self._around(original))
            self._undo.append(functools.partial(setattr, future, name, original))

    def ignore(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        run = self._run

        @functools.wraps(original)
        def take(future: Any, callback: Callable[[Any], Any], *more: Any) -> Any:
            def called_back(done: Any) -> Any:
                return run(callback, done)

            return original(future, called_back if callable(callback) else callback, *more)

        return take
