"""Programs that a process starts: numbered as it starts them, since which of them comes first is a matter of timing.

Owns how a child learns its number. Nothing is put into its arguments or its environment, which belong to the program
(and threads may be starting others at the same time): the parent writes down which number it gave to which process id,
and the child, long before it has imported torch, is in that list. Where it is not (started in another way than through
``subprocess``) it is numbered by who came first, and the trace says so: it wanted the name without the number.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rltrace.trace.births import FOLDER, process_start

ENDING = ".children"
"""Of the list of a process, beside its birth record: a line ``pid start number`` for each child."""

MOST_ABOVE = 8
"""Processes between a child and the one that started it that are looked through: shells, ``env``, ``timeout`` …"""


class Children:
    """In a parent: writes down the number of every program that it starts, from ``watch`` to ``ignore``."""

    def __init__(self, trace: str, token: str) -> None:
        self._list = Path(trace, FOLDER, f"{token}{ENDING}")
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._undo: Callable[[], None] | None = None

    def watch(self) -> None:
        if self._undo is not None:
            return
        original = subprocess.Popen.__init__

        @functools.wraps(original)
        def started(*given: Any, **named: Any) -> None:
            number = self._number(_what_runs(given[1] if len(given) > 1 else named.get("args")))
            original(*given, **named)
            self._write(given[0].pid, number)

        subprocess.Popen.__init__ = started  # type: ignore[method-assign]

        def undo() -> None:
            if subprocess.Popen.__init__ is started:  # else the program has put something of its own there
                subprocess.Popen.__init__ = original  # type: ignore[method-assign]

        self._undo = undo

    def ignore(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def _number(self, what: str) -> int:
        """Taken before the start, so that of two threads the one that is first in the program's order stays it."""
        with self._lock:
            number = self._counts[what] = self._counts.get(what, 0) + 1
            return number

    def _write(self, pid: int, number: int) -> None:
        with contextlib.suppress(OSError):  # the trace is gone
            line = f"{pid} {process_start(pid)} {number}\n".encode()
            descriptor = os.open(self._list, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)


def own_number(trace: str) -> int | None:
    """The number that the nearest process above that is recorded gave to this one, or to one in between; None: none."""
    below = os.getpid()
    with contextlib.suppress(OSError, ValueError):
        for above in _above(below):
            for listed in Path(trace, FOLDER).glob(f"{above}-*{ENDING}"):
                wanted = f"{below} {process_start(below)}"
                for line in listed.read_text().splitlines():
                    if line.rpartition(" ")[0] == wanted:
                        return int(line.rpartition(" ")[2])
            below = above
    return None


def _above(pid: int) -> Iterator[int]:
    """The processes above, the nearest first."""
    for _ in range(MOST_ABOVE):
        pid = int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
        if pid <= 1:
            return
        yield pid


def _what_runs(args: object) -> str:
    """What a command line runs, as far as it tells: ``evaluate.py`` of ``python evaluate.py --seed 3``."""
    try:
        words = _words(args)
        script = next((word for word in words if re.search(r"\.py$", word)), None)
        if script is None and "-m" in words[:-1]:
            script = words[words.index("-m") + 1]
        return os.path.basename(script or words[0])  # noqa: PTH119
    except (TypeError, ValueError, IndexError):
        return ""


def _words(args: Any) -> Sequence[str]:
    if isinstance(args, (str, bytes, os.PathLike)):
        return shlex.split(os.fsdecode(args))
    if not isinstance(args, (list, tuple)):  # to go through it may use it up
        return []
    words = [os.fsdecode(word) for word in args]
    if len(words) == 3 and words[1] == "-c" and not words[0].startswith(sys.executable):
        return shlex.split(words[2])  # a shell
    return words
