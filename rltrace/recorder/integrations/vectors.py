"""Vectors of environments, Gymnasium's and Stable-Baselines3's, whose environments cannot be seen one by one.

Patches ``step`` and ``reset`` of ``gymnasium.vector.VectorEnv`` and of Stable-Baselines3's ``VecEnv``. A vector that
steps its environments in this process has no events: each environment has them (``environments.py``). Of one that runs
them in other processes, or in one batch, the batch is recorded, with a digest of what each environment returned.
Separate calls of ``step_async`` and ``step_wait`` are not seen.
"""

import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, Final

import numpy as np

from rltrace.digest import digest_pages
from rltrace.recorder.integrations.environments import (
    IN_VECTOR,
    MAX_VALUE_CELLS,
    CallStart,
    Environment,
    IntegrationContext,
    fields_of,
    remember,
    seed_of,
)
from rltrace.recorder.integrations.method_patching import Method, MethodDecorator
from rltrace.trace.format.schema import Kind

MAX_DIGESTS: Final = 256
"""Environments of a vector that have a digest each."""

_NAMES: Final = {
    5: ("observation", "reward", "terminated", "truncated"),  # Gymnasium
    4: ("observation", "reward", "done"),  # Stable-Baselines3
}


class Vectors:
    """Patches ``step`` and ``reset``."""

    def __init__(self, context: IntegrationContext) -> None:
        self._context = context

    @property
    def methods(self) -> dict[str, MethodDecorator]:
        return {
            "step": lambda original: self._decorate(original, is_step=True),
            "reset": lambda original: self._decorate(original, is_step=False),
        }

    def _decorate(self, original: Method, *, is_step: bool) -> Method:
        context, begin, end = self._context, self._begin, self._end
        calls, environment_of, transparent = context.calls, context.registry.vector, context.registry.transparent
        stream_here, fail, is_transparent = context.events.stream, context.events.fail, transparent.get

        def replacement(vector: Any, *args: Any, **kwargs: Any) -> Any:
            if calls.depth or is_transparent(vector):
                return original(vector, *args, **kwargs)
            try:
                environment = environment_of(vector)
                before = begin(vector, args, kwargs, is_step) if stream_here() is not None else None
            except Exception as error:
                fail(error)
                return original(vector, *args, **kwargs)
            events, calls.depth = calls.nested_events, IN_VECTOR
            try:
                result = original(vector, *args, **kwargs)
            finally:
                calls.depth = 0
            try:
                if calls.nested_events != events:
                    remember(transparent, vector, True)
                else:
                    end(vector, environment, before, result, sys._getframe(1), is_step)
            except Exception as error:
                fail(error)
            return result

        return replacement

    def _begin(self, vector: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_step: bool) -> CallStart:
        value = args[0] if args else kwargs.get("actions") if is_step else kwargs.get("seed", _seeds_of(vector))
        states = (0, *self._context.generators.states())
        if not is_step:
            return seed_of(value), states
        names, digests, cells = fields_of(self._context.digests, "action", value)
        return (names, digests), states + cells

    def _end(
        self,
        vector: Any,
        environment: Environment,
        before: CallStart | None,
        result: Any,
        frame: FrameType,
        is_step: bool,
    ) -> None:
        count = int(vector.num_envs)
        environment.steps += is_step
        environment.resets += not is_step
        self._context.steps.add(environment, count if is_step else 0, frame)
        batch = None if before is None else _named_batch(result, is_step)
        if before is None or batch is None:
            return
        values, (argument, states) = batch[1], before
        names, digests = argument if is_step else ((), [])
        for name, value in zip(*batch, strict=True):
            more = fields_of(self._context.digests, name, value, len(names))
            names, digests, states = names + more[0], digests + more[1], states + more[2]
        is_small = count <= MAX_DIGESTS and _are_arrays(values)
        each = [self._digest_one(values, k) for k in range(count)] if is_small else []
        names = (*names, *(f"of {k}" for k in range(len(each))))
        kind = Kind.ENVIRONMENT_STEP if is_step else Kind.ENVIRONMENT_RESET
        counts = (environment.steps,) if is_step else (environment.resets, argument, environment.construction)
        self._context.events.write(
            environment.form(kind, names, (), ()),
            evidence=(*counts, *states[: 3 + MAX_VALUE_CELLS]),
            digests=[*digests, *each],
            frame=frame,
        )

    def _digest_one(self, batch: Sequence[Any], index: int) -> int:
        """Digest of what one of the environments returned."""
        return digest_pages([self._context.digests.digest(_item(value, index)) for value in batch], index)


def _seeds_of(vector: Any) -> Any:
    """The seeds that the next reset of Stable-Baselines3 gives to the environments; None: none."""
    seeds = getattr(vector.unwrapped, "_seeds", None)
    return seeds if isinstance(seeds, list) and any(seed is not None for seed in seeds) else None


def _named_batch(result: Any, is_step: bool) -> tuple[tuple[str, ...], list[Any]] | None:
    """Names and values of what a call returned, without its ``info``; None: in another form."""
    if is_step:
        known = isinstance(result, tuple) and len(result) in _NAMES
        return (_NAMES[len(result)], list(result[:-1])) if known else None
    pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
    return ("observation",), [result[0] if pair else result]


def _are_arrays(batch: Any) -> bool:
    """Whether it consists of NumPy arrays: indexing a tensor would be an op."""
    if isinstance(batch, Mapping):
        return all(map(_are_arrays, batch.values()))
    return all(map(_are_arrays, batch)) if isinstance(batch, (list, tuple)) else isinstance(batch, np.ndarray)


def _item(batch: Any, index: int) -> Any:
    """The item of a batch that belongs to one environment."""
    if isinstance(batch, Mapping):
        return {name: _item(value, index) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [_item(value, index) for value in batch]
    return batch[index] if batch.ndim and index < len(batch) else batch
