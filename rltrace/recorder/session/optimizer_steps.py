"""Optimizer attempts: when a step ends, which optimizer it was, and what its parameters, gradients and generators are
then.

Owns the step number of the process. Counts attempts through torch's optimizer hooks and, for those a GradScaler
skips, around ``GradScaler.step``; counts backward passes around the autograd engine's entry. All of it is undone by
``remove``.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, MappingProxyType
from typing import Any, Final, Protocol

import torch
from torch._compile import _disable_dynamo
from torch.amp import grad_scaler
from torch.autograd import graph
from torch.compiler import is_dynamo_compiling
from torch.optim import optimizer as torch_optimizer

from rltrace.digest import digest_pages
from rltrace.portable_keys import portable_key
from rltrace.recorder.base.patching import Patches
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.core.compiled import CompiledSteps, goes_into_graph
from rltrace.recorder.core.modules import ModuleCalls
from rltrace.recorder.core.process_state import ProcessState
from rltrace.recorder.core.row_buffer import phase_bits
from rltrace.recorder.digests import rng_state
from rltrace.recorder.digests.cuda_graphs import is_captured
from rltrace.recorder.digests.rng_state import RngStates
from rltrace.recorder.digests.tensor_digest import TensorDigests
from rltrace.recorder.integrations.install import Integrations
from rltrace.recorder.session.grad_scalers import Scalers
from rltrace.recorder.session.window import OpWindow
from rltrace.recorder.streams.committer import Committer
from rltrace.recorder.streams.series import SeriesSampler
from rltrace.recorder.streams.threads import Streams
from rltrace.trace.format.rows import StepRecord
from rltrace.trace.format.schema import Phase

# --- step hooks -------------------------------------------------------------------------------------------------------
#
# What torch calls around each step of an optimizer: two functions, the same for all recordings of a process.
#
# Owns them and their places among torch's hooks. torch's compiler reads the hooks with the step that it compiles, and
# compiles it anew when they are others: so nothing about them differs from one recording to the next, and what it reads
# in them adds nothing to what it makes.


KEY: Final = "rltrace"
"""Of the hooks in torch's tables, where others have numbers."""


class HookListener(Protocol):
    """Who is told."""

    def step_begins(self, optimizer: Any, caller: FrameType) -> None:
        """``caller`` is the frame that runs the step."""

    def end_step(self, optimizer: Any) -> None:
        """The step that began last has ended."""

    def compiled_step_ends(self, optimizer: Any) -> None:
        """A step has ended whose beginning nobody was told of."""


_told: list[HookListener] = []


