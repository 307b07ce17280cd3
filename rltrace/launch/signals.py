"""Signals: whoever signals the launcher means the program.

Owns the rule which signals are passed on: those that came to the launcher alone. What the whole process group got
(Ctrl-C on a terminal, ``kill -- -GROUP``, a service manager) the program has already, and a second one would interrupt
its clean-up. The two cannot be told apart by looking at the signal, so a *witness*, a process of the same group that
does nothing else, says whether it got it too. None is lost, and none comes twice, however slowly the processes run: the
launcher blocks signals until both are there, and the witness is asked, not waited for. Also owns what a launcher needs
of SIGCHLD to learn how a child ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, NoReturn

PASSED_ON = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
WITNESS_SECONDS = 10.0
"""How long the witness may take to answer, before it counts as gone."""
ANSWER = 0
"""What the witness says when it is asked; every other byte is the number of a signal."""


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
    """While open, the launcher survives signals and passes them on; on leaving, the handlers are as before.

    From its opening until ``to`` they wait: the program is started in between, with ``in_child`` run before its exec.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[Any] | None = None
        self._missed: Counter[int] = Counter()
        """Signals that came before the child was there."""
        self._waiting: deque[int] = deque()
        """Signals whose turn has not come."""
        self._is_passing_on = False
        self._before: dict[int, Any] = {}
        self._witness: Witness | None = None
        self._mask: set[int] | None = None

    def __enter__(self) -> Relay:
        # under nohup, say, some are ignored: the command is to inherit that
        numbers = [number for number in PASSED_ON if signal.getsignal(number) != signal.SIG_IGN]
        self._mask = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, numbers)}
        self._before = {number: signal.signal(number, self._received) for number in numbers}
        self._news, self._report = os.pipe()
        with contextlib.suppress(OSError):  # without a witness every signal is passed on
            self._witness = Witness(numbers)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._unblock()
        for end in (self._news, self._report):
            os.close(end)
        if self._witness is not None:
            self._witness.dismiss()

    def in_child(self) -> None:
        """Between fork and exec: tell the launcher which signals it alone has got, and let the rest take effect.

        A signal to the group reaches both or, before the fork, the launcher alone; so what waits there and not here
        was sent too early for this process. Looked at in this order, since here none goes away meanwhile.
        """
        there = _waiting_signals(os.getppid())
        alone = there - {int(number) for number in signal.sigpending()}
        os.write(self._report, bytes(sorted(alone & self._before.keys())))
        for number in self._before:
            signal.signal(number, signal.SIG_DFL)
        self._unblock()

    def to(self, child: subprocess.Popen[Any]) -> None:
        """Pass on to ``child`` from now on, first what came before it was there."""
        os.set_blocking(self._news, False)
        with contextlib.suppress(BlockingIOError):
            self._missed.update(os.read(self._news, 512))
        self._child = child
        self._unblock()
        for number in list(self._missed):
            if self._missed[number]:
                self._received(number, None)

    def _unblock(self) -> None:
        mask, self._mask = self._mask, None
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _received(self, number: int, _frame: FrameType | None) -> None:
        if self._child is None:  # another thread of the launcher took it
            self._missed[number] = 1
            return
        self._waiting.append(number)
        while self._waiting and not self._is_passing_on:
            self._is_passing_on = True  # one that comes in the middle of another would take the other's answer away
            try:
                while self._waiting:
                    self._pass_on(self._waiting.popleft(), self._child)
            finally:
                self._is_passing_on = False

    def _pass_on(self, number: int, child: subprocess.Popen[Any]) -> None:
        missed, self._missed[number] = self._missed[number], 0
        seen = self._witness is not None and self._witness.has_seen(number)
        if missed or not seen:
            child.send_signal(number)


def _waiting_signals(pid: int) -> set[int]:
    """Signals that a process has blocked and been sent; empty where the system does not say."""
    found: set[int] = set()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as status:  # noqa: PTH123
        for line in status:
            if line.startswith((b"SigPnd:", b"ShdPnd:")):
                mask = int(line.split()[1], 16)
                found |= {bit + 1 for bit in range(mask.bit_length()) if mask >> bit & 1}
    return found


class Witness:
    """A process of the launcher's own group that reports the signals it gets; it ends with the launcher."""

    def __init__(self, numbers: Iterable[int]) -> None:
        """``numbers`` are blocked when this is called, so that it misses none from its fork on."""
        self._reports, report = os.pipe()
        questions, self._questions = os.pipe()
        self._asked, self._answered = 0, 0
        self._seen: Counter[int] = Counter()
        """Signals reported and not asked for yet, by number."""
        self._pid = os.fork()
        if self._pid == 0:
            _stand_by(report, questions, numbers)
        os.close(report)
        os.close(questions)

    def has_seen(self, number: int) -> bool:
        """Whether the witness got this signal too.

        It reports a signal before it goes on to anything else: when it answers, it has told all it had got.
        """
        self._asked += 1
        question = self._asked
        with contextlib.suppress(OSError):  # it is gone
            os.write(self._questions, b"?")
            while self._answered < question:
                ready, _, _ = select.select([self._reports], [], [], WITNESS_SECONDS)
                news = os.read(self._reports, 512) if ready else b""
                if not news:
                    break
                self._answered += news.count(ANSWER)
                self._seen.update(news)
        seen, self._seen[number] = self._seen[number] > 0, 0
        return seen

    def dismiss(self) -> None:
        """End the witness and wait for that."""
        os.close(self._questions)
        os.close(self._reports)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _stand_by(report: int, questions: int, numbers: Iterable[int]) -> NoReturn:
    """In the witness: hold nothing of the program's open, report signals, and end when the launcher has."""
    try:
        low, high = sorted((report, questions))
        for first, end in ((0, low), (low + 1, high), (high + 1, os.sysconf("SC_OPEN_MAX"))):
            os.closerange(first, end)
        os.set_blocking(report, False)
        signal.set_wakeup_fd(report, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
        while os.read(questions, 1):
            os.write(report, bytes([ANSWER]))
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
