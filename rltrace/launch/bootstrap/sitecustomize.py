"""Runs in every Python process of a recorded program, before the program: starts the recorder after ``import torch``.

This folder is first on PYTHONPATH, so the interpreter imports this file when it starts. It writes a start record, waits
for ``import torch``, or that of another library with a recorder, to finish, and runs the user's sitecustomize, which it
hides. Until then nothing else of rltrace is loaded. Errors become a note in the trace: the program never notices.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # ``typing`` is not loaded at this point
if TYPE_CHECKING:
    from typing import Any

FOLDER = os.path.dirname(__file__)  # noqa: PTH120  pathlib is not loaded at this point, and stays so

OPTIONS = "RLTRACE_RECORD"
"""Variable with the options (``rltrace.recorder.base.options.VARIABLE``)."""

STARTS_VARIABLE = "RLTRACE_STARTS"
"""Variable with the folder for start records (``rltrace.launch.command.STARTS_VARIABLE``)."""

RECORDERS = "RLTRACE_RECORDERS"
"""Variable with the libraries whose import starts a recorder, and what starts it: ``torch=module:function …``
(``rltrace.launch.command.RECORDERS``)."""

STARTED_WITH = dict(os.environ)
"""The variables before the program sets any (``rltrace.fingerprint.host``)."""

HELPERS = ("resource_tracker", "forkserver", "spawn")
"""Modules of multiprocessing that it starts with ``python -c``."""

ALIAS = "_rltrace_bootstrap"
"""This module's second name, which it keeps when the user's sitecustomize takes the first."""

OF_LIBRARIES = (
    "torch/_inductor/compile_worker/",
    '\nfrom ctypes import cdll\ncdll.LoadLibrary("',  # a probe of ``cpu_vec_isa``, up to torch 2.13
    '\nfrom ctypes import cdll\ntry:\n    cdll.LoadLibrary("',  # from 2.14 on
    "/ray/dashboard/",
    "/ray/autoscaler/_private/",
    "/ray/_private/log_monitor.py",
    "/ray/_private/runtime_env/agent/",
)
"""Texts in the command lines of processes that Inductor and Ray start for themselves."""


class StartRecord:
    """This process's start record and failure notes in the trace."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.pid = os.getpid()
        self.token = f"{self.pid}-{time.time_ns():x}-{os.urandom(4).hex()}"

    def write(self) -> None:
        """Record that a Python process has started. Raises OSError, and then leaves no record, if it can."""
        fields = {
            "token": self.token,
            "argv": _argv(),
            "executable": _home(sys.executable or ""),
            "pid": self.pid,
            "parent": os.getppid(),
            "host": os.uname().nodename,
            "boot": _boot(),
            "started": _start_time(),
            "time": time.time(),
        }
        try:
            self._write("json", fields)
        except OSError:
            try:  # noqa: SIM105  contextlib is not loaded at this point
                os.unlink(f"{self.folder}/{self.token}.json")  # noqa: PTH108
            except OSError:
                pass  # it was not created
            raise

    def note_failure(self, error: BaseException) -> None:
        """Record why this process could not be recorded."""
        try:
            self._write("failed", {"token": self.token, "pid": self.pid, "why": _reason(error)})
        except OSError:
            return  # the trace cannot be written: the parent notices that itself

    def _write(self, ending: str, fields: dict[str, object]) -> None:
        """One small file: a line of JSON, and its CRC-32 in eight hexadecimal digits."""
        from zlib import crc32

        line = _json(fields).encode()
        path = f"{self.folder}/{self.token}.{ending}"
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        content = b"%s\n%08x\n" % (line, crc32(line))
        try:
            if os.write(handle, content) < len(content):
                raise OSError(f"{path} cannot be written whole")
        finally:
            os.close(handle)


class ImportWatch:
    """A finder that starts a recorder, once each, when the import of its library has finished.

    The import system sets a flag on a module's spec while it runs the module; the spec of torch gets a class that
    notices when the flag is cleared. So the traceback of a failing import has no frame of rltrace, the loader stays the
    same, and torch counts as imported, for other threads too, when the recorder starts. A module made by hand from the
    spec is missed.

    A program with several such libraries has as many recorders.
    """

    def __init__(self, start_record: StartRecord, options: str, recorders: dict[str, str]) -> None:
        """``recorders``: by library, what starts its recorder."""
        self.start_record = start_record
        self.options = options
        self.awaited = {name: start for name, start in recorders.items() if name not in sys.modules}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.awaited:
            return None
        spec = self._other_finders_spec(name, path, target)
        if spec is not None and target is None:
            self._watch(spec, name)
        return spec

    def _other_finders_spec(self, name: str, path: Any, target: Any) -> Any:
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 if self in finders else 0 :]:  # those before have not found it
            find = getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                return spec
        return None

    def _watch(self, spec: Any, name: str) -> None:
        plain, watch = type(spec), self

        def get(self: Any) -> bool:
            return bool(self.__dict__.get("_initializing", False))

        def put(self: Any, importing: bool) -> None:
            self.__dict__["_initializing"] = importing
            if importing:
                return
            self.__class__ = plain
            if name in sys.modules:
                watch.finished(name)

        try:
            spec.__class__ = type(plain.__name__, (plain,), {"_initializing": property(get, put)})
        except Exception as error:
            self.start_record.note_failure(error)

    def finished(self, name: str) -> None:
        """A library has been imported: start its recorder, and remove this finder after the last one."""
        if self not in sys.meta_path or name not in self.awaited:
            return
        start = self.awaited.pop(name)
        if not self.awaited:
            sys.meta_path.remove(self)
        start_recorder(self.start_record, self.options, start)


