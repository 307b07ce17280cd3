"""All boundaries of one process: what stands in where, from the start of a recording to its end.

Owns the table of libraries, and the count of environment steps. Nothing is imported for it: a library is known from the
moment on at which the program has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType, ModuleType
from typing import Any, NamedTuple, Protocol

import torch

from rltrace.recorder.base.import_hook import ImportHook
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.core.events import EventForm
from rltrace.recorder.digests.tensor_digest import TensorDigests
from rltrace.recorder.integrations.checkpoints import Checkpoints
from rltrace.recorder.integrations.environments import (
    IN_EVENT,
    IN_VECTOR,
    Environment,
    EnvironmentConstruction,
    EnvironmentRegistry,
    Environments,
)
from rltrace.recorder.integrations.method_patching import Around, CallDepth, Subclasses
from rltrace.recorder.integrations.rng_snapshot import GeneratorStates
from rltrace.recorder.integrations.spaces import Spaces
from rltrace.recorder.integrations.value_digests import ValueDigests
from rltrace.recorder.integrations.vectors import Vectors


class Events(Protocol):
    """Writes events into streams."""

    def can_write(self) -> bool:
        """Whether an event of the calling thread would be written now."""

    def write(
        self, form: EventForm, *, evidence: Any, digests: Any, integers: Any, floats: Any, frame: FrameType | None
    ) -> bool: ...

    def environment_passed(self, environment: str, frame: FrameType) -> bool:
        """An environment was stepped or reset in ``frame``; whether that was part of an evaluation."""

    def fail(self, error: Exception) -> None:
        """An error of the recorder's own."""


class _Calls(NamedTuple):
    """Methods of one class and of all below it that are stood in for."""

    methods: Mapping[str, Around]
    deepest: int
    """How deep in such calls the original is called instead."""


class Integrations:
    """Installed from ``install`` to ``uninstall``."""

    def __init__(self, events: Events, digests: TensorDigests) -> None:
        self._is_evaluation = events.environment_passed
        self.is_told = events.can_write
        self.event = events.write
        self.fail = events.fail
        self.environment_steps = 0
        """Made so far, evaluations aside; a vector of n environments makes n at a time."""
        self._evaluating: dict[str, bool] = {}
        """By environment: whether what was last seen of it, since the last backward pass, was part of an evaluation."""
        self._states = GeneratorStates()
        contents = ValueDigests(_beside_the_program(digests))
        self._within = CallDepth()
        self._making, self._seeding = CallDepth(), CallDepth()
        register = EnvironmentRegistry()
        shared = register, contents, self._states, self._within, self
        environments, vectors = Environments(*shared), Vectors(*shared)
        makings = EnvironmentConstruction(register, contents, self._within, self._making, self)
        spaces = Spaces(register, contents, self._seeding, self)
        self._checkpoints = Checkpoints(contents, self)
        self._changed: list[Subclasses] = []
        one, many = _Calls(environments.methods, IN_EVENT), _Calls(vectors.methods, IN_VECTOR)
        made, all_made = _Calls(makings.of_environments, IN_EVENT), _Calls(makings.of_vectors, IN_VECTOR)
        seeds = _Calls(spaces.methods, 1)
        roots = {
            "gymnasium.core": ("Env", {self._within: one, self._making: made}),
            "gym.core": ("Env", {self._within: one, self._making: made}),
            "gymnasium.vector.vector_env": ("VectorEnv", {self._within: many, self._making: all_made}),
            "stable_baselines3.common.vec_env.base_vec_env": ("VecEnv", {self._within: many, self._making: all_made}),
            "gymnasium.spaces.space": ("Space", {self._seeding: seeds}),
            "gym.spaces.space": ("Space", {self._seeding: seeds}),
        }
        awaited = {name: self._watching(*what) for name, what in roots.items()}
        awaited["safetensors.torch"] = self._checkpoints.watch_safetensors
        self._imported = ImportHook(awaited, self.fail)

    def install(self) -> None:
        self._states.begin()
        self._checkpoints.install()
        self._imported.install()

    def uninstall(self) -> None:
        self._imported.uninstall()
        self._checkpoints.uninstall()
        while self._changed:
            self._changed.pop().uninstall()

    def _watching(self, name: str, calls: Mapping[CallDepth, _Calls]) -> Any:
        def told(module: ModuleType) -> None:
            for within, what in calls.items():
                changed = Subclasses(getattr(module, name), what.methods, self.fail, within, what.deepest)
                self._changed.append(changed)
                changed.install()

        return told

    # --- what the boundaries tell -------------------------------------------------------------------------------------

    def passed(self, environment: Environment, steps: int, frame: FrameType) -> None:
        if not self._is_evaluation(environment.name, frame):
            self.environment_steps += steps

    def counts(self, environment: Environment, steps: int) -> None:
        """An evaluation resets its environment before it begins; so at a step the stack is not asked for it."""
        name = environment.name
        evaluates = self._evaluating.get(name) if steps else None
        if evaluates is None:
            evaluates = self._evaluating[name] = self._is_evaluation(name, sys._getframe(2))
        if not evaluates:
            self.environment_steps += steps

    def backward_begins(self) -> None:
        """Which environments are learned from may be known now."""
        self._evaluating.clear()


def _beside_the_program(digests: TensorDigests) -> Any:
    """Digests of tensors, the ops for which are no ops of the program."""

    def of_tensor(tensor: torch.Tensor) -> int:
        with torch_function_disabled(), torch._C._DisableTorchDispatch():
            return digests.of(tensor)

    return of_tensor
