"""Ends of a process that run no exit hook: ``os._exit``, an ``exec``, a termination by its parent.

Owns the patches of these functions, which commit what is recorded. Each calls the original within a bounded time: a
disk that hangs, or a lock that the caller holds, must not keep a program alive.
"""

import contextlib
import functools
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from multiprocessing import popen_fork
from pathlib import Path
from time import monotonic
from typing import Any, Final, NoReturn

from rltrace.recorder.base.background_thread import BackgroundThread
from rltrace.recorder.base.patching import Patches
from rltrace.trace.format.arming import EndRequest, end_path, read_end_request

EXIT_SECONDS = 3.0
"""Longest delay of such an end."""


def bounded(action: Callable[[], None], seconds: float = EXIT_SECONDS) -> None:
    """Run ``action`` in a thread, and wait up to ``seconds`` for it. It must handle its own errors."""
    thread = BackgroundThread(action)
    try:
        thread.start()
    except RuntimeError:  # no thread can be started now
        return
    thread.join(seconds)


class Endings:
    """Patches ``os._exit`` and ``exec``, from ``install`` to ``uninstall``."""

    def __init__(self, finish: Callable[[], None], replace: Callable[[str | None], None]) -> None:
        """``finish`` ends the recording; ``replace`` is called with the program of an ``exec``, None: it failed."""
        self._finish = finish
        self._replace = replace
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
        bounded(lambda: self._replace(_program(path)))
        try:
            original(path, *args, **kwargs)
        except BaseException:
            bounded(lambda: self._replace(None))
            raise


def _program(path: Any) -> str:
    try:
        return Path(os.fsdecode(path)).name
    except (TypeError, ValueError):  # a file descriptor, or nothing executable
        return "another program"


def stay_interrupted() -> None:
    """At exit: have a program that Ctrl-C ended exit as interrupted, as it would unrecorded.

    The interpreter remembers an uncaught KeyboardInterrupt until it next executes source text, as many imports do (a
    namedtuple is made that way), and the recorder may import while it ends.
    """
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt) and not hasattr(sys, "ps1"):
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")


def interrupt_program() -> None:
    """End the program as Ctrl-C would, but without a traceback."""
    sys.excepthook = functools.partial(_show_but_interrupts, sys.excepthook)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a script put into the background
        if threading.current_thread() is not threading.main_thread():
            raise KeyboardInterrupt
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


def _show_but_interrupts(show: Callable[..., None], kind: type[BaseException], *rest: Any) -> None:
    """``sys.excepthook`` of a program that the recorder ends: an interrupt is no error."""
    if not issubclass(kind, KeyboardInterrupt):
        show(kind, *rest)


LOOK_SECONDS: Final = 0.05
"""Between two looks for a request: a step may take microseconds, a look takes several."""


class EndLook:
    """The look for the launcher's request to end the program (``record --against --stop``)."""

    def __init__(self, trace: str) -> None:
        self._trace = trace
        self._request: EndRequest | None = None
        self._next_look = 0.0
        self._is_over = False

    def due(self, step: int) -> str:
        """Why the program is to end, now that ``step`` is done; empty: it is not. Not empty only once."""
        now = monotonic()
        if self._request is None and now >= self._next_look and not self._is_over:
            self._next_look = now + LOOK_SECONDS
            with contextlib.suppress(OSError):
                if os.access(end_path(self._trace), os.F_OK):
                    self._request = read_end_request(self._trace)
        if self._is_over or self._request is None or step < self._request.step:
            return ""
        self._is_over = True
        return self._request.why


# --- terminations -----------------------------------------------------------------------------------------------------
#
# ``multiprocessing`` ends the workers of a pool, and every daemon, with SIGTERM; ``ray.kill`` ends an actor with
# SIGKILL. Before that is sent, the process that asks for it requests a commit from the worker's recorder, and goes on
# when it is answered or after TERMINATION_SECONDS. The worker gets no signal handler. Without abstract socket addresses
# (only Linux has them) nothing is requested, and the last rows of such a worker may be lost.


