"""Hooks: called by the op recorder at defined moments of every op of a stream.

Owns those moments and their order. A recording without hooks runs none of this.
"""

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch._ops import OpOverload

from rltrace.recorder.base.dispatch_mode import Observer
from rltrace.recorder.base.torch_function import OpWrapper, Overrides, any_torch_function
from rltrace.recorder.core.calls import Call
from rltrace.recorder.core.op_info import OpPlan
from rltrace.recorder.core.ops_without_rows import is_torchscript_thread
from rltrace.trace.format.schema import Phase

FixedCells = tuple[int, int, int, int, int, int, int]
"""The cells that every row has: op, structure, site, module, scalars, flags with phase and kind above them, digests."""

Run = Callable[[OpOverload, tuple[Any, ...], dict[str, Any]], Any]

State = TypeVar("State")


class OpHook(Generic[State]):
    """Work beside an op's row; methods do nothing unless overridden.

    An exception from a hook ends the recording, as any failure of the recorder does; the program goes on.
    """

    op: State | None = None
    """The result of ``begin`` for the current op. Dropped when the op has ended, so that no tensor is kept alive."""

    wants_by_step = False
    """Whether what it wants depends on the step."""

    def wants(self, plan: OpPlan, module: int, phase: Phase) -> bool:
        """Whether it does anything for ops of this operator, in a module and a phase, in the step at hand.

        Asked once, or once in a step; where no hook wants them, they are not passed to any.
        """
        return True

    def begin(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> State | None:
        """The op is about to run; nothing of its row exists yet. Returns the hook's state for this op, or None."""
        return None

    def replacement(self, func: OpOverload) -> Run | None:
        """The function to run in place of the op, once call site and inputs are known (``RowBuffer.site``), or None."""
        return None

    def inputs_written(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A ``replacement`` has written what the op is about to read: what ``begin`` read is no longer so."""

    def needs_digests(self) -> bool:
        """Whether digests of the current row must not be deferred."""
        return self.op is not None

    def finish(self, cells: FixedCells, call: Call, tensors: list[torch.Tensor], out: Any) -> None:
        """The op has run on ``tensors`` and returned ``out``; its row is complete but for ``cells``."""

    def end(self) -> None:
        """The op has returned, and its row has been written. An exception raised here reaches the program."""

    def drop(self) -> None:
        """An interrupt came: the current row is dropped."""

    def window_row(
        self, cells: FixedCells, row: int, name: str, owner: str, digests: list[int], tensor: torch.Tensor | None
    ) -> None:
        """The digest of a tensor at the beginning of a window has been written as ``row``; None: of a generator."""


class HookedStream(Observer, Protocol):
    """The op recorder of one thread."""

    owner: int
    hooks: Sequence[OpHook[Any]]

    def record_torchscript_op(self) -> None:
        """An op ran in a TorchScript thread and gets no row."""

    def fail(self, error: Exception) -> None:
        """The recorder has failed."""


class HookedOps:
    """Passes the ops of a stream's thread to its hooks and its recorder. Calls no ``__torch_function__``."""

    def __init__(self, stream: HookedStream) -> None:
        self.stream = stream
        self._overrides = Overrides()
        self._replaced: dict[tuple[int, int], OpWrapper] = {}
        """By ``id`` of op and hook: a call's signature contains the ``id`` of its function, so there is one wrapper
        for each."""

    def observe(
        self, by: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, /
    ) -> Any:
        if get_ident() != self.stream.owner and is_torchscript_thread(2):
            self.stream.record_torchscript_op()
            return func(*args, **kwargs) if kwargs else func(*args)
        if any_torch_function((*args, *(kwargs or {}).values())):
            return self._overrides.observe(self._observe, by, func, types, args, kwargs)
        return self._observe(by, func, types, args, kwargs)

    def _observe(self, by: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, /) -> Any:
        hooks = self.stream.hooks
        outer = [hook.op for hook in hooks]
        try:
            for hook in hooks:
                try:
                    hook.op = None
                    hook.op = hook.begin(func, args, kwargs or {})
                    run = hook.replacement(func)
                except Exception as error:
                    self.stream.fail(error)
                else:
                    func = func if run is None else self._replace(func, hook, run)
            out = self.stream.observe(by, func, types, args, kwargs)
        finally:
            for hook, op in zip(hooks, outer, strict=True):
                hook.op = op
        for hook in hooks:
            hook.end()
        return out

    def _replace(self, func: Any, hook: OpHook[Any], run: Run) -> OpWrapper:
        key = id(func), id(hook)
        wrapper = self._replaced.get(key)
        if wrapper is None:
            wrapper = self._replaced[key] = OpWrapper(func, run)
        return wrapper
