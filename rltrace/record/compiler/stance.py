"""``--compile eager``: what the program has given to torch.compile runs op by op while it is recorded.

Owns the compiler's stance meanwhile, and puts back the one it found. The compiler itself does this: it neither compiles
nor forgets anything, so that whatever is called later is compiled as if there had been no recording.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from rltrace.record.boundaries.imported import Imported

EAGER: Final = "eager"


class EagerStance:
    """From ``begin`` to ``end``; does not load the compiler where the program doesn't."""

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        self._imported = Imported({"torch._dynamo": self._take}, fail)
        self._taken: Any = None

    def begin(self) -> None:
        self._imported.watch()

    def end(self) -> None:
        self._imported.ignore()
        if self._taken is not None:
            self._taken.__exit__(None, None, None)
            self._taken = None

    def _take(self, _dynamo: object) -> None:
        self._taken = torch.compiler.set_stance("force_eager")
