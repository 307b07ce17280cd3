"""Signals: whoever signals the launcher means the program.

Owns the rule which signals are passed on: those that came to the launcher alone. What the whole process group got
(Ctrl-C on a terminal, ``kill -- -GROUP``, a service manager) the program has already, and a second one would interrupt
its clean-up. The two cannot be told apart by looking at the signal, so a *witness*, a process of the same group that
does nothing else, says whether it got it too. Also owns what a launcher needs of SIGCHLD to learn how a child ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

PASSED_ON = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
WITNESS_SECONDS = 0.5
"""How long the witness may take to say that it got a signal too."""


@contextlib.contextmanager
def waiting_for_children() -> Iterator[bool]:
    """While open, the system keeps the statuses of children. Yields whether SIGCHLD was ignored, which discards them.

    Who starts the launcher so (``trap '' CHLD``, some service managers) means the program to inherit that:
    ``ignore_children`` in the child.
    """
    ignored = signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    if ignored:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield ignored
    finally:
        if ignored:
            ignore_children()


def ignore_children() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


class Relay:
    """While open, the launcher survives signals and passes them on; on leaving, the handlers are as before."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[Any] | None = None
        self._early: list[int] = []
        self._before: dict[int, Any] = {}
        self._witness: Witness | None = None

    def __enter__(self) -> Relay:
        for number in PASSED_ON:
            if signal.getsignal(number) != signal.SIG_IGN:  # under nohup, say: the command is to inherit that
                self._before[number] = signal.signal(number, self._received)
        with contextlib.suppress(OSError):  # without a witness every signal is passed on
            self._witness = Witness()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._witness is not None:
            self._witness.dismiss()

    def to(self, child: subprocess.Popen[Any]) -> None:
        """Pass on to ``child`` from now on, first what came before it was there."""
        self._child = child
        for number in self._early:
            child.send_signal(number)

    def _received(self, number: int, _frame: FrameType | None) -> None:
        if self._child is None:
            self._early.append(number)
        elif self._witness is None or not self._witness.has_seen(number):
            self._child.send_signal(number)


class Witness:
    """A process of the launcher's own group that reports the signals it gets; it ends with the launcher."""

    def __init__(self) -> None:
        self._reports, report = os.pipe()
        life, self._life = os.pipe()
        self._seen: Counter[int] = Counter()
        self._pid = os.fork()
        if self._pid == 0:
            _stand_by(report, life)
        os.close(report)
        os.close(life)

    def has_seen(self, number: int) -> bool:
        """Whether the witness got this signal too, or does within a moment."""
        end = time.monotonic() + WITNESS_SECONDS
        while not self._seen[number]:
            ready, _, _ = select.select([self._reports], [], [], max(0.0, end - time.monotonic()))
            news = os.read(self._reports, 512) if ready else b""
            if not news:
                return False
            self._seen.update(news)
        self._seen[number] = 0
        return True

    def dismiss(self) -> None:
        """End the witness and wait for that."""
        os.close(self._life)
        os.close(self._reports)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _stand_by(report: int, life: int) -> NoReturn:
    """In the witness: hold nothing of the program's open, report signals, and end when the launcher has."""
    try:
        low, high = sorted((report, life))
        for first, end in ((0, low), (low + 1, high), (high + 1, os.sysconf("SC_OPEN_MAX"))):
            os.closerange(first, end)
        os.set_blocking(report, False)
        signal.set_wakeup_fd(report, warn_on_full_buffer=False)
        os.read(life, 1)
    finally:
        os._exit(0)


def die_of(number: int) -> int:
    """End the launcher by the signal that ended the program, so that a shell sees the same thing.

    Returns the shell's status for it where a process cannot end itself so (the first process of a container).
    """
    import resource

    resource.setrlimit(
        resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1])
    )  # one core file is enough
    with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to restore
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number
