"""Environments of Gymnasium, Gym, PettingZoo and dm_env: events for every reset, step and construction.

Patches ``step`` and ``reset`` of ``gymnasium.Env``, of what is one in the other libraries, and of all subclasses, made
by ``gymnasium.make`` or not, whatever code calls them. Of a stack of wrappers the outermost call is the event, as its
result is what the program gets; the calls that an environment makes to environments inside it are not recorded. Classes
with the same interface that do not derive from these are not seen.
``info`` is not recorded: it may hold times.
"""

import inspect
import os
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import Enum
from numbers import Real
from types import FrameType, FunctionType, MethodType
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import numpy as np

from rltrace.recorder.base.weak_id_dict import WeakIdDict
from rltrace.recorder.core.events import EventForm
from rltrace.recorder.digests.rng_state import StateReader
from rltrace.recorder.integrations.method_patching import CallDepth, Method, MethodDecorator
from rltrace.recorder.integrations.rng_snapshot import GeneratorStates, generator_reader
from rltrace.recorder.integrations.running_statistics import StatisticsFinder
from rltrace.recorder.integrations.value_digests import MAX_DEPTH, ValueDigests
from rltrace.trace.format.events import NONE, SEPARATOR, WRAPPERS
from rltrace.trace.format.schema import Kind
from rltrace.wording import cut

# --- registry ---------------------------------------------------------------------------------------------------------
#
# Owns the numbers of environments, the same in every run: an environment gets the next one at its first event, whatever
# wrappers it has then. Keeps no environment alive.


T = TypeVar("T")

MAX_ENVIRONMENTS: Final = 4_096
"""Environments that get a number; a search that copies its environment at every node makes millions."""

MAX_VALUE_CELLS: Final = 56
"""Cells with values of one event; an event has at most 63 of evidence."""

MAX_WRAPPERS: Final = 32
"""Of one environment that are named."""

GENERATORS: Final = ("own generator", "Python state", "NumPy state")
"""Evidence of every event: generator states before it."""


SPACES: Final = {
    "action space": ("action_space", "_action_space", "single_action_space"),
    "observation space": ("observation_space", "_observation_space", "single_observation_space"),
}
"""Attributes of environments, vectors and wrappers that are spaces."""


class Environment:
    """One environment, or a whole vector of them where its environments cannot be seen one by one."""

    __slots__ = (
        *("_forms", "_generator", "_read_state", "base", "construction"),
        *("name", "owner", "resets", "step_forms", "steps", "takes_seeds"),
    )

    def __init__(self, name: str, owner: str, construction: int = 0, base: Callable[[], Any] = lambda: None) -> None:
        self.base = base
        """The environment itself, while it is alive."""
        self.name = name
        self.owner = owner
        self.construction = construction
        """Number of the environment in the order of construction, from 1; 0: it was constructed before recording."""
        self.steps = 0
        self.resets = 0
        self.takes_seeds = True
        """Whether its resets may be given one."""
        self._forms: dict[tuple[Kind, Sequence[str], Sequence[str], Sequence[str], str], EventForm] = {}
        self.step_forms: dict[tuple[Any, ...], StepForm] = {}
        """By the names of the observation's parts, and the types of the reward and of what says that the episode has
        ended."""
        self._generator: Any = None
        self._read_state: StateReader | None = None

    def form(
        self, kind: Kind, digests: Sequence[str], integers: Sequence[str], floats: Sequence[str], wrappers: str = ""
    ) -> EventForm:
        """The form of its events with these fields."""
        key = kind, digests, integers, floats, wrappers
        found = self._forms.get(key)
        if found is None:
            seeds = ("seed",) * self.takes_seeds
            counts = ("reset", *seeds, "made") if kind is Kind.ENVIRONMENT_RESET else ("step",)
            found = EventForm(
                *(kind, self.name, self.owner, counts, GENERATORS),
                *(tuple(digests), tuple(integers), tuple(floats)),
                texts=((WRAPPERS, wrappers),) if wrappers else (),
            )
            self._forms[key] = found
        return found

    def generator_state(self, base: Any) -> int:
        """Digest of the state of ``base.np_random``; 0: it has none."""
        try:
            generator = vars(base).get("_np_random")  # to read the property would seed it
        except TypeError:  # no __dict__
            return 0
        if generator is None:
            return 0
        if generator is not self._generator:
            self._generator, self._read_state = generator, generator_reader(generator)
        return 0 if self._read_state is None else self._read_state()

    def seed_set_within(self) -> int:
        """The seed that a wrapper passed on since ``generator_state`` was called; NONE: it passed none.

        A generator that seeds itself has a seed of 128 random bits.
        """
        base: Any = self.base()
        known = getattr(base, "__dict__", {})
        seed = known.get("_np_random_seed")
        has_new = known.get("_np_random") is not self._generator
        if self.resets == 1 and any(cls.__module__.startswith("envpool.") for cls in type(base).__mro__):
            return seed_of(base.config.get("seed"))  # EnvPool seeds its environments as it makes them
        return seed if has_new and isinstance(seed, int) and 0 <= seed < NONE else NONE


