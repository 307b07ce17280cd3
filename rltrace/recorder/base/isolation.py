"""Keeping torch's compiler out of the recorder's code.

Where the compiler splits a function at a graph break, it traces everything called in between: also the recorder's
handlers and hooks. It would compile those, or give up the program's own code because of them.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final
from weakref import WeakSet

import torch
from torch._C._dynamo import eval_frame

from rltrace.recorder.base.patching import ImportHook

COMPILER: Final = "torch._dynamo"
"""The compiler's module; nothing is compiled before it has been imported."""


def compiler_exclusion(fail: Callable[[Exception], None]) -> ImportHook:
    """To be installed: once a program loads the compiler, it skips the modules of rltrace loaded by then."""
    return ImportHook({COMPILER: lambda _compiler: _exclude_modules()}, fail)


def exclude_new_modules() -> None:
    """The same for modules loaded since; called after each late import."""
    if COMPILER in sys.modules:
        _exclude_modules()


def _exclude_modules() -> None:
    skip = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT)
    for name, module in sys.modules.copy().items():
        if (name == "rltrace" or name.startswith("rltrace.")) and module not in _excluded:
            for code in _codes(module):
                eval_frame.set_code_exec_strategy(code, skip)
            _excluded.add(module)


_excluded: WeakSet[ModuleType] = WeakSet()
"""Modules that the compiler skips already: nothing undoes that, and going through them takes 5 ms."""


def _codes(module: ModuleType) -> Iterator[CodeType]:
    """The code of all functions that a module defines, nested ones included."""
    queue: list[Any] = list(vars(module).values())
    seen: set[int] = set()
    while queue:
        value = queue.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, CodeType):
            if value.co_filename.startswith(_PACKAGE_FOLDER):
                yield value
                queue += value.co_consts
        elif isinstance(value, type) and value.__module__ == module.__name__:
            queue += vars(value).values()
        elif isinstance(value, property):
            queue += (value.fget, value.fset)
        elif isinstance(value, (staticmethod, classmethod)):
            queue.append(value.__func__)
        elif isinstance(value, FunctionType):
            queue += (value.__code__, getattr(value, "__wrapped__", None))


_PACKAGE_FOLDER = f"{Path(__file__).resolve().parents[2]}/"
"""Code from outside this folder is not the recorder's."""


# --- stance -----------------------------------------------------------------------------------------------------------
#
# ``--compile eager``: compiled functions of the program run op by op while it is recorded. The compiler's stance
# neither compiles nor forgets anything: later calls are compiled as if there had been no recording.


class EagerStance:
    """Eager execution from ``begin`` to ``end``; does not load the compiler where the program doesn't."""

    def __init__(self, fail: Callable[[Exception], None]) -> None:
        self._import_hook = ImportHook({"torch._dynamo": self._set}, fail)
        self._stance: Any = None

    def begin(self) -> None:
        self._import_hook.install()

    def end(self) -> None:
        self._import_hook.uninstall()
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
            self._stance = None

    def _set(self, _dynamo: object) -> None:
        self._stance = torch.compiler.set_stance("force_eager")
