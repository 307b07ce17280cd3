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
from typing import Any, Final

import numpy as np

from rltrace.digest import digest_pages
from rltrace.record.boundaries.classes import Around, Method
from rltrace.record.boundaries.contents import Contents
from rltrace.record.boundaries.environments import Here, Teller, seed_of
from rltrace.record.boundaries.register import Environment, Register
from rltrace.record.boundaries.states import GeneratorStates
from rltrace.trace.schema import Kind

MOST_TOLD: Final = 256
"""Environments of a vector that have a digest each."""

_NAMES: Final = {
    5: ("observation", "reward", "terminated", "truncated"),  # Gymnasium
    4: ("observation", "reward", "done"),  # Stable-Baselines3
}


class Vectors:
    """What stands in for the methods."""

    def __init__(
        self, register: Register, contents: Contents, states: GeneratorStates, here: Here, teller: Teller
    ) -> None:
        self._register = register
        self._contents = contents
        self._states = states
        self._here = here
        self._teller = teller

    @property
    def methods(self) -> dict[str, Around]:
        return {
            "step": lambda original: self._around(original, is_step=True),
            "reset": lambda original: self._around(original, is_step=False),
        }

    def _around(self, original: Method, *, is_step: bool) -> Method:
        here, fail = self._here, self._teller.fail

        def stand_in(vector: Any, *args: Any, **kwargs: Any) -> Any:
            if here.inside or here.in_vector:
                return original(vector, *args, **kwargs)
            try:
                environment, given, states = self._begin(vector, args, kwargs, is_step)
            except Exception as error:
                fail(error)
                return original(vector, *args, **kwargs)
            here.in_vector = True
            events = here.seen
            try:
                result = original(vector, *args, **kwargs)
            finally:
                here.in_vector = False
            try:
                if here.seen != events:
                    environment.transparent = True
                else:
                    self._after(vector, environment, given, states, result, sys._getframe(1), is_step)
            except Exception as error:
                fail(error)
            return result

        return stand_in

    def _begin(
        self, vector: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_step: bool
    ) -> tuple[Environment, int, tuple[int, ...]]:
        base = vector.unwrapped
        environment = self._register.vector(base, type(base).__name__)
        if environment.transparent or not self._teller.is_told():
            return environment, 0, (0, 0, 0)
        given = args[0] if args else kwargs.get("actions") if is_step else kwargs.get("seed")
        told = self._contents.digest(given) if is_step else seed_of(given)
        return environment, told, (0, self._states.python(), self._states.numpy())

    def _after(
        self,
        vector: Any,
        environment: Environment,
        given: int,
        states: tuple[int, ...],
        result: Any,
        frame: FrameType,
        is_step: bool,
    ) -> None:
        count = int(vector.num_envs)
        environment.steps += is_step
        environment.resets += not is_step
        self._teller.environment(environment, count if is_step else 0, frame)
        if not self._teller.is_told():
            return
        told = _told(result, is_step)
        if told is None:
            return
        names, parts = told
        digests = [self._contents.digest(part) for part in parts]
        each = [self._of_one(parts, k) for k in range(count)] if count <= MOST_TOLD and _are_arrays(parts) else []
        names = (*names, *(f"of {k}" for k in range(len(each))))
        counts: tuple[int, ...] = environment.resets, given
        kind = Kind.ENVIRONMENT_RESET
        if is_step:
            names, digests, counts = ("action", *names), [given, *digests], (environment.steps,)
            kind = Kind.ENVIRONMENT_STEP
        self._teller.event(
            environment.form(kind, names, (), ()),
            evidence=(*counts, *states),
            digests=[*digests, *each],
            integers=(),
            floats=(),
            frame=frame,
        )

    def _of_one(self, parts: Sequence[Any], place: int) -> int:
        """What one of the environments returned."""
        return digest_pages([self._contents.digest(_part(part, place)) for part in parts], place)


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
