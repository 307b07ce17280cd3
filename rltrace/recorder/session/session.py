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
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import torch

from rltrace import fingerprint
from rltrace.digest import ALGORITHM
from rltrace.masking import home_as_tilde, masked_arguments
from rltrace.portable_keys import portable_key
from rltrace.recorder.base.dispatch_mode import DispatchEngine, Engine
from rltrace.recorder.base.isolation import EagerStance, compiler_kept_out
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.base.process_names import Children, fork_name, is_worker, process_name
from rltrace.recorder.base.stack_room import need_room
from rltrace.recorder.base.torch_function import unasked
from rltrace.recorder.capture.captures import RecordingExtension, make_captures
from rltrace.recorder.core.events import EventForm
from rltrace.recorder.core.modules import ModuleCalls, ModuleNames
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.process_state import FULL_STACK, ProcessState
from rltrace.recorder.core.row_buffer import phase_bits
from rltrace.recorder.digests.backend import facts as device_facts
from rltrace.recorder.integrations.install import Integrations
from rltrace.recorder.processes import exits
from rltrace.recorder.processes.exits import TERMINATION_SECONDS, Answering, Endings, Terminations
from rltrace.recorder.processes.forks import Inheritance, forks
from rltrace.recorder.session import window
from rltrace.recorder.session.grad_scalers import Scalers
from rltrace.recorder.session.optimizer_steps import Attempt, OptimizerState, StepCounter
from rltrace.recorder.session.torch_patches import TorchPatches
from rltrace.recorder.streams.committer import Committer
from rltrace.recorder.streams.series import SeriesSampler
from rltrace.recorder.streams.threads import Streams, running_before
from rltrace.trace.format.process_start import note_failure
from rltrace.trace.format.rows import StepRecord
from rltrace.trace.format.schema import Phase
from rltrace.trace.write.writer import ProcessWriter

if TYPE_CHECKING:
    from rltrace.recorder.profiler.cycles import Cycles


# --- parts ------------------------------------------------------------------------------------------------------------
#
# What the sides of a session share: the parts that it is put together from, and what it says when one fails.
#
# Owns their names and types alone; ``session.py`` makes them.


class SessionParts:
    """Those of one process."""

    options: RecordOptions
    _writer: ProcessWriter
    _process: ProcessState
    _committer: Committer
    _streams: Streams
    _instruments: TorchPatches
    _modules: ModuleCalls
    _steps: StepCounter
    _boundaries: Integrations
    _series: SeriesSampler
    _scalers: Scalers
    _cycles: Cycles | None
    """The profiler that looks at what is launched; None: nobody asked for it."""
    _recording: bool
    """Whether ops are rows now."""
    _stopped: bool
    """The program is being ended because that was asked for."""

    @property
    def _over(self) -> bool:
        """Whether nothing is recorded any more: it has ended, or failed."""
        raise NotImplementedError

    def fail(self, error: Exception) -> None:
        """An error of the recorder's own."""
        raise NotImplementedError

    def _write_facts(self) -> None:
        """What can only be asked once the program has run ops of its own."""
        raise NotImplementedError

    def stream_here(self) -> OpRecorder | None:
        """The stream of the calling thread, where its ops are rows."""
        return self._streams.here() if self._recording else None


# --- stepping ---------------------------------------------------------------------------------------------------------
#
# A session's steps: what is written as each optimizer's attempt ends, and the windows that open and close there.
#
# Owns when ops begin to be rows and when they cease to be, when the profiler of kernels is on, and the end of the
# program at ``--until``.


