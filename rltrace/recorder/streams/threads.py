"""The streams of one process: one per thread that dispatches an op, named alike in every run of the same program.

Owns which thread writes which stream, and the engine of each thread. What a process is called is not its concern.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

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
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.row_buffer import phase_bits
from rltrace.recorder.core.torchscript_threads import is_torchscript_thread
from rltrace.recorder.streams.committer import Committer
from rltrace.recorder.streams.series import StreamPosition
from rltrace.trace.format.schema import Phase

# --- thread names -----------------------------------------------------------------------------------------------------
#
# What a thread is called in a trace: the same in every run of the same program.
#
# Owns the names and the numbers of threads that share one. A name that Python made up (``Thread-7 (work)``) counts all
# threads of the process, those of libraries too; what lasts of it is what the thread runs. Threads of one name are
# numbered in the order in which they were started, since which of them computes first is a matter of timing.


_MADE_UP = re.compile(r"Thread-\d+( \(.*\))?", re.DOTALL)


class ThreadNames:
    """Names of the threads that were started while it was told of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._births: dict[str, int] = {}
        self._given: WeakIdDict[threading.Thread, tuple[str, str]] = WeakIdDict()
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


# --- callbacks --------------------------------------------------------------------------------------------------------
#
# Callbacks of futures: they run in whatever thread completes the future, or at once in the one that asks for them.
#
# Which it is, timing decides; so what they compute is written to streams of their own in both cases, without the stack
# of whom they happened to interrupt. Owns the standing in for ``Future.then`` and ``add_done_callback``.


Run = Callable[[Callable[[Any], Any], Any], Any]

NAME = "pool:future"
"""What their streams are called: they have no order, like those of a pool's threads."""

_TAKING_CALLBACKS = "then", "add_done_callback"


class Callbacks:
    """While ops are recorded, callbacks given to futures are run by ``run(callback, future)``."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._patches = Patches()

    def install(self) -> None:
        for name in () if self._patches else _TAKING_CALLBACKS:
            self._patches.wrap(torch._C.Future, name, self._take)

    def uninstall(self) -> None:
        self._patches.undo_all()

    def _take(self, original: Callable[..., Any], future: Any, callback: Callable[[Any], Any], *more: Any) -> Any:
        run = self._run

        def called_back(done: Any) -> Any:
            return run(callback, done)

        return original(future, called_back if callable(callback) else callback, *more)


# --- streams ----------------------------------------------------------------------------------------------------------


Start = Callable[[threading.Thread], None]

ASK_ROWS = 1_024
"""All settings of torch are asked for again at the first op of a step, where so many rows have come since."""

POOLS = ("concurrent.futures.thread", "multiprocessing.pool")
"""Modules whose threads take tasks as timing has it."""


class _FirstOp:
    """Stands in for the recorder of a thread until that thread dispatches its first op."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def observe(self, by: Any, func: OpOverload, types: Any, args: tuple[Any, ...], kwargs: Any = None, /) -> Any:
        if is_torchscript_thread(2):
            return func(*args, **kwargs) if kwargs else func(*args)
        return observer_of(self._streams.open_here()).observe(by, func, types, args, kwargs)


