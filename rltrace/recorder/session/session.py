"""The torch session of one process: what its ops, steps and patches are recorded with, from the first to the last.

Composes everything in this package, and lists it as the parts of a ``ProcessRecording``, which owns their life; hands
over to a forked child's own session. One session per process, held by ``current``. Recording as a library, a ``with``
block instead of a launched command, also creates its trace and ends it.
"""

import _thread
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from pkgutil import resolve_name
from time import monotonic
from types import CodeType
from typing import Any

import torch

from rltrace import extension
from rltrace.errors import RecordError, UsageError
from rltrace.extension import check_installed
from rltrace.fingerprint import Facts
from rltrace.masking import home_as_tilde, masked_arguments
from rltrace.recorder.base.background_thread import are_all_others
from rltrace.recorder.base.dispatch_mode import DispatchEngine
from rltrace.recorder.base.isolation import EagerStance, compiler_exclusion
from rltrace.recorder.base.options import RecordOptions, check_axes, check_options, value_of
from rltrace.recorder.base.process_names import Children, fork_name, is_worker, process_name, ray_actor, recorded_name
from rltrace.recorder.base.stack_space import check_stack_space
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.capture.captures import Attach, CapturedProcess, Captures, make_captures, remember_names
from rltrace.recorder.core.native_engine import NativeEngine, NativeRecorder, choice_facts, choose_library, handed_facts
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.ops_without_rows import rpc_facts
from rltrace.recorder.core.process_state import FULL_STACK, ProcessState
from rltrace.recorder.digests.backend import facts as device_facts
from rltrace.recorder.integrations.install import Integrations
from rltrace.recorder.processes.exits import EXIT_SECONDS, CommitServer, Terminations
from rltrace.recorder.processes.forks import Inheritance, forks
from rltrace.recorder.processes.messages import Messages, Place, new_place
from rltrace.recorder.processes.recording import ProcessRecording, RecordingPart
from rltrace.recorder.session import window
from rltrace.recorder.session.grad_scalers import Scalers
from rltrace.recorder.session.optimizer_steps import StepCounter, StepWriter
from rltrace.recorder.session.torch_patches import ItemReads, TorchPatches
from rltrace.recorder.session.window import ArmedWindow, Arming, EventWriter, LaunchProfiler, OpWindow
from rltrace.recorder.streams.committer import Committer
from rltrace.recorder.streams.series import SeriesSampler
from rltrace.recorder.streams.threads import Streams, running_before
from rltrace.trace.format.process_start import write_start
from rltrace.trace.format.root import create_trace, end_launch


