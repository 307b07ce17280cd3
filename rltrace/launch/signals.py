"""Signals: a signal to the launcher is meant for the program.

Owns which signals are passed on: those that only the launcher received. The program already has those that were sent to
the whole process group (Ctrl-C on a terminal, ``kill -- -GROUP``, a service manager), and a second one would interrupt
its clean-up. The signal itself does not show which it was, so a *witness*, a process of the same group that does
nothing else, reports whether it received it too. No signal is lost or sent twice, however slowly the processes run: the
launcher blocks signals until both exist, and queries the witness. Also owns the setting of SIGCHLD that a launcher
needs to learn how a child ended.
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
"""Seconds after which a witness that does not answer counts as ended."""
ANSWER = 0
"""The witness's answer to a query; every other byte is the number of a signal."""


@contextlib.contextmanager
def waiting_for_children() -> Iterator[bool]:
    """While open, the system keeps the statuses of children. Yields whether SIGCHLD was ignored, which discards them.

    A program started so (``trap '' CHLD``, some service managers) must inherit that: ``ignore_children`` in the child.
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

    Signals are pending until ``to`` is called: the program is started before, with ``in_child`` run before its exec.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[Any] | None = None
        self._missed: Counter[int] = Counter()
        """Signals received before the child existed."""
        self._pending: deque[int] = deque()
        """Signals that are not handled yet."""
        self._is_passing_on = False
        self._before: dict[int, Any] = {}
        self._witness: Witness | None = None
        self._mask: set[int] | None = None

    def __enter__(self) -> Relay:
        # those ignored (under nohup, say) stay so for the command
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
        """Between fork and exec: report the signals that only the launcher received, and let the rest take effect.

        A signal to the group reaches both or, before the fork, only the launcher; so one pending there and not here was
        sent before the fork. Read in this order, since none that is pending here disappears meanwhile.
        """
        of_launcher = _pending_signals(os.getppid())
        missed = of_launcher - {int(number) for number in signal.sigpending()}
        os.write(self._report, bytes(sorted(missed & self._before.keys())))
        for number in self._before:
            signal.signal(number, signal.SIG_DFL)
        self._unblock()

    def to(self, child: subprocess.Popen[Any]) -> None:
        """Pass signals on to ``child`` from now on, those received before it existed first."""
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
        if self._child is None:  # received by another thread of the launcher
            self._missed[number] = 1
            return
        self._pending.append(number)
        while self._pending and not self._is_passing_on:
            self._is_passing_on = True  # a nested one would consume the outer one's answer
            try:
                while self._pending:
                    self._pass_on(self._pending.popleft(), self._child)
            finally:
                self._is_passing_on = False

    def _pass_on(self, number: int, child: subprocess.Popen[Any]) -> None:
        missed, self._missed[number] = self._missed[number], 0
        seen = self._witness is not None and self._witness.has_seen(number)
        if missed or not seen:
            child.send_signal(number)


def _pending_signals(pid: int) -> set[int]:
    """Blocked signals that are pending for a process; empty where the system does not show them."""
    found: set[int] = set()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as status:  # noqa: PTH123
        for line in status:
            if line.startswith((b"SigPnd:", b"ShdPnd:")):
                mask = int(line.split()[1], 16)
                found |= {bit + 1 for bit in range(mask.bit_length()) if mask >> bit & 1}
    return found


class Witness:
    """A process of the launcher's group that reports the signals it receives; it ends with the launcher."""

    def __init__(self, numbers: Iterable[int]) -> None:
        """``numbers`` must be blocked, so that the witness misses none after its fork."""
        self._reports, report = os.pipe()
        queries, self._queries = os.pipe()
        self._queried, self._answered = 0, 0
        self._seen: Counter[int] = Counter()
        """By number, signals reported and not queried yet."""
        self._pid = os.fork()
        if self._pid == 0:
            _run_witness(report, queries, numbers)
        os.close(report)
        os.close(queries)

    def has_seen(self, number: int) -> bool:
        """Whether the witness received this signal too; it reports all that it has received before it answers."""
        self._queried += 1
        query = self._queried
        with contextlib.suppress(OSError):  # it is gone
            os.write(self._queries, b"?")
            while self._answered < query:
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
        os.close(self._queries)
        os.close(self._reports)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _run_witness(report: int, queries: int, numbers: Iterable[int]) -> NoReturn:
    """In the witness: close inherited files, report signals, and end with the launcher."""
    try:
        low, high = sorted((report, queries))
        for first, end in ((0, low), (low + 1, high), (high + 1, os.sysconf("SC_OPEN_MAX"))):
            os.closerange(first, end)
        os.set_blocking(report, False)
        signal.set_wakeup_fd(report, warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
        while os.read(queries, 1):
            os.write(report, bytes([ANSWER]))
    finally:
        os._exit(0)


def die_of(number: int) -> int:
    """End the launcher by the signal that ended the program, so that a shell sees the same.

    Returns the shell's status for it where a process cannot end itself so (the first process of a container).
    """
    import resource

    # one core file is enough
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler to restore
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number