class Streams:
    """All streams of the process."""

    def __init__(
        self,
        process: ProcessState,
        committer: Committer,
        name: str,
        make_engine: Callable[[], Engine],
        hooks: Sequence[MakeHook] = (),
    ) -> None:
        self._process = process
        self._hooks = hooks
        self._committer = committer
        self._name = name
        self._make_engine = make_engine
        self._lock = threading.Lock()
        self._local = threading.local()
        self._all: list[OpRecorder] = []
        self._names: dict[str, int] = {}
        self._engines: dict[int, Engine] = {}
        self._threads = ThreadNames()
        self._patches = Patches()
        self._callbacks = Callbacks(self._call_back)
        self._idle: list[OpRecorder] = []
        """Streams of callbacks, as many as ran at once: Python knows a thread that is not its own anew each time."""
        process.sites.bottoms.add(Streams._call_back.__code__)
        self._on = False

    @property
    def main(self) -> OpRecorder:
        return self._all[0]

    @property
    def others(self) -> Sequence[OpRecorder]:
        return self._all[1:]

    def open_main(self) -> None:
        """The stream of the thread that starts recording; the first one, always there."""
        mark_children()
        self._local.stream = self._open(self._name)

    def adopt(self, engine: Engine) -> None:
        """Use an engine that the calling thread has already."""
        self._engines[threading.get_ident()] = engine

    def engine_here(self) -> Engine | None:
        """The engine of the calling thread; None: its ops are not recorded."""
        return self._engines.get(threading.get_ident())

    def here(self) -> OpRecorder | None:
        """The stream of the calling thread; None before its first op."""
        return getattr(self._local, "stream", None)

    def between_ops(self) -> OpRecorder | None:
        """The stream of the calling thread, where something other than an op can be written into it now."""
        engine = self._engines.get(threading.get_ident()) if self._on else None
        if engine is None or not engine.is_between_ops():
            return None
        return self.here() or self.open_here()

    def place_here(self) -> StreamPosition:
        """Where the calling thread is in its stream; a thread that has none is beside the first one."""
        stream: OpRecorder | None = getattr(self._local, "stream", None)
        thread = "" if stream is not None else self._threads.of(threading.current_thread())
        stream = stream or self.main
        return StreamPosition(stream.number, self._process.step, stream.row, thread)

    def modules_here(self) -> ModuleStack | None:
        """The module stack of the calling thread; None where its ops are not recorded."""
        stream: OpRecorder | None = getattr(self._local, "stream", None)
        if stream is None:
            if threading.get_ident() not in self._engines:
                return None
            stream = self.open_here()
        return stream.modules

    def open_here(self) -> OpRecorder:
        """The stream of the calling thread, made at its first op."""
        role = "pool" if getattr(self._local, "pooled", False) else "thread"
        stream = self._open(f"{self._name}/{role}:{self._threads.of(threading.current_thread())}")
        self._local.stream = stream
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
        """Ops no longer become rows. Threads that are in the middle of their work merely pass theirs through."""
        self._on = False
        own = threading.get_ident()
        for ident, engine in list(self._engines.items()):
            if ident == own and engine.leave():
                del self._engines[ident]
            else:
                engine.silence()

    def close(self) -> None:
        """Leave for good."""
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
            if stream.steps[-1][0] == stream.row:
                stream.steps[-1] = (stream.row, step)
            else:
                stream.steps.append((stream.row, step))
            if stream.row >= stream.settings_read_at + ASK_ROWS:
                stream.settings = NO_SNAPSHOT

    def set_phase(self, phase: Phase) -> None:
        self._process.phase = phase
        stream = self.here()
        if stream is not None:
            stream.phase = phase_bits(phase)

    def _start_named(self, start: Start, thread: threading.Thread) -> None:
        self._threads.starts(thread)
        start(thread)

    def _run_recorded(self, run: Start, thread: threading.Thread) -> None:
        """All that a thread does, in that thread; ``run`` of a class of the program's is below it."""
        if not self._on:
            run(thread)
            return
        self._local.pooled = _serves_a_pool(thread)
        ident = threading.get_ident()
        engine = self._engines[ident] = self._make_engine()
        engine.enter(_FirstOp(self))
        try:
            run(thread)
        finally:
            engine.leave()
            self._engines.pop(ident, None)

    def _call_back(self, callback: Callable[[Any], Any], future: Any) -> Any:
        """Run a future's callback, in whichever thread; its ops are rows of a stream that is no thread's own."""
        ident = threading.get_ident()
        engine, own = self._engines.get(ident), self.here()
        if not self._on or (engine is not None and not engine.is_between_ops()):
            return callback(future)
        if own is not None and f"/{NAME}" in own.name:  # one within another
            return callback(future)
        stream = self._idle.pop() if self._idle else self._open(f"{self._name}/{NAME}")
        here = self._engines[ident] = engine or self._make_engine()
        self._local.stream = stream
        here.enter(observer_of(stream))
        try:
            return callback(future)
        finally:
            self._idle.append(stream)
            self._local.stream = own
            if engine is None:
                here.leave()
                self._engines.pop(ident, None)
            elif self._on:
                engine.enter(self._observer_of(own))

    def _observer_of(self, stream: OpRecorder | None) -> Observer:
        """Who is handed the ops of a thread, with its stream or before it has one."""
        return _FirstOp(self) if stream is None else observer_of(stream)

    def _open(self, wanted: str) -> OpRecorder:
        with self._lock:
            births = self._names[wanted] = self._names.get(wanted, 0) + 1
            name = wanted if births == 1 else f"{wanted}#{births}"
            stream = OpRecorder(self._process, len(self._all), name, self._committer)
            stream.hooks = tuple(make_hook(stream) for make_hook in self._hooks)
            first = Phase.OTHER if self._all or self._process.step else Phase.INIT
            stream.phase = phase_bits(self._process.phase if self._process.phases.overrides else first)
            stream.modules.on_outermost = functools.partial(self._process.phases.module_called, stream)
            self._all.append(stream)
            self._committer.add(stream)
            return stream


def observer_of(stream: OpRecorder) -> Observer:
    """Who is handed the ops of a stream's thread: without hooks the stream itself, which saves a call an op."""
    return HookedOps(stream) if stream.hooks else stream


def _serves_a_pool(thread: threading.Thread) -> bool:
    """Whether a pool of the standard library started it; before it runs, as it forgets its target then."""
    return getattr(getattr(thread, "_target", None), "__module__", None) in POOLS
