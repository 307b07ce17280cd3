"""A thread of the recorder's own, which the program does not meet among its threads.

Owns how it is started and waited for. It is not a ``threading.Thread``: a program that waits until only its main thread
is left would wait for ever. So it stands in none of ``threading``'s lists, is started under nobody's trace or profile
function, and the interpreter does not wait for it when it shuts down. What runs in it must not call
``threading.current_thread()``, which would put it into these lists, and handles its own errors.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable


class BackgroundThread:
    """Runs ``work`` once."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._running = _thread.allocate_lock()
        self._ident = 0

    def start(self) -> None:
        """Raises RuntimeError where no thread can be started any more."""
        self._running.acquire()
        try:
            _thread.start_new_thread(self._run, ())
        except BaseException:
            self._running.release()
            raise

    def join(self, seconds: float) -> bool:
        """Wait until it has ended, so long at most; whether it has. At once where it is itself the caller."""
        if self._ident == _thread.get_ident():
            return False
        ended = self._running.acquire(timeout=seconds)
        if ended:
            self._running.release()
        return ended

    def _run(self) -> None:
        self._ident = _thread.get_ident()
        try:
            self._work()
        finally:
            self._ident = 0
            self._running.release()
