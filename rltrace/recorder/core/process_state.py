"""State shared by all streams of a recorded process: tables, calls, storages, the step, phases.

Owns no thread and no file; the session creates it and the committer empties it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Final, Protocol

import torch

from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.base.settings import Settings
from rltrace.recorder.core.call_sites import Sites
from rltrace.recorder.core.calls import Calls
from rltrace.recorder.core.cpu_kernels import Kernels
from rltrace.recorder.core.distributed_tensors import DistributedOps
from rltrace.recorder.core.modules import UNKNOWN_MODULES, ModuleNames
from rltrace.recorder.core.storages import Storages
from rltrace.recorder.digests.cuda_graphs import Graphs
from rltrace.recorder.digests.layouts import Layouts
from rltrace.recorder.digests.readback import ReadBack
from rltrace.recorder.digests.rng_state import RngUse
from rltrace.recorder.digests.tensor_digest import TensorDigests
from rltrace.trace.format.schema import Phase

# --- phases -----------------------------------------------------------------------------------------------------------
#
# The phase of a thread, inferred from what the program does. A phase is evidence, for display and filters: never
# identity, in no digest. It changes at these moments, not per op: an environment is stepped, an outermost module is
# called, a backward pass begins, an optimizer's attempt ends.
#
# - ``init`` until the first of these.
# - ``rollout`` from an event of an environment that the program trains on, ``evaluation`` from one of another.
# - ``forward`` from a module call that a backward pass follows before the next environment event.
# - ``other`` after a backward pass and after an attempt, until the next of these.
#
# Whether a backward pass will follow is not known at the call. It is assumed to be as the last time a call came from
# the same few frames; the first time, gradients being recorded decides. Functions of Stable-Baselines3 are known.
# ``rltrace.phase`` overrides all of it.


FRAMES: Final = 6
"""Frames around a call that identify it."""

MAX_CALLS: Final = 50_000
"""Calls that are remembered."""

LIBRARY_PHASES: Final = {"evaluate_policy": Phase.EVALUATION, "collect_rollouts": Phase.ROLLOUT, "train": Phase.FORWARD}
"""Functions of Stable-Baselines3, and their phases."""

LIBRARIES: Final = ("stable_baselines3/", "sb3_contrib/")

CallKey = tuple[int, ...]


@dataclass(slots=True, eq=False)
class CallPlace:
    """What is known of calls of modules from the same few frames."""

    certain: Phase | None
    """From a function of a library, or from a constructor (None: the phase does not change); OTHER: not known."""
    learned: Phase | None = None
    """What followed the last one."""


class PhasedStream(Protocol):
    """A stream whose rows have a phase."""

    number: int

    @property
    def current_phase(self) -> Phase: ...

    def enter_phase(self, phase: Phase) -> None:
        """Rows are of this phase from now on."""


class Phases:
    """The rules for one process."""

    def __init__(self) -> None:
        self.overrides = 0
        """Number of ``rltrace.phase`` blocks that the program is in."""
        self._calls: dict[CallKey, CallPlace] = {}
        self._pending: dict[int, dict[CallPlace, None]] = {}
        """By stream: calls since the last environment event or backward pass, in order."""
        self._codes: list[CodeType] = []
        """Kept alive: keys contain their ``id()``."""
        self._functions: dict[int, tuple[Phase | None, CodeType]] = {}
        """Phase of a function, by ``id()`` of its code, which is kept alive."""
        self._trained_on: set[str] = set()
        """Environments whose events a backward pass followed."""
        self._since_backward: dict[str, None] = {}
        """Environments with an event since the last backward pass."""
        self._has_stepped = False
        self._replaces = False
        """The program has changed its training environments: a new one does not mean an evaluation."""

    # --- moments ------------------------------------------------------------------------------------------------------

    def module_called(self, stream: PhasedStream, frame: FrameType) -> None:
        """An outermost module is called, from ``frame``."""
        if self.overrides or stream.current_phase is Phase.OPTIMIZER:
            return
        with_gradients = torch.is_grad_enabled()
        key = _call_key(frame, with_gradients)
        place = self._calls.get(key) or self._classify(key, frame)
        self._pending.setdefault(stream.number, {})[place] = None
        phase = place.certain
        if phase is _OTHER:
            phase = place.learned or self._guess(stream, with_gradients)
        if phase is not None:
            stream.enter_phase(phase)

    def environment_event(self, stream: PhasedStream | None, environment: str, frame: FrameType) -> bool:
        """An environment has had an event, called from ``frame``; returns whether it was part of an evaluation.

        ``stream``: the calling thread's; None where no rows are written.
        """
        self._has_stepped = True
        self._since_backward[environment] = None
        known = self._library_phase(frame)
        is_another = bool(self._trained_on) and environment not in self._trained_on and not self._replaces
        evaluates = known is _EVALUATION or (known is None and is_another)
        if stream is not None:
            phase = _EVALUATION if evaluates else _ROLLOUT
            self._learn(stream, phase)
            if not self.overrides:
                stream.enter_phase(phase)
        return evaluates

    def backward_begins(self, stream: PhasedStream | None) -> None:
        """A backward pass begins: from here to the next moment ops are neither forward nor rollout."""
        if stream is not None:
            self._learn(stream, Phase.FORWARD)
        if self._since_backward:
            if not self._trained_on.intersection(self._since_backward):  # the first ones, or they replace the others
                self._replaces = bool(self._trained_on)
                self._trained_on.update(self._since_backward)
            self._since_backward.clear()
        if stream is not None and not self.overrides and stream.current_phase is not Phase.OPTIMIZER:
            stream.enter_phase(Phase.OTHER)

    def _library_phase(self, frame: FrameType) -> Phase | None:
        """The phase of the innermost function of a library on the stack; None: there is none."""
        known = self._functions
        current: FrameType | None = frame
        while current is not None:
            code = current.f_code
            found = known.get(id(code))
            if found is None:
                if len(known) > MAX_CALLS:
                    known.clear()
                phase = LIBRARY_PHASES.get(code.co_name)
                is_of_library = phase is not None and any(library in code.co_filename for library in LIBRARIES)
                found = known[id(code)] = phase if is_of_library else None, code
            if found[0] is not None:
                return found[0]
            current = current.f_back
        return None

    # --- calls --------------------------------------------------------------------------------------------------------

    def _guess(self, stream: PhasedStream, with_gradients: bool) -> Phase | None:
        """The assumed phase of a call not seen before; None: the phase does not change."""
        if with_gradients or not self._has_stepped:
            return Phase.FORWARD
        return None if stream.current_phase in _BETWEEN_STEPS else Phase.ROLLOUT

    def _learn(self, stream: PhasedStream, phase: Phase) -> None:
        pending = self._pending.get(stream.number)
        if pending:
            for place in pending:
                place.learned = phase
            pending.clear()

    def _classify(self, key: CallKey, frame: FrameType) -> CallPlace:
        """Classify a call not seen before, by the whole stack."""
        if len(self._codes) > MAX_CALLS:
            for table in (self._calls, self._codes, self._pending):
                table.clear()
        near: list[CodeType] = []
        current: FrameType | None = frame
        while current is not None and len(near) < FRAMES:
            near.append(current.f_code)
            current = current.f_back
        self._codes += near
        phase: Phase | None = self._library_phase(frame) or Phase.OTHER
        if phase is Phase.OTHER and any(code.co_name == "__init__" for code in near):
            phase = None
        place = self._calls[key] = CallPlace(phase)
        return place


_OTHER: Final = Phase.OTHER
_ROLLOUT: Final = Phase.ROLLOUT
_EVALUATION: Final = Phase.EVALUATION
_BETWEEN_STEPS: Final = (_ROLLOUT, _EVALUATION)


def _call_key(frame: FrameType, with_gradients: bool) -> CallKey:
    """Identity of a calling place: a few frames, and whether gradients are recorded."""
    key = [int(with_gradients)]
    current: FrameType | None = frame
    for _ in range(FRAMES):
        if current is None:
            break
        key += id(current.f_code), current.f_lasti
        current = current.f_back
    return tuple(key)


# --- process ----------------------------------------------------------------------------------------------------------


FULL_STACK: Final = "stack.full"
"""A fact: rows where the program's stack had no space left for the recorder."""


