"""Ops that are no rows: on shapes that are symbols, or run by TorchScript beside the thread that they belong to.

Owns how such ops are recognised: a symbolic shape from a failure of the recorder, another thread's op by its stack. The
dispatch mode of a thread is handed on to threads that TorchScript forks, which then run at the same time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import torch

FACT = "threads.beside"
"""Streams beside which TorchScript ran ops, each with the row it was at when the first of them came."""


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
