"""The recording of one process, from its first op to its end.

Owns the life of everything in this room: it puts the parts together, hands over to a forked child's own session, and
closes the trace. What happens at steps is ``stepping.py``'s, what else it is told of ``telling.py``'s. One session per
process, held by ``current``.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from rltrace import fingerprint
from rltrace.digest import ALGORITHM
from rltrace.privacy import home_as_tilde, masked_arguments
from rltrace.record import window
from rltrace.record.boundaries.watch import Boundaries
from rltrace.record.commit import Committer
from rltrace.record.compiler.kept_out import compiler_kept_out
from rltrace.record.compiler.stance import EagerStance
from rltrace.record.device.choice import facts as device_facts
from rltrace.record.dispatch import DispatchEngine
from rltrace.record.engine import Companion, Engine
from rltrace.record.instruments import Instruments
from rltrace.record.keepers import make_keepers
from rltrace.record.modules import ModuleNames
from rltrace.record.options import RecordOptions
from rltrace.record.process import FULL_STACK, ProcessState
from rltrace.record.processes import endings
from rltrace.record.processes.children import Children
from rltrace.record.processes.endings import Endings
from rltrace.record.processes.forks import Inheritance, forks
from rltrace.record.processes.process_names import fork_name, is_worker, process_name
from rltrace.record.processes.terminations import SECONDS, Answering, Terminations
from rltrace.record.room import need_room
from rltrace.record.scalers import Scalers
from rltrace.record.series import Series
from rltrace.record.stepping import Stepping
from rltrace.record.steps import StepCounter
from rltrace.record.streams import Streams
from rltrace.record.telling import Telling
from rltrace.record.thread_names import running_before
from rltrace.trace.births import note_failure
from rltrace.trace.writer import ProcessWriter

if TYPE_CHECKING:
    from rltrace.record.kernels.cycles import Cycles


MOST_MISSING: Final = 20
"""Entries of one fact that says what is missing."""


class Session(Stepping, Telling):
    """One process being recorded."""

    def __init__(
        self,
        options: RecordOptions,
        token: str,
        name: str | None = None,
        companion: Callable[[str], Companion | None] | None = None,
        engine: Engine | None = None,
    ) -> None:
        """``companion`` makes what goes along with the recording, given the name that the process got.

        ``engine``: of the calling thread, where there is one already.
        """
        self.options = options
        self._make_companion = companion
        self._pid = os.getpid()
        self._failure: str | None = None
        self._stopped = False
        self._finished = False
        self._closed = threading.Event()
        self._trace, self._token = Path(options.trace), token
        self._writer = ProcessWriter.open(self._trace, _birth(token, name or process_name(options.trace)))
        self._process = ProcessState(self.fail, verify_inputs=options.verify_inputs)
        self._process.missing = self._note_missing
        self._companion = companion and companion(self._writer.name)
        self._keepers = make_keepers(options, self._process)
        if self._companion is not None:
            self._keepers = self._companion.joined(self._keepers)
        self._committer = Committer(self._process, self._writer, self.fail, self._keepers)
        make_stream = self._keepers.make_stream
        self._streams = Streams(self._process, self._committer, self._writer.name, DispatchEngine, make_stream)
        if engine is not None:
            self._streams.adopt(engine)
        closely = self._keepers.rows is not None
        self._instruments = Instruments(self._process, self._streams.modules_here, self.fail, closely=closely)
        self._modules = self._instruments.modules
        self._compiler = compiler_kept_out(self.fail)
        self._stance = EagerStance(self.fail) if options.compile else None
        self._endings = Endings(self.finish, self._exec)
        self._children = Children(options.trace, token)
        self._terminations = Terminations(options.trace)
        self._answering = Answering(options.trace, self._terminated)
        self._steps = StepCounter(self._process.digests, self)
        self._boundaries = Boundaries(self, self._process.digests)
        self._series = Series(self._process.tables, self._streams.place_here, self._committer.hurry)
        self._committer.series = self._series
        self._scalers = Scalers(self._series, self.fail)
        self._recording = False
        self._cycles = self._make_cycles()
        self._facts: Mapping[str, fingerprint.Fact] = {}
        self._missing: dict[str, list[str]] = {}
        """By fact: what is not in the trace."""

    def _make_cycles(self) -> Cycles | None:
        """The profiler that looks at what is launched; None: nobody asked for it."""
        if self.options.kernels is None:
            return None
        from rltrace.record.kernels.cycles import Cycles

        return Cycles(self._process, self._streams, self._committer)

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin: everything is installed when this returns."""
        self._compiler.watch()
        if self._stance is not None:
            self._stance.begin()
        engine = self._engine_name()
        self._facts = {"digest": ALGORITHM, **running_before(), **fingerprint.start()}
        self._writer.facts(self.options.level, engine, self._facts)
        if self._keepers.values is not None:
            self._writer.keeps(self._keepers.values.asked)
        if self._keepers.rows is not None:
            self._writer.keeps_rows(self._keepers.rows.asked)
        self._streams.open_main()
        self._committer.start()
        self._steps.install()
        self._boundaries.watch()
        self._scalers.install()
        if self.options.level == "op" and self.options.first_step == 0 and self.options.end_step != 0:
            self._begin_rows()
        self._endings.watch()
        self._children.watch()
        self._terminations.watch()
        if is_worker():
            self._answering.begin()
        atexit.register(self._at_exit)

    def _at_exit(self) -> None:
        self.finish()
        self._terminations.watch()  # multiprocessing ends its daemons after this
        endings.stay_interrupted()

    def finish(self) -> None:
        """End: put everything back, commit what is left, say how it ended. Safe to call twice."""
        if self._finished or self._pid != os.getpid():
            return
        self._finished = True
        current.session = None
        atexit.unregister(self._at_exit)
        if self._recording:
            self._end_rows(None)
        self._uninstall()
        try:
            self._close()
        finally:
            self._closed.set()
            self._answering.end()

    def _close(self) -> None:
        if self._failure is not None:
            self._committer.end_thread()
            return
        try:
            self._committer.stop()
            self._write_facts()
            for record in self._companion.records() if self._companion is not None else ():
                self._writer.say(record)
            steps = self._steps
            with contextlib.suppress(Exception):  # released, or moved to where they cannot be read
                self._writer.say(window.last_state(self._process.digests, steps.optimizers(), self._modules.roots()))
            state = "stopped" if self._stopped else "complete"
            self._writer.close(state, _ending(), steps.generator_states(), steps.last_parameters())
        except Exception as error:
            self.fail(error)

    def _exec(self, program: str | None) -> None:
        """Another program is about to take this process over; None: it could not."""
        if self._cycles is not None and program is not None:
            self._cycles.pause("another program was about to take the process over")
        self._end_for_now(None if program is None else "complete", {"exec": program})

    def _terminated(self) -> None:
        """The parent is about to terminate this process, which may be about to end by itself."""
        if self._finished:
            self._closed.wait(SECONDS)
        self._end_for_now("stopped", {"why": "its parent terminated it"})

    def _end_for_now(self, state: str | None, ending: Mapping[str, object]) -> None:
        """Commit what there is, and say how the process ends unless more follows; None: it does not."""
        if self._over:
            return
        try:
            self._committer.flush()
            self._writer.say({"type": "last", "state": state, "exit": dict(ending)})
        except Exception as error:
            self.fail(error)

    def _write_facts(self) -> None:
        """What can only be asked once the program has run ops of its own: asking earlier would settle it."""
        self._facts = {"digest": ALGORITHM, **fingerprint.facts(self._facts), **device_facts()}
        self._writer.facts(self.options.level, self._engine_name(), self._facts)

    def _note_missing(self, fact: str, what: str) -> None:
        """Said at once, from whichever thread: a program that is killed is to have said it."""
        known = self._missing.setdefault(fact, [])
        if self._over or what in known or len(known) >= MOST_MISSING:
            return
        try:
            known.append(what)
            self._writer.facts(self.options.level, self._engine_name(), {fact: ", ".join(known)})
        except Exception as error:
            self.fail(error)

    @property
    def _over(self) -> bool:
        return self._finished or self._failure is not None

    @property
    def failure(self) -> str | None:
        """Why the recorder broke off; None while it did not."""
        return self._failure

    def _engine_name(self) -> str:
        return DispatchEngine.name if self.options.level == "op" else "none"

    def _uninstall(self, *, but_subclasses: bool = False) -> None:
        self._streams.close()
        self._scalers.remove()
        self._steps.remove()
        if self._stance is not None:
            self._stance.end()
        self._compiler.ignore()
        self._boundaries.ignore()
        self._instruments.remove(but_subclasses=but_subclasses)
        self._endings.ignore()
        self._children.ignore()
        self._terminations.ignore()

    def fail(self, error: Exception) -> None:
        """An error of the recorder's own: recording ends here, the program goes on as if it had never been.

        It goes on where all there is to say is that the stack of a thread of the program's is full.
        """
        if self._failure is not None:
            return
        try:
            need_room(error)
        except RecursionError:
            _thread.start_new_thread(self._note_missing, (FULL_STACK, f"after step {self._process.step}"))
            return
        self._failure = f"{type(error).__name__}: {error}"
        if os.environ.get("RLTRACE_DEBUG"):
            import traceback

            traceback.print_exception(error)
        self._streams.silence()
        self._series.stop()
        self._keepers.stop()
        self._committer.give_up()
        why = f"the recorder failed: {self._failure}"
        with contextlib.suppress(Exception):
            self._writer.close("damaged", {"why": why})
        if not self._writer.ended and self._pid == os.getpid():  # the journal takes no more
            note_failure(self._trace, self._token, why)

    def forked(self, number: int) -> Inheritance | None:
        """In a forked child, its parent's ``number``th: nothing here is its own; what it may begin with.

        None where nothing of the parent was recorded any more. Takes no lock: a thread that holds it may not be here.
        """
        if self._finished:
            return None
        self._finished = True
        atexit.unregister(self._at_exit)
        engine = self._streams.engine_here() or DispatchEngine()
        if self._cycles is not None:
            self._cycles.abandon()
        self._keepers.stop()
        self._uninstall(but_subclasses=True)  # they are in the way of a mode that only waits, too
        self._answering.end()
        name = fork_name(self._writer.name, number)
        names = self._process.module_names
        return None if self._failure else Inheritance(self.options, name, names, engine, self._make_companion)

    def before_fork(self) -> None:
        """The process is about to fork: a child has no use for what the profiler has begun."""
        if self._cycles is not None:
            self._cycles.pause("the process was being forked")

    def inherit(self, module_names: ModuleNames) -> None:
        """Know the modules that the parent of this process has made."""
        self._process.module_names.inherit(module_names)


