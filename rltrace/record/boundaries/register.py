"""Which environment is which: a number that is the same in every run, and how often it was stepped and reset.

Owns the numbers. An environment gets the next one at its first event, whatever wrappers are around it then; never by an
address. Keeps no environment alive.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from rltrace.record.boundaries.states import Look, own_look
from rltrace.record.events import EventForm
from rltrace.record.memory.identity_table import IdentityTable
from rltrace.trace.schema import Kind

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


class Register:
    """All environments of a process that something has happened to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: IdentityTable[Any, int] = IdentityTable()
        """How manieth an environment, or what a wrapper has inside, is of all that were made."""
        self._makings = 0
        self._known: IdentityTable[Any, Environment] = IdentityTable()
        self.counted: IdentityTable[Any, Environment] = IdentityTable()
        """By the outermost wrapper, the environment that was inside when it was last told of: enough for a count."""
        self.transparent: IdentityTable[Any, bool] = IdentityTable()
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


def remember(table: IdentityTable[Any, T], env: Any, found: T) -> bool:
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
