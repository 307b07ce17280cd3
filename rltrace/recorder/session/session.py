"""The recording of one process, from its first op to its end.

Owns the life of everything in this package: composes it, hands over to a forked child's own session, and closes the
trace. One session per process, held by ``current``.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from functools import partial
from pathlib import Path
from time import monotonic
from types import CodeType, MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import torch

from rltrace import fingerprint
from rltrace.digest import ALGORITHM
from rltrace.masking import home_as_tilde, masked_arguments
from rltrace.recorder.base.background_thread import are_all_others
from rltrace.recorder.base.dispatch_mode import DispatchEngine, Engine
from rltrace.recorder.base.isolation import EagerStance, compiler_exclusion
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.base.process_names import Children, fork_name, is_worker, process_name, recorded_name
from rltrace.recorder.base.stack_space import check_stack_space
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.capture.captures import Captures, Extend, PastAttempts, make_captures, remember_names
from rltrace.recorder.core.modules import ModuleNames
from rltrace.recorder.core.native_engine import NativeEngine, NativeRecorder
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.process_state import FULL_STACK, ProcessState
from rltrace.recorder.digests.backend import facts as device_facts
from rltrace.recorder.integrations.install import Integrations
from rltrace.recorder.processes import exits
from rltrace.recorder.processes.exits import EXIT_SECONDS, TERMINATION_SECONDS, CommitServer, Endings, Terminations
from rltrace.recorder.processes.forks import Inheritance, forks
from rltrace.recorder.session import window
from rltrace.recorder.session.arming import ArmedWindow, Arming, EndLook, Wakening, WarmUp
from rltrace.recorder.session.engine_choice import choice_facts, choose_library, handed_facts
from rltrace.recorder.session.event_writer import EventWriter
from rltrace.recorder.session.grad_scalers import Scalers
from rltrace.recorder.session.item_reads import ItemReads
from rltrace.recorder.session.optimizer_steps import StepCounter, StepWriter
from rltrace.recorder.session.torch_patches import TorchPatches
from rltrace.recorder.session.window import OpWindow
from rltrace.recorder.streams.committer import Committer
from rltrace.recorder.streams.series import SeriesSampler
from rltrace.recorder.streams.threads import Streams, running_before
from rltrace.trace.format.process_start import note_failure
from rltrace.trace.write.writer import ProcessWriter

if TYPE_CHECKING:
    from rltrace.recorder.capture.shards import ShardCapture
    from rltrace.recorder.profiler.cycles import Cycles


MAX_MISSING: Final = 20
"""Entries of one fact that says what is missing."""


class Session:
    """The recording of one process: what it is composed of, and its life."""

    def __init__(
        self,
        options: RecordOptions,
        token: str,
        name: str | None = None,
        extend: Extend | None = None,
        engine: Engine | None = None,
        commit_server: CommitServer | None = None,
    ) -> None:
        """``engine`` of the calling thread, ``commit_server`` of a worker: where there is one already."""
        self.options = options
        loaded = choose_library(options, extended=extend is not None)
        self._library, self._engine_facts = loaded.module, choice_facts(options, loaded)
        self._commit_server = commit_server or CommitServer(options.trace)
        if is_worker():
            self._commit_server.listen()
        self._extend = extend
        self._pid = os.getpid()
        self._end_look = EndLook(options.trace) if options.against and options.stop else None
        self._arming: Wakening | None = None
        if options.asleep:
            self._arming = WarmUp(options) if options.rerun else Arming(options.trace, token)
        self._armed: ArmedWindow | None = None
        """The steps that the process is awake for."""
        self._turning = _thread.allocate_lock()
        self._level = "step" if options.asleep else options.level
        """Of what was recorded so far."""
        self._failure: str | None = None
        self._stopped = ""
        self._finished = False
        self._closed = threading.Event()
        self._trace, self._token = Path(options.trace), token
        self._writer = ProcessWriter.open(
            self._trace, _start_record(token, name or recorded_name(options.trace, "torch"))
        )
        self._process = ProcessState(self.fail, verify_inputs=options.verify_inputs, library=self._library)
        self._process.report_missing = self.note_missing
        self._extension = extend and extend(self._writer.name)
        self._captures = self._make_captures(options)
        if options.asleep:
            remember_names(self._process)
        self._committer = Committer(self._process, self._writer, self.fail, self._captures)
        hooks = self._captures.hooks
        native = self._library if options.level == "op" else None
        self._streams = Streams(
            self._process,
            self._committer,
            self._writer.name,
            DispatchEngine if native is None else partial(NativeEngine, native),
            hooks,
            OpRecorder if native is None else partial(NativeRecorder, library=native),
        )
        if engine is not None:
            self._streams.adopt(engine)
        with_calls = self._captures.activations is not None
        self._patches = TorchPatches(
            self._process, self._streams.modules_here, self.fail, with_calls=with_calls, library=native
        )
        self._modules = self._patches.modules
        self._profiler = self._make_profiler()
        self._series = SeriesSampler(self._process.tables, self._streams.position_here, self._committer.request_commit)
        self._committer.series = self._series
        self._committer.on_resume = self._commit_server.resume
        self._scalers = Scalers(self._series, self.fail)
        self._item_reads = ItemReads(self._series, self._process.sites, self.fail)
        self.window = OpWindow(
            options,
            self._process,
            self._writer,
            self._streams,
            self._patches,
            self._profiler,
            self._captures.links,
            self._write_window_state,
        )
        self.events = EventWriter(self._process, self._streams, self.window, self._profiler, self.fail)
        self._integrations = self._make_integrations()
        self._step_writer = StepWriter(
            self._process,
            self._committer,
            self._streams,
            self.window,
            self._integrations,
            self._series,
            self._scalers,
            self._modules,
            self,
        )
        self.steps = StepCounter(self._process.digests, self._step_writer, self._library, self._make_shard_capture())
        self._compiler = compiler_exclusion(self.fail)
        self._stance = EagerStance(self.fail) if options.compile else None
        self._endings = Endings(self.finish, self._exec)
        self._children = Children(options.trace, token)
        self._terminations = Terminations(options.trace)
        self._facts: Mapping[str, fingerprint.Fact] = {}
        self._missing: dict[str, list[str]] = {}
        """By fact: what is missing in the trace."""

    def _make_captures(self, options: RecordOptions) -> Captures:
        captures = make_captures(options, self._process, self._writer.append)
        return captures if self._extension is None else self._extension.join(captures, self._process)

    def _make_integrations(self) -> Integrations:
        return Integrations(self.events, self._process.digests)

    def _make_profiler(self) -> Cycles | None:
        """The profiler of kernel launches; None where no option requests it."""
        if self.options.kernels is None:
            return None
        from rltrace.recorder.profiler.cycles import Cycles

        return Cycles(self._process, self._streams, self._committer)

    def _make_shard_capture(self) -> ShardCapture | None:
        """Records state around optimizer steps; None where no option requests it."""
        steps, values, streams = self.options.state, self._captures.values, self._streams
        if steps is None or values is None:
            return None
        from rltrace.recorder.capture.shards import ShardCapture

        def stream() -> OpRecorder:
            return streams.here() or streams.main

        return ShardCapture(steps, self._process, values, self._modules.roots, stream, self._writer.append)

    def _write_window_state(self) -> None:
        """A row for every tensor that has a history as a window begins."""
        steps, main = self.steps, self._streams.main
        memory, values = self._captures.memory, self._captures.values
        if memory is not None and values is not None:
            memory.expect(window.lasting_tensors(steps.optimizers(), self._modules.roots()), values, main)
        window.write_state(main, steps.optimizers(), self._modules.roots(), steps.generator_states())

    def stream_here(self) -> OpRecorder | None:
        """The stream of the calling thread, where its ops become rows."""
        return self.window.stream_here()

    def op_stream_here(self) -> OpRecorder | None:
        """The stream of the calling thread, whether or not its ops become rows now; None: it has none yet."""
        return self._streams.here()

    def end_stacks_at(self, code: CodeType) -> None:
        """Recorded stacks end at frames of ``code``: its callers are unrelated to the ops above."""
        self._process.sites.bottoms.add(code)

    def watch(self, name: str, value: object) -> None:
        """``rltrace.watch(name, value)``: one more number of a series."""
        if self.is_asleep:
            return
        try:
            self._series.watch(name, value)
        except Exception as error:
            self.fail(error)

    # --- sleep ------------------------------------------------------------------------------------------------------
    #
    # A process that is started asleep counts attempts of optimizers, names modules as they are created, and follows how
    # the process and its children begin and end. No thread runs, and no function is patched that training calls. It
    # wakes at the end of a step, with what ``rltrace arm`` requested.

    @property
    def is_asleep(self) -> bool:
        """Whether nothing is recorded now, as ``rltrace arm`` has not requested this step."""
        return self._arming is not None and self._armed is None

    def _arm(self, arming: Wakening, step: int) -> None:
        """``step`` begins: wake or fall asleep, where it is the first of requested steps, or the first after them."""
        if not self._turning.acquire(blocking=False):
            return  # a step of another thread ends, too
        try:
            due = arming.due(step)
            if due is self._armed:
                return
            with torch_function_disabled():
                if self._armed is not None:
                    self._fall_asleep()
                if due is not None:
                    self._wake(due, step)
            arming.turned(step, is_awake=due is not None)
        finally:
            self._turning.release()

    def _wake(self, armed: ArmedWindow, step: int) -> None:
        self._armed, options = armed, armed.options(self.options)
        self._level = "op" if "op" in (self._level, options.level) else "step"
        if self._extension is not None:
            self._extension.wakes(self)
            step = self._process.step
        self.steps.wake()
        self._write_slept()
        self._captures = self._make_captures(options)
        self._committer.take_from(self._captures)
        self._streams.set_hooks(self._captures.hooks)
        self._streams.step_began(step)
        self._streams.set_phase(self._process.phase)
        self._integrations = self._step_writer.integrations = self._make_integrations()
        self.window.options = options
        self._write_facts(running_before())
        self._begin(options)

    def tensors(self) -> Iterable[tuple[str, str, torch.Tensor]]:
        """Of ``ProgramState``, as the next methods are."""
        return window.named_tensors(self.steps.optimizers(), self._modules.roots())

    def ordinals(self) -> Set[int]:
        return {ordinal for ordinal, _ in self.steps.optimizers()}

    def count_from(self, past: PastAttempts) -> None:
        states = self.steps.count_from(Counter(past.ordinals))
        self._step_writer.sleep_through(past, states)

    def _fall_asleep(self) -> None:
        self._armed = None
        self.window.close()
        self.steps.fall_asleep()
        self._scalers.remove()
        self._item_reads.remove()
        self._integrations.uninstall()
        self._streams.close()
        self._captures.stop()
        self._committer.stop()

    def _write_slept(self) -> None:
        """Write the steps since the process fell asleep."""
        steps = self._step_writer.take_slept()
        if len(steps):
            self._writer.steps_asleep(steps, self._process.tables.take())

    # --- start and end ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Install everything, and begin to record; where that fails, the recording has failed and nothing is left."""
        try:
            self._install()
        except Exception as error:
            self.fail(error)
            self.finish()

    def _install(self) -> None:
        self._compiler.install()
        if self._stance is not None:
            self._stance.begin()
        self._facts = {"digest": ALGORITHM, **running_before(), **self._engine_facts, **fingerprint.start()}
        self._writer.facts(self._level, self._engine_name(), self._facts)
        self._streams.open_main()
        self.steps.install(asleep=self.is_asleep)
        if not self.is_asleep:
            self._begin(self.options)
        self._endings.install()
        self._children.install()
        self._terminations.install()
        self._commit_server.serve(self._terminated)
        atexit.register(self._at_exit)

    def _begin(self, options: RecordOptions) -> None:
        """Begin to record what these options request."""
        if self._captures.values is not None:
            self._writer.request_values(self._captures.values.request)
        if self._captures.activations is not None:
            self._writer.request_activations(self._captures.activations.request)
        self._committer.start()
        self._integrations.install()
        self._scalers.install()
        if options.level == "step":
            self._item_reads.install()
        if options.level == "op" and options.first_step <= self._process.step and options.end_step != 0:
            self.window.open()

    def _at_exit(self) -> None:
        self.finish()
        self._terminations.install()  # multiprocessing ends its daemons after this
        exits.stay_interrupted()

    def finish(self) -> None:
        """Undo all patches, commit the remaining rows, record how the process ended. Safe to call twice."""
        if self._finished or self._pid != os.getpid():
            return
        self._finished = True
        current.session = None
        atexit.unregister(self._at_exit)
        self.window.close()
        self._uninstall()
        if self._arming is not None:
            self._arming.over()
        try:
            self._close()
        finally:
            self._closed.set()
            self._commit_server.end()

    def _close(self) -> None:
        if self._failure is not None:
            self._committer.end_thread()
            return
        try:
            self._committer.stop()
            self._write_slept()
            streams = (self._streams.main, *self._streams.others)
            self._engine_facts |= handed_facts([s.native for s in streams if isinstance(s, NativeRecorder)])
            self._write_facts()
            for record in self._extension.records() if self._extension is not None else ():
                self._writer.append(record)
            steps = self.steps
            with contextlib.suppress(Exception):  # released, or moved to where they cannot be read
                self._writer.append(window.last_state(self._process.digests, steps.optimizers(), self._modules.roots()))
            state, why = ("stopped", {"why": self._stopped}) if self._stopped else ("complete", {})
            self._writer.close(state, {**_ending(), **why}, steps.generator_states(), steps.last_parameters())
        except Exception as error:
            self.fail(error)

    def _exec(self, program: str | None) -> None:
        """``exec`` of ``program`` is about to replace this process; None: it failed."""
        if self._profiler is not None and program is not None:
            self._profiler.pause("another program was about to replace the process")
        if self._arming is not None:
            self._arming.over(program is not None)
        self._end_provisionally(None if program is None else "complete", {"exec": program})

    def _terminated(self) -> None:
        """The parent is about to terminate this process, which may already be ending."""
        if self._finished:
            self._closed.wait(TERMINATION_SECONDS)
        self._end_provisionally("stopped", {"why": "its parent terminated it"})

    def _end_provisionally(self, state: str | None, ending: Mapping[str, object]) -> None:
        """Commit all rows, and record how the process ends if nothing follows; None: it goes on."""
        if self.is_over:
            return
        try:
            self._committer.flush()
            self._write_slept()
            self._writer.append({"type": "provisional_end", "state": state, "exit": dict(ending)})
        except Exception as error:
            self.fail(error)

    def first_step_ended(self) -> None:
        """Record the facts that are known only after the first ops."""
        self._write_facts()

    def _write_facts(self, more: Mapping[str, str] = MappingProxyType({})) -> None:
        """Record facts that torch fixes when they are first read, so not before the program has run ops."""
        self._facts = {"digest": ALGORITHM, **self._engine_facts, **fingerprint.facts(self._facts), **device_facts()}
        self._writer.facts(self._level, self._engine_name(), {**self._facts, **more})

    def note_missing(self, fact: str, what: str) -> None:
        """Record at once, from any thread, so that it is in the trace of a program that is killed."""
        known = self._missing.setdefault(fact, [])
        if self.is_over or what in known or len(known) >= MAX_MISSING:
            return
        try:
            known.append(what)
            self._writer.facts(self._level, self._engine_name(), {fact: ", ".join(known)})
        except Exception as error:
            self.fail(error)

    @property
    def is_over(self) -> bool:
        """Whether the recording has ended or failed."""
        return self._finished or self._failure is not None

    def append(self, record: Mapping[str, object]) -> None:
        """Append a record to the journal."""
        self._writer.append(record)

    def step_ended(self, step: int) -> None:
        """Optimizer step ``step`` has been written: ends the program where that is due, wakes where it is armed."""
        if self.options.until is not None and step == self.options.until:
            self.stop_program(f"--until {step} ended it")
        if self._end_look is not None and (why := self._end_look.due(step)):
            self.stop_program(why)
        arming = self._arming
        if arming is None or not (arming.windows or monotonic() >= arming.next_look) or self.is_over:
            return
        try:
            self._arm(arming, step + 1)
        except Exception as error:
            self.fail(error)

    def stop_program(self, why: str) -> None:
        """End the program as Ctrl-C would, but without a traceback; the trace records ``why``."""
        self._stopped = why
        exits.interrupt_program()

    @property
    def failure(self) -> str | None:
        """Why the recording failed; None: it has not."""
        return self._failure

    def _engine_name(self) -> str:
        return DispatchEngine.name if self._level == "op" else "none"

    def _uninstall(self, *, but_subclasses: bool = False) -> None:
        self._streams.close()
        self._item_reads.remove()
        self._scalers.remove()
        self.steps.remove()
        if self._stance is not None:
            self._stance.end()
        self._compiler.uninstall()
        self._integrations.uninstall()
        self._patches.remove(but_subclasses=but_subclasses)
        self._endings.uninstall()
        self._children.uninstall()
        self._terminations.uninstall()

    def fail(self, error: Exception) -> None:
        """An internal error of the recorder: the recording ends, the program goes on.

        Where the stack of one of the program's threads is full, the recording goes on too.
        """
        if self._failure is not None:
            return
        try:
            check_stack_space(error)
        except RecursionError:
            _thread.start_new_thread(self.note_missing, (FULL_STACK, f"after step {self._process.step}"))
            return
        self._failure = f"{type(error).__name__}: {error}"
        if self._arming is not None:
            self._arming.over()
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
        if not self._writer.ended and self._pid == os.getpid():  # the journal cannot be written
            note_failure(self._trace, self._token, why)

    def forked(self, number: int) -> Inheritance | None:
        """In a forked child, its parent's ``number``th: drop the parent's recording, return what the child's needs.

        None where the parent was no longer recorded. Takes no lock: the thread that holds it may not exist here.
        """
        if self._finished:
            return None
        self._finished = True
        self._arming = None
        atexit.unregister(self._at_exit)
        engine = self._streams.engine_here() or DispatchEngine()
        if self._profiler is not None:
            self._profiler.abandon()
        self._captures.stop()
        self._uninstall(but_subclasses=True)  # a waiting mode needs them too
        self._commit_server.end()
        name = fork_name(self._writer.name, number)
        names = self._process.module_names
        return None if self._failure else Inheritance(self.options, name, names, engine, self._extend)

    def before_fork(self) -> None:
        """The process is about to fork: a child cannot use the parent's profiler, and Python counts threads."""
        if self._profiler is not None:
            self._profiler.pause("the process was being forked")
        committer, server = self._committer, self._commit_server
        own = [thread for thread in (committer.thread, server.thread) if thread is not None]
        if committer.is_running and are_all_others(own):
            committer.pause(EXIT_SECONDS)
            server.pause()

    def inherit(self, module_names: ModuleNames) -> None:
        """Take over the names of the modules that the parent process has created."""
        self._process.module_names.inherit(module_names)


