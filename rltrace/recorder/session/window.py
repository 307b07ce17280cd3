"""The window: the steps whose ops are recorded, the state that it begins with, and events within it.

Owns when ops and events become rows and the kernel profiler runs, and the rows of kind WINDOW: one for every tensor
that existed before the window. Each has its digest, its name as scalars and its owner as module, so that a difference
from before the window is named as such. Of a run that was started asleep, owns which steps ``rltrace arm`` has
requested: requests are looked for at the end of a step, twenty times a second at most.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import torch

from rltrace.digest import digest_pages
from rltrace.recorder.base.options import RecordOptions
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.core.events import EventForm
from rltrace.recorder.core.modules import tensors_of
from rltrace.recorder.core.op_recorder import OpRecorder
from rltrace.recorder.core.row_buffer import phase_bits
from rltrace.recorder.digests.rng_state import RngStates
from rltrace.recorder.digests.tensor_digest import TensorDigests
from rltrace.recorder.processes.exits import LOOK_SECONDS
from rltrace.recorder.session.torch_patches import TorchPatches
from rltrace.recorder.streams.threads import Streams
from rltrace.trace.format.arming import Answer, ArmRequest, SleepingProcess, read_request, request_path
from rltrace.trace.format.schema import Kind, Phase
from rltrace.trace.write.writer import ProcessWriter

if TYPE_CHECKING:
    from rltrace.recorder.capture.link_checks import LinkChecks

WRITE_SHARE: Final = 2_000
"""The step that the process is in is written at a look, unless the last write took more than one part in so many of
the time since: on a network it may take milliseconds."""


class ArmedWindow(NamedTuple):
    """Steps that are recorded because of a request."""

    first: int
    end: int | None
    request: ArmRequest

    def options(self, asleep: RecordOptions) -> RecordOptions:
        """The options with which these steps are recorded, of a run that was started with ``asleep``."""
        request = self.request
        return replace(
            asleep,
            level=request.level,
            steps=(self.first, self.end),
            values=request.values,
            values_inputs=request.values_inputs,
            values_limit=request.values_limit,
        )


class Arming:
    """The requests to this process."""

    def __init__(self, trace: str, token: str) -> None:
        """Raises OSError where the trace cannot be written."""
        self._trace, self._token = trace, token
        self._state = SleepingProcess()
        self._state.write(trace, token)
        self.windows: list[ArmedWindow] = []
        """In the order of their requests; where two overlap, the first is recorded to its end."""
        self.next_look = 0.0
        """Time (``monotonic``) before which ``due`` need not be called while there are no windows."""
        self._next_write = 0.0

    def due(self, step: int) -> ArmedWindow | None:
        """The window to record ``step`` for, which is about to begin; None: the process is to be asleep."""
        now = monotonic()
        if now >= self.next_look:
            self.next_look = now + LOOK_SECONDS
            self._look(step, now)
        if not self.windows:
            return None
        self.windows = [window for window in self.windows if window.end is None or step < window.end]
        return next((window for window in self.windows if window.first <= step), None)

    def turned(self, step: int, *, is_awake: bool) -> None:
        """The process has woken at the beginning of ``step``, or has fallen asleep."""
        self._write(step=step, is_awake=is_awake)

    def over(self, is_over: bool = True) -> None:
        """The recording has ended; False: it goes on, as the program could not be replaced."""
        self._write(is_over=is_over)

    def _look(self, step: int, now: float) -> None:
        if now >= self._next_write:
            self._write(step=step)
            self._next_write = now + WRITE_SHARE * (monotonic() - now)
        while os.access(request_path(self._trace, number := self._state.request + 1), os.F_OK):
            answer = self._answer(read_request(self._trace, number), step)
            self._write(step=step, request=number, **answer)

    def _answer(self, request: ArmRequest | None, step: int) -> dict[str, Any]:
        """What it changes in the state of the process."""
        if request is None:
            return {"answer": Answer.REFUSED}
        if request.disarm:
            self.windows.clear()
            return {"answer": Answer.DISARMED}
        steps = request.window_at(step)
        if steps is None:
            return {"answer": Answer.PASSED}
        self.windows.append(ArmedWindow(*steps, request))
        return {"answer": Answer.ARMED, "first": steps[0], "end": steps[1]}

    def _write(self, **changes: Any) -> None:
        self._state = self._state._replace(**changes)
        with suppress(OSError):  # a full disk: the process is armed all the same, and the answer is missing
            self._state.write(self._trace, self._token)


class LaunchProfiler(Protocol):
    """What records the launches of kernels, in steps that an option requests; of an extension."""

    def install(self) -> None:
        """Begin; called between two steps, also where it has begun."""

    def uninstall(self) -> None:
        """End, likewise."""

    def between_ops(self) -> None:
        """The calling thread may be between ops, where a cycle can begin anew."""

    def pause(self, why: str) -> None:
        """End the cycle; what comes until the next one is unknown for this reason."""

    def abandon(self) -> None:
        """In a forked child: it has none."""


class OpWindow:
    """Turns the recording of ops and the kernel profiler on and off."""

    def __init__(
        self,
        options: RecordOptions,
        writer: ProcessWriter,
        streams: Streams,
        patches: TorchPatches,
        profiler: LaunchProfiler | None,
        write_state: Callable[[], None],
    ) -> None:
        """``write_state`` writes the WINDOW rows, where the window does not begin with the program."""
        self.streams = streams
        self.process = streams.process
        self._options = options
        self._links: LinkChecks | None = None
        self._writer = writer
        self._patches = patches
        self._profiler = profiler
        self._write_state = write_state
        self.is_open = False
        """Whether ops become rows now."""

    def wake(self, options: RecordOptions, links: LinkChecks | None) -> None:
        """Record the steps of these options from now on; ``links``: the checks of links, where they request it."""
        self._options, self._links = options, links
        self.move(self.process.step)

    def stream_here(self) -> OpRecorder | None:
        """The stream of the calling thread, where its ops become rows."""
        return self.streams.here() if self.is_open else None

    def open(self) -> None:
        """Ops become rows from now on."""
        self.is_open = True
        self._patches.install()
        main, step = self.streams.main, self.process.step
        self._writer.window(main.number, step, self._options.end_step, main.row)
        self.streams.enter()
        if step > 0:
            self._write_state()
        self._move_profiler(step)

    def close(self) -> None:
        """Ops no longer become rows."""
        if not self.is_open:
            return
        if self._profiler is not None:
            self._profiler.uninstall()
        if self._links is not None:
            self._links.check_all()
            self._links.forget_all()
        self.is_open = False
        self.streams.leave()
        self._patches.uninstall()
        self.process.storages.clear()

    def move(self, step: int) -> None:
        """``step`` begins: open or close the window according to the options."""
        options = self._options
        if options.level != "op":
            return
        if not self.is_open and options.first_step <= step and (options.end_step is None or step < options.end_step):
            self.open()
        elif self.is_open and options.end_step is not None and step >= options.end_step:
            self.close()
        elif self.is_open:
            if self._links is not None:
                self._links.check_all()
            self._move_profiler(step)

    def between_ops(self) -> None:
        """The calling thread may be between ops, where the profiler can begin anew."""
        if self._profiler is not None:
            self._profiler.between_ops()

    def backward_begins(self) -> OpRecorder | None:
        """A backward pass begins in the calling thread; return its stream, where its ops become rows."""
        self.between_ops()
        return self.stream_here()

    def _move_profiler(self, step: int) -> None:
        """Between two steps: start, stop or continue the profiler."""
        profiler, steps = self._profiler, self._options.kernels
        if profiler is None or steps is None:
            return
        first, end = steps
        if first <= step and (end is None or step < end):
            profiler.install()
        else:
            profiler.uninstall()


class EventWriter:
    """Writes events into the stream of the thread in which they happen."""

    def __init__(self, window: OpWindow) -> None:
        self._window = window
        self.stream = window.streams.between_ops
        """The stream that an event of the calling thread would be written into now; None: no event can be written."""
        self.fail = window.process.fail

    def write(
        self,
        form: EventForm,
        *,
        evidence: Sequence[int] = (),
        digests: Sequence[int] = (),
        integers: Sequence[int] = (),
        floats: Sequence[float] = (),
        frame: FrameType | None = None,
    ) -> bool:
        """Write an event (``core/events.py``), with a value for each cell of its form.

        ``evidence``: its counts, its digests that are evidence, then values of its fields. ``frame``: its call site;
        None: the caller's (frames of rltrace are never shown). Returns False where nothing can be written: ops are not
        recorded now (``--level step``, outside of the window), the thread is not recorded, or it is running an op.
        Never raises.
        """
        try:
            stream = self.stream()
            if stream is None:
                return False
            stream.write_event(form, evidence, digests, integers, floats, frame or sys._getframe(1))
        except Exception as error:
            self.fail(error)
            return False
        return True

    def environment_passed(self, environment: str, frame: FrameType) -> bool:
        """The calling thread stepped or reset an environment in ``frame``; whether that belongs to an evaluation."""
        self._window.between_ops()
        return self._window.process.phases.environment_event(self._window.stream_here(), environment, frame)

    @contextmanager
    def in_phase(self, phase: Phase) -> Iterator[None]:
        """``with rltrace.phase("rollout")``."""
        process = self._window.process
        outer = process.phase
        self._window.streams.set_phase(phase)
        process.phases.overrides += 1
        try:
            yield
        finally:
            process.phases.overrides -= 1
            self._window.streams.set_phase(outer)


def write_state(
    stream: OpRecorder,
    optimizers: Iterable[tuple[int, Any]],
    roots: Iterable[tuple[str, torch.nn.Module]],
    states: RngStates,
) -> None:
    """Write rows for parameters, buffers, optimizer state and generators; ``optimizers``: with ordinals."""
    bits = phase_bits(Phase.OTHER, Kind.WINDOW)
    with torch_function_disabled(), torch._C._DisableTorchDispatch():
        for owner, name, tensor in named_tensors(optimizers, roots):
            stream.write_window_tensor(bits, name, owner, tensor)
        for name, state in states._asdict().items():
            stream.write_window_row(bits, f"generator {name}", "", [state], None)


def last_state(
    digests: TensorDigests, optimizers: Iterable[tuple[int, Any]], roots: Iterable[tuple[str, torch.nn.Module]]
) -> dict[str, Any]:
    """Of the journal record ``state``: one digest of all that ``write_state`` would record now, except gradients."""
    with torch_function_disabled(), torch._C._DisableTorchDispatch():
        found = digests.several(lasting_tensors(optimizers, roots))
    return {"type": "state", "tensors": len(found), "digest": f"{digest_pages(found, 0):016x}"}


def lasting_tensors(
    optimizers: Iterable[tuple[int, Any]], roots: Iterable[tuple[str, torch.nn.Module]]
) -> Iterator[torch.Tensor]:
    """Parameters, buffers and optimizer state."""
    return (tensor for _, name, tensor in named_tensors(optimizers, roots) if not name.endswith(".grad"))


def named_tensors(
    optimizers: Iterable[tuple[int, Any]], roots: Iterable[tuple[str, torch.nn.Module]]
) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Parameters, buffers, gradients and optimizer state: path of the owner, name, tensor."""
    named: dict[int, tuple[str, str]] = {}
    with_gradient: set[int] = set()  # two optimizers may share a parameter
    for root, module in roots:
        for name, tensor in tensors_of(module):
            if id(tensor) not in named:
                named[id(tensor)] = (root, name)
                yield root, name, tensor
    for ordinal, optimizer in optimizers:
        owner = f"{type(optimizer).__name__}#{ordinal}"
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for index, parameter in enumerate(parameters):
            root, name = named.get(id(parameter), (owner, f"parameter {index}"))
            if id(parameter) not in named:
                yield root, name, parameter
            if parameter.grad is not None and id(parameter) not in with_gradient:
                with_gradient.add(id(parameter))
                yield root, f"{name}.grad", parameter.grad
            for key, value in sorted(optimizer.state.get(parameter, {}).items(), key=lambda item: str(item[0])):
                if isinstance(value, torch.Tensor):
                    yield owner, f"{root}.{name}: {key}", value
