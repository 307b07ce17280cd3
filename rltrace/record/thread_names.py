"""What a thread is called in a trace: the same in every run of the same program.

Owns the names and the numbers of threads that share one. A name that Python made up (``Thread-7 (work)``) counts all
threads of the process, those of libraries too; what lasts of it is what the thread runs. Threads of one name are
numbered in the order in which they were started, since which of them computes first is a matter of timing.
"""

from __future__ import annotations

import re
import threading

from rltrace.record.memory.identity_table import IdentityTable

_MADE_UP = re.compile(r"Thread-\d+( \(.*\))?", re.DOTALL)


class ThreadNames:
    """Names of the threads that were started while it was told of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._births: dict[str, int] = {}
        self._given: IdentityTable[threading.Thread, tuple[str, str]] = IdentityTable()
        """By thread: its own name as it started, and its name here."""

    def starts(self, thread: threading.Thread) -> None:
        """``thread`` is about to be started, and has not been before."""
        base = _lasting_name(thread)
        with self._lock:
            number = self._births[base] = self._births.get(base, 0) + 1
            self._given[thread] = (thread.name, base if number == 1 else f"{base}#{number}")

    def of(self, thread: threading.Thread) -> str:
        """The name of a thread that runs; by itself where the program has renamed it since it started."""
        given = self._given.get(thread)
        return thread.name if given is None or given[0] != thread.name else given[1]


HELPERS = frozenset({"ray", "IPython", "ipykernel", "ipyparallel", "tqdm", "wandb", "debugpy", "_pydevd_bundle"})
"""Packages whose threads run nothing of the program's."""


def running_before() -> dict[str, str]:
    """A fact: the threads that run as recording begins, other than the one that begins it. None of them is recorded."""
    own = threading.current_thread()
    names = {_lasting_name(t) for t in threading.enumerate() if t is not own and not _package(t) & HELPERS}
    return {"threads.before": ", ".join(sorted(names))} if names else {}


def _package(thread: threading.Thread) -> set[str]:
    """Where its class comes from, and what it runs."""
    parts = type(thread), getattr(thread, "_target", None)
    return {str(getattr(part, "__module__", None)).partition(".")[0] for part in parts}


def _lasting_name(thread: threading.Thread) -> str:
    if _MADE_UP.fullmatch(thread.name) is None:
        return thread.name
    target = getattr(thread, "_target", None)
    if target is None:
        return type(thread).__name__
    while hasattr(target, "func"):  # functools.partial
        target = target.func
    return str(getattr(target, "__name__", type(target).__name__))