def _start_record(token: str, name: str) -> dict[str, object]:
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
    """The uncaught exception that ends the process, if any."""
    error: Any = getattr(sys, "last_value", None)
    return {"exception": type(error).__name__} if error is not None else {}


class _Current:
    """The session of this process."""

    session: Session | None = None


current = _Current()


def start(options: RecordOptions, token: str, extend: Extend | None = None) -> Session:
    """Start to record this process; called once, by the bootstrap, when torch has been imported."""
    forks.forget()
    if threading.current_thread() is not threading.main_thread():
        name = f"{process_name(options.trace)}/thread:{threading.current_thread().name}"
    else:
        name = None
    session = Session(options, token, name, extend)
    session.start()
    current.session = None if session.is_over else session
    return session


def end() -> None:
    """End the recording of this process, or prevent that one begins."""
    forks.forget()
    if current.session is not None:
        current.session.finish()


def _start_forked(inheritance: Inheritance, token: str, name: str | None, commit_server: CommitServer) -> Session:
    session = Session(inheritance.options, token, name, inheritance.extend, inheritance.engine, commit_server)
    session.inherit(inheritance.module_names)
    session.start()
    current.session = None if session.is_over else session
    return session


def _before_fork() -> None:
    if current.session is not None:
        current.session.before_fork()
    if current.session is not None or forks.child is not None:
        forks.before()


def _after_fork() -> None:
    session, current.session = current.session, None
    forks.in_child(None if session is None else session.forked(forks.number), _start_forked)


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)  # cannot be undone