class Session:
    """What is recorded of torch in one process."""

    def __init__(
        self,
        options: RecordOptions,
        token: str,
        name: str | None = None,
        attach: Attach | None = None,
        inheritance: Inheritance | None = None,
        commit_server: CommitServer | None = None,
    ) -> None:
        """``inheritance`` of a forked child; ``commit_server`` of a worker, where there is one already."""
        loaded = choose_library(options, attached=attach is not None)
        self._engine_facts = choice_facts(options, loaded)
        actor = ray_actor()
        self._commit_server = commit_server or CommitServer(options.trace, actor)
        if actor or is_worker():
            self._commit_server.listen()
        self.options = self._awake_options = options
        """Of the recording, and of the steps that it is awake for."""
        self._attach = attach
        self._arming = Arming(options.trace, token) if options.asleep else None
        self._armed: ArmedWindow | None = None
        """The steps that the process is awake for."""
        self._turning = _thread.allocate_lock()
        name = name or recorded_name(options.trace, "torch")
        self.recording = ProcessRecording(options, token, name, "none", {"torch": torch.__version__})
        self._set_level("step" if options.asleep else options.level)
        writer = self.recording.writer
        self._process = ProcessState(self.fail, verify_inputs=options.verify_inputs, library=loaded.module)
        self._process.report_missing = self.recording.note
        self._attachment = attach and attach(writer.name)
        self._captures = Captures()
        if options.asleep:
            remember_names(self._process)
        self._committer = Committer(self._process, writer, self.fail, self._commit_server.resume)
        native = loaded.module if options.level == "op" else None
        self._streams = Streams(
            self._process,
            self._committer,
            writer.name,
            DispatchEngine if native is None else partial(NativeEngine, native),
            OpRecorder if native is None else partial(NativeRecorder, library=native),
        )
        if inheritance is not None:
            self._streams.adopt(inheritance.engine)
            self._process.module_names.inherit(inheritance.module_names)
        modules_here, with_calls = self._streams.modules_here, bool(options.rows)
        self._patches = TorchPatches(self._process, modules_here, self.fail, with_calls=with_calls, library=native)
        self._modules = self._patches.modules
        profiler = extension.profiler(options)
        self._profiler: LaunchProfiler | None = None
        """Records launches of kernels; None where no option requests it."""
        if profiler:
            self._profiler = resolve_name(profiler)(self._process, self._streams, self._committer)
        self._series = SeriesSampler(self._process.tables, self._streams.position_here, self._committer.request_commit)
        self.window = OpWindow(options, writer, self._streams, self._patches, self._profiler, self._write_window_state)
        self.events = EventWriter(self.window)
        scalers = Scalers(self._series, self.fail)
        self._places = count()
        self._messages = self._streams.watcher = Messages(self._place_here, self.fail)
        integrations = Integrations(
            self.events, self._process.digests, self._messages.note_file, lambda: self._process.step
        )
        self._step_writer = StepWriter(
            self.recording, self.window, integrations, self._series, scalers, self._modules, self._step_ended
        )
        self.steps = StepCounter(self._step_writer, loaded.module)
        self._parts = self._list_parts(integrations, scalers)

    def _list_parts(self, integrations: Integrations, scalers: Scalers) -> Sequence[RecordingPart]:
        """All parts, in their order."""
        options, recording, steps, server = self.options, self.recording, self.steps, self._commit_server
        messages, carried = self._messages, self._step_writer.carried
        compiler, stance = compiler_exclusion(self.fail), EagerStance(self.fail)
        item_reads = ItemReads(self._series, self._process.sites, self.fail)
        commits, streams, patches, arming = self._committer.thread, self._streams, self._patches, self._arming
        children, terminations = Children(options.trace, recording.token), Terminations(options.trace, self.fail)
        parts = [
            RecordingPart(install=compiler.install, uninstall=compiler.uninstall),
            RecordingPart(
                install=streams.open_main, sleep=streams.close, uninstall=streams.close, stop=streams.silence
            ),
            RecordingPart(wake=self._take_captures, stop=lambda: self._captures.stop()),
            RecordingPart(stop=self._series.stop),
            RecordingPart(
                install=steps.install,
                wake=lambda: steps.wake(self._captures.attempts),
                sleep=steps.fall_asleep,
                uninstall=steps.remove,
            ),
            RecordingPart(
                wake=self._write_slept,
                facts=self._late_facts,
                records=lambda: self._last_records(integrations),
                end=steps.last_state,
            ),
            RecordingPart(accounts=(lambda: ()) if self._attachment is None else self._attachment.records),
            RecordingPart(wake=commits.start, sleep=commits.end, stop=commits.give_up, commit=self._commit),
            # a waiting mode needs them
            RecordingPart(uninstall=lambda: patches.remove(but_subclasses=recording.is_inherited)),
            RecordingPart(
                wake=messages.install,
                sleep=messages.uninstall,
                uninstall=messages.uninstall,
                records=lambda: messages.last(map(self._place_here, (streams.main, *streams.others))),
            ),
            RecordingPart(wake=integrations.install, sleep=integrations.uninstall, uninstall=integrations.uninstall),
            RecordingPart(wake=scalers.install, sleep=scalers.remove, uninstall=scalers.remove),
            RecordingPart(wake=carried.install, sleep=carried.remove, uninstall=carried.remove),
            RecordingPart(
                wake=lambda: item_reads.install() if self._awake_options.level == "step" else None,
                sleep=item_reads.remove,
                uninstall=item_reads.remove,
            ),
            RecordingPart(
                wake=lambda: self.window.wake(self._awake_options, self._captures.links),
                sleep=self.window.close,
                replace=self._pause_before,
            ),
            RecordingPart(install=children.install, uninstall=children.uninstall),
            RecordingPart(
                install=terminations.install,
                uninstall=terminations.uninstall,
                at_exit=terminations.install,  # multiprocessing ends its daemons after that
            ),
            RecordingPart(install=lambda: server.serve(recording.terminated), close=server.end),
            RecordingPart(uninstall=current.clear),
        ]
        if options.compile:
            parts.insert(1, RecordingPart(install=stance.begin, uninstall=stance.end))
        if arming is not None:
            over = RecordingPart(
                stop=arming.over, replace=lambda program: arming.over(program is not None), close=arming.over
            )
            parts.append(over)
        return parts

    def _take_captures(self) -> None:
        """Capture what the options of these steps request."""
        writer = self.recording.writer
        process = CapturedProcess(
            self._process, writer.append, self._modules.roots, lambda: self._streams.here() or self._streams.main
        )
        captures = make_captures(self._awake_options, process)
        if self._attachment is not None:
            captures = self._attachment.join(captures, self._process)
        if captures.values is not None:
            writer.request_values(captures.values.request)
        if captures.activations is not None:
            writer.request_activations(captures.activations.request)
        self._captures = captures
        self._committer.take_from(captures, self._series, self._messages.take)
        self._streams.set_hooks(captures.hooks)

    def _write_window_state(self) -> None:
        """A row for every tensor that has a history as a window begins."""
        steps, main = self.steps, self._streams.main
        memory, values = self._captures.memory, self._captures.values
        if memory is not None and values is not None:
            memory.expect(window.lasting_tensors(steps.optimizers(), self._modules.roots()), values, main)
        window.write_state(main, steps.optimizers(), self._modules.roots(), steps.generator_states())

    def _place_here(self, stream: OpRecorder | None = None) -> Place | None:
        """Where this stream, or the one of the calling thread, is among its rows; None: the thread has none."""
        stream = stream or self._streams.local.stream
        if stream is None:
            return None
        row = stream.row if self.recording.level == "op" else self._process.step
        return new_place((stream.number, row, next(self._places)))

    def op_stream_here(self) -> OpRecorder | None:
        """The stream of the calling thread, whether or not its ops become rows now; None: it has none yet."""
        return self._streams.here()

    def end_stacks_at(self, code: CodeType) -> None:
        """Recorded stacks end at frames of ``code``: its callers are unrelated to the ops above."""
        self._process.sites.bottoms.add(code)

    def watch(self, name: str, value: object) -> None:
        """``rltrace.watch(name, value)``: one more number of a series."""
        if self._arming is not None and self._armed is None:
            return  # it is asleep
        try:
            self._series.watch(name, value)
        except Exception as error:
            self.fail(error)

    # --- sleep ------------------------------------------------------------------------------------------------------
    #
    # A process that is started asleep counts attempts of optimizers, names modules as they are created, and follows how
    # the process and its children begin and end. No thread runs, and no function is patched that training calls. It
    # wakes at the end of a step, with what ``rltrace arm`` requested.

    def _step_ended(self, step: int) -> None:
        """Optimizer step ``step`` has been written: ends the program where that is due, wakes where it is armed."""
        self.recording.step_ended(step)
        arming = self._arming
        if arming is None or not (arming.windows or monotonic() >= arming.next_look) or self.recording.is_over:
            return
        try:
            self._arm(arming, step + 1)
        except Exception as error:
            self.fail(error)

    def _arm(self, arming: Arming, step: int) -> None:
        """``step`` begins: wake or fall asleep, where it is the first of requested steps, or the first after them."""
        if not self._turning.acquire(blocking=False):
            return  # a step of another thread ends, too
        try:
            due = arming.due(step)
            if due is self._armed:
                return
            with torch_function_disabled():
                if self._armed is not None:
                    self._armed = None
                    self.recording.sleep()
                if due is not None:
                    self._wake(due, step)
            arming.turned(step, is_awake=due is not None)
        finally:
            self._turning.release()

    def _wake(self, armed: ArmedWindow, step: int) -> None:
        self._armed, self._awake_options = armed, armed.options(self.options)
        self._set_level("op" if "op" in (self.recording.level, self._awake_options.level) else "step")
        self._streams.step_began(step)
        self._streams.set_phase(self._process.phase)
        self.recording.write_facts(running_before())
        self.recording.wake()

    def _set_level(self, level: str) -> None:
        self.recording.level, self.recording.engine = level, DispatchEngine.name if level == "op" else "none"

    def _write_slept(self) -> None:
        """Write the steps since the process fell asleep."""
        steps = self._step_writer.take_slept()
        if len(steps):
            self.recording.writer.steps_asleep(steps, self._process.tables.take())

    # --- start and end ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Install everything, and begin to record."""
        self.recording.start(self._parts, {**running_before(), **self._engine_facts})
        if not self.recording.is_over:
            current.session = self

    def _commit(self) -> None:
        self._committer.flush()
        self._write_slept()

    def _late_facts(self) -> Facts:
        """Facts that torch fixes when they are first read, so not before the program has run ops."""
        streams = (self._streams.main, *self._streams.others) if self.recording.is_over else ()
        handed = handed_facts([stream.native for stream in streams if isinstance(stream, NativeRecorder)])
        return {**device_facts(), **rpc_facts(), **handed}

    def _last_records(self, integrations: Integrations) -> Iterator[Mapping[str, object]]:
        with contextlib.suppress(Exception):  # released, or moved to where they cannot be read
            last = window.last_state(self._process.digests, self.steps.optimizers(), self._modules.roots())
            yield {**last, "saved": integrations.saved.record}

    def _pause_before(self, program: str | None) -> None:
        if self._profiler is not None and program is not None:
            self._profiler.pause("another program was about to replace the process")

    def fail(self, error: Exception) -> None:
        """An internal error of the recorder: the recording ends, the program goes on.

        Where the stack of one of the program's threads is full, the recording goes on too.
        """
        if self.recording.failure is not None:
            return
        try:
            check_stack_space(error)
        except RecursionError:
            _thread.start_new_thread(self.recording.note, (FULL_STACK, f"after step {self._process.step}"))
            return
        self.recording.fail(error)

    # --- forks --------------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """The process is about to fork: a child cannot use the parent's profiler, and Python counts threads."""
        if self._profiler is not None:
            self._profiler.pause("the process was being forked")
        commits, server = self._committer.thread, self._commit_server
        own = [thread for thread in (commits.thread, server.thread) if thread is not None]
        if commits.is_running and are_all_others(own):
            self._committer.pause(EXIT_SECONDS)
            server.pause()

    def forked(self, number: int) -> Inheritance | None:
        """In a forked child, its parent's ``number``th: drop the parent's recording, return what the child's needs.

        None where the parent was no longer recorded. Takes no lock: the thread that holds it may not exist here.
        """
        engine = self._streams.engine_here() or DispatchEngine()
        if self._profiler is not None:
            self._profiler.abandon()
        self._captures.stop()
        is_recorded = self.recording.forked()
        self._arming = None
        self._commit_server.end()
        name, names = fork_name(self.recording.writer.name, number), self._process.module_names
        return Inheritance(self.options, name, names, engine, self._attach) if is_recorded else None


