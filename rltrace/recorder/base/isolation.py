"""Keeping torch's compiler out of all code of the recorder.

Owns from when on that is so. Where the compiler compiles a function in parts, it looks at everything that is called
between them: also at what handles an op, or a hook. It would compile that, or give up the program's own code because of
it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final
from weakref import WeakSet

import torch
from torch._C._dynamo import eval_frame

from rltrace.recorder.base.import_hook import Imported

COMPILER: Final = "torch._dynamo"
"""What looks into code; nothing is compiled before it has been imported."""


def compiler_kept_out(fail: Callable[[Exception], None]) -> Imported:
    """To be watched: has the compiler, once a program loads it, pass over what is loaded of rltrace by then."""
    return Imported({COMPILER: lambda _compiler: _keep_out()}, fail)


def keep_out_of_new() -> None:
    """The same for what has been loaded since: to be called wherever something is loaded late."""
    if COMPILER in sys.modules:
        _keep_out()


def _keep_out() -> None:
    skip = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT)
    for name, module in list(sys.modules.items()):
        if (name == "rltrace" or name.startswith("rltrace.")) and module not in _kept_out:
            for code in _codes(module):
                eval_frame.set_code_exec_strategy(code, skip)
            _kept_out.add(module)


_kept_out: WeakSet[ModuleType] = WeakSet()
"""Modules that the compiler passes over already: nothing undoes that, and to go through them takes 5 ms."""


def _codes(module: ModuleType) -> Iterator[CodeType]:
    """The code of all functions that a module defines, those within others included."""
    waiting: list[Any] = list(vars(module).values())
    met: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in met:
            continue
        met.add(id(value))
        if isinstance(value, CodeType):
            if value.co_filename.startswith(_HERE):
                yield value
                waiting += value.co_consts
        elif isinstance(value, type) and value.__module__ == module.__name__:
            waiting += vars(value).values()
        elif isinstance(value, property):
            waiting += (value.fget, value.fset)
        elif isinstance(value, (staticmethod, classmethod)):
            waiting.append(value.__func__)
        elif isinstance(value, FunctionType):
            waiting += (value.__code__, getattr(value, "__wrapped__", None))


_HERE = f"{Path(__file__).resolve().parents[2]}/"
"""Where all of rltrace lies: what a class or a module has from elsewhere is not the recorder's."""


# --- stance -----------------------------------------------------------------------------------------------------------
#
# ``--compile eager``: what the program has given to torch.compile runs op by op while it is recorded.
#
# Owns the compiler's stance meanwhile, and puts back the one it found. The compiler itself does this: it neither
# compiles nor forgets anything, so that whatever is called later is compiled as if there had been no recording.


EAGER: Final = "eager"


class EagerStance:
    """From ``begin`` to ``end``; does not load the compiler where the program doesn't."""

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        self._imported = Imported({"torch._dynamo": self._take}, fail)
        self._taken: Any = None

    def begin(self) -> None:
        self._imported.install()

    def end(self) -> None:
        self._imported.uninstall()
        if self._taken is not None:
            self._taken.__exit__(None, None, None)
            self._taken = None

    def _take(self, _dynamo: object) -> None:
        self._taken = torch.compiler.set_stance("force_eager")
