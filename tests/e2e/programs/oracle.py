"""A recorder too simple to be wrong: ``oracle.py LOG PROGRAM [ARGUMENT …]`` writes a line for every op, as it runs.

A line is the operator's name and a hash over the bytes of everything that the op returned and wrote; ``-`` stands for
the hash where those bytes are not the op's own (views, memory handed out as it is). Ops of the thread that runs the
program alone, in order; a forked child writes nothing. Shares no code with rltrace but the library that hides a mode.
"""

import os
import runpy
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode_temporarily
from torch.utils._pytree import tree_leaves

BARE = ("empty", "resize", "set_", "detach", "alias", "_unsafe_view", "_reshape_alias", "lift_fresh", "new_empty")
"""Operators (the start of their names) that compute nothing."""


class Oracle(TorchDispatchMode):
    """Runs each op and logs it."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else the first op imports the compiler

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.log = log.open("w", buffering=1 << 20)
        self.process = os.getpid()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if os.getpid() == self.process:
            self.log.write(f"{func} {self.digest(func, args, kwargs or {}, result)}\n")
        return result

    def digest(self, func: Any, args: Any, kwargs: Any, result: Any) -> str:
        """Hash of what the op returned and wrote."""
        if getattr(func, "is_view", False) or func.__name__.startswith(BARE):
            return "-"
        bits = sha256()
        for value in tree_leaves((result, written(func, args, kwargs))):
            if isinstance(value, torch.Tensor):
                bits.update(f"{value.dtype} {tuple(value.shape)}".encode())
                bits.update(content(value))
            elif isinstance(value, (bool, int, float, complex, str, type(None))):
                bits.update(repr(value).encode())  # what else there is names its address
        return bits.hexdigest()[:16]

    def close(self) -> None:
        if os.getpid() == self.process:
            self.log.close()


def written(func: Any, args: Any, kwargs: Any) -> list[Any]:
    """Arguments that the op's schema says it writes."""
    schema = getattr(func, "_schema", None)
    if schema is None:
        return []
    given = {**dict(zip((a.name for a in schema.arguments), args, strict=False)), **kwargs}
    return [given.get(a.name) for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]


def content(tensor: torch.Tensor) -> bytes:
    """The elements, in order; nothing for what has no elements to look at."""
    try:
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().flatten()
        return plain.view(torch.uint8).numpy().tobytes()
    except (RuntimeError, TypeError, NotImplementedError):  # sparse, quantised, a subclass without memory
        return b"?"


def let_subclasses_be_made() -> None:
    """Under a mode torch refuses ``MyTensor(…)``: it is made as if there were none, its ops unseen."""
    original = torch.Tensor.__new__

    def new(*args: Any, **kwargs: Any) -> Any:
        if args[0] is torch.Tensor or not isinstance(_get_current_dispatch_mode(), Oracle):
            return original(*args, **kwargs)
        with _pop_mode_temporarily():
            return original(*args, **kwargs)

    torch.Tensor.__new__ = new  # type: ignore[method-assign, assignment]


def hide_mode() -> None:
    """torch's functions choose other ops under a mode; where rltrace records, they do not see its own."""
    from rltrace.native.library import load
    from rltrace.recorder.core.native_engine import CONSTANTS

    library = load(Path(torch.__file__).parent, CONSTANTS).module
    if library is not None:
        library.hide_modes(Oracle)


def main() -> None:
    log, sys.argv = Path(sys.argv[1]), sys.argv[2:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    oracle = Oracle(log)
    let_subclasses_be_made()
    hide_mode()
    try:
        with oracle:
            runpy.run_path(sys.argv[0], run_name="__main__")
    finally:
        oracle.close()


if __name__ == "__main__":
    main()
