"""Ops that are no rows: on shapes that are symbols, or run by TorchScript beside the thread that they belong to.

Owns how they are told: from a failure of the recorder's own, and from ops of the stream's thread. The dispatch mode of
a thread is handed on to threads that TorchScript forks, which then run at the same time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from threading import get_ident
from typing import Any, Protocol

import torch

from rltrace.recorder.base.dispatch_mode import Observer
from rltrace.recorder.base.torch_function import Overrides, any_would_be_asked

FACT = "threads.beside"
"""Streams beside which TorchScript ran ops, each with the row it was at when the first of them came."""


class ThreadRows(Observer, Protocol):
    """The rows of one thread."""

    owner: int

    def passed_by(self) -> None:
        """An op ran beside the stream's thread."""


class OwnThread:
    """Stands before a stream that does more with an op than write its row: it is handed ops of its own thread alone,
    and nobody is asked about what it reads."""

    def __init__(self, stream: ThreadRows) -> None:
        self.stream = stream
        self._overrides = Overrides()

    def observe(
        self, by: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, /
    ) -> Any:
        if get_ident() != self.stream.owner and runs_beside(2):
            self.stream.passed_by()
            return func(*args, **kwargs) if kwargs else func(*args)
        if any_would_be_asked((*args, *(kwargs or {}).values())):
            return self._overrides.observe(self.stream.observe, by, func, types, args, kwargs)
        return self.stream.observe(by, func, types, args, kwargs)


def runs_beside(depth: int) -> bool:
    """Whether the calling thread is one that TorchScript forked: it differentiates nothing, and there is no Python
    below the frame ``depth`` up from here.
    """
    if torch._C._current_autograd_node() is not None:
        return False
    try:
        sys._getframe(depth)
    except ValueError:
        return True
    return False


def is_symbolic(error: Exception, tensors: Iterable[torch.Tensor]) -> bool:
    """Whether ``error`` only says that a tensor of the op at hand, which has not run yet, has symbols for a shape."""
    return isinstance(error, TypeError) and any(
        isinstance(size, torch.SymInt) for tensor in tensors for size in tensor.shape
    )
