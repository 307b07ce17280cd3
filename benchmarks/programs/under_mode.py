"""Runs a program under somebody else's dispatch mode. ``under_mode.py MODE PROGRAM [ARGUMENT…]``.

empty            a TorchDispatchMode that only calls the op
empty-bare       the same with ``_should_skip_dynamo`` off: the handler is not wrapped in ``torch._disable_dynamo``
debug            PyTorch's DebugMode: one record per op, kept in memory as text
debug-xor        the same with a hash of every output, ``log_tensor_hashes("hash_tensor")``
debug-norm       the same with ``log_tensor_hashes("norm")``, its default
"""

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Empty(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class EmptyBare(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def debug(hashes: str | None = None) -> Iterator[None]:
    from torch.utils._debug_mode import DebugMode

    with DebugMode():
        if hashes is None:
            yield
        else:
            with DebugMode.log_tensor_hashes(hashes):
                yield


MODES = {
    "empty": Empty,
    "empty-bare": EmptyBare,
    "debug": debug,
    "debug-xor": lambda: debug("hash_tensor"),
    "debug-norm": lambda: debug("norm"),
}

mode, sys.argv = MODES[sys.argv[1]], sys.argv[2:]
with mode():
    runpy.run_path(sys.argv[0], run_name="__main__")