class EnvironmentRegistry:
    """All environments of a process that have had an event."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._constructions: WeakIdDict[Any, int] = WeakIdDict()
        """By environment, or wrapper of it: its number in the order of construction."""
        self._construction_count = 0
        self._known: WeakIdDict[Any, Environment] = WeakIdDict()
        self.by_wrapper: WeakIdDict[Any, Environment] = WeakIdDict()
        """By outermost wrapper: the environment inside it at its last recorded event. Enough to count steps."""
        self.made: WeakIdDict[Any, str] = WeakIdDict()
        """By wrapper: its class and the arguments it was made with, ``TimeLimit(max_episode_steps=500)``."""
        self.statistics = StatisticsFinder()
        self.transparent: WeakIdDict[Any, bool] = WeakIdDict()
        """Vectors whose environments are stepped in this process, where each has events itself."""
        self._counts: dict[str, int] = {}
        self._others = Environment("another environment", "")

    def environment(self, env: Any, base: Any) -> Environment:
        """``base``, the one inside all wrappers of ``env``."""
        found = self.by_wrapper.get(env)
        if found is None:
            self.statistics.search(env)
        if found is None or found.base() is not base:
            found = self._of(base, "environment", _kind_of)
            remember(self.by_wrapper, env, found)
        return found

    def vector(self, vector: Any) -> Environment:
        """The same of a vector of environments; vectors are numbered separately."""
        self.statistics.search(vector)
        return self._of(base_of(vector), "vector environment", lambda base: type(base).__name__)

    def add(self, env: Any) -> int:
        """Number an environment, or a vector of them, that has just been constructed."""
        with self._lock:
            self._construction_count += 1
            remember(self._constructions, env, self._construction_count)
            return self._construction_count

    def add_wrapper(self, env: Any) -> None:
        """Give a wrapper that has just been constructed the number of the environment inside."""
        number = self._constructions.get(base_of(env))
        if number is not None:
            remember(self._constructions, env, number)

    def wrappers_of(self, env: Any) -> str:
        """The wrappers of an environment, the outermost first, each with its arguments; "" where it has none."""
        found: list[str] = []
        base, current = base_of(env), env
        while current is not base and current is not None and len(found) < MAX_WRAPPERS:
            found.append(self.made.get(current) or type(current).__name__)
            current = inspect.getattr_static(current, "env", None)
        return SEPARATOR.join(found)

    def owner_of(self, space: Any) -> tuple[str, str, int]:
        """A space's role (``action space``), and the kind and construction number of the environment that has it."""
        for env in self._constructions:
            for role, names in SPACES.items():
                if any(inspect.getattr_static(env, name, None) is space for name in names):
                    return role, _kind_of(base_of(env)), self._constructions.get(env) or 0
        return "a space", type(space).__name__, 0

    def _of(self, base: Any, what: str, kind_of: Callable[[Any], str]) -> Environment:
        found = self._known.get(base)
        if found is not None:
            return found
        with self._lock:
            number = self._counts.get(what, 0)
            if number >= MAX_ENVIRONMENTS:
                return self._others
            created = Environment(f"{what} {number}", kind_of(base), self._constructions.get(base) or 0)
            if not remember(self._known, base, created):
                return self._others
            created.base = weakref.ref(base)
            self._counts[what] = number + 1
            return created


def remember(table: WeakIdDict[Any, T], env: Any, found: T) -> bool:
    try:
        table[env] = found
    except TypeError:  # a class without weak references: its instances cannot be recognised
        return False
    return True


def base_of(env: Any) -> Any:
    """The environment inside all wrappers."""
    try:
        return env.unwrapped
    except Exception:  # raised by a property of the program
        return env


