"""Functions run to their end in a fork, or in threads."""

import os
import threading
import traceback
from collections.abc import Callable


def forked(child: Callable[[], object]) -> int:
    """Run ``child`` in a fork of this process; returns its status: 0, or 1 where it raised, with its traceback."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            child()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)  # never into pytest's own ending
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def in_thread(name: str | None, work: Callable[[], object]) -> None:
    """Run ``work`` in a thread of this name; None: of the name that Python makes up."""
    run_threads(threading.Thread(target=work, name=name))


def run_threads(*threads: threading.Thread) -> None:
    """Start all of them, and wait for all."""
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
