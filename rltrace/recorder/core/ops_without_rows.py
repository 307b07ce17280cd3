"""Ops without a row: on symbolic shapes, or run by a thread that TorchScript forked or that a backend has.

Owns how such ops are recognised. Threads that TorchScript forks inherit the dispatch mode of their parent and run
beside it, as those of Gloo do in collectives that ``init_rpc`` makes.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

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


def is_thread_of_a_backend() -> bool:
    """Whether the calling thread is of a backend of torch.distributed: its ops are of a collective, which has a row."""
    try:
        return Path("/proc/thread-self/comm").read_text().startswith(BACKENDS)
    except (OSError, ValueError):
        return False


BACKENDS: Final = ("pt_gloo", "pt_mpi", "pt_nccl", "pt_ucc")
"""Beginnings of the names that torch gives to these threads."""


def rpc_facts() -> dict[str, int]:
    """``threads.rpc``, how often the process has joined others by torch.distributed.rpc, whose agent runs what they
    call on threads of its own; empty: never."""
    joined = getattr(sys.modules.get("torch.distributed.rpc"), "_init_counter", 0)
    return {"threads.rpc": joined} if joined else {}


def is_symbolic(error: Exception, tensors: Iterable[torch.Tensor]) -> bool:
    """Whether ``error`` only means that a tensor of the current op, which has not run yet, has a symbolic shape."""
    return isinstance(error, TypeError) and any(
        isinstance(size, torch.SymInt) for tensor in tensors for size in tensor.shape
    )
