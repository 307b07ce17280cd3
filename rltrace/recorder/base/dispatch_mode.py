"""The reference engine: a tiny ``TorchDispatchMode`` that hands each op on.

Owns the place of the mode on torch's stack of modes and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any, Protocol

from torch._ops import OpOverload
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _pop_mode_temporarily,
    _push_mode,
)

# --- engine -----------------------------------------------------------------------------------------------------------
#
# What intercepts an op is one thing, what becomes of it another: the two sides of that seam.
#
# Owns the Protocols. A trace names its engine; op streams of two engines are not compared row by row.


class Observer(Protocol):
    """What becomes of an op."""

    def observe(
        self, by: Any, func: OpOverload, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, /
    ) -> Any:
        """Run the op, write down what there is to know, return what it returned; raise only what it raised.

        ``by`` is whatever intercepted it. It comes first so that torch can call this method with nothing in between.
        """


class Engine(Protocol):
    """What intercepts ops, on the thread that calls ``enter``. Not re-entrant."""

    name: str
    """Named in the trace."""

    def enter(self, observer: Observer) -> None:
        """From now on hand every op of the calling thread to ``observer``."""

    def leave(self) -> bool:
        """Stop; False when that is not possible now (another mode lies on top) and ops merely pass through."""

    def is_between_ops(self) -> bool:
        """Whether an op that the calling thread ran now would go to the observer: none of its is under way there."""

    def silence(self) -> None:
        """Let ops pass through from now on. May be called from another thread than ``enter``."""


# --- dispatch ---------------------------------------------------------------------------------------------------------


class _Mode(TorchDispatchMode):
    supports_higher_order_operators = True
    observer: Observer | None = None
    """Who is handed the ops; None: nobody."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return (
            False  # the default wraps the handler in torch._disable_dynamo: 0.7 µs an op, dynamo imported at the first
        )

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """While nobody observes; ``hand_to`` puts a method in its place."""
        return func(*args, **kwargs) if kwargs else func(*args)

    def hand_to(self, observer: Observer) -> None:
        """Every op goes to ``observer`` without a Python call in between (0.1 µs); torch wants a method of the mode."""
        self.observer = observer
        self.__dict__["__torch_dispatch__"] = MethodType(observer.observe, self)

    def silence(self) -> None:
        self.observer = None
        self.__dict__.pop("__torch_dispatch__", None)


def recorder_is_next() -> bool:
    """Whether the next op of this thread goes to the recorder first, observing or silent."""
    return isinstance(_get_current_dispatch_mode(), _Mode)


@contextmanager
def out_of_the_way() -> Iterator[None]:
    """Ops go where they would go without the recorder, which ``recorder_is_next`` has found."""
    with _pop_mode_temporarily():
        yield


def observer_here() -> Observer | None:
    """Who would be handed an op that this thread ran now, once modes of the program's own have passed it down."""
    return next((mode.observer for mode in _get_current_dispatch_mode_stack() if isinstance(mode, _Mode)), None)


@contextmanager
def as_if_dispatched() -> Iterator[list[TorchDispatchMode]]:
    """What holds while the recorder handles an op: its mode and those above it are off. The latter are handed over."""
    taken: list[TorchDispatchMode] = []
    while not taken or not isinstance(taken[-1], _Mode):
        taken.append(_pop_mode())
    try:
        yield taken[-2::-1]
    finally:
        while taken:
            _push_mode(taken.pop())


@contextmanager
def under(modes: list[TorchDispatchMode]) -> Iterator[None]:
    """Ops pass these modes, the last one first."""
    for mode in modes:
        _push_mode(mode)
    try:
        yield
    finally:
        for _ in modes:
            _pop_mode()


class DispatchEngine:
    """Interception by a dispatch mode of the thread that enters it."""

    name = "dispatch"

    def __init__(self) -> None:
        self._mode: _Mode | None = None

    def enter(self, observer: Observer) -> None:
        if self._mode is None:
            self._mode = _Mode()  # type: ignore[no-untyped-call]
            self._mode.__enter__()  # type: ignore[no-untyped-call]
        self._mode.hand_to(observer)

    def leave(self) -> bool:
        mode = self._mode
        if mode is None:
            return True
        self.silence()
        if _get_current_dispatch_mode() is not mode:
            return False
        mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._mode = None
        return True

    def is_between_ops(self) -> bool:
        mode = self._mode
        if mode is None:
            return False
        if _get_current_dispatch_mode() is mode:
            return True
        return any(other is mode for other in _get_current_dispatch_mode_stack())  # while it handles an op it is off

    def silence(self) -> None:
        if self._mode is not None:
            self._mode.silence()