def _kind_of(base: Any) -> str:
    """``CartPole-v1``; the class name of an environment that is not registered. PettingZoo calls all classes alike."""
    try:
        return str(base.metadata["name"] if type(base).__name__ == "raw_env" else base.spec.id)
    except Exception:
        return type(base).__name__


# --- context ----------------------------------------------------------------------------------------------------------


class EventStream(Protocol):
    """The rows of one thread."""

    def write_event(
        self, form: EventForm, evidence: Any, digests: Any, integers: Any, floats: Any, frame: FrameType
    ) -> None: ...


class EventSink(Protocol):
    """Writes the events that integrations report into streams."""

    def stream(self) -> EventStream | None:
        """The stream that an event of the calling thread would be written into now; None: there is none."""

    def write(self, form: EventForm, *, evidence: Any, digests: Any, frame: FrameType | None) -> bool: ...

    def environment_passed(self, environment: str, frame: FrameType) -> bool:
        """An environment was stepped or reset in ``frame``; whether that belonged to an evaluation."""

    def fail(self, error: Exception) -> None:
        """An internal error of the recorder."""


class EnvironmentSteps:
    """Counts environment steps, those of evaluations excepted; a step of a vector of n environments counts n."""

    def __init__(self, is_evaluation: Callable[[str, FrameType], bool]) -> None:
        self.count = 0
        self._is_evaluation = is_evaluation
        self._evaluating: dict[str, bool] = {}
        """By environment: whether its last reset or step since the last backward pass belonged to an evaluation."""

    def add(self, environment: Environment, steps: int, frame: FrameType) -> None:
        """The calling thread has made ``steps`` steps, or a reset (0)."""
        if not self._is_evaluation(environment.name, frame):
            self.count += steps

    def add_unrecorded(self, environment: Environment, steps: int) -> None:
        """The same where no rows are written, called by the patch of the method.

        An evaluation resets its environment before it begins, so the stack need not be read at each step.
        """
        name = environment.name
        evaluates = self._evaluating.get(name) if steps else None
        if evaluates is None:
            evaluates = self._evaluating[name] = self._is_evaluation(name, sys._getframe(2))
        if not evaluates:
            self.count += steps

    def backward_begins(self) -> None:
        """Which environments the program learns from may be known now."""
        self._evaluating.clear()


class IntegrationContext(NamedTuple):
    """What all integrations of a process share."""

    events: EventSink
    digests: ValueDigests
    steps: EnvironmentSteps
    registry: EnvironmentRegistry
    generators: GeneratorStates
    calls: CallDepth
    """Open ``step`` and ``reset`` calls of the calling thread: IN_VECTOR, IN_EVENT or 0."""
    constructions: CallDepth
    seedings: CallDepth


IN_VECTOR: Final = 1
IN_EVENT: Final = 2
"""Depths of ``CallDepth``: in a call of a vector of environments, and in a call that is itself an event."""


# --- environments -----------------------------------------------------------------------------------------------------


_ENDS: Final = (("terminated", "truncated"), ("done",))
_REWARD: Final = ("reward",)
_FLAG: Final = (bool, np.bool_, int)


StepForm = tuple[EventForm, bool, bool]
"""The form of a step, whether its reward is a number, and whether its ends are flags; else they are digested."""
Fields = tuple[tuple[str, ...], list[int], tuple[int, ...]]
"""Names of fields of an event, their digests, and the cells with their values."""
CallStart = tuple[Any, tuple[int, ...]]
"""What is recorded before a call: the names and digests of its action, or its seed; then the states of ``GENERATORS``,
and the cells with the value of the action."""