class _Current:
    """The session of this process."""

    session: Session | None = None

    def clear(self) -> None:
        self.session = None


current = _Current()


def start(options: RecordOptions, token: str, attach: Attach | None = None) -> Session:
    """Start to record this process; called once, by the bootstrap, when torch has been imported."""
    forks.forget()
    if threading.current_thread() is not threading.main_thread():
        name = f"{process_name(options.trace)}/thread:{threading.current_thread().name}"
    else:
        name = None
    session = Session(options, token, name, attach)
    session.start()
    return session


def end() -> None:
    """End the recording of this process, or prevent that one begins."""
    forks.forget()
    if current.session is not None:
        current.session.recording.finish()


def _start_forked(
    inheritance: Inheritance, token: str, name: str | None, commit_server: CommitServer
) -> OpRecorder | None:
    session = Session(inheritance.options, token, name, inheritance.attach, inheritance, commit_server)
    session.start()
    return session.window.stream_here()


def _before_fork() -> None:
    if current.session is not None:
        current.session.before_fork()
    if current.session is not None or forks.child is not None:
        forks.before()


def _after_fork() -> None:
    session, current.session = current.session, None
    forks.in_child(None if session is None else session.forked(forks.number), _start_forked)


@contextmanager
def record_block(path: str | os.PathLike[str], given: Mapping[str, Any], *, force: bool) -> Iterator[None]:
    """Implements ``rltrace.record``, for the options that are given."""
    if current.session is not None:
        raise UsageError("this process is already being recorded; recordings cannot be nested")
    values = {name: value_of(name, value, name) for name, value in given.items()}
    if values.get("row_axes") is not None:
        values["row_axes"] = check_axes(values["row_axes"])
    options = RecordOptions(str(Path(path).absolute()), **values)
    check_options(options, {name: name for name in given if values[name] is not None})
    check_installed(options)
    if options.engine == "native":
        choose_library(options)  # raises before anything is written
    with recording(options, force=force):
        yield


