"""All integrations of one process: which methods of which libraries are patched while it is recorded.

Owns the table of libraries. Imports none of them: a library is patched once the program has imported it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import torch

from rltrace.recorder.base.import_hook import ImportHook
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.digests.tensor_digest import TensorDigests
from rltrace.recorder.integrations.checkpoints import Checkpoints
from rltrace.recorder.integrations.environments import (
    IN_EVENT,
    IN_VECTOR,
    EnvironmentConstruction,
    EnvironmentRegistry,
    Environments,
    EnvironmentSteps,
    EventSink,
    IntegrationContext,
)
from rltrace.recorder.integrations.method_patching import CallDepth, MethodDecorator, SubclassPatches
from rltrace.recorder.integrations.rng_snapshot import GeneratorStates
from rltrace.recorder.integrations.spaces import Spaces
from rltrace.recorder.integrations.value_digests import ValueDigests
from rltrace.recorder.integrations.vectors import Vectors


class _PatchedMethods(NamedTuple):
    """Methods of a class and its subclasses that are patched."""

    methods: Mapping[str, MethodDecorator]
    depth: CallDepth
    max_depth: int
    """Calls at this depth run the original."""


class Integrations:
    """Patches these libraries, from ``install`` to ``uninstall``."""

    def __init__(self, events: EventSink, digests: TensorDigests) -> None:
        self.steps = EnvironmentSteps(events.environment_passed)
        self._generators = GeneratorStates()
        context = IntegrationContext(
            events,
            ValueDigests(_digest_undispatched(digests)),
            self.steps,
            EnvironmentRegistry(),
            self._generators,
            calls=CallDepth(),
            constructions=CallDepth(),
            seedings=CallDepth(),
        )
        self._fail = events.fail
        self._checkpoints = Checkpoints(context)
        self._patches: list[SubclassPatches] = []
        construction = EnvironmentConstruction(context)
        environment = (
            _PatchedMethods(Environments(context).methods, context.calls, IN_EVENT),
            _PatchedMethods(construction.of_environments, context.constructions, IN_EVENT),
        )
        vector = (
            _PatchedMethods(Vectors(context).methods, context.calls, IN_VECTOR),
            _PatchedMethods(construction.of_vectors, context.constructions, IN_VECTOR),
        )
        space = (_PatchedMethods(Spaces(context).methods, context.seedings, 1),)
        roots = {
            "gymnasium.core": ("Env", environment),
            "gym.core": ("Env", environment),
            "gymnasium.vector.vector_env": ("VectorEnv", vector),
            "stable_baselines3.common.vec_env.base_vec_env": ("VecEnv", vector),
            "gymnasium.spaces.space": ("Space", space),
            "gym.spaces.space": ("Space", space),
        }
        on_import = {module: self._patch_on_import(*patched) for module, patched in roots.items()}
        on_import["safetensors.torch"] = self._checkpoints.watch_safetensors
        self._imported = ImportHook(on_import, self._fail)

    def install(self) -> None:
        self._generators.begin()
        self._checkpoints.install()
        self._imported.install()

    def uninstall(self) -> None:
        self._imported.uninstall()
        self._checkpoints.uninstall()
        while self._patches:
            self._patches.pop().uninstall()

    def _patch_on_import(self, name: str, patched: tuple[_PatchedMethods, ...]) -> Any:
        def patch(module: ModuleType) -> None:
            for methods, depth, max_depth in patched:
                patches = SubclassPatches(getattr(module, name), methods, self._fail, depth, max_depth)
                self._patches.append(patches)
                patches.install()

        return patch


def _digest_undispatched(digests: TensorDigests) -> Any:
    """Digests of tensors, whose ops are not recorded as the program's."""

    def of_tensor(tensor: torch.Tensor) -> int:
        with torch_function_disabled(), torch._C._DisableTorchDispatch():
            return digests.of(tensor)

    return of_tensor