def start_recorder(start_record: StartRecord, options: str, start: str) -> None:
    """Start the recorder of a library, by ``module:function``; an error becomes a note, and the program goes on.

    Its allocations stay; if they were counted, the garbage collector would traverse all of torch's objects once more at
    the program's first op (70 ms).
    """
    import gc

    enabled = gc.isenabled()
    gc.disable()
    try:
        _start_recorder(start_record, options, start)
    finally:
        if enabled:
            gc.enable()


def _start_recorder(start_record: StartRecord, options: str, start: str) -> None:
    try:
        if os.getpid() != start_record.pid:  # forked since, by a helper that had not imported torch
            start_record = StartRecord(start_record.folder)
            start_record.write()
        from rltrace.recorder.base.options import RecordOptions

        recording = RecordOptions.from_environment({OPTIONS: options})
        if recording is None:
            return
        if recording.processes:
            from rltrace.recorder.base.process_names import is_left_out

            if is_left_out(recording, start_record.token):
                return
        from importlib import import_module

        module, _, function = start.partition(":")
        getattr(import_module(module), function)(recording, start_record.token)
    except Exception as error:
        start_record.note_failure(error)
        if _is_without_rltrace(error):  # at once: the run may take all night
            try:  # noqa: SIM105  contextlib is not loaded at this point
                os.write(2, f"rltrace: {_reason(error)}: nothing of this process is recorded\n".encode())
            except OSError:
                pass  # the program has closed it


def begin() -> None:
    """Write the start record and wait for the libraries; does nothing outside a recording, or a second time."""
    options, folder = os.environ.get(OPTIONS), os.environ.get(STARTS_VARIABLE)
    if not options or not folder or ALIAS in sys.modules or _serves_library():
        return
    sys.modules[ALIAS] = sys.modules[__name__]
    start_record = StartRecord(folder)
    try:
        start_record.write()
    except OSError as error:  # the trace is gone or cannot be written: nothing can be recorded
        start_record.note_failure(error)
        return
    recorders = dict(pair.split("=") for pair in os.environ.get(RECORDERS, "").split())
    watch = ImportWatch(start_record, options, recorders)
    if watch.awaited:
        sys.meta_path.insert(0, watch)
    for library, start in recorders.items():
        if library not in watch.awaited:  # a .pth file of site-packages can import it before us
            start_recorder(start_record, options, start)


def _serves_library() -> bool:
    """Whether torch's compiler or Ray started this process for itself: nothing of the program runs in it."""
    return any(part in argument for argument in sys.orig_argv for part in OF_LIBRARIES)


def chain() -> None:
    """Run the sitecustomize that this one hides. The interpreter reports its errors, as always."""
    own = sys.modules.pop(__name__)
    places = [i for i, entry in enumerate(sys.path) if entry == FOLDER]
    sys.path[:] = [entry for entry in sys.path if entry != FOLDER]
    try:
        __import__(__name__)
    except ModuleNotFoundError as error:
        if error.name != __name__:
            raise
    finally:
        if places:  # for programs that pass sys.path to their children
            sys.path.insert(places[0], FOLDER)
        sys.modules.setdefault(__name__, own)


def _argv() -> list[str]:
    """The command without its arguments: ``["python", "-m", "pip"]``, ``["python", "train.py"]``.

    Code is left out as well, except that of multiprocessing: ``["python", "-c", "multiprocessing.spawn"]``.
    """
    name = os.path.basename(sys.executable or "python")  # noqa: PTH119
    argv = getattr(sys, "argv", [])
    command = [argv[0]] if argv and argv[0] else []
    if command == ["-m"]:
        command.append(sys.orig_argv[len(sys.orig_argv) - len(argv)])
    elif command == ["-c"]:
        code = sys.orig_argv[len(sys.orig_argv) - len(argv)]
        command += [f"multiprocessing.{name}" for name in HELPERS if f"multiprocessing.{name} import" in code]
    elif command and "/" in command[0]:
        command = [os.path.basename(command[0])]  # noqa: PTH119
    return [name, *command]


def _start_time() -> int | None:
    """Start of this process, in clock ticks since boot; None where the system does not show it."""
    try:
        with open("/proc/self/stat", "rb") as stat:  # noqa: PTH123
            return int(stat.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def _boot() -> str | None:
    """Id of the current boot; None where the system does not show it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:
        return None


def _home(path: str) -> str:
    home = os.path.expanduser("~")  # noqa: PTH111
    return f"~{path[len(home) :]}" if len(home) > 1 and path.startswith(f"{home}/") else path


def _reason(error: BaseException) -> str:
    """One line; a missing rltrace is the one failure that is not rltrace's own."""
    if _is_without_rltrace(error):
        return f"rltrace is not installed for {_home(sys.executable or 'this Python')}"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _is_without_rltrace(error: BaseException) -> bool:
    return isinstance(error, ModuleNotFoundError) and error.name == "rltrace"


def _json(fields: dict[str, object]) -> str:
    """A flat object as JSON. ``import json`` costs as much again as the interpreter's start."""
    from _json import encode_basestring_ascii as quoted

    def value(item: object) -> str:
        if item is None:
            return "null"
        if isinstance(item, (list, tuple)):
            return f"[{', '.join(value(element) for element in item)}]"
        return quoted(item) if isinstance(item, str) else repr(item)

    return f"{{{', '.join(f'{quoted(key)}: {value(item)}' for key, item in fields.items())}}}"


try:  # noqa: SIM105  contextlib is not loaded at this point
    begin()
except Exception:
    pass  # the program must not notice: the parent reports a process without a record
chain()
