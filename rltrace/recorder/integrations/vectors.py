"""Vectors of environments: Gymnasium's and Stable-Baselines3's, where the environments themselves are out of sight.

Stands in for ``step`` and ``reset`` of ``gymnasium.vector.VectorEnv`` and of Stable-Baselines3's ``VecEnv``. A vector
that steps its environments in this process writes nothing: each of them is an event of its own (``environments.py``).
Of one that has them in other processes, or in one batch, the batch is told, with a digest for what each environment
returned. ``step_async`` and ``step_wait`` called apart are not seen.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, Final, NamedTuple

import numpy as np

from rltrace.digest import digest_pages
from rltrace.recorder.integrations.environments import (
    IN_VECTOR,
    Environment,
    EnvironmentRegistry,
    Teller,
    remember,
    seed_of,
)
from rltrace.recorder.integrations.method_patching import Around, CallDepth, Method
from rltrace.recorder.integrations.rng_snapshot import GeneratorStates
from rltrace.recorder.integrations.value_digests import ValueDigests
from rltrace.trace.format.schema import Kind

MOST_TOLD: Final = 256
"""Environments of a vector that have a digest each."""

_NAMES: Final = {
    5: ("observation", "reward", "terminated", "truncated"),  # Gymnasium
    4: ("observation", "reward", "done"),  # Stable-Baselines3
}


class VectorCall(NamedTuple):
    """What is told of a call as it begins."""

    told: int
    """Digest of the actions; of a reset its seed."""
    states: tuple[int, int, int]


class Vectors:
    """What stands in for the methods."""

    def __init__(
        self,
        register: EnvironmentRegistry,
        contents: ValueDigests,
        states: GeneratorStates,
        within: CallDepth,
        teller: Teller,
    ) -> None:
        self._register = register
        self._contents = contents
        self._states = states
        self._within = within
        self._teller = teller

    @property
    def methods(self) -> dict[str, Around]:
        return {
            "step": lambda original: self._around(original, is_step=True),
            "reset": lambda original: self._around(original, is_step=False),
        }

    def _around(self, original: Method, *, is_step: bool) -> Method:
        within, known_of, transparent = self._within, self._register.vector, self._register.transparent
        is_told, begin, end, fail = self._teller.is_told, self._begin, self._after, self._teller.fail
        is_transparent = transparent.get

        def stand_in(vector: Any, *args: Any, **kwargs: Any) -> Any:
            if within.depth or is_transparent(vector):
                return original(vector, *args, **kwargs)
            try:
                environment = known_of(vector)
                given = begin(vector, args, kwargs, is_step) if is_told() else None
            except Exception as error:
                fail(error)
                return original(vector, *args, **kwargs)
            events, within.depth = within.seen, IN_VECTOR
            try:
                result = original(vector, *args, **kwargs)
            finally:
                within.depth = 0
            try:
                if within.seen != events:
                    remember(transparent, vector, True)
                else:
                    end(vector, environment, given, result, sys._getframe(1), is_step)
            except Exception as error:
                fail(error)
            return result

        return stand_in

    def _begin(self, vector: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_step: bool) -> VectorCall:
        given = args[0] if args else kwargs.get("actions") if is_step else kwargs.get("seed", _seeds_of(vector))
        told = self._contents.digest(given) if is_step else seed_of(given)
        return VectorCall(told, (0, self._states.python(), self._states.numpy()))

    def _after(
        self,
        vector: Any,
        environment: Environment,
        given: VectorCall | None,
        result: Any,
        frame: FrameType,
        is_step: bool,
    ) -> None:
        count = int(vector.num_envs)
        environment.steps += is_step
        environment.resets += not is_step
        self._teller.passed(environment, count if is_step else 0, frame)
        told = None if given is None else _told(result, is_step)
        if given is None or told is None:
            return
        names, parts = told
        digests = [self._contents.digest(part) for part in parts]
        each = [self._of_one(parts, k) for k in range(count)] if count <= MOST_TOLD and _are_arrays(parts) else []
        names = (*names, *(f"of {k}" for k in range(len(each))))
        counts: tuple[int, ...] = environment.resets, given.told, environment.made
        kind = Kind.ENVIRONMENT_RESET
        if is_step:
            names, digests, counts = ("action", *names), [given.told, *digests], (environment.steps,)
            kind = Kind.ENVIRONMENT_STEP
        self._teller.event(
            environment.form(kind, names, (), ()),
            evidence=(*counts, *given.states),
            digests=[*digests, *each],
            integers=(),
            floats=(),
            frame=frame,
        )

    def _of_one(self, parts: Sequence[Any], place: int) -> int:
        """What one of the environments returned."""
        return digest_pages([self._contents.digest(_part(part, place)) for part in parts], place)


def _seeds_of(vector: Any) -> Any:
    """The seeds that the next reset will give to the environments, as Stable-Baselines3 keeps them; None: none."""
    seeds = getattr(vector.unwrapped, "_seeds", None)
    return seeds if isinstance(seeds, list) and any(seed is not None for seed in seeds) else None


def _told(result: Any, is_step: bool) -> tuple[tuple[str, ...], list[Any]] | None:
    """What a call returned, by name, its ``info`` aside; None: something that is not known here."""
    if is_step:
        known = isinstance(result, tuple) and len(result) in _NAMES
        return (_NAMES[len(result)], list(result[:-1])) if known else None
    pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
    return ("observation",), [result[0] if pair else result]


def _are_arrays(batch: Any) -> bool:
    """Whether it is made of NumPy arrays: to take a part of a tensor would be an op."""
    if isinstance(batch, Mapping):
        return all(map(_are_arrays, batch.values()))
    return all(map(_are_arrays, batch)) if isinstance(batch, (list, tuple)) else isinstance(batch, np.ndarray)


def _part(batch: Any, place: int) -> Any:
    """What of a batch is the environment's at this place."""
    if isinstance(batch, Mapping):
        return {name: _part(value, place) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [_part(value, place) for value in batch]
    return batch[place] if batch.ndim and place < len(batch) else batch
