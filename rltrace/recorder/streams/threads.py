"""The streams of one process: one per thread that dispatches an op, with the same name in every run of the program.

Owns which thread writes which stream, and the engine of each thread. Does not name processes.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch._ops import OpOverload

from rltrace.recorder.base.dispatch_mode import Engine, Observer
from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.process_names import mark_children
from rltrace.recorder.base.settings import NO_SNAPSHOT
from rltrace.recorder.base.weak_id_dict import WeakIdDict
from rltrace.recorder.capture.captures import MakeHook
from rltrace.recorder.core.hooks import HookedOps
from rltrace.recorder.core.modules import ModuleStack
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.ops_without_rows import is_torchscript_thread
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.row_buffer import RowConsumer, phase_bits
from rltrace.recorder.streams.committer import Committer
from rltrace.recorder.streams.series import StreamPosition
from rltrace.trace.format.schema import Phase

# --- thread names -----------------------------------------------------------------------------------------------------
#
# Names of threads, the same in every run of the program. A default name of Python (``Thread-7 (work)``) counts all
# threads of the process, those of libraries too; it is replaced by what the thread runs. Threads of one name are
# numbered in the order of their start, since their first ops have no fixed order.


_DEFAULT_NAME = re.compile(r"Thread-\d+( \(.*\))?", re.DOTALL)


class ThreadNames:
    """Names of the threads that were started during the recording."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: dict[str, int] = {}
        self._names: WeakIdDict[threading.Thread, tuple[str, str]] = WeakIdDict()
        """By thread: its Python name at its start, and its name in the trace."""

    def add(self, thread: threading.Thread) -> None:
        """``thread`` is about to be started for the first time."""
        base = _stable_name(thread)
        with self._lock:
            number = self._started[base] = self._started.get(base, 0) + 1
            self._names[thread] = (thread.name, base if number == 1 else f"{base}#{number}")

    def of(self, thread: threading.Thread) -> str:
        """The name of a running thread; its Python name where the program has renamed it since its start."""
        names = self._names.get(thread)
        return thread.name if names is None or names[0] != thread.name else names[1]


HELPERS = frozenset({"ray", "IPython", "ipykernel", "ipyparallel", "tqdm", "wandb", "debugpy", "_pydevd_bundle"})
"""Packages whose threads run no code of the program."""


def running_before() -> dict[str, str]:
    """A fact: the threads that ran before the recording began, other than the current one. None is recorded."""
    own = threading.current_thread()
    names = {_stable_name(t) for t in threading.enumerate() if t is not own and not _package(t) & HELPERS}
    return {"threads.before": ", ".join(sorted(names))} if names else {}


def _package(thread: threading.Thread) -> set[str]:
    """Packages of its class and of the function that it runs."""
    objects = type(thread), getattr(thread, "_target", None)
    return {str(getattr(item, "__module__", None)).partition(".")[0] for item in objects}


def _stable_name(thread: threading.Thread) -> str:
    if _DEFAULT_NAME.fullmatch(thread.name) is None:
        return thread.name
    target = getattr(thread, "_target", None)
    if target is None:
        return type(thread).__name__
    while hasattr(target, "func"):  # functools.partial
        target = target.func
    return str(getattr(target, "__name__", type(target).__name__))


# --- callbacks --------------------------------------------------------------------------------------------------------
#
# Callbacks of futures run in the thread that completes the future, or at once in the one that adds them, depending on
# timing; so their ops are written to separate streams, without the stack of the code that they interrupt.


Run = Callable[[Callable[[Any], Any], Any], Any]

NAME = "pool:future"
"""Name of their streams, which have no order, like those of a pool's threads."""

_CALLBACK_METHODS = "then", "add_done_callback"


