"""A weak dictionary of the program's objects, keyed by identity.

An entry is removed when its object dies. Keys are never hashed nor compared, so that no code of the program runs here:
classes of real libraries define an ``__eq__`` that returns a tensor, or one that raises.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class WeakIdDict(Generic[K, V]):
    """``weakref.WeakKeyDictionary``, keyed on ``id(key)``."""

    def __init__(self) -> None:
        self.entries: dict[int, tuple[weakref.ref[Any], V]] = {}
        """By id; to be read where ``get`` is called too often, of a key that is alive."""

    def __setitem__(self, key: K, value: V) -> None:
        number, entries = id(key), self.entries

        def forget(dead: weakref.ref[Any]) -> None:
            entry = entries.get(number)
            if entry is not None and entry[0] is dead:
                del entries[number]

        entries[number] = (weakref.ref(key, forget), value)

    def get(self, key: K) -> V | None:
        entry = self.entries.get(id(key))
        return entry[1] if entry is not None and entry[0]() is key else None

    def forget(self, key: K) -> None:
        """Remove the entry of a key, if it has one."""
        if self.get(key) is not None:
            self.entries.pop(id(key), None)

    def __contains__(self, key: K) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[K]:
        """Keys that are alive, in the order of insertion."""
        for reference, _ in list(self.entries.values()):
            key = reference()
            if key is not None:
                yield key