@contextmanager
def recording(options: RecordOptions, *, force: bool, attach: Attach | None = None) -> Iterator[None]:
    """Record the block's ops into a new trace. Raises RecordError where the recording failed."""
    trace = Path(options.trace)
    create_trace(trace, _launch(options), force=force)
    started, owner = time.monotonic(), os.getpid()
    token = write_start(trace, {"argv": masked_arguments(sys.argv), "pid": os.getpid()})
    session = start(options, token, attach)
    failure = None
    is_finalizing = sys.is_finalizing
    try:
        yield
    finally:
        if is_finalizing():  # never left: the session has ended at exit, and this module has lost its globals
            return  # noqa: B012  what ends here is the generator
        session.recording.finish()
        if os.getpid() != owner:  # a forked child that leaves the block does not end the launch
            end()
        else:
            try:
                end_launch(trace, {"status": 0, "seconds": time.monotonic() - started, "library": True})
            except (RecordError, OSError) as error:  # an exception of the block comes first
                failure = str(error)
    failure = session.recording.failure or failure
    if failure is not None:
        raise RecordError(f"the recording in {trace} failed: {failure}")


def _launch(options: RecordOptions) -> dict[str, object]:
    return {
        "command": [home_as_tilde(sys.executable), *masked_arguments(sys.argv)],
        "cwd": home_as_tilde(os.fspath(Path.cwd())),
        "host": socket.gethostname(),
        "library": True,
        "options": {
            "level": options.level,
            "steps": [options.first_step, options.end_step],
            "verify_inputs": options.verify_inputs,
            **options.extras(),
        },
    }


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)  # cannot be undone