class SessionSteps(SessionParts):
    """That side of a session."""

    # --- rows on and off ----------------------------------------------------------------------------------------------

    def _begin_rows(self) -> None:
        self._recording = True
        self._instruments.watch()
        main = self._streams.main
        self._writer.window(main.number, self._process.step, self.options.end_step, main.row)
        self._streams.enter()
        if self._process.step > 0:
            states = self._steps.generator_states()
            window.write_state(main, self._steps.optimizers(), self._modules.roots(), states)
        self._move_profiler(self._process.step)

    def _end_rows(self, end_step: int | None) -> None:
        if self._cycles is not None:
            self._cycles.ignore()
        self._recording = False
        self._streams.leave()
        self._instruments.ignore()
        self._process.storages.clear()

    # --- steps --------------------------------------------------------------------------------------------------------

    def before_attempt(self, caller: FrameType) -> None:
        stream = self._streams.here()
        if stream is not None:
            stream.phase = phase_bits(Phase.OPTIMIZER)
            stream.begin_attempt(caller)

    def after_attempt(self, attempt: Attempt) -> None:
        if self._over:
            return
        ended = self._process.step
        try:
            with unasked():
                self._end_step(attempt)
        except Exception as error:
            self.fail(error)
        if self.options.until is not None and ended == self.options.until:
            self.stop_program()

    def stop_program(self) -> None:
        """End the program as Ctrl-C would; the trace says that it was asked for."""
        self._stopped = True
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a script put into the background
            if threading.current_thread() is not threading.main_thread():
                raise KeyboardInterrupt
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    def _end_step(self, attempt: Attempt) -> None:
        process, own = self._process, self._streams.here()
        if own is not None:
            own.phase = phase_bits(process.phase)  # other, unless the program says what it is doing
            own.end_attempt()
        stream = own or self._streams.main
        ended = process.step
        self._committer.add_step(
            StepRecord(
                step=ended,
                stream=stream.number,
                optimizer=self._optimizer_id(attempt.optimizer),
                count=attempt.count,
                skipped=attempt.skipped,
                backwards=attempt.backwards,
                environment_steps=self._boundaries.environment_steps,
                end_row=stream.row,
                recorded=self._recording,
                parameters=attempt.parameters,
                gradients=attempt.gradients,
                generators=attempt.generators,
            )
        )
        self._series.rates(attempt.optimizer.ordinal, attempt.groups, ended)
        process.step = ended + 1
        process.attempt = attempt.optimizer.ordinal, attempt.count
        process.storages.step_ends()
        if ended == 0:
            self._write_facts()
        self._streams.step_began(ended + 1)
        self._move_window(ended + 1)

    def after_scaler(self, scaler: Any, optimizer: Any, attempt: Attempt) -> None:
        if self._over:
            return
        try:
            self._scalers.attempted(
                scaler, optimizer, attempt.optimizer.ordinal, self._process.step - 1, attempt.skipped
            )
        except Exception as error:
            self.fail(error)

    def _optimizer_id(self, optimizer: OptimizerState) -> int:
        identity = {"ordinal": optimizer.ordinal, "class": optimizer.name}
        payload = {**identity, "owner": optimizer.owner}
        return self._process.tables.intern("optimizers", portable_key("optimizers", identity), payload)

    def owner_of(self, parameters: Iterable[torch.Tensor]) -> str:
        return self._modules.owner_of(parameters)

    def _move_window(self, step: int) -> None:
        options = self.options
        if options.level != "op":
            return
        if not self._recording and options.first_step <= step and (options.end_step is None or step < options.end_step):
            self._begin_rows()
        elif self._recording and options.end_step is not None and step >= options.end_step:
            self._end_rows(step)
        elif self._recording:
            self._move_profiler(step)

    def _move_profiler(self, step: int) -> None:
        """Between two steps: the profiler begins, ends, or goes on in another cycle."""
        cycles, asked = self._cycles, self.options.kernels
        if cycles is None or asked is None:
            return
        first, end = asked
        if first <= step and (end is None or step < end):
            cycles.watch()
        else:
            cycles.ignore()


# --- telling ----------------------------------------------------------------------------------------------------------
#
# What a session is told of beside ops: events, numbers of series, phases, the beginning and end of backward passes.
#
# Owns what becomes of each; who tells of it knows nothing of streams.


