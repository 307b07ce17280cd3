"""A thread of the recorder that the program does not see among its threads.

Owns how it is started and joined. It is not a ``threading.Thread``: a program that waits until only its main thread is
left would wait forever. So it is in none of ``threading``'s lists, runs under no trace or profile function, and the
interpreter does not wait for it at shutdown. The function that runs in it must not call
``threading.current_thread()``, which would add it to these lists, and must handle its own errors.
"""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_TASKS = Path("/proc/self/task")
"""A folder for each thread of the process, on Linux."""


class BackgroundThread:
    """Runs ``work`` once."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._running = _thread.allocate_lock()
        self._ident = 0
        self._native_id = 0

    def start(self) -> None:
        """Raises RuntimeError where no thread can be started anymore."""
        self._running.acquire()
        try:
            _thread.start_new_thread(self._run, ())
        except BaseException:
            self._running.release()
            raise

    def join(self, seconds: float) -> bool:
        """Wait at most so long for its end; whether it has ended. Called from the thread itself: False at once."""
        if self._ident == _thread.get_ident():
            return False
        ended = self._running.acquire(timeout=seconds)
        if ended:
            self._running.release()
        return ended

    @property
    def is_running(self) -> bool:
        return self._running.locked()

    def vanish(self, seconds: float) -> bool:
        """``join``, and wait until the operating system does not count it among the threads of the process either."""
        until = time.monotonic() + seconds
        if not self.join(seconds):
            return False
        while (_TASKS / str(self._native_id)).exists():
            if time.monotonic() > until:
                return False
            time.sleep(0.0001)
        return True

    def _run(self) -> None:
        self._ident, self._native_id = _thread.get_ident(), _thread.get_native_id()
        try:
            self._work()
        finally:
            self._ident = 0
            self._running.release()


def are_all_others(threads: Iterable[BackgroundThread]) -> bool:
    """Whether the process has no threads beside the calling one and these; True where that is not known."""
    try:
        return sum(1 for _ in _TASKS.iterdir()) == 1 + sum(thread.is_running for thread in threads)
    except OSError:
        return True
