"""Environments of Gymnasium, and of Gym before it: every reset and every step, whoever calls it.

Stands in for ``step`` and ``reset`` of ``gymnasium.Env`` and of all classes below it, made by ``gymnasium.make`` or
not. Of a stack of wrappers the outermost call is the event, as that is what the program is given; what an environment
does with environments of its own is its own business. What imitates the interface without deriving from ``Env`` cannot
be known. ``info`` is not told: it may hold times.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable, Sequence
from numbers import Real
from types import FrameType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np

from rltrace.recorder.base.weak_id_dict import WeakIdDict
from rltrace.recorder.core.events import EventForm
from rltrace.recorder.integrations.method_patching import Around, CallDepth, Method
from rltrace.recorder.integrations.rng_snapshot import GeneratorStates, Look, own_look
from rltrace.recorder.integrations.value_digests import ValueDigests
from rltrace.trace.format.events import NONE
from rltrace.trace.format.schema import Kind

# --- register ---------------------------------------------------------------------------------------------------------
#
# Which environment is which: a number that is the same in every run, and how often it was stepped and reset.
#
# Owns the numbers. An environment gets the next one at its first event, whatever wrappers are around it then; never by
# an address. Keeps no environment alive.


T = TypeVar("T")

MOST: Final = 4_096
"""Environments that get a number; a search that copies its environment at every node makes millions."""

GENERATORS: Final = ("own generator", "Python generator", "NumPy generator")
"""Evidence at every event: states before it."""


SPACES: Final = {
    "action space": ("action_space", "_action_space", "single_action_space"),
    "observation space": ("observation_space", "_observation_space", "single_observation_space"),
}
"""Attributes of environments, vectors and wrappers that are spaces."""


class Environment:
    """One environment, or a whole vector of them where what happens to each is out of sight."""

    __slots__ = ("_forms", "_generator", "_look", "made", "name", "owner", "resets", "steps")

    def __init__(self, name: str, owner: str, made: int = 0) -> None:
        self.name = name
        self.owner = owner
        self.made = made
        """How manieth environment the process has made, from 1; 0: its making was not seen."""
        self.steps = 0
        self.resets = 0
        self._forms: dict[tuple[Kind, Sequence[str], Sequence[str], Sequence[str]], EventForm] = {}
        self._generator: Any = None
        self._look: Look | None = None

    def form(self, kind: Kind, digests: Sequence[str], integers: Sequence[str], floats: Sequence[str]) -> EventForm:
        """The form of its events that tell of these."""
        found = self._forms.get((kind, digests, integers, floats))
        if found is None:
            counts = ("reset", "seed", "made") if kind is Kind.ENVIRONMENT_RESET else ("step",)
            found = EventForm(
                kind, self.name, self.owner, counts, GENERATORS, tuple(digests), tuple(integers), tuple(floats)
            )
            self._forms[kind, digests, integers, floats] = found
        return found

    def own_state(self, generator: Any) -> int:
        """Digest of the state of its own generator; 0: it has none."""
        if generator is None:
            return 0
        if generator is not self._generator:
            self._generator, self._look = generator, own_look(generator)
        return 0 if self._look is None else self._look()


class EnvironmentRegistry:
    """All environments of a process that something has happened to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: WeakIdDict[Any, int] = WeakIdDict()
        """How manieth an environment, or what a wrapper has inside, is of all that were made."""
        self._makings = 0
        self._known: WeakIdDict[Any, Environment] = WeakIdDict()
        self.counted: WeakIdDict[Any, Environment] = WeakIdDict()
        """By the outermost wrapper, the environment that was inside when it was last told of: enough for a count."""
        self.transparent: WeakIdDict[Any, bool] = WeakIdDict()
        """Vectors whose environments are stepped in this process, where each is seen by itself."""
        self._counts: dict[str, int] = {}
        self._others = Environment("another environment", "")

    def environment(self, env: Any) -> Environment:
        """The one inside of all wrappers of ``env``."""
        found = self._of(base_of(env), "environment", _kind_of)
        remember(self.counted, env, found)
        return found

    def vector(self, vector: Any) -> Environment:
        """The same of a vector of environments; those have numbers of their own."""
        return self._of(base_of(vector), "vector environment", lambda base: type(base).__name__)

    def made(self, env: Any) -> int:
        """An environment, or a vector of them, has been made: how manieth it is."""
        with self._lock:
            self._makings += 1
            remember(self._made, env, self._makings)
            return self._makings

    def wrapped(self, env: Any) -> None:
        """A wrapper has been made."""
        number = self._made.get(base_of(env))
        if number is not None:
            remember(self._made, env, number)

    def whose(self, space: Any) -> tuple[str, str, int]:
        """What a space is to whom: ``action space``, the kind of environment, and how manieth that was made."""
        for env in self._made:
            for what, names in SPACES.items():
                if any(inspect.getattr_static(env, name, None) is space for name in names):
                    return what, _kind_of(base_of(env)), self._made.get(env) or 0
        return "a space", type(space).__name__, 0

    def _of(self, base: Any, what: str, kind_of: Callable[[Any], str]) -> Environment:
        found = self._known.get(base)
        if found is not None:
            return found
        with self._lock:
            number = self._counts.get(what, 0)
            if number >= MOST:
                return self._others
            made = Environment(f"{what} {number}", kind_of(base), self._made.get(base) or 0)
            if not remember(self._known, base, made):
                return self._others
            self._counts[what] = number + 1
            return made


