"""A forked child: a process of its own, recorded into a part of the trace of its own.

Owns what becomes of a child between its fork and the beginning of its recording. Nothing of the parent's recording is
used on: its threads do not exist here, its locks may be held for ever by one of them, its files are the parent's. Most
children of a fork never compute (a daemon on its way into the background, an ``exec``), so recording begins with the
first op; workers of multiprocessing have a name and a task, and begin at once.
"""

from __future__ import annotations

import multiprocessing.util
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch._ops import OpOverload

from rltrace.masking import masked_arguments
from rltrace.recorder.base.process_names import fork_name
from rltrace.recorder.base.torch_function import unasked
from rltrace.recorder.capture.captures import Extend
from rltrace.recorder.streams.threads import observer_of
from rltrace.trace.format import chunk_codec
from rltrace.trace.format.process_start import note_failure, write_start

if TYPE_CHECKING:
    from rltrace.recorder.base.dispatch_mode import Engine
    from rltrace.recorder.base.options import RecordOptions
    from rltrace.recorder.core.modules import ModuleNames
    from rltrace.recorder.core.op_recorder import OpRecorder


class Inheritance(NamedTuple):
    """What a child is given by the recording of its parent."""

    options: RecordOptions
    name: str
    """What it is called in the trace, unless it has a name from elsewhere."""
    module_names: ModuleNames
    engine: Engine
    extend: Extend | None


class Recording(Protocol):
    """The session of a process."""

    def stream_here(self) -> OpRecorder | None:
        """Who takes the ops of the calling thread."""


Start = Callable[[Inheritance, str, str | None], "Recording"]
"""Begins to record, under the name if one is given, with the token of the birth record."""


class ForkedChild:
    """A child of which nothing is recorded yet. Handed every op of its only thread, it begins with the first."""

    def __init__(self, given: Inheritance, start: Start) -> None:
        self.given = given
        self._start = start
        self._token = ""
        self.begun = False

    def wait(self) -> None:
        """Leave the birth record; begin when there is something to record."""
        options = self.given.options
        if _on_the_way_to_exec():
            self.forget()
            return
        birth = {"parent": os.getppid(), "forked": True, "argv": masked_arguments(sys.argv)}
        try:
            self._token = write_start(options.trace, birth)
        except OSError:  # the trace is gone: nothing can be recorded
            self.forget()
            return
        if options.level == "op" and options.first_step == 0:
            self.given.engine.enter(self)
        elif not _is_forked_by("multiprocessing"):  # in the middle of an optimizer's step would be too late
            self.begin(self.given.name)

    def begin(self, name: str | None) -> Recording | None:
        """Record from now on; None where that cannot be, which is noted, or where it has begun before.

        ``name``: None asks for the one that multiprocessing has given.
        """
        if self.begun or not self._token:
            return None
        self.begun = True
        try:
            with unasked():
                return self._start(self.given, self._token, name)
        except Exception as error:
            self.given.engine.silence()
            note_failure(self.given.options.trace, self._token, f"{type(error).__name__}: {error}")
            return None

    def forget(self) -> None:
        """Begin no more."""
        self.begun = True
        self.given.engine.leave()

    def observe(self, by: Any, func: OpOverload, types: Any, args: tuple[Any, ...], kwargs: Any = None, /) -> Any:
        session = self.begin(self.given.name)
        stream = session.stream_here() if session is not None else None
        if stream is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        return observer_of(stream).observe(by, func, types, args, kwargs)


class Forks:
    """The forks of this process: which are its own, and what a child is to begin with."""

    def __init__(self) -> None:
        self.number = 0
        """Children that the program has forked by itself, not through a library that names them."""
        self.child: ForkedChild | None = None
        """What waits in this process, which is a child, for its first op."""

    def before(self) -> None:
        """In the parent, before any fork: what its child is called must not hang on whether others are forked."""
        if _is_forked_by("subprocess"):
            return
        chunk_codec.load()  # else every child would import it
        if not _is_forked_by("multiprocessing"):
            self.number += 1

    def in_child(self, given: Inheritance | None, start: Start) -> None:
        """In a child: wait for its first op, with what its parent's recording gave it, or the parent waited with."""
        waiting, self.child = self.child, None
        if given is None and waiting is not None and not waiting.begun:
            given = waiting.given._replace(name=fork_name(waiting.given.name, self.number))
        self.number = 0
        if given is not None:
            self.child = ForkedChild(given, start)
            self.child.wait()

    def worker_begins(self) -> None:
        """In a worker of multiprocessing, when it knows what it is called."""
        child = self.child
        if child is not None:
            child.begin(None)

    def forget(self) -> None:
        """Whatever waits in this process begins no more."""
        child, self.child = self.child, None
        if child is not None and not child.begun:
            child.forget()


forks = Forks()


def _is_forked_by(*libraries: str) -> bool:
    """Whether the function that forks belongs to one of these modules of the standard library."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") in (__name__, "rltrace.recorder.session.session"):
        frame = frame.f_back
    name = frame.f_globals.get("__name__", "") if frame is not None else ""
    return name.partition(".")[0] in libraries


def _on_the_way_to_exec() -> bool:
    """Whether ``subprocess`` forked this child to run another program, as it does where there is a preexec_fn."""
    return _is_forked_by("subprocess")


multiprocessing.util.register_after_fork(forks, Forks.worker_begins)
