"""A warm Python: it has imported what recorded programs import, and each program that a test starts is a fork of it.

The interpreter imports this file as it starts, before it runs a script. Here it waits for requests, and forks for each.
In the fork it goes on where a new interpreter would be, with that program's command line, environment and streams: it
imports the program's own ``sitecustomize``, in a recording the bootstrap, and then the interpreter runs the program
itself. So no frame below the program's is another one, and how it ends is the interpreter's own doing. What has been
imported already is hidden, until the program imports it.

``rltrace`` itself starts the program that it records. Its process keeps *spares*: forks of the warm Python that wait to
become the children that it starts. So they are its own children, as ever.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from copy import copy
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

HERE = os.path.dirname(__file__)  # noqa: PTH120

CONTROL = "RLTRACE_TEST_WARM"
"""Variable with the number of the socket that requests come from."""

LOADED = "RLTRACE_TEST_LOADED"
"""Variable with the modules to import."""

PLAIN_PATH = [entry for entry in sys.path if entry != HERE]
"""Where modules are, with nothing on PYTHONPATH."""

_script = os.fspath(sys.orig_argv[-1])
"""What this interpreter is about to run."""

RLTRACE = os.path.join(os.path.dirname(sys.executable), "rltrace")  # noqa: PTH118, PTH120

SPARES = {"record": 1, "replay": 1, "rerun": 1, "info": 0, "diff": 0, "verify": 0, "ops": 0, "series": 0, "slice": 0}
"""How many processes a verb starts at most that are worth a spare; of others ``MANY``."""

MANY = 6


def become(request: Mapping[str, Any]) -> None:
    """Be the process that a request is for, as far as a new interpreter is when it imports ``sitecustomize``."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    words: list[str] = request["words"]
    sys.orig_argv[:] = words
    sys.argv[:] = ["-c", *words[3:]] if words[1] == "-c" else words[1:]
    _Configuration().run(words)
    sys.path[:] = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *PLAIN_PATH]
    for group in MODULES.groups.values():
        if "numpy.random" in group:
            group["numpy.random"].seed()  # as each new process has its own
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None
    importlib.invalidate_caches()
    _end_quickly()
    if words[1] == RLTRACE:
        verb = next((word for word in words[2:] if not word.startswith("-")), "")
        spares = [spare for _ in range(SPARES.get(verb, MANY)) if (spare := _spare()) is not None]
        if _is_spare:
            return
        _SparePopen.spares = spares
        subprocess.Popen = _SparePopen  # type: ignore[misc]
    own = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own  # the interpreter imports it at this moment


def _end_quickly() -> None:
    """Leave out what libraries that are loaded so far do at the very end, after the interpreter: a third of a second.

    What is registered later is run, and C's own streams have nothing left to write.
    """
    c = ctypes.CDLL(None)
    c.setvbuf(ctypes.c_void_p.in_dll(c, "stdout"), None, 2, 0)
    c.on_exit(c._exit, None)


class _Configuration:
    """What the interpreter will run, in its own memory: neither is to be set from Python.

    Both texts are found by what they are, and read through the kernel, so that a number that is no address is no crash.
    """

    def __init__(self) -> None:
        api = ctypes.pythonapi
        api.PyInterpreterState_Get.restype = ctypes.c_void_p
        api._PyInterpreterState_GetConfig.restype = ctypes.c_void_p
        api._PyInterpreterState_GetConfig.argtypes = [ctypes.c_void_p]
        api.PyMem_RawMalloc.restype = ctypes.c_void_p
        api.PyMem_RawMalloc.argtypes = [ctypes.c_size_t]
        self._start = api._PyInterpreterState_GetConfig(api.PyInterpreterState_Get())
        self._memory = os.open("/proc/self/mem", os.O_RDONLY)

    def run(self, words: Sequence[str]) -> None:
        """Let the interpreter run what a command line names."""
        fields = struct.unpack("512N", ctypes.string_at(self._start, 4096))
        names = [place for place, field in enumerate(fields) if self._is_script(field)]
        lists = [field for field in fields if self._is_script(self._number_at(field))]
        os.close(self._memory)
        assert names and lists, "this interpreter keeps its command line elsewhere"
        for first in lists:
            _write(first, words[1])
        place = self._start + 8 * names[-1]
        if words[1] == "-c":
            _write(place - 16, words[2] + "\n")  # before the name of a module, which is before that of a script
        else:
            global _script
            _script = os.path.abspath(words[1])  # noqa: PTH100  as the interpreter makes it
            _write(place, _script)

    def _number_at(self, address: int) -> int:
        with contextlib.suppress(OSError, OverflowError):
            content = os.pread(self._memory, 8, address)
            if len(content) == 8:
                return int(struct.unpack("N", content)[0])
        return 0

    def _is_script(self, address: int) -> bool:
        expected = (_script + "\0").encode("utf-32-le")
        with contextlib.suppress(OSError, OverflowError):
            return os.pread(self._memory, len(expected), address) == expected
        return False