def remember(table: WeakIdDict[Any, T], env: Any, found: T) -> bool:
    try:
        table[env] = found
    except TypeError:  # a class without room for weak references: it cannot be known again
        return False
    return True


def base_of(env: Any) -> Any:
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


# --- environments -----------------------------------------------------------------------------------------------------


_STEP: Final = ("action", "observation")
_ENDS: Final = (("terminated", "truncated"), ("done",))
_REWARD: Final = ("reward",)
_RESET: Final = ("observation",)
_FLAG: Final = (bool, np.bool_, int)


IN_VECTOR: Final = 1
IN_EVENT: Final = 2
"""Depths of ``CallDepth``: of a vector of environments, and of a call that is an event already."""


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
        from rltrace.portable_keys import portable_key

        return portable_key("seeds", str(seed)) % NONE


def _generator_of(base: Any) -> Any:
    """Its ``np_random``, where it has come about already: to ask for the property would seed it."""
    try:
        return vars(base).get("_np_random")
    except TypeError:  # no __dict__
        return None


# --- makings ----------------------------------------------------------------------------------------------------------
#
# Environments and vectors of them being made, and with which arguments.
#
# Stands in for ``__init__`` of every class of environments that has one of its own. A wrapper makes no environment;
# what an environment makes for itself, in its constructor or later, is its own business. Absolute paths among the
# arguments count as that: where a program writes to is another place in every run.


BETWEEN: Final = ("gymnasium.", "gym.", "functools", "rltrace.recorder.")
"""Starts of names of modules whose frames are not where a program made or seeded something."""


class EnvironmentConstruction:
    """What stands in for the constructors. ``making``: how deep a thread is in those."""

    def __init__(
        self,
        register: EnvironmentRegistry,
        contents: ValueDigests,
        within: CallDepth,
        making: CallDepth,
        teller: Teller,
    ) -> None:
        self._register = register
        self._contents = contents
        self._within = within
        self._making = making
        self._teller = teller
        self._forms: dict[tuple[str, str], EventForm] = {}

    @property
    def of_environments(self) -> dict[str, Around]:
        return {"__init__": lambda original: self._around(original, "environment", IN_EVENT)}

    @property
    def of_vectors(self) -> dict[str, Around]:
        return {"__init__": lambda original: self._around(original, "vector environment", IN_VECTOR)}

    def _around(self, original: Method, what: str, depth: int) -> Method:
        making, within = self._making, self._within

        def stand_in(env: Any, *args: Any, **kwargs: Any) -> None:
            before = making.depth
            if before >= depth or within.depth >= IN_EVENT:
                original(env, *args, **kwargs)
                return
            making.depth = before if isinstance(env, _wrappers()) else depth
            try:
                original(env, *args, **kwargs)
            finally:
                making.depth = before
            try:
                self._made(env, what, args, kwargs, sys._getframe(1))
            except Exception as error:
                self._teller.fail(error)

        return stand_in

    def _made(self, env: Any, what: str, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> None:
        if base_of(env) is not env:
            self._register.wrapped(env)
            return
        number, owner = self._register.made(env), type(env).__name__
        if not self._teller.is_told():
            return
        form = self._forms.get((what, owner))
        if form is None:
            form = EventForm(Kind.ENVIRONMENT_MADE, what, owner, ("made",), digests=("arguments",))
            self._forms[what, owner] = form
        given = self._contents.digest([[_told(value) for value in args], {k: _told(v) for k, v in kwargs.items()}])
        self._teller.event(form, evidence=(number,), digests=(given,), integers=(), floats=(), frame=in_program(frame))


def _wrappers() -> tuple[type, ...]:
    """Classes of environments that make none, and in whose constructors the program may make one."""
    modules = [sys.modules.get(name) for name in ("gymnasium.core", "gym.core")]
    return tuple(module.Wrapper for module in modules if module is not None)


def in_program(frame: FrameType) -> FrameType:
    """The innermost frame, from this one on, that is neither the library's nor the recorder's."""
    at: FrameType | None = frame
    while at is not None:
        if not str(at.f_globals.get("__name__", "")).startswith(BETWEEN):
            return at
        at = at.f_back
    return frame


def _told(value: Any) -> Any:
    return "a path" if isinstance(value, str) and os.path.isabs(value) else value  # noqa: PTH117  never touches a disk
