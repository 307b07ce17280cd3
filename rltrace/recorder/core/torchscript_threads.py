"""Ops without a row: on symbolic shapes, or run by a thread that TorchScript forked.

Owns how such ops are recognised. Threads that TorchScript forks inherit the dispatch mode of their parent and run
beside it.
"""

import sys
from collections.abc import Iterable

import torch

FACT = "threads.beside"
"""A fact: streams beside which TorchScript ran ops, each with its row at the first of them."""


def is_torchscript_thread(depth: int) -> bool:
    """Whether TorchScript forked the calling thread: it runs no backward, and no Python below frame ``depth``."""
    if torch._C._current_autograd_node() is not None:
        return False
    try:
        sys._getframe(depth)
    except ValueError:
        return True
    return False


def is_symbolic(error: Exception, tensors: Iterable[torch.Tensor]) -> bool:
    """Whether ``error`` only means that a tensor of the current op, which has not run yet, has a symbolic shape."""
    return isinstance(error, TypeError) and any(
        isinstance(size, torch.SymInt) for tensor in tensors for size in tensor.shape
    )