def _write(address: int, text: str) -> None:
    content = (text + "\0").encode("utf-32-le", "surrogateescape")
    copied = ctypes.pythonapi.PyMem_RawMalloc(len(content))
    ctypes.memmove(copied, content, len(content))
    ctypes.memmove(address, struct.pack("N", copied), 8)


# --- modules ----------------------------------------------------------------------------------------------------------


HIDDEN = ("jax", "jaxlib", "numpy", "rltrace", "sympy", "torch", "zarr")
"""Packages that programs, and the recorder, look for among those that have been imported."""


class _Modules:
    """A finder of the modules that are loaded already, which a program does not see until it imports them.

    They are in groups, each of which one import has loaded: what imports one of them has all.
    """

    def __init__(self) -> None:
        self.groups: dict[str, dict[str, ModuleType]] = {}
        """By the import that has loaded them."""
        self._needed: dict[str, list[str]] = {}
        self._shown: set[str] = set()

    def load(self, name: str, needed: Sequence[str]) -> None:
        """Import a module, if it is installed; ``needed``: the groups of the modules that it would import itself.

        All modules of rltrace are one group.
        """
        before = set(sys.modules)
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
        new = {k: v for k, v in sys.modules.items() if k not in before and k.partition(".")[0] in HIDDEN}
        key = "rltrace" if name.startswith("rltrace.") else name
        self.groups.setdefault(key, {}).update(new)
        self._needed[key] = list(needed)

    def hide(self) -> None:
        for group in self.groups.values():
            for name, module in group.items():
                del sys.modules[name]
                parent, _, child = name.rpartition(".")
                if parent not in group and getattr(self._parent(parent), child, None) is module:
                    delattr(self._parent(parent), child)
        sys.meta_path.insert(0, self)

    def _parent(self, name: str) -> ModuleType | None:
        return next((group[name] for group in self.groups.values() if name in group), None)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        module = self._parent(name)
        if module is None:
            return None
        spec = copy(module.__spec__)
        assert spec is not None
        spec.loader = _Loader(self, module)
        return spec

    def show_with(self, module: ModuleType) -> None:
        """Let a program see a module, those of its group, and what these need."""
        for name, group in self.groups.items():
            if module in group.values():
                self._show(name)

    def _show(self, name: str) -> None:
        if name in self._shown:
            return
        self._shown.add(name)
        for needed in self._needed[name]:
            self._show(needed)
        group = self.groups[name]
        sys.modules.update(group)
        for each, module in group.items():
            parent, _, child = each.rpartition(".")
            if parent in sys.modules and parent not in group:
                setattr(sys.modules[parent], child, module)

    def keep(self) -> None:
        """At the very end of a program, after all that it has registered: let its modules be as they are.

        Taking apart the million objects of torch is most of what a small program costs.
        """
        for group in self.groups.values():
            for name in group:
                sys.modules.pop(name, None)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))


class _Loader:
    """Loads a module that is loaded already."""

    def __init__(self, modules: _Modules, module: ModuleType) -> None:
        self._modules, self._module, self._spec = modules, module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        self._modules.show_with(module)


MODULES = _Modules()


# --- spares -----------------------------------------------------------------------------------------------------------


_is_spare = False


def _spare() -> socket.socket | None:
    """Fork a process that waits to become another one; None: in that process, once it has."""
    global _is_spare
    if _is_spare:
        return None
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        there.close()
        return here
    here.close()
    _is_spare = True
    message, streams, _, _ = socket.recv_fds(there, 1 << 20, 3)
    if not message:
        os._exit(0)
    there.send(str(os.getpid()).encode())
    there.close()
    _take_streams(streams)
    _is_spare = False
    become(json.loads(message))
    _is_spare = True
    return None