class ProcessState:
    """Shared state of the streams of one process."""

    def __init__(
        self,
        fail: Callable[[Exception], None],
        *,
        verify_inputs: bool = False,
        readback: ReadBack | None = None,
        library: Any = None,
    ) -> None:
        """``library``: of the native engine."""
        self.fail = fail
        """Called with an error of the recorder; recording ends, the program goes on."""
        self.report_missing: Callable[[str, str], None] = lambda fact, what: None
        """Called with a fact of the process, and what is missing from its trace: one more entry of that fact."""
        self.library = library
        self.tables = Tables()
        self.readback = readback or ReadBack()
        """Digests of tensors on devices."""
        self.layouts = Layouts(self.tables, self.readback.can_defer)
        self.digests = TensorDigests(self.layouts, library)
        self.calls = Calls(self.tables, self.layouts)
        self.distributed_ops = DistributedOps()
        self.verify_inputs = verify_inputs
        """Every op digests all its inputs."""
        self.storages = Storages(library and library.StorageTables(), verify_inputs=verify_inputs)
        self.graphs = Graphs(self.readback.gate, self.storages.record_unseen_write, fail)
        self.sites = Sites(self.tables)
        self.kernels = Kernels(self.tables)
        self.settings = Settings(self.tables)
        self.generators = RngUse()
        self.module_names = ModuleNames(self.tables, lambda what: self.report_missing(UNKNOWN_MODULES, what))
        self.step = 0
        """Optimizer attempts finished so far."""
        self.attempt: tuple[int, int] | None = None
        """Of the last attempt that has ended: ordinal of its optimizer, number of that optimizer's attempts."""
        self.phase = Phase.OTHER
        """The phase set by ``rltrace.phase``."""
        self.phases = Phases()
        """Inferred phases."""