class Callbacks:
    """Has callbacks of futures run by ``run(callback, future)`` while ops are recorded."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._patches = Patches()

    def install(self) -> None:
        for name in () if self._patches else _CALLBACK_METHODS:
            self._patches.wrap(torch._C.Future, name, self._add)

    def uninstall(self) -> None:
        self._patches.undo_all()

    def _add(self, original: Callable[..., Any], future: Any, callback: Callable[[Any], Any], *more: Any) -> Any:
        run = self._run

        def called_back(done: Any) -> Any:
            return run(callback, done)

        return original(future, called_back if callable(callback) else callback, *more)


# --- streams ----------------------------------------------------------------------------------------------------------


Start = Callable[[threading.Thread], None]

MakeStream = Callable[[ProcessState, int, str, RowConsumer], OpRecorder]
"""Makes a stream with this number and name."""

SETTINGS_ROWS = 1_024
"""All settings of torch are read again at the first op of a step, after at least so many rows."""

POOLS = ("concurrent.futures.thread", "multiprocessing.pool")
"""Modules whose threads take tasks in no fixed order."""


class ThreadWatcher(Protocol):
    """Is called as threads start, open a stream and end."""

    def thread_starts(self, thread: threading.Thread) -> None: ...
    def thread_has_rows(self, thread: threading.Thread, stream: int) -> None: ...
    def thread_ends(self, thread: threading.Thread) -> None: ...


class _FirstOp:
    """Observes the first op of a thread, and opens its stream."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def observe(self, by: Any, func: OpOverload, types: Any, args: tuple[Any, ...], kwargs: Any = None, /) -> Any:
        if is_torchscript_thread(2):
            return func(*args, **kwargs) if kwargs else func(*args)
        return observer_of(self._streams.open_here()).observe(by, func, types, args, kwargs)


class _Local(threading.local):
    """What is known of the calling thread."""

    stream: OpRecorder | None = None
    """None before its first op."""
    pooled = False
    """A pool started it."""