def _birth(token: str, name: str) -> dict[str, object]:
    return {
        "name": name,
        "token": token,
        "pid": os.getpid(),
        "parent": os.getppid(),
        "argv": masked_arguments(sys.argv),
        "executable": home_as_tilde(sys.executable),
        "torch": torch.__version__,
    }


def _ending() -> dict[str, object]:
    """What a process knows of its own end: the exception that nobody caught, if there was one."""
    error: Any = getattr(sys, "last_value", None)
    return {"exception": type(error).__name__} if error is not None else {}


class _Current:
    """The session of this process."""

    session: Session | None = None


current = _Current()


def start(options: RecordOptions, token: str, companion: Callable[[str], Companion | None] | None = None) -> Session:
    """Start to record this process; called once, by the bootstrap, when torch has been imported."""
    forks.forget()
    if threading.current_thread() is not threading.main_thread():
        name = f"{process_name(options.trace)}/thread:{threading.current_thread().name}"
    else:
        name = None
    session = Session(options, token, name, companion)
    session.start()
    current.session = session
    return session


def end() -> None:
    """End the recording of this process, or see to it that none begins."""
    forks.forget()
    if current.session is not None:
        current.session.finish()


def _start_forked(given: Inheritance, token: str, name: str | None) -> Session:
    session = Session(given.options, token, name, given.companion, given.engine)
    session.inherit(given.module_names)
    session.start()
    current.session = session
    return session


def _before_fork() -> None:
    if current.session is not None:
        current.session.before_fork()
    if current.session is not None or forks.child is not None:
        forks.before()


def _after_fork() -> None:
    session, current.session = current.session, None
    forks.in_child(None if session is None else session.forked(forks.number), _start_forked)


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)  # once: it cannot be taken back
