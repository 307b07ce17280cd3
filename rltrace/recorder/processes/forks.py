"""Forked children: each is recorded as a separate process of the trace.

Owns a child between its fork and the start of its recording. Nothing of the parent's recording is reused: its threads
do not exist here, one of them may hold its locks forever, its files are the parent's. Most forked children never
compute (a daemon, an ``exec``), so recording begins with the first op; workers of multiprocessing have a name and a
task, and begin at once.
"""

from __future__ import annotations

import multiprocessing.util
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from torch._ops import OpOverload

from rltrace.masking import masked_arguments
from rltrace.recorder.base.process_names import fork_name, is_left_out
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.capture.captures import Attach
from rltrace.recorder.digests.rng_state import first_states
from rltrace.recorder.processes.exits import CommitServer
from rltrace.recorder.streams.threads import observer_of
from rltrace.trace.format import chunk_codec
from rltrace.trace.format.process_start import note_failure, write_start

if TYPE_CHECKING:
    from rltrace.recorder.base.dispatch_mode import Engine
    from rltrace.recorder.base.options import RecordOptions
    from rltrace.recorder.core.modules import ModuleNames
    from rltrace.recorder.core.op_recorder import OpRecorder


class Inheritance(NamedTuple):
    """What a child takes over from the recording of its parent."""

    options: RecordOptions
    name: str
    """Name of the child in the trace, unless multiprocessing has named it."""
    module_names: ModuleNames
    engine: Engine
    attach: Attach | None


Start = Callable[[Inheritance, str, str | None, CommitServer], "OpRecorder | None"]
"""Starts to record, with the token of the start record, the name if there is one, and the server of a worker. Returns
the stream of the calling thread."""


class ForkedChild:
    """A child that is not recorded yet: observes the ops of its only thread, and starts with the first."""

    def __init__(self, inheritance: Inheritance, start: Start) -> None:
        self.inheritance = inheritance
        self._start = start
        self.commit_server = CommitServer(inheritance.options.trace)
        self._token = ""
        self.begun = False

    def wait(self) -> None:
        """Write the start record; begin at the first op."""
        options = self.inheritance.options
        if _is_forked_by("subprocess"):  # to run another program, as where there is a preexec_fn
            self.forget()
            return
        if _is_forked_by("multiprocessing"):
            self.commit_server.listen()
        start_record = {"parent": os.getppid(), "forked": True, "argv": masked_arguments(sys.argv)}
        try:
            self._token = write_start(options.trace, start_record)
        except OSError:  # the trace is gone: nothing can be recorded
            self.forget()
            return
        if options.level == "op" and options.first_step == 0 and not options.asleep:
            self.inheritance.engine.enter(self)
        elif not _is_forked_by("multiprocessing"):  # it could otherwise begin inside an optimizer step
            self.begin(self.inheritance.name)

    def begin(self, name: str | None) -> OpRecorder | None:
        """Record from now on, in the stream that is returned; None where that failed, which is noted, or where it has
        begun before.

        ``name``: None: the one of multiprocessing.
        """
        if self.begun or not self._token:
            return None
        self.begun = True
        try:
            if is_left_out(self.inheritance.options, self._token, name):
                self.forget()
                return None
            with torch_function_disabled():
                return self._start(self.inheritance, self._token, name, self.commit_server)
        except Exception as error:
            self.commit_server.end()
            self.inheritance.engine.silence()
            note_failure(self.inheritance.options.trace, self._token, f"{type(error).__name__}: {error}")
            return None

    def forget(self) -> None:
        """Never begin."""
        self.begun = True
        self.commit_server.end()
        self.inheritance.engine.leave()

    def observe(self, by: Any, func: OpOverload, types: Any, args: tuple[Any, ...], kwargs: Any = None, /) -> Any:
        stream = self.begin(self.inheritance.name)
        if stream is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        return observer_of(stream).observe(by, func, types, args, kwargs)


class Forks:
    """The forks of this process, and the child that waits in it."""

    def __init__(self) -> None:
        self.number = 0
        """Children that the program itself has forked, not a library that names them."""
        self.child: ForkedChild | None = None
        """This process where it is a child that waits for its first op."""

    def before(self) -> None:
        """In the parent, before any fork: a child's name must not depend on which other forks are recorded."""
        if _is_forked_by("subprocess"):
            return
        chunk_codec.load()  # else every child would import it
        if not _is_forked_by("multiprocessing"):
            self.number += 1

    def in_child(self, inheritance: Inheritance | None, start: Start) -> None:
        """In a child: wait for its first op, with the inheritance of its parent, or the one the parent waited with."""
        waiting, self.child = self.child, None
        if inheritance is None and waiting is not None and not waiting.begun:
            inheritance = waiting.inheritance._replace(name=fork_name(waiting.inheritance.name, self.number))
            waiting.commit_server.end()
        self.number = 0
        if inheritance is not None:
            first_states().forked()
            self.child = ForkedChild(inheritance, start)
            self.child.wait()

    def worker_begins(self) -> None:
        """In a worker of multiprocessing, once it has its name."""
        child = self.child
        if child is not None:
            child.begin(None)

    def forget(self) -> None:
        """The child that waits in this process never begins."""
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


multiprocessing.util.register_after_fork(forks, Forks.worker_begins)
