"""All boundaries of one process: what stands in where, from the start of a recording to its end.

Owns the table of libraries, and the count of environment steps. Nothing is imported for it: a library is known from the
moment on at which the program has imported it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FrameType, ModuleType
from typing import Any, Protocol

import torch

from rltrace.record.boundaries.checkpoints import Checkpoints
from rltrace.record.boundaries.classes import Around, Subclasses
from rltrace.record.boundaries.contents import Contents
from rltrace.record.boundaries.environments import Environments, Here
from rltrace.record.boundaries.imported import Imported
from rltrace.record.boundaries.register import Environment, Register
from rltrace.record.boundaries.states import GeneratorStates
from rltrace.record.boundaries.vectors import Vectors
from rltrace.record.digests import TensorDigests
from rltrace.record.events import EventForm
from rltrace.trace.schema import Phase


class Listener(Protocol):
    """Whose rows the events become."""

    def takes_events(self) -> bool:
        """Whether an event of the calling thread would be written now."""

    def event(
        self, form: EventForm, *, evidence: Any, digests: Any, integers: Any, floats: Any, frame: FrameType | None
    ) -> bool: ...

    def environment_phase(self, environment: str, frame: FrameType) -> Phase:
        """What a step or a reset of an environment was part of."""

    def fail(self, error: Exception) -> None: ...


class Boundaries:
    """Installed from ``watch`` to ``ignore``."""

    def __init__(self, listener: Listener, digests: TensorDigests) -> None:
        self._listener = listener
        self.environment_steps = 0
        """Made so far, evaluations aside; a vector of n environments makes n at a time."""
        self._states = GeneratorStates()
        contents = Contents(_beside_the_program(digests))
        shared = Register(), contents, self._states, Here(), self
        environments, vectors = Environments(*shared), Vectors(*shared)
        self._checkpoints = Checkpoints(contents, self)
        self._changed: list[Subclasses] = []
        roots = {
            "gymnasium.core": ("Env", environments.methods),
            "gym.core": ("Env", environments.methods),
            "gymnasium.vector.vector_env": ("VectorEnv", vectors.methods),
            "stable_baselines3.common.vec_env.base_vec_env": ("VecEnv", vectors.methods),
        }
        self._imported = Imported({name: self._watching(*what) for name, what in roots.items()}, self.fail)

    def watch(self) -> None:
        self._states.begin()
        self._checkpoints.watch()
        self._imported.watch()

    def ignore(self) -> None:
        self._imported.ignore()
        self._checkpoints.ignore()
        while self._changed:
            self._changed.pop().ignore()

    def _watching(self, name: str, methods: Mapping[str, Around]) -> Any:
        def told(module: ModuleType) -> None:
            changed = Subclasses(getattr(module, name), methods, self.fail)
            self._changed.append(changed)
            changed.watch()

        return told

    # --- what the boundaries tell -------------------------------------------------------------------------------------

    def is_told(self) -> bool:
        return self._listener.takes_events()

    def event(
        self, form: EventForm, *, evidence: Any, digests: Any, integers: Any, floats: Any, frame: FrameType | None
    ) -> bool:
        return self._listener.event(
            form, evidence=evidence, digests=digests, integers=integers, floats=floats, frame=frame
        )

    def environment(self, environment: Environment, steps: int, frame: FrameType) -> None:
        phase = self._listener.environment_phase(environment.name, frame)
        if phase is not Phase.EVALUATION:
            self.environment_steps += steps

    def fail(self, error: Exception) -> None:
        self._listener.fail(error)


def _beside_the_program(digests: TensorDigests) -> Any:
    """Digests of tensors, the ops for which are no ops of the program."""

    def of_tensor(tensor: torch.Tensor) -> int:
        with torch._C._DisableTorchDispatch():
            return digests.of(tensor)

    return of_tensor
