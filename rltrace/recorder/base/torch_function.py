"""What keeps the recorder out of the program's ``__torch_function__``: that of Tensor subclasses, and of modes.

torch asks ``__torch_function__`` where Python calls torch, and an attribute of a tensor is such a call. An op that has
reached a dispatch mode has been asked about already, or was called by autograd, which does not ask. So the recorder
reads tensors with ``__torch_function__`` disabled, and calls the op through the dispatcher, with it enabled as it was
before: an operator that is written in Python may call torch itself, and is asked about that.

Disabling costs some 100 ns, so it is done only where somebody would be asked: ``would_be_asked`` says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

would_be_asked: Callable[[Any], bool] = torch._C._has_torch_function_unary
"""Whether an attribute of this object would be asked about; of None: whether a mode would be asked."""

unasked = torch._C.DisableTorchFunction
"""``with unasked():`` nobody is asked inside."""

_call_boxed: Any = torch._C._dispatch_call_boxed


class OverriddenError(Exception):
    """Somebody would be asked about a tensor among the arguments of an op; it has not been read yet."""

    def __init__(self, integers: int, floats: int) -> None:
        """How many numbers had been read before it."""
        self.integers = integers
        self.floats = floats


class StandIn:
    """Looks like an operator to the recorder, and runs it through ``run``."""

    def __init__(self, func: OpOverload, run: Callable[..., Any]) -> None:
        self._func = func
        self._run = run

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(self._func, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._func, name)

    def __str__(self) -> str:
        return str(self._func)


class Overrides:
    """Ops of one thread that somebody would be asked about."""

    def __init__(self) -> None:
        self._stand_ins: dict[int, StandIn] = {}
        self._guard: Any = None
        """Of the op that is being handled: what disables ``__torch_function__``, and enables it again."""

    def observe(
        self,
        observe: Callable[..., Any],
        by: Any,
        func: OpOverload,
        types: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
    ) -> Any:
        """``observe`` an op without asking anybody."""
        stand_in = self._stand_ins.get(id(func))
        if stand_in is None:
            stand_in = self._stand_ins[id(func)] = StandIn(func, self._run)
        before, self._guard = self._guard, unasked()
        try:
            with self._guard:
                return observe(by, stand_in, types, args, kwargs)
        finally:
            self._guard = before

    def _run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the op itself, as the program would."""
        guard = self._guard
        guard.__exit__(None, None, None)
        try:
            if isinstance(func, OpOverload):
                return _call_boxed(func._handle, *args, **kwargs)
            return func(*args, **kwargs)
        finally:
            guard.__enter__()


def any_would_be_asked(values: Any) -> bool:
    """Whether somebody would be asked about one of these arguments of an op, or about any tensor."""
    return would_be_asked(None) or any(
        any_would_be_asked(value) if isinstance(value, (list, tuple)) else would_be_asked(value) for value in values
    )