class SessionEvents(SessionParts):
    """That side of a session."""

    def takes_events(self) -> bool:
        """Whether ``event`` would write a row now, in the calling thread."""
        return self._recording and self._streams.between_ops() is not None

    def event(
        self,
        form: EventForm,
        *,
        evidence: Sequence[int] = (),
        digests: Sequence[int] = (),
        integers: Sequence[int] = (),
        floats: Sequence[float] = (),
        frame: FrameType | None = None,
    ) -> bool:
        """Write a row that is no op into the calling thread's stream (``events.py``), a cell for each name of the form.

        ``evidence``: its counts, then its digests that are evidence.

        ``frame``: where it is to say that it happened; the caller's own where not given (frames of rltrace are never
        shown). Returns False where nothing can be written: ops are not rows now (``--level step``, outside of the
        window), the thread is not recorded, or it is in the middle of an op. Never raises an error of its own.
        """
        try:
            stream = self._streams.between_ops() if self._recording else None
            if stream is None:
                return False
            stream.write_event(form, evidence, digests, integers, floats, frame or sys._getframe(1))
        except Exception as error:
            self.fail(error)
            return False
        return True

    def environment_passed(self, environment: str, frame: FrameType) -> bool:
        """An environment was stepped or reset by the calling thread, in ``frame``; whether an evaluation did that."""
        stream = self._streams.here() if self._recording else None
        if self._cycles is not None:
            self._cycles.between_ops()
        return self._process.phases.environment_event(stream, environment, frame)

    def count_step(self) -> None:
        """``rltrace.step()``: a step that no torch optimizer marks."""
        self._steps.count_manual()

    def watch(self, name: str, value: object) -> None:
        """``rltrace.watch(name, value)``: one more number of a series."""
        try:
            self._series.watch(name, value)
        except Exception as error:
            self.fail(error)

    @contextlib.contextmanager
    def in_phase(self, phase: Phase) -> Iterator[None]:
        """``with rltrace.phase("rollout")``."""
        process = self._process
        said = process.phase
        self._streams.set_phase(phase)
        process.phases.said += 1
        try:
            yield
        finally:
            process.phases.said -= 1
            self._streams.set_phase(said)

    def backward_begins(self, frame: FrameType) -> bool:
        """Every op of a backward pass has the stack of the call that started it."""
        stream = self._streams.here() if self._recording else None
        if self._cycles is not None:
            self._cycles.between_ops()
        self._process.phases.backward_begins(stream)
        self._boundaries.backward_begins()
        if stream is None:
            return False
        stream.modules.begin_backward(frame)
        return True

    def backward_ended(self) -> None:
        stream = self._streams.here()
        if stream is not None:
            stream.modules.leave()


# --- session ----------------------------------------------------------------------------------------------------------


MOST_MISSING: Final = 20
"""Entries of one fact that says what is missing."""


class Session(SessionSteps, SessionEvents):
    """One process being recorded."""

    def __init__(
        self,
        options: RecordOptions,
        token: str,
        name: str | None = None,
        companion: Callable[[str], RecordingExtension | None] | None = None,
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
        self._captures = make_captures(options, self._process)
        if self._companion is not None:
            self._captures = self._companion.join(self._captures, self._process)
        self._committer = Committer(self._process, self._writer, self.fail, self._captures)
        hooks = self._captures.hooks
        self._streams = Streams(self._process, self._committer, self._writer.name, DispatchEngine, hooks)
        if engine is not None:
            self._streams.adopt(engine)
        closely = self._captures.activations is not None
        self._instruments = TorchPatches(self._process, self._streams.modules_here, self.fail, closely=closely)
        self._modules = self._instruments.modules
        self._compiler = compiler_kept_out(self.fail)
        self._stance = EagerStance(self.fail) if options.compile else None
        self._endings = Endings(self.finish, self._exec)
        self._children = Children(options.trace, token)
        self._terminations = Terminations(options.trace)
        self._answering = Answering(options.trace, self._terminated)
        self._steps = StepCounter(self._process.digests, self)
        self._boundaries = Integrations(self, self._process.digests)
        self._series = SeriesSampler(self._process.tables, self._streams.place_here, self._committer.hurry)
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
        from rltrace.recorder.profiler.cycles import Cycles

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
        if self._captures.values is not None:
            self._writer.request_values(self._captures.values.asked)
        if self._captures.activations is not None:
            self._writer.request_activations(self._captures.activations.asked)
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
        exits.stay_interrupted()

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
            self._cycles.pause("another program was about to replace the process")
        self._end_for_now(None if program is None else "complete", {"exec": program})

    def _terminated(self) -> None:
        """The parent is about to terminate this process, which may be about to end by itself."""
        if self._finished:
            self._closed.wait(TERMINATION_SECONDS)
        self._end_for_now("stopped", {"why": "its parent terminated it"})

    def _end_for_now(self, state: str | None, ending: Mapping[str, object]) -> None:
        """Commit what there is, and say how the process ends unless more follows; None: it does not."""
        if self._over:
            return
        try:
            self._committer.flush()
            self._writer.say({"type": "provisional_end", "state": state, "exit": dict(ending)})
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
        self._captures.stop()
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
        self._captures.stop()
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


def start(
    options: RecordOptions, token: str, companion: Callable[[str], RecordingExtension | None] | None = None
) -> Session:
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
