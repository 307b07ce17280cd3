"""Operators that are made of others and write memory with code of their own in between: each recorded as one op.

A dispatch mode sees only the ops that such an operator calls. What the operator itself writes belongs to none of them:
its results would stay unwritten memory, its state would change behind a stale link. Below autograd, where these
operators do nothing (they are integer work), the mode is handed the operator as it was called. Owns their table and
what stands in for them while ops are recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch

NAMES: Final = ("_sobol_engine_draw", "_sobol_engine_ff_", "_sobol_engine_initialize_state_", "_sobol_engine_scramble_")
"""Functions of module ``torch``, each of which calls the ``aten`` operator of its name."""


class Composites:
    """Hands these operators on as a whole, from ``watch`` to ``ignore``."""

    def __init__(self) -> None:
        self._originals: dict[str, Any] = {}

    def watch(self) -> None:
        for name in NAMES:
            original = getattr(torch, name, None)
            if original is not None and name not in self._originals:
                self._originals[name] = original
                setattr(torch, name, _as_one(original))

    def ignore(self) -> None:
        while self._originals:
            setattr(torch, *self._originals.popitem())


def _as_one(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def as_one(*args: Any, **kwargs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return original(*args, **kwargs)

    return as_one