def _take_streams(streams: Sequence[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)


class _SparePopen(subprocess.Popen):  # type: ignore[type-arg]
    """Starts a Python program in a spare, if there is one left."""

    spares: list[socket.socket] = []  # noqa: RUF012

    def _execute_child(self, *arguments: Any) -> None:
        request = warm_request(*arguments)
        if request is None or not self.spares or not _is_alike(request["process"]["environment"]):
            super()._execute_child(*arguments)  # type: ignore[misc]
            return
        spare = self.spares.pop()
        socket.send_fds(spare, [json.dumps(request["process"]).encode()], request["streams"])
        self.pid = int(spare.recv(100))
        spare.close()
        self._child_created = True
        self._close_pipe_fds(*arguments[10:16])  # type: ignore[attr-defined]


STARTUP = (
    *("PYTHON", "PYTORCH", "TORCH", "KINETO", "JAX_", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_"),
    *("LD_", "MALLOC_", "GLIBC_", "LANG", "LC_", "TZ"),
)
"""Starts of names of variables that are read as a process starts, or as libraries are loaded."""


def startup_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Those that have to be equal in the warm Python; PYTHONPATH is read anew."""
    return {k: v for k, v in environment.items() if k.startswith(STARTUP) and k != "PYTHONPATH"}


IMPORTS = re.compile(r"\b(?:import (?:[^\n;#]*, ?)?|from )(torch|jax|stable_baselines3)\b")
"""What a program has to import for a warm Python to be worth it."""

SETS_UP = re.compile(r"\b(?:import|from) triton\b")
"""What a program imports after it has set variables that are read by the import."""


def _is_alike(environment: Mapping[str, str]) -> bool:
    """Whether a program may be a fork of this process."""
    return startup_variables(environment) == startup_variables(os.environ)


def program_of(words: Sequence[str], folder: str) -> str:
    """The text of the program of a command line of Python; "" where it names no script and has no code."""
    if words[1:2] == ["-c"]:
        return words[2]
    try:
        with open(os.path.join(folder, words[1]), encoding="utf-8") as file:  # noqa: PTH118, PTH123
            return file.read() if words[1].endswith(".py") else ""
    except (OSError, IndexError, UnicodeDecodeError):
        return ""


def warm_request(*arguments: Any) -> dict[str, Any] | None:
    """What a call of ``Popen._execute_child`` asks for; None: a new interpreter has to run it."""
    words, executable, preexec, _, passed, cwd, environment, _, _, shell = arguments[:10]
    read, _, _, write, _, error = arguments[10:16]
    group, groups, user, umask, session, process_group = arguments[17:23]
    others = executable, passed, shell, group, groups, user, session
    if any(others) or umask >= 0 or process_group not in (None, -1) or not isinstance(words, (list, tuple)):
        return None
    words = [os.fspath(word) for word in words]
    environment = dict(os.environ if environment is None else environment)
    program = shutil.which(words[0], path=environment.get("PATH"))
    words[:1] = [sys.executable, RLTRACE] if program == RLTRACE else words[:1]
    if words[1:4] == ["-P", "-m", "rltrace"]:
        del words[1]
    if words[1:3] == ["-m", "rltrace"]:
        words[1:3] = [RLTRACE]
    folder = os.getcwd() if cwd is None else os.fspath(cwd)  # noqa: PTH109  pathlib is not loaded at this point
    if program not in (RLTRACE, sys.executable):
        return None
    text = program_of(words, folder)
    if words[1:2] != [RLTRACE] and (IMPORTS.search(text) is None or SETS_UP.search(text) is not None):
        return None
    if preexec is not None and getattr(getattr(preexec, "func", None), "__name__", "") != "_before_exec":
        return None
    streams = [0 if read == -1 else read, 1 if write == -1 else write, 2 if error == -1 else error]
    return {"process": {"words": words, "cwd": folder, "environment": environment}, "streams": streams}


# --- the warm Python --------------------------------------------------------------------------------------------------


def serve(control: socket.socket) -> None:
    """Fork for each request; returns in the forks."""
    atexit.register(MODULES.keep)  # the first to be registered is the last to run
    for name, needed in json.loads(os.environ[LOADED]).items():
        MODULES.load(name, needed)
    MODULES.hide()
    gc.collect()
    gc.freeze()
    woken, waking = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waking, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    replies: dict[int, socket.socket] = {}
    control.send(b"ready")
    while True:
        ready, _, _ = select.select([control, woken], [], [])
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 1 << 16)
            while replies:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                with contextlib.suppress(OSError):
                    replies[pid].send(str(status).encode())
                replies.pop(pid).close()
        if control in ready:
            message, passed, _, _ = socket.recv_fds(control, 1 << 20, 4)
            if not message:
                os._exit(0)
            *streams, number = passed
            reply = socket.socket(fileno=number)
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (control, reply, *replies.values()):
                    each.close()
                os.close(woken)
                os.close(waking)
                _take_streams(streams)
                become(json.loads(message))
                return
            reply.send(str(pid).encode())
            replies[pid] = reply
            for stream in streams:
                os.close(stream)


if __name__ == "sitecustomize" and CONTROL in os.environ:
    serve(socket.socket(fileno=int(os.environ[CONTROL])))
