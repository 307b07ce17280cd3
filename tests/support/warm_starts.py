"""Starts of Python programs by tests, served by a warm Python: a tenth of the processor time of a new one."""

import hashlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import rltrace

FOLDER = Path(__file__).parent / "warm"
INSTALLED = Path(rltrace.__file__).parents[1]

_spec = importlib.util.spec_from_file_location("warm_sitecustomize", FOLDER / "sitecustomize.py")
warm = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(warm)

Modules = Mapping[str, Sequence[str]]
"""What a warm Python imports, in this order, and which of the imports before each would make itself."""

TORCH: Modules = {
    "numpy": (),
    "torch": ("numpy",),
    "rltrace.commands.main": ("numpy",),
    "rltrace.commands.record": ("numpy",),
    "rltrace.recorder.session.session": ("numpy",),
    "rltrace.rerun.values": ("numpy",),
    "torch._dynamo": ("torch",),
}

JAX: Modules = {
    "numpy": (),
    "jax": ("numpy",),
    "jax.numpy": ("jax",),
    "rltrace.commands.main": ("numpy",),
    "rltrace.commands.record": ("numpy",),
    "rltrace.extensions.jax.hook": ("numpy",),
}


RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
"""Names this run of the tests, whose workers have their warm Pythons in common."""


def connected(key: Sequence[str]) -> socket.socket | None:
    """A connection to the warm Python of a kind; None: there is none.

    It forks a process for each program that it is asked for, listens on a socket that has a name and no file, and ends
    with the last connection.
    """
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        control.connect(_name(key))
    except ConnectionRefusedError:
        control.close()
        return None
    return control


def started(key: Sequence[str], modules: Modules, environment: Mapping[str, str], library: str) -> socket.socket:
    """The warm Python of a kind, which is started unless another worker has done so.

    ``library``: a folder with an rltrace other than the installed one, or "".
    """
    while (found := connected(key)) is None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                listener.bind(_name(key))
            except OSError:  # another worker has, and is about to listen
                continue
            listener.listen(100)
            path = os.pathsep.join(filter(None, (os.fspath(FOLDER), library)))
            given = {"PYTHONPATH": path, warm.CONTROL: "3", warm.LOADED: json.dumps(modules)}
            os.posix_spawn(
                sys.executable,
                [sys.executable, os.fspath(FOLDER / "program.py")],
                {**environment, **given},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, listener.fileno(), 3),
                ],
            )
    return found


def _name(key: Sequence[str]) -> str:
    """Of a socket in the kernel's own space of names."""
    return f"\0rltrace-tests-{RUN}-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}"


PLAIN_POPEN = subprocess.Popen


class WarmPopen(PLAIN_POPEN):  # type: ignore[type-arg]
    """As ``subprocess.Popen``, with warm Pythons for the programs that they can run; their status comes on a socket."""

    pythons: dict[tuple[str, ...], socket.socket] = {}  # noqa: RUF012
    _status: socket.socket | None = None

    def _execute_child(self, *arguments: Any) -> None:
        request = warm.warm_request(*arguments)
        python = None if request is None else python_for(request.process)
        if request is None or python is None:
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        self._status, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        socket.send_fds(python, [json.dumps(request.process).encode()], [*request.streams, there.fileno()])
        there.close()
        self.pid = int(self._status.recv(100))
        self._child_created = True
        self._close_pipe_fds(*arguments[10:16])  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._status is None:
            found: tuple[int, int] = super()._try_wait(wait_flags)  # type: ignore[misc]
            return found
        try:
            status = self._status.recv(100, socket.MSG_DONTWAIT if wait_flags else 0)
        except BlockingIOError:
            return 0, 0
        self._status.close()
        return self.pid, int(status)

    def _internal_poll(self, *arguments: Any, **named: Any) -> int | None:
        if self._status is None:
            return super()._internal_poll(*arguments, **named)  # type: ignore[misc]
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def python_for(process: Mapping[str, Any]) -> socket.socket | None:
    """The warm Python that can become a process; None: the first of its kind is a new process."""
    modules = JAX if _uses_jax(process) else TORCH
    startup = warm.startup_variables(process["environment"])
    library = _library(process["environment"].get("PYTHONPATH", ""))
    key = (*modules, library, *(f"{name}={startup[name]}" for name in sorted(startup)))
    with _asking:
        if key not in WarmPopen.pythons:
            found = connected(key)
            if found is None and _is_first(key):
                return None
            plain = {k: v for k, v in os.environ.items() if not k.startswith((*warm.STARTUP, "RLTRACE"))}
            WarmPopen.pythons[key] = found or started(key, modules, {**plain, **startup}, library)
        return WarmPopen.pythons[key]


def _is_first(key: Sequence[str]) -> bool:
    """Whether no worker has asked for this kind: the name of a socket, which this one keeps, says so to the others."""
    asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        asked.bind(f"{_name(key)}-asked")
    except OSError:
        asked.close()
        return False
    _asked.append(asked)
    return True


_asked: list[socket.socket] = []
_asking = threading.Lock()


def _library(path: str) -> str:
    """The folder on ``PYTHONPATH`` that has an rltrace of its own; else ""."""
    others = (Path(each) for each in path.split(os.pathsep) if each and Path(each) != INSTALLED)
    return next((os.fspath(folder) for folder in others if (folder / "rltrace" / "__init__.py").is_file()), "")


def _uses_jax(process: Mapping[str, Any]) -> bool:
    """Whether a program computes with JAX, or one that ``rltrace`` is to start."""
    texts = [
        warm.program_of(words[i:], process["cwd"]) for _, words in process["programs"] for i in range(1, len(words))
    ]
    return any(found[1] == "jax" for text in texts for found in warm.IMPORTS.finditer(text))


def end_all() -> None:
    while WarmPopen.pythons:
        WarmPopen.pythons.popitem()[1].close()
    while _asked:
        _asked.pop().close()
