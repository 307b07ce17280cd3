"""All integrations of one process: which methods of which libraries are patched while it is recorded.

Owns the table of libraries. Imports none of them: a library is patched once the program has imported it.
"""

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import torch

from rltrace.recorder.base.patching import ImportHook
from rltrace.recorder.base.torch_function import torch_function_disabled
from rltrace.recorder.digests.rng_state import first_states
from rltrace.recorder.digests.tensor_digest import TensorDigests
from rltrace.recorder.integrations.checkpoints import Checkpoints, NoteFile, SavedTensors
from rltrace.recorder.integrations.environments import (
    IN_EVENT,
    IN_VECTOR,
    EnvironmentConstruction,
    EnvironmentRegistry,
    Environments,
    EnvironmentSteps,
    EventSink,
    IntegrationContext,
    TurnEnvironments,
)
from rltrace.recorder.integrations.exchanged_objects import ExchangedObjects
from rltrace.recorder.integrations.generators import Generators
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
    """Patches these libraries, from ``install`` to ``uninstall``; whatever is counted is counted anew each time."""

    def __init__(self, events: EventSink, digests: TensorDigests, note_file: NoteFile, step: Callable[[], int]) -> None:
        self._events, self._digests, self._fail = events, digests, events.fail
        self._note_file, self._step = note_file, step
        self.saved = SavedTensors(digests, step)
        self.steps = EnvironmentSteps(events.environment_passed)
        self.registry = EnvironmentRegistry()
        self._patches: list[SubclassPatches] = []
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        self.steps = EnvironmentSteps(self._events.environment_passed)
        self.registry = EnvironmentRegistry()
        generators = GeneratorStates()
        context = IntegrationContext(
            self._events,
            ValueDigests(_digest_undispatched(self._digests)),
            self.steps,
            self.registry,
            generators,
            calls=CallDepth(),
            constructions=CallDepth(),
            seedings=CallDepth(),
        )
        checkpoints = Checkpoints(context, self._note_file, self.saved)
        objects = ExchangedObjects(context)
        construction = EnvironmentConstruction(context)
        environment = (
            _PatchedMethods(Environments(context).methods, context.calls, IN_EVENT),
            _PatchedMethods(construction.of_environments, context.constructions, IN_EVENT),
        )
        of_dm_env = (_PatchedMethods(Environments(context, of_dm_env=True).methods, context.calls, IN_EVENT),)
        vector = (
            _PatchedMethods(Vectors(context).methods, context.calls, IN_VECTOR),
            _PatchedMethods(construction.of_vectors, context.constructions, IN_VECTOR),
        )
        space = (_PatchedMethods(Spaces(context, is_late=self._step() > 0).methods, context.seedings, 1),)
        own = Generators(context)
        turns = (_PatchedMethods(TurnEnvironments(context).methods, context.calls, IN_EVENT), environment[1])
        roots: dict[str, dict[str, tuple[_PatchedMethods, ...]]] = {
            "gymnasium.core": {"Env": environment},
            "gym.core": {"Env": environment},
            "pettingzoo.utils.env": {"ParallelEnv": environment, "AECEnv": turns},
            "dm_env._environment": {"Environment": (*of_dm_env, environment[1])},
            "gymnasium.vector.vector_env": {"VectorEnv": vector},
            "stable_baselines3.common.vec_env.base_vec_env": {"VecEnv": vector},
            "gymnasium.spaces.space": {"Space": space},
            "gym.spaces.space": {"Space": space},
            "random": {"Random": (_PatchedMethods(own.of_python, context.seedings, 1),)},
        }
        on_import = {module: self._patch_on_import(patched) for module, patched in roots.items()}

        def on_numpy(module: ModuleType) -> None:
            first_states().imported_numpy()
            generators.imported_numpy(module)
            own.watch_numpy(module)

        on_import["numpy.random"] = on_numpy
        on_import["safetensors.torch"] = checkpoints.watch_safetensors
        on_import["torch.distributed.distributed_c10d"] = objects.watch
        imported = ImportHook(on_import, self._fail)
        self._undo = [checkpoints.uninstall, objects.uninstall, imported.uninstall, own.uninstall]
        generators.begin()
        checkpoints.install()
        imported.install()

    def uninstall(self) -> None:
        while self._undo:
            self._undo.pop()()
        while self._patches:
            self._patches.pop().uninstall()

    def _patch_on_import(self, patched: Mapping[str, tuple[_PatchedMethods, ...]]) -> Any:
        def patch(module: ModuleType) -> None:
            for name, each in patched.items():
                for methods, depth, max_depth in each if hasattr(module, name) else ():
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
