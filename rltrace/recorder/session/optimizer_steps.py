"""Optimizer attempts: the end of each step, its optimizer, and digests of parameters, gradients and generators then.

Owns the step number of the process. Counts attempts through torch's optimizer hooks and, where a GradScaler skips one,
in a patch of ``GradScaler.step``; counts backward passes in a patch of the autograd engine's entry. ``remove`` undoes
all of it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch._compile import _disable_dynamo
from torch.amp import grad_scaler
from torch.autograd import graph
from torch.compiler import is_dynamo_compiling
from torch.optim import optimizer as torch_optimizer

from rltrace.digest import digest_pages
from rltrace.portable_keys import portable_key
from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.base.weak_id_dict import WeakIdDict
from rltrace.recorder.capture.captures import AttemptCapture
from rltrace.recorder.core.compiled import CompiledSteps, goes_into_graph
from rltrace.recorder.core.modules import ModuleCalls
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.row_buffer import phase_bits
from rltrace.recorder.digests import rng_state
from rltrace.recorder.digests.cuda_graphs import is_captured
from rltrace.recorder.digests.rng_state import RngStates
from rltrace.recorder.digests.tensor_digest import RepeatedDigests
from rltrace.recorder.integrations.install import Integrations
from rltrace.recorder.processes.recording import ProcessRecording
from rltrace.recorder.session.carried_objects import CarriedObjects
from rltrace.recorder.session.grad_scalers import Scalers
from rltrace.recorder.session.window import OpWindow
from rltrace.recorder.streams.series import SeriesSampler
from rltrace.trace.format.records import OptimizerStart
from rltrace.trace.format.rows import StepRecord
from rltrace.trace.format.schema import Phase, Step

# --- step hooks -------------------------------------------------------------------------------------------------------
#
# Two global hooks that torch calls before and after each optimizer step, the same for all recordings of a process:
# torch's compiler reads the hooks with the step that it compiles, and compiles it again when they change. What it reads
# in them adds nothing to the graph.


KEY: Final = "rltrace"
"""Key of the hooks in torch's tables, where other hooks have numbers."""


_counters: list[StepCounter] = []


def _before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if not is_dynamo_compiling():
        for counter in _counters:
            counter.step_begins(optimizer, sys._getframe(1))


def _after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if not is_dynamo_compiling():
        for counter in _counters:
            counter.end_step(optimizer)
    elif not goes_into_graph(id(optimizer)):
        _after_compiled_step(optimizer)


@_disable_dynamo  # a graph break
def _after_compiled_step(optimizer: Any) -> None:
    for counter in _counters:
        counter.compiled_step_ends(optimizer)


def add_counter(counter: StepCounter) -> Callable[[], None]:
    """Have ``counter`` called from now on; returns the function that ends that."""
    _counters.append(counter)
    before: dict[Any, Any] = torch_optimizer._global_optimizer_pre_hooks
    after: dict[Any, Any] = torch_optimizer._global_optimizer_post_hooks
    before[KEY], after[KEY] = _before_step, _after_step

    def stop() -> None:
        _counters.remove(counter)
        if not _counters:
            before.pop(KEY, None)
            after.pop(KEY, None)

    return stop


# --- steps ------------------------------------------------------------------------------------------------------------


@dataclass
class OptimizerState:
    """One optimizer as the recorder counts it."""

    ordinal: int
    """Order of first attempt, from 0."""
    name: str
    owner: str = ""
    """Path of the module that has its parameters; empty: unknown."""
    count: int = 0
    """Attempts finished."""
    id: int | None = None
    """In table "optimizers"."""


class Attempt(NamedTuple):
    """One finished attempt."""

    optimizer: OptimizerState
    own_count: int
    """Attempts of this optimizer before this one."""
    skipped: int
    """0 no, 1 yes, 2 unknown."""
    backwards: int
    parameters: int | None
    gradients: int | None
    generators: RngStates
    start: OptimizerStart | None = None
    """With the optimizer's first attempt, what it began with; None: it is not the first, or that was not seen."""
    groups: Sequence[Mapping[str, Any]] = ()
    """The optimizer's parameter groups, with the learning rates of this attempt."""


