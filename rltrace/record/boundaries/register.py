"""Which environment is which: a number that is the same in every run, and how often it was stepped and reset.

Owns the numbers. An environment gets the next one at its first event, whatever wrappers are around it then; never by an
address. Keeps no environment alive.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Final

from rltrace.record.boundaries.states import Look, own_look
from rltrace.record.events import EventForm
from rltrace.record.memory.identity_table import IdentityTable
from rltrace.trace.schema import Kind

MOST: Final = 4_096
"""Environments that get a number; a search that copies its environment at every node makes millions."""

GENERATORS: Final = ("own generator", "Python generator", "NumPy generator")
"""Evidence at every event: states before it."""


class Environment:
    """One environment, or a whole vector of them where what happens to each is out of sight."""

    __slots__ = ("_forms", "_generator", "_look", "name", "owner", "resets", "steps", "transparent")

    def __init__(self, name: str, owner: str) -> None:
        self.name = name
        self.owner = owner
        self.steps = 0
        self.resets = 0
        self.transparent = False
        """Of a vector: its environments are stepped in this process, where each is seen by itself."""
        self._forms: dict[tuple[Kind, Sequence[str], Sequence[str], Sequence[str]], EventForm] = {}
        self._generator: Any = None
        self._look: Look | None = None

    def form(self, kind: Kind, digests: Sequence[str], integers: Sequence[str], floats: Sequence[str]) -> EventForm:
        """The form of its events that tell of these."""
        found = self._forms.get((kind, digests, integers, floats))
        if found is None:
            counts = ("reset", "seed") if kind is Kind.ENVIRONMENT_RESET else ("step",)
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
        self._known: IdentityTable[Any, Environment] = IdentityTable()
        self._counts: dict[str, int] = {}
        self._others = Environment("another environment", "")

    def of(self, base: Any, owner: str) -> Environment:
        """``base``: the environment inside of all wrappers; ``owner``: what kind it is of."""
        return self._of(base, "environment", owner)

    def vector(self, base: Any, owner: str) -> Environment:
        """The same of a vector of environments; those have numbers of their own."""
        return self._of(base, "vector environment", owner)

    def _of(self, base: Any, what: str, owner: str) -> Environment:
        found = self._known.get(base)
        if found is not None:
            return found
        with self._lock:
            number = self._counts.get(what, 0)
            if number >= MOST:
                return self._others
            made = Environment(f"{what} {number}", owner)
            try:
                self._known[base] = made
            except TypeError:  # a class without room for weak references: it cannot be known again
                return self._others
            self._counts[what] = number + 1
            return made
