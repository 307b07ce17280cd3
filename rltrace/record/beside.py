"""Ops that are no rows: on shapes that are symbols, or run by TorchScript beside the thread that they belong to.

Owns how they are told from a failure of the recorder's own, and that no other thread writes into a thread's rows: the
dispatch mode of a thread is handed on to threads that TorchScript forks, which then run at the same time.
"""

from __future__ import annotations

import sys
from threading import get_ident
from typing import Any, Protocol

import torch

from rltrace.record.engine import Observer


class BesideError(Exception):
    """The op runs on another thread, which has no Python of its own, at the same time as the thread of the stream."""


class Stream(Observer, Protocol):
    """The rows of one thread."""

    owner: int


class OwnThread:
    """Stands between a mode and a stream once another thread has been met: its ops pass through."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def observe(
        self, by: Any, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, /
    ) -> Any:
        if get_ident() == self._stream.owner:
            return self._stream.observe(by, func, types, args, kwargs)
        return func(*args, **kwargs) if kwargs else func(*args)


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


def is_no_row(error: Exception, stream: Stream, mode: Any, tensors: list[torch.Tensor]) -> bool:
    """Whether ``error`` only says that the op at hand, which has not run yet, is none of the stream's."""
    if isinstance(error, BesideError):
        mode.hand_to(OwnThread(stream))  # ops of this thread do not come here again
        return not _is_in_an_op(stream)
    return isinstance(error, TypeError) and any(map(_is_symbolic, tensors))


def _is_symbolic(tensor: torch.Tensor) -> bool:
    return any(isinstance(size, torch.SymInt) for size in tensor.shape)


def _is_in_an_op(stream: Stream) -> bool:
    """Whether the stream's thread was writing a row, which then is spoilt."""
    frame = sys._current_frames().get(stream.owner)
    code = type(stream).observe.__code__
    while frame is not None:
        if frame.f_code is code:
            return True
        frame = frame.f_back
    return False
