"""Ways to end that run no exit hook, and what is still written down before them: ``os._exit``, an ``exec``.

Owns what stands in for these functions while a process is recorded. Each goes on to the real one within SECONDS,
whatever becomes of the trace: a disk that hangs, or a lock that the caller holds itself, must not keep a program alive.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from rltrace.record.background import BackgroundThread

SECONDS = 3.0
"""How long such an ending may be held up."""


def bounded(action: Callable[[], None], seconds: float = SECONDS) -> None:
    """Have ``action`` done by a thread, and wait for it for a while. Its errors are its own to handle."""
    thread = BackgroundThread(action)
    try:
        thread.start()
    except RuntimeError:  # no thread can be started any more
        return
    thread.join(seconds)


class Endings:
    """Watches for these endings, from ``watch`` to ``ignore``."""

    def __init__(self, finish: Callable[[], None], last: Callable[[str | None], None]) -> None:
        """``finish`` ends the recording; ``last`` is told of the program that takes over, None: it did not."""
        self._finish = finish
        self._last = last
        self._undo: list[Callable[[], None]] = []

    def watch(self) -> None:
        self._replace("_exit", self._exit)
        for name in ("execv", "execve"):  # the others call these
            self._replace(name, self._exec)

    def ignore(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _replace(self, name: str, around: Callable[..., Any]) -> None:
        original = getattr(os, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        setattr(os, name, wrapper)

        def undo() -> None:
            if getattr(os, name) is wrapper:  # else the program has put something of its own there
                setattr(os, name, original)

        self._undo.append(undo)

    def _exit(self, original: Callable[..., NoReturn], *args: Any, **kwargs: Any) -> NoReturn:
        bounded(self._finish)
        original(*args, **kwargs)

    def _exec(self, original: Callable[..., NoReturn], path: Any, *args: Any, **kwargs: Any) -> NoReturn:
        bounded(lambda: self._last(_program(path)))
        try:
            original(path, *args, **kwargs)
        except BaseException:
            bounded(lambda: self._last(None))
            raise


def _program(path: Any) -> str:
    try:
        return Path(os.fsdecode(path)).name
    except (TypeError, ValueError):  # an open file, or nothing that can be executed
        return "another program"


def stay_interrupted() -> None:
    """At exit: have a program that Ctrl-C ended die of it, as it would have.

    The interpreter remembers that nobody caught the KeyboardInterrupt, and forgets it with the next text that is
    executed: many imports do so (a namedtuple is made that way), and the recorder may import while it ends.
    """
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt) and not hasattr(sys, "ps1"):
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")