class Streams:
    """All streams of the process."""

    def __init__(
        self,
        process: ProcessState,
        committer: Committer,
        name: str,
        make_engine: Callable[[], Engine],
        make_stream: MakeStream = OpRecorder,
    ) -> None:
        self.process = process
        self.committer = committer
        self._hooks: Sequence[MakeHook] = ()
        self._name = name
        self._make_engine = make_engine
        self._make_stream = make_stream
        self._lock = threading.Lock()
        self.local = _Local()
        """To be read where ``here`` is called too often."""
        self._all: list[OpRecorder] = []
        self._names: dict[str, int] = {}
        self._engines: dict[int, Engine] = {}
        self._threads = ThreadNames()
        self.watcher: ThreadWatcher | None = None
        self._patches = Patches()
        self._callbacks = Callbacks(self._call_back)
        self._idle: list[OpRecorder] = []
        """Streams of callbacks that are not running; Python names a C++ thread anew at each callback."""
        process.sites.bottoms.add(Streams._call_back.__code__)
        self._on = False

    @property
    def main(self) -> OpRecorder:
        return self._all[0]

    @property
    def others(self) -> Sequence[OpRecorder]:
        return self._all[1:]

    def open_main(self) -> None:
        """The first stream, of the thread that starts recording."""
        mark_children()
        self.local.stream = self._open(self._name)

    def set_hooks(self, hooks: Sequence[MakeHook]) -> None:
        """Have ops go through these hooks from the next ``enter`` on; settings of torch are read anew then."""
        self._hooks = hooks
        for stream in self._all:
            stream.settings = NO_SNAPSHOT
            stream.hooks = tuple(make_hook(stream) for make_hook in hooks)

    def adopt(self, engine: Engine) -> None:
        """Use an engine that the calling thread already has."""
        self._engines[threading.get_ident()] = engine

    def engine_here(self) -> Engine | None:
        """The engine of the calling thread; None: its ops are not recorded."""
        return self._engines.get(threading.get_ident())

    def here(self) -> OpRecorder | None:
        """The stream of the calling thread; None before its first op."""
        return self.local.stream

    def between_ops(self) -> OpRecorder | None:
        """The stream of the calling thread, where an event can be written into it now."""
        engine = self._engines.get(threading.get_ident()) if self._on else None
        if engine is None or not engine.is_between_ops():
            return None
        return self.local.stream or self.open_here()

    def position_here(self) -> StreamPosition:
        """Position of the calling thread in its stream; of a thread without one, in the first stream."""
        stream = self.local.stream
        thread = "" if stream is not None else self._threads.of(threading.current_thread())
        stream = stream or self.main
        return StreamPosition(stream.number, self.process.step, stream.row, thread)

    def modules_here(self) -> ModuleStack | None:
        """The module stack of the calling thread; None where its ops are not recorded."""
        stream = self.local.stream
        if stream is None:
            if threading.get_ident() not in self._engines:
                return None
            stream = self.open_here()
        return stream.modules

    def open_here(self) -> OpRecorder:
        """The stream of the calling thread, made at its first op."""
        role = "pool" if self.local.pooled else "thread"
        stream = self._open(f"{self._name}/{role}:{self._threads.of(threading.current_thread())}")
        self.local.stream = stream
        if self.watcher is not None:
            self.watcher.thread_has_rows(threading.current_thread(), stream.number)
        self._engines[threading.get_ident()].enter(observer_of(stream))
        return stream

    def enter(self) -> None:
        """Ops become rows: in the calling thread at once, in other threads from their start."""
        self._on = True
        engine = self._engines.setdefault(threading.get_ident(), self._make_engine())
        engine.enter(self._observer_of(self.here()))
        if not self._patches:
            self._patches.wrap(threading.Thread, "start", self._start_named)  # of classes of the program's, too
            self._patches.wrap(threading.Thread, "_bootstrap_inner", self._run_recorded)
            self._callbacks.install()

    def leave(self) -> None:
        """Ops no longer become rows. The engines of other threads stay, and pass ops through."""
        self._on = False
        own = threading.get_ident()
        for ident, engine in self._engines.copy().items():
            if ident == own and engine.leave():
                del self._engines[ident]
            else:
                engine.silence()

    def close(self) -> None:
        """Leave permanently."""
        self.leave()
        self._callbacks.uninstall()
        self._patches.undo_all()

    def silence(self) -> None:
        """Ops pass through from now on; callable from any thread, and in a forked child."""
        self._on = False
        for engine in list(self._engines.values()):
            engine.silence()

    def step_began(self, step: int) -> None:
        for stream in self._all:
            stream.begin_step(step)
            if stream.row >= stream.settings_read_at + SETTINGS_ROWS:
                stream.settings = NO_SNAPSHOT

    def set_phase(self, phase: Phase) -> None:
        self.process.phase = phase
        stream = self.here()
        if stream is not None:
            stream.phase = phase_bits(phase)

    def _start_named(self, start: Start, thread: threading.Thread) -> None:
        self._threads.add(thread)
        if self.watcher is not None:
            self.watcher.thread_starts(thread)
        start(thread)

    def _run_recorded(self, run: Start, thread: threading.Thread) -> None:
        """Run a thread with its ops recorded; an overridden ``run`` is called inside."""
        if not self._on:
            run(thread)
            return
        # read before it runs: it then drops its target
        self.local.pooled = getattr(getattr(thread, "_target", None), "__module__", None) in POOLS
        ident = threading.get_ident()
        engine = self._engines[ident] = self._make_engine()
        engine.enter(_FirstOp(self))
        try:
            run(thread)
        finally:
            if self.watcher is not None:
                self.watcher.thread_ends(thread)
            engine.leave()
            self._engines.pop(ident, None)

    def _call_back(self, callback: Callable[[Any], Any], future: Any) -> Any:
        """Run a future's callback in the calling thread, with its ops in a stream of callbacks."""
        ident = threading.get_ident()
        engine, outer = self._engines.get(ident), self.here()
        if not self._on or (engine is not None and not engine.is_between_ops()):
            return callback(future)
        if outer is not None and f"/{NAME}" in outer.name:  # a callback within another
            return callback(future)
        stream = self._idle.pop() if self._idle else self._open(f"{self._name}/{NAME}")
        stream.run_callbacks()
        used = self._engines[ident] = engine or self._make_engine()
        self.local.stream = stream
        used.enter(observer_of(stream))
        try:
            return callback(future)
        finally:
            self._idle.append(stream)
            self.local.stream = outer
            if engine is None:
                used.leave()
                self._engines.pop(ident, None)
            elif self._on:
                engine.enter(self._observer_of(outer))

    def _observer_of(self, stream: OpRecorder | None) -> Observer:
        """What observes the ops of a thread, with its stream or before it has one."""
        return _FirstOp(self) if stream is None else observer_of(stream)

    def _open(self, base: str) -> OpRecorder:
        with self._lock:
            count = self._names[base] = self._names.get(base, 0) + 1
            name = base if count == 1 else f"{base}#{count}"
            stream = self._make_stream(self.process, len(self._all), name, self.committer)
            stream.hooks = tuple(make_hook(stream) for make_hook in self._hooks)
            first = Phase.OTHER if self._all or self.process.step else Phase.INIT
            stream.phase = phase_bits(self.process.phase if self.process.phases.overrides else first)
            stream.modules.on_outermost = functools.partial(self.process.phases.module_called, stream)
            self._all.append(stream)
            self.committer.add(stream)
            return stream


def observer_of(stream: OpRecorder) -> Observer:
    """What observes the ops of a stream's thread: without hooks the stream itself, which saves a call per op."""
    return HookedOps(stream) if stream.hooks else stream
