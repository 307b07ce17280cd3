"""A recorder too simple to be wrong: ``oracle.py LOG PROGRAM`` writes every op's name and a hash of what it returned.

One line an op, in order. Views and fresh memory are logged without a hash. Shares no code with rltrace.
"""

import runpy
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

BARE = ("empty", "resize", "set_", "detach", "alias", "_unsafe_view", "lift_fresh")


class Oracle(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        bits = sha256()
        if not func.is_view and not any(word in func.__name__ for word in BARE):
            written = [
                a for a, s in zip(args, func._schema.arguments, strict=False) if s.alias_info and s.alias_info.is_write
            ]
            for tensor in tree_leaves((result, written)):
                if isinstance(tensor, torch.Tensor):
                    bits.update(tensor.detach().contiguous().numpy().tobytes())
        self.lines.append(f"{func} {bits.hexdigest()}")
        return result


oracle = Oracle()
log, sys.argv = Path(sys.argv[1]), sys.argv[2:]
sys.path[0] = str(Path(sys.argv[0]).parent)
try:
    with oracle:
        runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    log.write_text("\n".join(oracle.lines))
