"""The reference engine: a tiny ``TorchDispatchMode`` that passes each op to an observer.

Owns the place of the mode on torch's stack of modes and nothing else.
"""

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
# A trace names its engine; op streams of two engines are not compared row by row.


class Observer(Protocol):
    """What runs and records an intercepted op."""

    def observe(
        self, by: Any, func: OpOverload, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, /
    ) -> Any:
        """Run the op, record it, return what it returned; raise only what it raised.

        ``by`` is what intercepted it. It comes first so that torch can call this method directly.
        """


class Engine(Protocol):
    """What intercepts ops, on the thread that calls ``enter``. Not re-entrant."""

    name: str
    """Named in the trace."""

    def enter(self, observer: Observer) -> None:
        """From now on pass every op of the calling thread to ``observer``."""

    def leave(self) -> bool:
        """Stop; False when that is not possible now (another mode is on top) and ops merely pass through."""

    def is_between_ops(self) -> bool:
        """Whether an op that the calling thread ran now would go to the observer, which handles none of its ops now."""

    def silence(self) -> None:
        """Let ops pass through from now on. May be called from another thread than ``enter``."""


# --- dispatch ---------------------------------------------------------------------------------------------------------


class RecorderMode(TorchDispatchMode):
    """The mode of one thread, which the native library hides from torch's functions."""

    supports_higher_order_operators = True
    observer: Observer | None = None
    """None: ops pass through."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # the default wraps the handler in torch._disable_dynamo: 0.7 µs an op, dynamo imported at the first
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Without an observer; ``set_observer`` replaces it."""
        return func(*args, **kwargs) if kwargs else func(*args)

    def set_observer(self, observer: Observer) -> None:
        """Every op goes to ``observer`` directly (saves 0.1 µs); torch requires a method of the mode."""
        self.observer = observer
        self.__dict__["__torch_dispatch__"] = MethodType(observer.observe, self)

    def silence(self) -> None:
        self.observer = None
        self.__dict__.pop("__torch_dispatch__", None)


def recorder_is_next() -> bool:
    """Whether the next op of this thread goes to the recorder first, observing or silent."""
    return isinstance(_get_current_dispatch_mode(), RecorderMode)


@contextmanager
def recorder_disabled() -> Iterator[None]:
    """Ops inside are not recorded. Only where ``recorder_is_next``."""
    with _pop_mode_temporarily():
        yield


def current_observer() -> Observer | None:
    """The observer of this thread's ops, below any modes of the program; None: ops are not recorded."""
    return next((mode.observer for mode in _get_current_dispatch_mode_stack() if isinstance(mode, RecorderMode)), None)


@contextmanager
def popped_modes() -> Iterator[list[TorchDispatchMode]]:
    """The recorder's mode and those above it are off inside, as while an op is handled. Yields those above it."""
    popped: list[TorchDispatchMode] = []
    while not popped or not isinstance(popped[-1], RecorderMode):
        popped.append(_pop_mode())
    try:
        yield popped[-2::-1]
    finally:
        while popped:
            _push_mode(popped.pop())


@contextmanager
def pushed_modes(modes: list[TorchDispatchMode]) -> Iterator[None]:
    """Ops inside go through these modes, the last one first."""
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
        self._mode: RecorderMode | None = None

    def enter(self, observer: Observer) -> None:
        if self._mode is None:
            self._mode = RecorderMode()  # type: ignore[no-untyped-call]
            self._mode.__enter__()  # type: ignore[no-untyped-call]
        self._mode.set_observer(observer)

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
