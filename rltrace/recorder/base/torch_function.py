"""Keeping the recorder out of the program's ``__torch_function__``: that of Tensor subclasses, and of modes.

``__torch_function__`` is called where Python calls torch, and an attribute of a tensor is such a call. For an op that
has reached a dispatch mode it has been called already, or autograd called the op, which bypasses it. So the recorder
reads tensors with ``__torch_function__`` disabled, and calls the op through the dispatcher, with it enabled as before:
an operator written in Python may call torch itself.

Disabling costs some 100 ns, so it is done only where ``has_torch_function``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

has_torch_function: Callable[[Any], bool] = torch._C._has_torch_function_unary
"""Whether reading an attribute of this object calls a ``__torch_function__``; of None: whether a mode is active."""

torch_function_disabled = torch._C.DisableTorchFunction
"""A context manager: no ``__torch_function__`` is called inside."""

_call_boxed: Any = torch._C._dispatch_call_boxed


class OverriddenError(Exception):
    """A tensor among the arguments of an op has a ``__torch_function__``; it has not been read yet."""

    def __init__(self, integers: int, floats: int) -> None:
        """``integers``, ``floats``: numbers read before it."""
        self.integers = integers
        self.floats = floats


class OpWrapper:
    """An operator as the recorder sees it, run through ``run``."""

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
    """Ops of one thread with a ``__torch_function__`` among their arguments."""

    def __init__(self) -> None:
        self._wrappers: dict[int, OpWrapper] = {}
        self._guard: Any = None
        """Disables ``__torch_function__`` for the current op."""

    def observe(
        self,
        observe: Callable[..., Any],
        by: Any,
        func: OpOverload,
        types: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
    ) -> Any:
        """``observe`` an op without calling ``__torch_function__``."""
        wrapper = self._wrappers.get(id(func))
        if wrapper is None:
            wrapper = self._wrappers[id(func)] = OpWrapper(func, self._run)
        before, self._guard = self._guard, torch_function_disabled()
        try:
            with self._guard:
                return observe(by, wrapper, types, args, kwargs)
        finally:
            self._guard = before

    def _run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the op itself, as the program would."""
        run: Callable[..., Any] = func
        if isinstance(func, OpOverload):
            try:
                run = partial(_call_boxed, func._handle)
            except RuntimeError:  # not in the dispatcher: how torch reads the sizes or the device of some subclasses
                return func(*args, **kwargs)
        guard = self._guard
        guard.__exit__(None, None, None)
        try:
            return run(*args, **kwargs)
        finally:
            guard.__enter__()


def any_torch_function(values: Any) -> bool:
    """Whether one of these arguments of an op has a ``__torch_function__``, or a mode is active."""
    return has_torch_function(None) or any(
        any_torch_function(value) if isinstance(value, (list, tuple)) else has_torch_function(value) for value in values
    )
