"""A thread of the recorder that the program does not see among its threads, and the one of these that commits.

Owns how such a thread is started and joined, and when a commit is due. It is not a ``threading.Thread``: a program that
waits until only its main thread is left would wait forever. So it is in none of ``threading``'s lists, runs under no
trace or profile function, and the interpreter does not wait for it at shutdown. The function that runs in it must not
call ``threading.current_thread()``, which would add it to these lists, and must handle its own errors.
"""

import _thread
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from rltrace.recorder.base.options import COMMIT_SECONDS, IDLE_SECONDS

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


# --- commits ----------------------------------------------------------------------------------------------------------


SPARE: Final = 8
"""Commits of an idle process before their number is limited."""


class CommitThread:
    """Commits at the latest COMMIT_SECONDS after the last commit, whenever it is woken, and soon after a process became
    idle, which may be killed next: for one that is idle again and again at most twice as often as a busy one.

    ``pause`` ends it until the next request: Python warns of a fork among threads, so a process without threads of its
    own forks without this one, too.
    """

    def __init__(
        self,
        commit: Callable[[bool], None],
        fail: Callable[[Exception], None],
        on_resume: Callable[[], None] = lambda: None,
        written: Callable[[], int] = lambda: 0,
    ) -> None:
        """``commit``: called with whether only what is full is due; ``on_resume``: after a pause; ``written``: what
        was written so far."""
        self._commit, self._fail, self._on_resume, self._written = commit, fail, on_resume, written
        self._committed, self._spare = 0, SPARE
        self._due = 0.0
        """Time (``monotonic``) of the next commit of all that is finished, however often what is full is committed."""
        self._wake = threading.Event()
        self._progress = threading.Condition()
        self._is_requested = False
        self._resuming = threading.Lock()
        self.is_paused = False
        self.is_stopping = False
        self.thread: BackgroundThread | None = None

    def start(self) -> None:
        self.is_stopping = self.is_paused = False
        self.thread = BackgroundThread(self._run)
        self.thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it runs, and goes on."""
        return self.thread is not None and self.thread.is_running and not self.is_stopping

    def pause(self, seconds: float) -> bool:
        """Commit all that is finished, and end until the next request; waits at most so long. Whether it ran."""
        if self.thread is None or not self.is_running:
            return False
        self.is_paused = True
        self._wake.set()
        self.thread.vanish(seconds)
        return True

    def resume(self) -> None:
        """Start again after ``pause``, unless another caller does, or it has not ended yet."""
        if not self.is_paused or self.thread is None or not self._resuming.acquire(blocking=False):
            return
        try:
            if self.is_paused and not self.is_stopping and self.thread.join(0):
                self.start()
                self._on_resume()
        except Exception as error:
            self._fail(error)
        finally:
            self._resuming.release()

    def wake(self) -> None:
        """Commit what is full, soon."""
        self._wake.set()

    def request(self) -> None:
        """Commit all that is finished, soon."""
        self._is_requested = True
        self.resume()
        self._wake.set()

    def progressed(self) -> None:
        """Something has been committed."""
        with self._progress:
            self._progress.notify_all()

    def wait_until(self, is_done: Callable[[], bool]) -> None:
        """Block the program until the disk has caught up so far; a minute at most."""
        with self._progress:
            self._progress.wait_for(lambda: self.is_stopping or is_done(), timeout=60)

    def give_up(self) -> None:
        """End, whatever is uncommitted; may be called from any thread."""
        self.is_stopping = True
        self._wake.set()

    def end(self) -> None:
        """Give up, and wait for its end."""
        self.give_up()
        if self.thread is not None:
            self.thread.vanish(30)

    def _run(self) -> None:
        try:
            self._due = time.monotonic() + COMMIT_SECONDS
            while not self.is_stopping:
                woken = self._wait()
                self._wake.clear()
                requested, self._is_requested = self._is_requested, False
                pausing = self.is_paused  # read after the event is cleared: what is requested later wakes again
                full_only = woken and not requested and not pausing and time.monotonic() < self._due
                if not full_only:
                    self._due = time.monotonic() + COMMIT_SECONDS
                if not self.is_stopping:
                    self._committed = self._committed if full_only else self._written()
                    self._commit(full_only)
                if pausing:
                    break
        except Exception as error:
            self._fail(error)
        finally:
            self.progressed()

    def _wait(self) -> bool:
        """Wait until a commit is due; whether it was woken."""
        before = self._written()
        while (left := self._due - time.monotonic()) > 0:
            if self._wake.wait(min(left, IDLE_SECONDS)):
                return True
            now = self._written()
            if now == before != self._committed and self._spare:
                self._spare -= 1
                return False
            before = now
        self._spare = min(self._spare + 1, SPARE)
        return False
