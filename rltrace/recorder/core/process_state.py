"""What all streams of one process share while it is recorded: tables, calls, storages, the step.

Owns no thread and no file; the session puts it together and the committer empties it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType
from typing import Final, Protocol

import torch

from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.base.settings import Settings
from rltrace.recorder.core.call_sites import Sites
from rltrace.recorder.core.calls import Calls
from rltrace.recorder.core.cpu_kernels import Kernels
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
# Which phase a thread is in, told by what the program does: nothing of it is asked of the program.
#
# Owns the rules, and what is remembered for them. A phase is what ops are shown as and filtered by: evidence, never
# identity, and in no digest. Nothing here runs per op. It is set when something happens: an environment is stepped, an
# outermost module is called, a backward pass begins, an optimizer's attempt ends.
#
# - ``init`` until the first of these.
# - ``rollout`` from an event of an environment on that the program trains on, ``evaluation`` from one of another.
# - ``forward`` from the call of a module on whose results a backward pass follows, before another environment event.
# - ``other`` after a backward pass and after an attempt, until the next of these.
#
# Whether a backward pass will follow is not known at the call. It is known of the last time that the call came from
# there, by the few frames around it; of the first time, gradients being recorded is what tells. What Stable-Baselines3
# does is known by its functions. ``rltrace.phase`` overrides all of it.


FRAMES: Final = 6
"""Around a call, that tell it from others."""

MOST: Final = 50_000
"""Calls that are remembered."""

KNOWN: Final = {
    "evaluate_policy": Phase.EVALUATION,
    "collect_rollouts": Phase.ROLLOUT,
    "train": Phase.FORWARD,
}
"""Functions of Stable-Baselines3, and what they do."""

LIBRARIES: Final = ("stable_baselines3/", "sb3_contrib/")

Call = tuple[int, ...]


class PhasedStream(Protocol):
    """The rows of one thread, which are of one phase or another."""

    number: int

    @property
    def current_phase(self) -> Phase: ...

    def enter_phase(self, phase: Phase) -> None:
        """Rows are of this phase from now on."""


class Phases:
    """The rules for one process."""

    def __init__(self) -> None:
        self.said = 0
        """How many ``rltrace.phase`` blocks the program is in."""
        self._learned: dict[Call, Phase] = {}
        self._certain: dict[Call, Phase | None] = {}
        """Of calls from a function of a library, or from a constructor (None: whatever it is then goes on)."""
        self._waiting: dict[int, dict[Call, None]] = {}
        """By stream: calls since the last environment event or backward pass, in order."""
        self._codes: list[CodeType] = []
        """Kept alive: their ``id()`` stands in keys."""
        self._functions: dict[int, tuple[Phase | None, CodeType]] = {}
        """By ``id()`` of its code, which is kept alive: what a function says."""
        self._trained_on: set[str] = set()
        """Environments that a backward pass followed on."""
        self._since_backward: dict[str, None] = {}
        """Environments with an event since the last backward pass."""
        self._has_stepped = False
        self._replaces = False
        """The program goes on to train on other environments than before: a new one is no sign of an evaluation."""

    # --- what happens -------------------------------------------------------------------------------------------------

    def module_called(self, stream: PhasedStream, frame: FrameType) -> None:
        """An outermost module is called, from ``frame``."""
        if self.said or stream.current_phase is Phase.OPTIMIZER:
            return
        with_gradients = torch.is_grad_enabled()
        call = _call(frame, with_gradients)
        if call not in self._certain:
            self._meet(call, frame)
        waiting = self._waiting.get(stream.number)
        if waiting is None:
            waiting = self._waiting[stream.number] = {}
        waiting[call] = None
        phase = self._certain.get(call, Phase.OTHER)
        if phase is Phase.OTHER:
            phase = self._learned.get(call) or self._guess(stream, with_gradients)
        if phase is not None:
            stream.enter_phase(phase)

    def environment_event(self, stream: PhasedStream | None, environment: str, frame: FrameType) -> bool:
        """Something has happened to an environment, seen from ``frame``; whether that was part of an evaluation.

        ``stream``: of the calling thread; None where no rows are written.
        """
        self._has_stepped = True
        self._since_backward[environment] = None
        known = self._library_phase(frame)
        evaluates = known is _EVALUATION or (known is None and self._is_strange(environment))
        if stream is not None:
            phase = _EVALUATION if evaluates else _ROLLOUT
            self._learn(stream, phase)
            if not self.said:
                stream.enter_phase(phase)
        return evaluates

    def backward_begins(self, stream: PhasedStream | None) -> None:
        """What is computed from here on until something else happens is neither forward nor rollout."""
        if stream is not None:
            self._learn(stream, Phase.FORWARD)
        if self._since_backward:
            if not self._trained_on.intersection(self._since_backward):  # the first ones, or in place of the others
                self._replaces = bool(self._trained_on)
                self._trained_on.update(self._since_backward)
            self._since_backward.clear()
        if stream is not None and not self.said and stream.current_phase is not Phase.OPTIMIZER:
            stream.enter_phase(Phase.OTHER)

    def _library_phase(self, frame: FrameType) -> Phase | None:
        """What the innermost function of a library on the stack says; None: there is none."""
        known = self._functions
        at: FrameType | None = frame
        while at is not None:
            code = at.f_code
            if id(code) not in known:
                if len(known) > MOST:
                    known.clear()
                known[id(code)] = _phase_of(code), code
            phase = known[id(code)][0]
            if phase is not None:
                return phase
            at = at.f_back
        return None

    def _is_strange(self, environment: str) -> bool:
        return bool(self._trained_on) and environment not in self._trained_on and not self._replaces

    # --- what is known of calls ---------------------------------------------------------------------------------------

    def _guess(self, stream: PhasedStream, with_gradients: bool) -> Phase | None:
        """Of a call that nothing is known of yet; None: whatever it is then goes on."""
        if with_gradients or not self._has_stepped:
            return Phase.FORWARD
        return None if stream.current_phase in _BETWEEN_STEPS else Phase.ROLLOUT

    def _learn(self, stream: PhasedStream, phase: Phase) -> None:
        waiting = self._waiting.get(stream.number)
        if waiting:
            self._learned.update(dict.fromkeys(waiting, phase))
            waiting.clear()

    def _meet(self, call: Call, frame: FrameType) -> None:
        """The first time: what the whole stack tells of it."""
        if len(self._codes) > MOST:
            for table in (self._learned, self._certain, self._codes, self._waiting):
                table.clear()
        near: list[CodeType] = []
        at: FrameType | None = frame
        while at is not None and len(near) < FRAMES:
            near.append(at.f_code)
            at = at.f_back
        self._codes += near
        phase: Phase | None = self._library_phase(frame) or Phase.OTHER
        if phase is Phase.OTHER and any(code.co_name == "__init__" for code in near):
            phase = None
        self._certain[call] = phase


def _phase_of(code: CodeType) -> Phase | None:
    """What a function of a library says; None: it is none of those."""
    is_known = code.co_name in KNOWN and any(library in code.co_filename for library in LIBRARIES)
    return KNOWN[code.co_name] if is_known else None


_ROLLOUT: Final = Phase.ROLLOUT
_EVALUATION: Final = Phase.EVALUATION
_BETWEEN_STEPS: Final = (_ROLLOUT, _EVALUATION)


def _call(frame: FrameType, with_gradients: bool) -> Call:
    """What tells one place that calls from another: a few frames, and whether gradients are recorded."""
    parts = [int(with_gradients)]
    at: FrameType | None = frame
    for _ in range(FRAMES):
        if at is None:
            break
        parts += id(at.f_code), at.f_lasti
        at = at.f_back
    return tuple(parts)


# --- process ----------------------------------------------------------------------------------------------------------


FULL_STACK: Final = "stack.full"
"""A fact: where the program's stack had no room left for the recorder."""


