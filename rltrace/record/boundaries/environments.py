"""Environments of Gymnasium, and of Gym before it: every reset and every step, whoever calls it.

Stands in for ``step`` and ``reset`` of ``gymnasium.Env`` and of all classes below it, made by ``gymnasium.make`` or
not. Of a stack of wrappers the outermost call is the event, as that is what the program is given; what an environment
does with environments of its own is its own business. What imitates the interface without deriving from ``Env`` cannot
be known. ``info`` is not told: it may hold times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from numbers import Real
from types import FrameType
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from rltrace.record.boundaries.classes import Around, Method, Within
from rltrace.record.boundaries.contents import Contents
from rltrace.record.boundaries.register import Environment, Register, base_of
from rltrace.record.boundaries.states import GeneratorStates
from rltrace.record.events import EventForm
from rltrace.trace.events import NONE
from rltrace.trace.schema import Kind

_STEP: Final = ("action", "observation")
_ENDS: Final = (("terminated", "truncated"), ("done",))
_REWARD: Final = ("reward",)
_RESET: Final = ("observation",)
_FLAG: Final = (bool, np.bool_, int)


IN_VECTOR: Final = 1
IN_EVENT: Final = 2
"""Depths of ``Within``: of a vector of environments, and of a call that is an event already."""


class Teller(Protocol):
    """Who is told of events."""

    def is_told(self) -> bool:
        """Whether an event of the calling thread would be written now."""

    def event(
        self, form: EventForm, *, evidence: Any, digests: Any, integers: Any, floats: Any, frame: FrameType | None
    ) -> bool: ...

    def passed(self, environment: Environment, steps: int, frame: FrameType) -> None:
        """So many steps of an environment, or a reset (0), have just been made by the calling thread."""

    def counts(self, environment: Environment, steps: int) -> None:
        """The same where no rows are written, called by what the program called."""

    def fail(self, error: Exception) -> None: ...


class Before(NamedTuple):
    """What is told of a call as it begins."""

    action: int
    seed: int
    states: tuple[int, int, int]


class Environments:
    """What stands in for the methods."""

    def __init__(
        self, register: Register, contents: Contents, states: GeneratorStates, within: Within, teller: Teller
    ) -> None:
        self._register = register
        self._contents = contents
        self._states = states
        self._within = within
        self._teller = teller

    def around_step(self, original: Method) -> Method:
        return self._around(original, self._stepped, is_step=True)

    def around_reset(self, original: Method) -> Method:
        return self._around(original, self._was_reset, is_step=False)

    @property
    def methods(self) -> dict[str, Around]:
        return {"step": self.around_step, "reset": self.around_reset}

    def _around(
        self, original: Method, tell: Callable[[Environment, Before, Any, FrameType], None], *, is_step: bool
    ) -> Method:
        within, known_of, counted = self._within, self._register.environment, self._register.counted
        is_told, passed, counts = self._teller.is_told, self._teller.passed, self._teller.counts
        fail = self._teller.fail
        begin, steps = self._begin, int(is_step)

        def stand_in(env: Any, *args: Any, **kwargs: Any) -> Any:
            depth = within.depth
            if depth >= IN_EVENT:
                return original(env, *args, **kwargs)
            try:
                if is_told():
                    environment = known_of(env)
                    before = begin(environment, env, args, kwargs, is_step)
                else:
                    before, environment = None, counted.get(env) or known_of(env)
            except Exception as error:
                fail(error)
                return original(env, *args, **kwargs)
            within.depth = IN_EVENT
            if depth:
                within.seen += 1
            try:
                result = original(env, *args, **kwargs)
            finally:
                within.depth = depth
            try:
                if is_step:
                    environment.steps += 1
                else:
                    environment.resets += 1
                if before is None:
                    counts(environment, steps)
                else:
                    frame = sys._getframe(1)
                    passed(environment, steps, frame)
                    tell(environment, before, result, frame)
            except Exception as error:
                fail(error)
            return result

        return stand_in

    def _begin(
        self, environment: Environment, env: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_step: bool
    ) -> Before:
        own = environment.own_state(_generator_of(base_of(env)))
        states = own, self._states.python(), self._states.numpy()
        if is_step:
            action = args[0] if args else kwargs.get("action")
            return Before(self._contents.digest(action), 0, states)
        return Before(0, seed_of(kwargs.get("seed")), states)

    def _stepped(self, environment: Environment, before: Before, result: Any, frame: FrameType) -> None:
        if not isinstance(result, tuple) or len(result) not in (4, 5):
            return
        observation, reward, *ends = result[:-1]
        digest, ended = self._contents.digest, _ENDS[5 - len(result)]
        digests = [before.action, digest(observation)]
        integers: list[int] = []
        floats: list[float] = []
        names: tuple[str, ...] = _STEP
        flags: tuple[str, ...] = ()
        numbers: tuple[str, ...] = ()
        if isinstance(reward, Real):
            floats, numbers = [float(reward)], _REWARD
        else:  # one for each of several environments
            digests, names = [*digests, digest(reward)], (*names, *_REWARD)
        if all(isinstance(end, _FLAG) for end in ends):
            integers, flags = [int(end) for end in ends], ended
        else:
            digests, names = [*digests, *map(digest, ends)], (*names, *ended)
        form = environment.form(Kind.ENVIRONMENT_STEP, names, flags, numbers)
        self._write(form, (environment.steps, *before.states), digests, integers, floats, frame)

    def _was_reset(self, environment: Environment, before: Before, result: Any, frame: FrameType) -> None:
        pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        observation = result[0] if pair else result
        form = environment.form(Kind.ENVIRONMENT_RESET, _RESET, (), ())
        evidence = environment.resets, before.seed, environment.made, *before.states
        self._write(form, evidence, [self._contents.digest(observation)], [], [], frame)

    def _write(
        self, form: EventForm, evidence: Any, digests: list[int], integers: list[int], floats: list[float], frame: Any
    ) -> None:
        self._teller.event(form, evidence=evidence, digests=digests, integers=integers, floats=floats, frame=frame)


def seed_of(seed: Any) -> int:
    """A seed as a count; of several, as one number that stands for them."""
    if seed is None:
        return NONE
    try:
        return int(seed) % NONE
    except (TypeError, ValueError):
        from rltrace.identity import portable_key

        return portable_key("seeds", str(seed)) % NONE


def _generator_of(base: Any) -> Any:
    """Its ``np_random``, where it has come about already: to ask for the property would seed it."""
    try:
        return vars(base).get("_np_random")
    except TypeError:  # no __dict__
        return None