class Environments:
    """Patches ``step`` and ``reset``."""

    def __init__(self, context: IntegrationContext, *, of_dm_env: bool = False) -> None:
        self._context = context
        self._of_dm_env = of_dm_env

    @property
    def methods(self) -> dict[str, MethodDecorator]:
        return {
            "step": lambda original: self._decorate(original, self._write_step, is_step=True),
            "reset": lambda original: self._decorate(original, self._write_reset, is_step=False),
        }

    def _decorate(
        self, original: Method, write: Callable[[Any, Environment, CallStart, Any, FrameType], None], *, is_step: bool
    ) -> Method:
        context, steps = self._context, int(is_step)
        given = self._given
        calls, environment_of, by_wrapper = context.calls, context.registry.environment, context.registry.by_wrapper
        stream_here, fail, global_states = context.events.stream, context.events.fail, context.generators.states
        add_steps, add_unrecorded = context.steps.add, context.steps.add_unrecorded

        def replacement(env: Any, *args: Any, **kwargs: Any) -> Any:
            depth = calls.depth
            if depth >= IN_EVENT:
                return original(env, *args, **kwargs)
            try:
                before: CallStart | None = None
                if stream_here() is not None:
                    base = base_of(env)
                    environment = environment_of(env, base)
                    states = environment.generator_state(base), *global_states()
                    if is_step:
                        names, digests, cells = given(base, args, kwargs)
                        before = (names, digests), states + cells
                    else:
                        before = seed_of(kwargs.get("seed")), states
                else:
                    environment = by_wrapper.get(env) or environment_of(env, base_of(env))
            except Exception as error:
                fail(error)
                return original(env, *args, **kwargs)
            calls.depth = IN_EVENT
            if depth:
                calls.nested_events += 1
            try:
                result = original(env, *args, **kwargs)
            finally:
                calls.depth = depth
            try:
                if is_step:
                    environment.steps += 1
                else:
                    environment.resets += 1
                if before is None:
                    add_unrecorded(environment, steps)
                else:
                    frame = sys._getframe(1)
                    add_steps(environment, steps, frame)
                    write(env, environment, before, result, frame)
            except Exception as error:
                fail(error)
            return result

        return replacement

    def _given(self, base: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fields:
        """The action of a step."""
        return fields_of(self._context.digests, "action", args[0] if args else kwargs.get("action"))

    def _write_step(self, env: Any, environment: Environment, before: CallStart, result: Any, frame: FrameType) -> None:
        if self._of_dm_env:  # as an environment of Gym would return it
            result = result.observation, result.reward, result.last(), {}
        if not isinstance(result, tuple) or len(result) not in (4, 5):
            return
        ((given, actions), states), digest, reward, ends = before, self._context.digests.digest, result[1], result[2:-1]
        names, seen, cells = fields_of(self._context.digests, "observation", result[0], len(given))
        kinds = (given + names, type(reward), *map(type, ends))
        form, is_number, are_flags = environment.step_forms.get(kinds) or self._add_form(environment, kinds, ends)
        digests, states = actions + seen, states + cells
        if not is_number:  # one for each of several environments
            states += self._context.digests.cells(len(digests), reward)
            digests.append(digest(reward))
        if not are_flags:
            digests += map(digest, ends)
        integers = (*map(int, ends),) if are_flags else ()
        floats = (float(reward),) if is_number else ()
        stream = self._context.events.stream()
        if stream is not None:
            evidence = environment.steps, *states[: len(GENERATORS) + MAX_VALUE_CELLS]
            stream.write_event(form, evidence, digests, integers, floats, frame)

    def _add_form(self, environment: Environment, kinds: tuple[Any, ...], ends: tuple[Any, ...]) -> StepForm:
        names, reward, *_ = kinds
        is_number, are_flags = issubclass(reward, Real), all(isinstance(end, _FLAG) for end in ends)
        end_names = _ENDS[2 - len(ends)]
        digests = (*names, *(() if is_number else _REWARD), *(() if are_flags else end_names))
        flags, numbers = end_names if are_flags else (), _REWARD if is_number else ()
        event = environment.form(Kind.ENVIRONMENT_STEP, digests, flags, numbers)
        form = environment.step_forms[kinds] = event, is_number, are_flags
        return form

    def _write_reset(
        self, env: Any, environment: Environment, before: CallStart, result: Any, frame: FrameType
    ) -> None:
        if self._of_dm_env:
            environment.takes_seeds, result = False, result.observation
        pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
        observation = result[0] if pair else result
        seed, states = before
        if seed == NONE:
            seed = environment.seed_set_within()
        names, seen, cells = fields_of(self._context.digests, "observation", observation)
        self._context.events.write(
            environment.form(Kind.ENVIRONMENT_RESET, names, (), (), self._context.registry.wrappers_of(env)),
            evidence=(
                *(environment.resets, *(seed,) * environment.takes_seeds, environment.construction),
                *(*states, *cells[:MAX_VALUE_CELLS]),
            ),
            digests=seen,
            frame=frame,
        )


class TurnEnvironments(Environments):
    """Patches those of PettingZoo in which agents take turns: ``step`` takes an action and returns nothing; the event
    is the call of ``last``, which returns what the next agent gets."""

    def __init__(self, context: IntegrationContext) -> None:
        super().__init__(context)
        self._actions: WeakIdDict[Any, Fields] = WeakIdDict()
        """By environment: what ``_given`` returns for the event that is due."""

    @property
    def methods(self) -> dict[str, MethodDecorator]:
        return {
            "step": self._decorate_action,
            "last": lambda original: self._decorate(original, self._write_step, is_step=True),
            "reset": lambda original: self._decorate(original, self._write_reset, is_step=False),
        }

    def _decorate_action(self, original: Method) -> Method:
        calls, events = self._context.calls, self._context.events

        def replacement(env: Any, *args: Any, **kwargs: Any) -> Any:
            depth = calls.depth
            if depth >= IN_EVENT:
                return original(env, *args, **kwargs)
            try:
                if events.stream() is not None:
                    remember(self._actions, base_of(env), super(TurnEnvironments, self)._given(env, args, kwargs))
            except Exception as error:
                events.fail(error)
            calls.depth = IN_EVENT
            try:
                return original(env, *args, **kwargs)
            finally:
                calls.depth = depth

        return replacement

    def _given(self, base: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fields:
        found = self._actions.get(base)
        self._actions.forget(base)
        return found or super()._given(base, (None,), {})

    def _write_reset(
        self, env: Any, environment: Environment, before: CallStart, result: Any, frame: FrameType
    ) -> None:
        self._actions.forget(base_of(env))
        super()._write_reset(env, environment, before, result, frame)


MAX_PARTS: Final = 16
"""Entries of an action or an observation that are fields."""
_NESTED: Final = (dict, OrderedDict, tuple)


def named_parts(name: str, value: Any) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """The fields of an event that hold a value: each entry of nested dicts and tuples, ``observation.camera.0``, where
    there are few, and all else whole."""
    if type(value) not in _NESTED:
        return (name,), (value,)
    parts: list[tuple[str, Any]] = []
    _add_parts(parts, name, value, 0)
    names, values = zip(*parts, strict=True)
    return (names, values) if len(names) <= MAX_PARTS else ((name,), (value,))


def _add_parts(parts: list[tuple[str, Any]], name: str, value: Any, depth: int) -> None:
    kind = type(value)
    if kind not in _NESTED or not 0 < len(value) <= MAX_PARTS or depth == MAX_DEPTH:
        parts.append((name, value))
    elif kind is tuple:
        for key, item in enumerate(value):
            _add_parts(parts, f"{name}.{key}", item, depth + 1)
    elif {*map(type, value)} == {str}:
        for key in sorted(value):
            _add_parts(parts, f"{name}.{key}", value[key], depth + 1)
    else:
        parts.append((name, value))


def fields_of(digests: ValueDigests, name: str, value: Any, first: int = 0) -> Fields:
    """The fields of an event that hold a value, from number ``first`` on."""
    names, values = named_parts(name, value)
    cells: tuple[int, ...] = ()
    for place, each in enumerate(values, first):
        cells += digests.cells(place, each)
    return names, [*map(digests.digest, values)], cells


def seed_of(seed: Any) -> int:
    """A seed as a number; several seeds as one number."""
    if seed is None:
        return NONE
    try:
        return int(seed) % NONE
    except (TypeError, ValueError):
        from rltrace.portable_keys import portable_key

        return portable_key("seeds", str(seed)) % NONE


# --- construction -----------------------------------------------------------------------------------------------------
#
# Patches ``__init__`` of every class of environments that defines one. A wrapper is no environment; environments that
# an environment constructs are not recorded. Absolute paths among the arguments are recorded as paths without their
# text: a program writes to another folder in every run.


LIBRARIES: Final = ("gymnasium.", "gym.", "pettingzoo.", "dm_env.", "functools", "rltrace.recorder.")
"""Prefixes of modules whose frames are not the place where a program constructed or seeded something."""


class EnvironmentConstruction:
    """Patches the constructors."""

    def __init__(self, context: IntegrationContext) -> None:
        self._context = context
        self._forms: dict[tuple[str, str, Texts], EventForm] = {}

    @property
    def of_environments(self) -> dict[str, MethodDecorator]:
        return {"__init__": lambda original: self._decorate(original, "environment", IN_EVENT)}

    @property
    def of_vectors(self) -> dict[str, MethodDecorator]:
        return {"__init__": lambda original: self._decorate(original, "vector environment", IN_VECTOR)}

    def _decorate(self, original: Method, what: str, depth: int) -> Method:
        constructions, calls = self._context.constructions, self._context.calls

        def replacement(env: Any, *args: Any, **kwargs: Any) -> None:
            before = constructions.depth
            if before >= depth or calls.depth >= IN_EVENT:
                original(env, *args, **kwargs)
                return
            constructions.depth = before if isinstance(env, _wrappers()) else depth
            try:
                original(env, *args, **kwargs)
            finally:
                constructions.depth = before
            try:
                self._write(env, what, original, (args, kwargs), sys._getframe(1))
            except Exception as error:
                self._context.events.fail(error)

        return replacement

    def _write(
        self, env: Any, what: str, original: Method, given: tuple[tuple[Any, ...], dict[str, Any]], frame: FrameType
    ) -> None:
        context, (args, kwargs) = self._context, given
        texts = arguments_in_words(original, env, args, kwargs)
        if base_of(env) is not env:
            context.registry.add_wrapper(env)
            own = ", ".join(f"{name}={text}" for name, text in texts if name != "env")
            remember(context.registry.made, env, f"{type(env).__name__}({own})")
            return
        number, owner = context.registry.add(env), type(env).__name__
        if context.events.stream() is None:
            return
        form = self._forms.get((what, owner, texts))
        if form is None:
            form = EventForm(Kind.ENVIRONMENT_MADE, what, owner, ("made",), digests=("arguments",), texts=texts)
            self._forms[what, owner, texts] = form
        arguments = context.digests.digest(
            [[_without_path(value) for value in args], {k: _without_path(v) for k, v in kwargs.items()}]
        )
        context.events.write(form, evidence=(number,), digests=(arguments,), frame=program_frame(frame))


def _wrappers() -> tuple[type, ...]:
    """Classes of wrappers, in whose constructors the program may construct an environment."""
    modules = [sys.modules.get(name) for name in ("gymnasium.core", "gym.core")]
    return tuple(module.Wrapper for module in modules if module is not None)


def program_frame(frame: FrameType) -> FrameType:
    """The innermost frame, from this one outwards, that is neither the library's nor the recorder's."""
    current: FrameType | None = frame
    while current is not None:
        if not str(current.f_globals.get("__name__", "")).startswith(LIBRARIES):
            return current
        current = current.f_back
    return frame


Texts = tuple[tuple[str, str], ...]

MAX_ARGUMENTS, MAX_ITEMS, MAX_TEXT = 32, 8, 80
"""Arguments, items of one of them, and characters of it that are recorded in words."""


def arguments_in_words(function: Method, env: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Texts:
    """The arguments of a constructor by name, defaults included; empty where its signature cannot be read."""
    try:
        bound = inspect.signature(function).bind(env, *args, **kwargs)
    except (TypeError, ValueError):
        return ()
    bound.apply_defaults()
    named = list(bound.arguments.items())[1:]
    return tuple((name, cut(in_words(value), MAX_TEXT)) for name, value in named[:MAX_ARGUMENTS])


def in_words(value: Any) -> str:
    """An argument as text without addresses, absolute paths or the elements of arrays."""
    kind = type(value)
    if kind in (bool, int, float, str) or value is None:
        return repr(_without_path(value))
    if isinstance(value, np.generic):
        return repr(value.item())
    if isinstance(value, Enum):
        return value.name
    if kind is list or kind is tuple:
        texts = [in_words(item) for item in value[:MAX_ITEMS]]
        more = ", …" if len(value) > MAX_ITEMS else ""
        same = len(value) > 1 and len(set(texts)) == 1
        return f"{len(value)} × {texts[0]}" if same else f"[{', '.join(texts)}{more}]"
    if kind is dict:
        items = list(value.items())[:MAX_ITEMS]
        return f"{{{', '.join(f'{in_words(key)}: {in_words(item)}' for key, item in items)}}}"
    if isinstance(value, (type, FunctionType, MethodType)):
        return value.__qualname__.rpartition("<locals>.")[2]
    return kind.__name__


def _without_path(value: Any) -> Any:
    return "a path" if isinstance(value, str) and os.path.isabs(value) else value  # noqa: PTH117  never touches a disk