class ProcessState:
    """Shared state of the streams of one process."""

    def __init__(
        self, fail: Callable[[Exception], None], *, verify_inputs: bool = False, readback: ReadBack | None = None
    ) -> None:
        self.fail = fail
        """Called with an error of the recorder's own; recording ends, the program goes on."""
        self.missing: Callable[[str, str], None] = lambda fact, what: None
        """Called with a fact of the process, and what is missing from its trace: one more entry of that fact."""
        self.tables = Tables()
        self.readback = readback or ReadBack()
        """Digests of what lies on devices."""
        self.layouts = Layouts(self.tables, self.readback.takes)
        self.digests = TensorDigests(self.layouts)
        self.calls = Calls(self.tables, self.layouts)
        self.verify_inputs = verify_inputs
        """Nothing is taken on trust: every op digests what it reads."""
        self.storages = Storages(verify_inputs=verify_inputs)
        self.graphs = Graphs(self.readback.gate, self.storages.unseen_write, fail)
        self.sites = Sites(self.tables)
        self.kernels = Kernels(self.tables)
        self.settings = Settings(self.tables)
        self.generators = RngUse()
        self.module_names = ModuleNames(self.tables, lambda what: self.missing(UNKNOWN_MODULES, what))
        self.step = 0
        """Optimizer attempts finished so far."""
        self.attempt: tuple[int, int] | None = None
        """Of the last attempt that has ended: ordinal of its optimizer, that optimizer's own count."""
        self.phase = Phase.OTHER
        """What the program says it is doing."""
        self.phases = Phases()
        """What it is seen to do."""
