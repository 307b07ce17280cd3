"""Ways to end that run no exit hook, and what is still written down before them: ``os._exit``, an ``exec``.

Owns what stands in for these functions while a process is recorded. Each goes on to the real one within SECONDS,
whatever becomes of the trace: a disk that hangs, or a lock that the caller holds itself, must not keep a program alive.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import struct
import sys
from collections.abc import Callable
from multiprocessing import popen_fork
from pathlib import Path
from typing import Any, NoReturn

from rltrace.recorder.base.background_thread import BackgroundThread
from rltrace.recorder.base.patching import Patches

EXIT_SECONDS = 3.0
"""How long such an ending may be held up."""


def bounded(action: Callable[[], None], seconds: float = EXIT_SECONDS) -> None:
    """Have ``action`` done by a thread, and wait for it for a while. Its errors are its own to handle."""
    thread = BackgroundThread(action)
    try:
        thread.start()
    except RuntimeError:  # no thread can be started any more
        return
    thread.join(seconds)


class Endings:
    """Watches for these endings, from ``install`` to ``uninstall``."""

    def __init__(self, finish: Callable[[], None], last: Callable[[str | None], None]) -> None:
        """``finish`` ends the recording; ``last`` is told of the program that takes over, None: it did not."""
        self._finish = finish
        self._last = last
        self._patches = Patches()

    def install(self) -> None:
        self._patches.wrap(os, "_exit", self._exit)
        for name in ("execv", "execve"):  # the others call these
            self._patches.wrap(os, name, self._exec)

    def uninstall(self) -> None:
        self._patches.undo_all()

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


# --- terminations -----------------------------------------------------------------------------------------------------
#
# Workers that their parent terminates: what they have computed is committed before the signal comes.
#
# ``multiprocessing`` ends the workers of a pool, and every daemon, with SIGTERM, as a matter of course. So before it is
# sent the parent asks the worker's recorder to commit, and goes on when that has answered or SECONDS are over. Nothing
# of the worker changes: no signal handler, no ending of its own. Owns the question and the answer. Where the system has
# no socket addresses apart from its files (only Linux does) nobody is asked, and the last rows of such a worker may be
# lost.


TERMINATION_SECONDS = 2.0
"""How long a termination may be held up, for each worker."""


class Terminations:
    """In a parent: asks the workers that it terminates, from ``install`` to ``uninstall``."""

    def __init__(self, trace: str) -> None:
        self._trace = trace
        self._patches = Patches()

    def install(self) -> None:
        if not self._patches and sys.platform == "linux":
            self._patches.wrap(popen_fork.Popen, "terminate", self._terminate)

    def uninstall(self) -> None:
        self._patches.undo_all()

    def _terminate(self, original: Callable[[Any], None], popen: Any) -> None:
        if popen.returncode is None:
            ask_to_commit(self._trace, popen.pid)
        original(popen)


class Answering:
    """In a worker: commits when its parent is about to terminate it."""

    def __init__(self, trace: str, commit: Callable[[], None]) -> None:
        self._trace = trace
        self._commit = commit
        self._socket: socket.socket | None = None
        self._pid = os.getpid()

    def begin(self) -> None:
        if sys.platform != "linux":
            return
        with contextlib.suppress(OSError):
            own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            own.bind(_address(self._trace, os.getpid()))
            own.listen()
            self._socket = own
            BackgroundThread(functools.partial(self._answer, own)).start()

    def end(self) -> None:
        """Answer no more. In a forked child the parent goes on answering."""
        own, self._socket = self._socket, None
        if own is not None:
            with contextlib.suppress(OSError):
                if os.getpid() == self._pid:
                    own.shutdown(socket.SHUT_RDWR)  # wakes the thread; to close it would not
            own.close()

    def _answer(self, own: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                asking, _ = own.accept()
                with asking:
                    if _user_of(asking) == os.getuid():
                        self._commit()
                        asking.sendall(b"1")


def ask_to_commit(trace: str, pid: int) -> None:
    """Have the recorder of a worker commit; returns when it has, when there is none, or after SECONDS."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(TERMINATION_SECONDS)
        asking.connect(_address(trace, pid))
        asking.recv(1)


def _address(trace: str, pid: int) -> str:
    folder = Path(trace).stat()
    return f"\0rltrace-{folder.st_dev:x}-{folder.st_ino:x}-{pid}"


def _user_of(connected: socket.socket) -> int:
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[1])