TERMINATION_SECONDS = 2.0
"""Longest delay of a termination, for each worker."""


class Terminations:
    """In a parent: has workers commit before it terminates them, from ``install`` to ``uninstall``."""

    def __init__(self, trace: str, fail: Callable[[Exception], None]) -> None:
        self._trace = trace
        self._fail = fail
        self._patches = Patches()

    def install(self) -> None:
        if not self._patches and sys.platform == "linux":
            self._patches.wrap(popen_fork.Popen, "terminate", self._terminate)
            wrap_all = self._patches.wrap_all
            self._patches.on_import(
                {"ray": lambda ray: wrap_all((ray, ray._private.worker), "kill", self._kill)}, self._fail
            )

    def _kill(self, original: Callable[..., None], actor: Any, *args: Any, **kwargs: Any) -> None:
        actor_id = getattr(actor, "_actor_id", None)
        if actor_id is not None:
            request_commit(self._trace, actor_id.hex())
        original(actor, *args, **kwargs)

    def uninstall(self) -> None:
        self._patches.undo_all()

    def _terminate(self, original: Callable[[Any], None], popen: Any) -> None:
        if popen.returncode is None:
            request_commit(self._trace, str(popen.pid))
        original(popen)


class CommitServer:
    """In a worker: commits when its parent is about to terminate it.

    It listens before anything of the worker is in the trace, and answers once the worker records: a parent that
    terminates a worker while it starts waits for it.
    """

    def __init__(self, trace: str, name: str = "") -> None:
        """``name``: what it is asked by, where that is not the number of the process."""
        self._trace = trace
        self._socket: socket.socket | None = None
        self._pid = os.getpid()
        self._name = name or str(self._pid)
        self._commit: Callable[[], None] | None = None
        self.thread: BackgroundThread | None = None

    def listen(self) -> None:
        """From now on a request waits for an answer."""
        if self._socket is not None or sys.platform != "linux":
            return
        with contextlib.suppress(OSError):
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            server.bind(_address(self._trace, self._name))
            server.listen()
            self._socket = server

    def serve(self, commit: Callable[[], None]) -> None:
        """Answer each request after a ``commit``; nothing where it does not listen."""
        if self._socket is not None:
            self._commit = commit
            self.thread = BackgroundThread(functools.partial(self._serve, self._socket, commit))
            self.thread.start()

    def pause(self) -> None:
        """End its thread, until ``resume``: a parent that terminates the worker meanwhile does not wait."""
        if self._socket is not None and self.thread is not None:
            self.end()
            self.thread.vanish(EXIT_SECONDS)

    def resume(self) -> None:
        """After ``pause``; nothing where it had not served."""
        if self._socket is None and self._commit is not None:
            self.listen()
            self.serve(self._commit)

    def end(self) -> None:
        """Stop. In a forked child the parent's server goes on."""
        server, self._socket = self._socket, None
        if server is not None:
            with contextlib.suppress(OSError):
                if os.getpid() == self._pid:
                    server.shutdown(socket.SHUT_RDWR)  # wakes the thread; closing would not
            server.close()

    @staticmethod
    def _serve(server: socket.socket, commit: Callable[[], None]) -> None:
        with contextlib.suppress(OSError):  # it was closed
            while True:
                client, _ = server.accept()
                with client:
                    peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                    if struct.unpack("3i", peer)[1] == os.getuid():
                        commit()
                        client.sendall(b"1")


def request_commit(trace: str, name: str) -> None:
    """Have a worker's recorder commit; returns when it has, when there is none, or after TERMINATION_SECONDS."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(TERMINATION_SECONDS)
        client.connect(_address(trace, name))
        client.recv(1)


def _address(trace: str, name: str) -> str:
    folder = Path(trace).stat()
    return f"\0rltrace-{folder.st_dev:x}-{folder.st_ino:x}-{name}"
