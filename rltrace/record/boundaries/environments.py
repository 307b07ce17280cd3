"""Environments of Gymnasium, and of Gym before it: every reset and every step, whoever calls it.

Stands in for ``step`` and ``reset`` of ``gymnasium.Env`` and of all classes below it, made by ``gymnasium.make`` or
not. Of a stack of wrappers the outermost call is the event, as that is what the program is given; what an environment
does with environments of its own is its own business. What imitates the interface without deriving from ``Env`` cannot
be known. ``info`` is not told: it may hold times.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from numbers import Real
from types import FrameType
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from rltrace.record.boundaries.classes import Around, Method
from rltrace.record.boundaries.contents import Contents
from rltrace.record.boundaries.register import Environment, Register
from rltrace.record.boundaries.states import GeneratorStates
from rltrace.record.events import EventForm
from rltrace.trace.events import NONE
from rltrace.trace.schema import Kind

_STEP: Final = ("action", "observation")
_ENDS: Final = (("terminated", "truncated"), ("done",))
_REWARD: Final = ("reward",)
_RESET: Final = ("observation",)
_FLAG: Final = (bool, np.bool_, int)


class Here(threading.local):
    """Where the calling thread is."""

    inside = False
    """Of a call that is an event already."""
    in_vector = False
    seen = 0
    """Calls of single environments so far."""


class Teller(Protocol):
    """Who is told of events."""

    def is_told(self) -> bool:
        """Whether an event of the calling thread would be written now."""

    def event(
        self, form: EventForm, *, evidence: Any, digests: Any, integers: Any, floats: Any, frame: FrameType | None
    ) -> bool: ...

    def environment(self, environment: Environment, steps: int, frame: FrameType) -> None:
        """So many steps of an environment, or a reset (0), have just been made by the calling thread."""

    def fail(self, error: Exception) -> None: ...


class Before(NamedTuple):
    """What is known as a call begins."""

    environment: Environment
    told: bool
    action: int
    seed: int
    states: tuple[int, int, int]


class Environments:
    """What stands in for the methods."""

    def __init__(
        self, register: Register, contents: Contents, states: GeneratorStates, here: Here, teller: Teller
    ) -> None:
        self._register = register
        self._contents = contents
        self._states = states
        self._here = here
        self._teller = teller

    def around_step(self, original: Method) -> Method:
        return self._around(original, self._stepped, is_step=True)

    def around_reset(self, original: Method) -> Method:
        return self._around(original, self._was_reset, is_step=False)

    @property
    def methods(self) -> dict[str, Around]:
        return {"step": self.around_step, "reset": self.around_reset}

    def _around(self, original: Method, after: Callable[[Before, Any, FrameType], None], *, is_step: bool) -> Method:
        here, begin, fail = self._here, self._begin, self._teller.fail

        def stand_in(env: Any, *args: Any, **kwargs: Any) -> Any:
            if here.inside:
                return original(env, *args, **kwargs)
            try:
                before = begin(env, args, kwargs, is_step)
            except Exception as error:
                fail(error)
                return original(env, *args, **kwargs)
            here.inside = True
            here.seen += 1
            try:
                result = original(env, *args, **kwargs)
            finally:
                here.inside = False
            try:
                after(before, result, sys._getframe(1))
            except Exception as error:
                fail(error)
            return result

        return stand_in

    def _begin(self, env: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_step: bool) -> Before:
        base = _base_of(env)
        environment = self._register.of(base, _kind_of(base))
        if not self._teller.is_told():
            return Before(environment, False, 0, 0, (0, 0, 0))
        states = environment.own_state(_generator_of(base)), self._states.python(), self._states.numpy()
        if is_step:
            action = args[0] if args else kwargs.get("action")
            return Before(environment, True, self._contents.digest(action), 0, states)
        return Before(environment, True, 0, seed_of(kwargs.get("seed")), states)

    def _stepped(self, before: Before, result: Any, frame: FrameType) -> None:
        environment = before.environment
        environment.steps += 1
        self._teller.environment(environment, 1, frame)
        if not before.told or not isinstance(result, tuple) or len(result) not in (4, 5):
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

    def _was_reset(self, before: Before, result: Any, frame: FrameType) -> None:
        environment = before.environment
        environment.resets += 1
        self._teller.environment(environment, 0, frame)
        if not before.told:
            return
        pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        observation = result[0] if pair else result
        form = environment.form(Kind.ENVIRONMENT_RESET, _RESET, (), ())
        evidence = environment.resets, before.seed, *before.states
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


def _base_of(env: Any) -> Any:
    """The environment inside of all wrappers."""
    try:
        return env.unwrapped
    except Exception:  # a property of the program's own
        return env


def _kind_of(base: Any) -> str:
    """``CartPole-v1``; of one that is not registered its class."""
    try:
        return str(base.spec.id)
    except Exception:
        return type(base).__name__


def _generator_of(base: Any) -> Any:
    """Its ``np_random``, where it has come about already: to ask for the property would seed it."""
    try:
        return vars(base).get("_np_random")
    except TypeError:  # no __dict__
        return None