def _begins(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if not is_dynamo_compiling():
        for listener in _told:
            listener.step_begins(optimizer, sys._getframe(1))


def _ends(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if not is_dynamo_compiling():
        for listener in _told:
            listener.end_step(optimizer)
    elif not goes_into_graph(optimizer):
        _ends_between(optimizer)


@_disable_dynamo  # where the compiler meets it, it pauses
def _ends_between(optimizer: Any) -> None:
    for listener in _told:
        listener.compiled_step_ends(optimizer)


def tell(listener: HookListener) -> Callable[[], None]:
    """From now on tell ``listener``; what is returned ends that."""
    _told.append(listener)
    before: dict[Any, Any] = torch_optimizer._global_optimizer_pre_hooks
    after: dict[Any, Any] = torch_optimizer._global_optimizer_post_hooks
    before[KEY], after[KEY] = _begins, _ends

    def stop() -> None:
        _told.remove(listener)
        if not _told:
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
    """Path of the module whose parameters it has; empty: none is known."""
    count: int = 0
    """Attempts finished."""


@dataclass(frozen=True)
class Attempt:
    """One finished attempt."""

    optimizer: OptimizerState
    count: int
    """Attempts this optimizer had made before."""
    skipped: int
    """0 no, 1 yes, 2 not known."""
    backwards: int
    parameters: int | None
    gradients: int | None
    generators: RngStates
    groups: Sequence[Mapping[str, Any]] = ()
    """The optimizer's parameter groups, with the rates that it was made with."""


class AttemptListener(Protocol):
    """Who is told of attempts."""

    def owner_of(self, parameters: Iterable[torch.Tensor]) -> str:
        """Path of the module that has these parameters, for people."""

    def before_attempt(self, caller: FrameType) -> None:
        """An attempt begins; ``caller`` is the frame that runs it."""

    def after_attempt(self, attempt: Attempt) -> None:
        """It has ended, or was skipped."""

    def after_scaler(self, scaler: Any, optimizer: Any, attempt: Attempt) -> None:
        """The attempt was made through this gradient scaler; called after ``after_attempt``."""

    def backward_begins(self, frame: FrameType) -> bool:
        """A backward pass begins, called from ``frame``; whether ``backward_ended`` is to be called."""

    def backward_ended(self) -> None:
        """It has ended, or raised."""

    def fail(self, error: Exception) -> None:
        """Something went wrong here; the program must not notice."""


class ManualSteps:
    """Stands for the optimizer where a program counts its steps through ``rltrace.step()``."""

    param_groups: tuple[Any, ...] = ()
    state: Mapping[Any, Any] = MappingProxyType({})


class StepCounter:
    """Watches every optimizer of the process."""

    def __init__(self, digests: TensorDigests, listener: AttemptListener) -> None:
        self._digests = digests
        self._generators = rng_state.GlobalGenerators(rng_state.first_states())
        self._listener = listener
        self._states: weakref.WeakKeyDictionary[Any, OptimizerState] = weakref.WeakKeyDictionary()
        self._local = threading.local()
        self._manual = ManualSteps()
        self._born = 0
        """Optimizers that have made an attempt, dead ones included: no two ever share an ordinal."""
        self.attempts = 0
        """Attempts finished, skipped ones included."""
        self._backwards = 0
        self._stop_hooks: Callable[[], None] = lambda: None
        self._patches = Patches()
        self._compiled = CompiledSteps(self._around_compiled, listener.fail)

    def install(self) -> None:
        self._stop_hooks = tell(self)
        self._patches.wrap(grad_scaler.GradScaler, "step", self._around_scaler)
        self._patches.wrap_all((graph, torch.autograd), "_engine_run_backward", self._around_backward)
        self._compiled.install()

    def remove(self) -> None:
        self._compiled.uninstall()
        self._patches.undo_all()
        self._stop_hooks()

    def count_manual(self) -> None:
        """A step that the program marks by itself (``rltrace.step()``), as an attempt of an optimizer of that name."""
        self._local.digest = 0
        self._finish(self._manual, skipped=0)

    def optimizers(self) -> list[tuple[int, Any]]:
        """(ordinal, optimizer) of those that have made an attempt and still live, in order."""
        return sorted(((state.ordinal, optimizer) for optimizer, state in self._states.items()), key=lambda o: o[0])

    def _around_backward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._backwards += 1
        listener = self._listener
        begun = listener.backward_begins(sys._getframe())
        try:
            return original(*args, **kwargs)
        finally:
            if begun:
                listener.backward_ended()

    def _around_scaler(
        self, original: Callable[..., Any], scaler: Any, optimizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        attempts = self.attempts
        made: list[Attempt] = []
        self._local.made = made
        try:
            result = original(scaler, optimizer, *args, **kwargs)
            if self.attempts == attempts and scaler.is_enabled():
                self.step_begins(optimizer, sys._getframe())
                self._finish(optimizer, skipped=1)
        finally:
            self._local.made = None
        if made and scaler.is_enabled():
            self._listener.after_scaler(scaler, optimizer, made[-1])
        return result

    def _around_compiled(
        self, optimizers: list[Any], run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """``run`` makes an attempt of each of these optimizers, all at once."""
        for optimizer in optimizers:
            self.step_begins(optimizer, sys._getframe())
        result = run(*args, **kwargs)
        for optimizer in optimizers:
            self.end_step(optimizer)
        return result

    def step_begins(self, optimizer: Any, caller: FrameType) -> None:
        """torch's hook, as ``end_step`` is."""
        try:
            self._local.digest = self._digest(p.grad for p in _parameters(optimizer))
            self._listener.before_attempt(caller)
        except Exception as error:
            self._listener.fail(error)

    def end_step(self, optimizer: Any) -> None:
        self._finish(optimizer, _skipped_inside(optimizer))

    def compiled_step_ends(self, optimizer: Any) -> None:
        """A step ends of which the compiler made graphs, but its end is in none of them, nor was its beginning seen."""
        try:
            self._local.digest = self._digest(p.grad for p in _parameters(optimizer))
        except Exception as error:
            self._listener.fail(error)
        self._finish(optimizer, _skipped_inside(optimizer))

    def _finish(self, optimizer: Any, skipped: int) -> None:
        self.attempts += 1
        backwards, self._backwards = self._backwards, 0
        try:
            state = self._states.get(optimizer)
            if state is None:
                owner = self._listener.owner_of(_parameters(optimizer))
                state = self._states[optimizer] = OptimizerState(self._born, type(optimizer).__name__, owner)
                self._born += 1
            count = state.count
            state.count += 1
            attempt = Attempt(
                optimizer=state,
                count=count,
                skipped=skipped,
                backwards=backwards,
                parameters=self._digest(_parameters(optimizer)),
                gradients=getattr(self._local, "digest", 0),
                generators=self.generator_states(),
                groups=optimizer.param_groups,
            )
            made = getattr(self._local, "made", None)
            if made is not None:
                made.append(attempt)
            self._listener.after_attempt(attempt)
        except Exception as error:
            self._listener.fail(error)

    def _digest(self, tensors: Iterable[torch.Tensor | None]) -> int | None:
        """None where they lie on a device that cannot be asked: the attempt is being captured into a graph."""
        with torch_function_disabled(), torch._C._DisableTorchDispatch():
            known = list(tensors)
            if any(is_captured(device) for device in {tensor.device for tensor in known if tensor is not None}):
                return None
            return digest_pages(self._digests.several(known), 0)

    def last_parameters(self) -> dict[int, int]:
        """By ordinal, the digest of the parameters of every optimizer that still lives, as they are now."""
        found = {}
        for ordinal, optimizer in self.optimizers():
            if optimizer is self._manual:
                continue
            with contextlib.suppress(Exception):  # released, or moved to where they cannot be read
                digest = self._digest(_parameters(optimizer))
                if digest is not None:
                    found[ordinal] = digest
        return found

    def generator_states(self) -> RngStates:
        """Of every global generator, as they are now."""
        with torch._C._DisableTorchDispatch():
            return self._generators.states()


def _parameters(optimizer: Any) -> Iterable[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _skipped_inside(optimizer: Any) -> int:
    """Fused optimizers skip by themselves where a scaler has handed them ``found_inf``."""
    found = getattr(optimizer, "found_inf", None)
    if not isinstance(found, torch.Tensor):
        return 0
    with torch_function_disabled(), torch._C._DisableTorchDispatch():
        if found.device.type != "cpu":
            return 2  # reading it would make the program wait for its device
        return int(bool(found))


# --- what is written as a step ends -----------------------------------------------------------------------------------


class StepLife(Protocol):
    """The session, as seen from its steps."""

    @property
    def is_over(self) -> bool:
        """Whether nothing is recorded any more."""

    def first_step_ended(self) -> None:
        """Step 0 has been written."""

    def step_ended(self, step: int) -> None:
        """``step`` has been written; may end the program."""

    def fail(self, error: Exception) -> None:
        """An error of the recorder's own."""


class StepWriter:
    """Writes a record of each attempt, and moves the window, the phases and the series to the next step."""

    def __init__(
        self,
        process: ProcessState,
        committer: Committer,
        streams: Streams,
        window: OpWindow,
        integrations: Integrations,
        series: SeriesSampler,
        scalers: Scalers,
        modules: ModuleCalls,
        session: StepLife,
    ) -> None:
        self._process = process
        self._committer = committer
        self._streams = streams
        self._window = window
        self._integrations = integrations
        self._series = series
        self._scalers = scalers
        self._session = session
        self.owner_of = modules.owner_of
        self.fail = session.fail

    def before_attempt(self, caller: FrameType) -> None:
        stream = self._streams.here()
        if stream is not None:
            stream.phase = phase_bits(Phase.OPTIMIZER)
            stream.begin_attempt(caller)

    def after_attempt(self, attempt: Attempt) -> None:
        if self._session.is_over:
            return
        ended = self._process.step
        try:
            with torch_function_disabled():
                self._end_step(attempt)
        except Exception as error:
            self.fail(error)
        self._session.step_ended(ended)

    def after_scaler(self, scaler: Any, optimizer: Any, attempt: Attempt) -> None:
        if self._session.is_over:
            return
        try:
            ordinal, step = attempt.optimizer.ordinal, self._process.step - 1
            self._scalers.attempted(scaler, optimizer, ordinal, step, attempt.skipped)
        except Exception as error:
            self.fail(error)

    def backward_begins(self, frame: FrameType) -> bool:
        """Every op of a backward pass has the stack of the call that started it."""
        stream = self._window.backward_begins()
        self._process.phases.backward_begins(stream)
        self._integrations.backward_begins()
        if stream is None:
            return False
        stream.modules.begin_backward(frame)
        return True

    def backward_ended(self) -> None:
        stream = self._streams.here()
        if stream is not None:
            stream.modules.leave()

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
                environment_steps=self._integrations.environment_steps,
                end_row=stream.row,
                recorded=self._window.is_open,
                parameters=attempt.parameters,
                gradients=attempt.gradients,
                generators=attempt.generators,
            )
        )
        self._series.rates(attempt.optimizer.ordinal, attempt.groups, ended)
        process.step = ended + 1
        process.attempt = attempt.optimizer.ordinal, attempt.count
        process.storages.end_step()
        if ended == 0:
            self._session.first_step_ended()
        self._streams.step_began(ended + 1)
        self._window.move(ended + 1)

    def _optimizer_id(self, optimizer: OptimizerState) -> int:
        identity = {"ordinal": optimizer.ordinal, "class": optimizer.name}
        payload = {**identity, "owner": optimizer.owner}
        return self._process.tables.intern("optimizers", portable_key("optimizers", identity), payload)