class ManualSteps:
    """The optimizer of attempts that a program counts through ``rltrace.step()``."""

    param_groups: tuple[Any, ...] = ()
    state: Mapping[Any, Any] = MappingProxyType({})


class StepCounter:
    """Counts the attempts of every optimizer of the process."""

    def __init__(self, writer: StepWriter, library: Any = None) -> None:
        """``library``: of the native engine, to read states with."""
        self.is_asleep = True
        """Attempts are counted, and nothing is digested."""
        self._digests = writer.process.digests
        self._attempt_capture: AttemptCapture | None = None
        self._generators = rng_state.GlobalGenerators(rng_state.first_states(), library)
        self._writer = writer
        self._states: weakref.WeakKeyDictionary[Any, OptimizerState] = weakref.WeakKeyDictionary()
        self._repeated: WeakIdDict[Any, tuple[RepeatedDigests, RepeatedDigests]] = WeakIdDict()
        """Of parameters and of gradients, by optimizer."""
        self._local = threading.local()
        self._manual = ManualSteps()
        self._optimizer_count = 0
        """Optimizers that have made an attempt, deleted ones included: no two ever share an ordinal."""
        self.attempts = 0
        """Attempts finished, skipped ones included."""
        self._backwards = 0
        self._stop_hooks: Callable[[], None] = lambda: None
        self._patches, self._backward_patches = Patches(), Patches()
        self._compiled = CompiledSteps(self._around_compiled, writer.fail)

    def install(self) -> None:
        """Count attempts; asleep until ``wake``."""
        self._stop_hooks = add_counter(self)
        self._patches.wrap(grad_scaler.GradScaler, "step", self._around_scaler)
        self._compiled.install()

    def remove(self) -> None:
        self._compiled.uninstall()
        self._backward_patches.undo_all()
        self._patches.undo_all()
        self._stop_hooks()

    def wake(self, capture: AttemptCapture | None) -> None:
        """Digest from the next attempt on; ``capture``: captures state around attempts."""
        self.is_asleep, self._backwards, self._attempt_capture = False, 0, capture
        self._backward_patches.wrap_all((graph, torch.autograd), "_engine_run_backward", self._around_backward)
        for optimizer, state in self._states.items():
            state.owner = state.owner or self._writer.owner_of(_parameters(optimizer))

    def fall_asleep(self) -> None:
        """Only count, from the next attempt on."""
        self.is_asleep = True
        self._backward_patches.undo_all()
        self._repeated = WeakIdDict()

    def count_manual(self) -> None:
        """Count a step that the program marks (``rltrace.step()``) as an attempt of ``ManualSteps``."""
        self._local.digest = 0
        self._finish(self._manual, skipped=0)

    def optimizers(self) -> list[tuple[int, Any]]:
        """(ordinal, optimizer) of those alive that have made an attempt, in order."""
        return sorted(((state.ordinal, optimizer) for optimizer, state in self._states.items()), key=lambda o: o[0])

    def _around_backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._backwards += 1
        writer = self._writer
        report_end = writer.backward_begins(sys._getframe())
        try:
            return original(*args, **kwargs)
        finally:
            if report_end:
                writer.backward_ended()

    def _around_scaler(
        self, original: Callable[..., Any], scaler: Any, optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        attempts = self.attempts
        new: list[Attempt] = []
        self._local.new_attempts = new
        try:
            result = original(scaler, optimizer, *args, **kwargs)
            if self.attempts == attempts and scaler.is_enabled():
                self.step_begins(optimizer, sys._getframe())
                self._finish(optimizer, skipped=1)
        finally:
            self._local.new_attempts = None
        if new and scaler.is_enabled():
            self._writer.after_scaler(scaler, optimizer, new[-1])
        return result

    def _around_compiled(
        self, optimizers: list[Any], run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """``run`` makes an attempt of each of these optimizers."""
        for optimizer in optimizers:
            self.step_begins(optimizer, sys._getframe())
        result = run(*args, **kwargs)
        for optimizer in optimizers:
            self.end_step(optimizer)
        return result

    def step_begins(self, optimizer: Any, caller: FrameType) -> None:
        """Called by torch's hook, as ``end_step`` is."""
        if self.is_asleep:
            return
        try:
            if optimizer not in self._states:
                if _only_makes_state(sys._getframe(1)):
                    return
                self._local.start = id(optimizer), self._digest(optimizer), state_names(optimizer)
            self._local.digest = self._digest(optimizer, gradients=True)
            if self._attempt_capture is not None:
                self._attempt_capture.attempt_begins(optimizer)
            self._writer.before_attempt(caller)
        except Exception as error:
            self._writer.fail(error)

    def end_step(self, optimizer: Any) -> None:
        state = self._states.get(optimizer) if self.is_asleep else None
        if state is None:
            self._finish(optimizer, _skipped_inside(optimizer))
        else:  # the same as there, in fewer calls: the program has driven all of them out of the caches
            self.attempts += 1
            state.count += 1
            self._writer.attempt_slept(state, _skipped_inside(optimizer))

    def compiled_step_ends(self, optimizer: Any) -> None:
        """A step ends that ran in compiled graphs: its end is in none of them, and its beginning was not seen."""
        try:
            self._local.digest = None if self.is_asleep else self._digest(optimizer, gradients=True)
        except Exception as error:
            self._writer.fail(error)
        self._finish(optimizer, _skipped_inside(optimizer))

    def _finish(self, optimizer: Any, skipped: int) -> None:
        try:
            state = self._states.get(optimizer)
            if state is None and _only_makes_state(sys._getframe(1)):
                return
            self.attempts += 1
            backwards, self._backwards = self._backwards, 0
            if state is None:
                owner = "" if self.is_asleep else self._writer.owner_of(_parameters(optimizer))
                state = self._states[optimizer] = OptimizerState(self._optimizer_count, type(optimizer).__name__, owner)
                self._optimizer_count += 1
            count = state.count
            state.count += 1
            if self.is_asleep:
                self._writer.attempt_slept(state, skipped)
                return
            attempt = Attempt(
                optimizer=state,
                own_count=count,
                skipped=skipped,
                backwards=backwards,
                parameters=self._digest(optimizer),
                gradients=getattr(self._local, "digest", 0),
                generators=self.generator_states(),
                start=self._start_of(optimizer) if count == 0 else None,
                groups=optimizer.param_groups,
            )
            new = getattr(self._local, "new_attempts", None)
            if new is not None:
                new.append(attempt)
            if self._attempt_capture is not None:
                self._attempt_capture.attempt_ends(optimizer, state.ordinal)
            self._writer.after_attempt(attempt)
        except Exception as error:
            self._writer.fail(error)

    def _start_of(self, optimizer: Any) -> OptimizerStart | None:
        """What the first attempt, which has just ended, began with."""
        key, parameters, state = getattr(self._local, "start", (None, None, ()))
        # its beginning was not seen: it was compiled, or counted by hand
        if key != id(optimizer) or parameters is None:
            return None
        return OptimizerStart(parameters, state, state_names(optimizer))

    def _digest(self, optimizer: Any, *, gradients: bool = False) -> int | None:
        """Digest of all its parameters, or gradients; None where they cannot be read: the attempt is being captured
        into a graph of their device."""
        with torch_function_disabled(), torch._C._DisableTorchDispatch():
            tensors = _parameters(optimizer)
            if gradients:
                tensors = [p.grad for p in tensors]
            repeated = self._repeated.get(optimizer)
            if repeated is None:
                repeated = self._repeated[optimizer] = self._digests.repeated(), self._digests.repeated()
            digest = repeated[gradients].of(tensors)
            if digest is not None:
                return digest
            if any(is_captured(device) for device in {tensor.device for tensor in tensors if tensor is not None}):
                return None
            return digest_pages(self._digests.several(tensors), 0)

    def last_state(self) -> dict[str, Any]:
        """Current states of the global generators, and digests of the parameters of every optimizer that is alive, by
        ordinal: arguments of ``ProcessWriter.close``."""
        found: dict[int, int] = {}
        for ordinal, optimizer in self.optimizers():
            if optimizer is self._manual:
                continue
            with contextlib.suppress(Exception):  # released, or moved to where they cannot be read
                digest = self._digest(optimizer)
                if digest is not None:
                    found[ordinal] = digest
        return {"generators": self.generator_states(), "parameters": found}

    def generator_states(self) -> RngStates:
        """Current states of the global generators."""
        with torch._C._DisableTorchDispatch():
            return self._generators.states()


def _only_makes_state(frame: FrameType | None) -> bool:
    """Whether this attempt, which is called in ``frame``, is none of the program: torch makes one, with gradients and
    rates of zero, so that an optimizer has a state into which a checkpoint is loaded."""
    for _ in range(FRAMES_OF_A_STEP):
        if frame is None:
            return False
        name, module = frame.f_code.co_name, frame.f_globals.get("__name__")
        if name == "_init_optim_state" and module == "torch.distributed.checkpoint.state_dict":
            return True
        frame = frame.f_back
    return False


FRAMES_OF_A_STEP: Final = 8
"""Frames from a hook of an optimizer to its caller, those of schedulers and of ours included."""


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def state_names(optimizer: Any) -> tuple[str, ...]:
    """Names of the tensors of an optimizer's state, each once."""
    states = (state for state in optimizer.state.values() if isinstance(state, Mapping))
    named = ((str(name), value) for state in states for name, value in state.items())
    return tuple(sorted({name for name, value in named if isinstance(value, torch.Tensor)}))


def _skipped_inside(optimizer: Any) -> int:
    """Fused optimizers skip a step themselves where a scaler has set their ``found_inf``."""
    found = getattr(optimizer, "found_inf", None)
    if not isinstance(found, torch.Tensor):
        return 0
    with torch_function_disabled(), torch._C._DisableTorchDispatch():
        if found.device.type != "cpu":
            return 2  # reading it would make the program wait for its device
        return int(bool(found))


# --- step records -----------------------------------------------------------------------------------------------------


class StepWriter:
    """Writes a record of each attempt, and moves the window, the phases and the series to the next step."""

    def __init__(
        self,
        recording: ProcessRecording,
        window: OpWindow,
        integrations: Integrations,
        series: SeriesSampler,
        scalers: Scalers,
        modules: ModuleCalls,
        step_ended: Callable[[int], None],
    ) -> None:
        """``step_ended``: called once a step has been written, in its thread."""
        self._recording = recording
        self._window = window
        self._streams = window.streams
        self.process = window.process
        self._integrations = integrations
        self._series = series
        self._scalers = scalers
        self.carried = CarriedObjects(series, lambda: integrations.registry.statistics.found)
        self._ending = threading.RLock()
        """Attempts of several threads end one after the other."""
        self._slept: array[int] = array("I")
        """Of each attempt since the counter fell asleep: ordinal of its optimizer, and whether it was skipped."""
        self._slept_optimizers: dict[int, OptimizerState] = {}
        """Their optimizers, by ordinal."""
        self._step_ended = step_ended
        self.owner_of = modules.owner_of
        self.fail = self.process.fail

    def before_attempt(self, caller: FrameType) -> None:
        """An attempt begins; ``caller`` is the frame that runs it."""
        stream = self._window.stream_here()
        if stream is not None:
            stream.phase = phase_bits(Phase.OPTIMIZER)
            stream.begin_attempt(caller)

    def after_attempt(self, attempt: Attempt) -> None:
        """An attempt has ended, or was skipped."""
        if self._recording.is_over:
            return
        ended = self.process.step
        try:
            with torch_function_disabled():
                self._end_step(attempt)
        except Exception as error:
            self.fail(error)
        self._step_ended(ended)

    def attempt_slept(self, optimizer: OptimizerState, skipped: int) -> None:
        """The same while the counter is asleep; called after ``optimizer`` has counted it."""
        if self._recording.is_over:
            return
        process, ordinal = self.process, optimizer.ordinal
        self._slept.append(ordinal << 2 | skipped)
        self._slept_optimizers[ordinal] = optimizer
        ended = process.step
        process.step = ended + 1
        self._step_ended(ended)

    def take_slept(self) -> NDArray[np.uint64]:
        """The attempts since the counter fell asleep or the last call, shape [n, len(Step)]."""
        slept, self._slept = np.frombuffer(self._slept, np.uint32), array("I")
        steps = np.zeros((len(slept), len(Step)), np.uint64)
        steps[:, Step.STEP] = np.arange(self.process.step - len(slept), self.process.step)
        steps[:, Step.STREAM] = self._streams.main.number
        steps[:, Step.SKIPPED] = slept & 3
        for ordinal, optimizer in self._slept_optimizers.items():
            own = np.flatnonzero(slept >> 2 == ordinal)
            steps[own, Step.OPTIMIZER] = self._optimizer_id(optimizer)
            steps[own, Step.COUNT] = np.arange(optimizer.count - len(own), optimizer.count)
        if len(slept):
            ordinal = int(slept[-1]) >> 2
            self.process.attempt = ordinal, self._slept_optimizers[ordinal].count - 1
        self._slept_optimizers = {}
        return steps

    def after_scaler(self, scaler: Any, optimizer: Any, attempt: Attempt) -> None:
        """The attempt was made through this gradient scaler; called after ``after_attempt``."""
        if self._recording.is_over:
            return
        try:
            ordinal, step = attempt.optimizer.ordinal, self.process.step - 1
            self._scalers.attempted(scaler, optimizer, ordinal, step, attempt.skipped)
        except Exception as error:
            self.fail(error)

    def backward_begins(self, frame: FrameType) -> bool:
        """A backward pass begins, called from ``frame``, the stack of all its ops; whether to report its end."""
        stream = self._window.backward_begins()
        self.process.phases.backward_begins(stream)
        self._integrations.steps.backward_begins()
        if stream is None:
            return False
        stream.modules.begin_backward(frame)
        return True

    def backward_ended(self) -> None:
        stream = self._streams.here()
        if stream is not None:
            stream.modules.leave()

    def _end_step(self, attempt: Attempt) -> None:
        process, current = self.process, self._streams.here()
        if current is not None:
            current.phase = phase_bits(process.phase)  # other, unless the program sets one
            current.end_attempt()
        with self._ending:
            ended = process.step
            self._streams.committer.add_step(self._record_of(attempt, ended, current))
            if (start := attempt.start) is not None:
                record = {"type": "optimizer", "ordinal": attempt.optimizer.ordinal, **start._asdict()}
                self._recording.writer.append(record | {"parameters": f"{start.parameters:016x}"})
            self._series.rates(attempt.optimizer.ordinal, attempt.groups, ended)
            self.carried.attempt_ended(ended)
            process.step = ended + 1
            process.attempt = attempt.optimizer.ordinal, attempt.own_count
        process.storages.end_step()
        if ended == 0:
            self._recording.write_facts()
        self._streams.step_began(ended + 1)
        self._window.move(ended + 1)

    def _record_of(self, attempt: Attempt, step: int, current: OpRecorder | None) -> StepRecord:
        """``current``: stream of the calling thread; None: its ops are not recorded, as it began before a window."""
        asleep, stream = self._recording.options.asleep, current or self._streams.main
        return StepRecord(
            step=step,
            stream=stream.number,
            optimizer=self._optimizer_id(attempt.optimizer),
            own_count=attempt.own_count,
            skipped=attempt.skipped,
            backwards=attempt.backwards,
            environment_steps=0 if asleep else self._integrations.steps.count,  # 0: not known
            end_row=stream.row,
            recorded=self._window.is_open and current is not None,
            parameters=attempt.parameters,
            gradients=attempt.gradients,
            generators=attempt.generators,
        )

    def _optimizer_id(self, optimizer: OptimizerState) -> int:
        if optimizer.id is not None:
            return optimizer.id
        identity = {"ordinal": optimizer.ordinal, "class": optimizer.name}
        payload = {**identity, "owner": optimizer.owner}
        optimizer.id = self.process.tables.intern("optimizers", portable_key("optimizers", identity), payload)
        return optimizer.id
