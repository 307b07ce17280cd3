"""Interning: one id per distinct entry of a table, and the entries that are not written yet.

Owns ids of one process. Entries are appended before any row that names them is complete, so a reader that takes the
rows first and the entries second never misses one. An exception of a signal handler (Ctrl-C) leaves the tables
consistent, wherever it is raised. Does not interpret entries.
"""

from __future__ import annotations

from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING, Any

from rltrace.portable_keys import portable_key
from rltrace.trace.format.rows import TableEntry
from rltrace.trace.format.schema import FIRST_ENTRIES, TABLES

if TYPE_CHECKING:
    from rltrace.trace.read.names import Words

_append: Any = list.append


class Tables:
    """The interned tables of one process. Threads may share it."""

    def __init__(self) -> None:
        self._lock = RLock()  # reentrant: a signal handler's ops intern too
        self._ids: dict[str, dict[int, int]] = {name: {} for name in TABLES}
        self._keys: dict[str, list[int]] = {name: [] for name in TABLES}
        self._pending: list[TableEntry] = []
        self.remembered: dict[str, dict[int, object]] = {}
        """Payloads by id, of the tables given to ``remember``."""
        for name, payload in FIRST_ENTRIES.items():
            self.add(name, portable_key(name, payload), payload)

    @cached_property
    def words(self) -> Words:
        """Names of the entries whose payloads are remembered."""
        from rltrace.trace.read.names import Words  # only what records values or rows has words for entries

        return Words(self.remembered)

    def remember(self, *tables: str) -> None:
        """Keep the payloads of these tables; called before any entry is taken."""
        for table in tables:
            self.remembered[table] = {entry.id: entry.payload for entry in self._pending if entry.table == table}

    def add(self, table: str, key: int, payload: object) -> int:
        """Add an entry even if its key exists (several frames of one line share a key); returns its id."""
        with self._lock:
            keys = self._keys[table]
            number = len(keys)
            entry = TableEntry(table, number, key, payload)
            if table in self.remembered:
                self.remembered[table][number] = payload
            # Both or neither: within one call that runs no Python no signal handler can run.
            list(map(_append, (keys, self._pending), (key, entry)))
            self._ids[table].setdefault(key, number)
        return number

    def intern(self, table: str, key: int, payload: object) -> int:
        """The id of the entry with this portable key, added if it is new."""
        number = self._ids[table].get(key)
        if number is not None:
            return number
        with self._lock:  # another thread may have added it meanwhile
            number = self._ids[table].get(key)
            return self.add(table, key, payload) if number is None else number

    def intern_payload(self, table: str, payload: object) -> int:
        """The id of a payload that is its own identity."""
        return self.intern(table, portable_key(table, payload), payload)

    def key_of(self, table: str, number: int) -> int:
        """The portable key of an entry."""
        return self._keys[table][number]

    def take(self) -> list[TableEntry]:
        """Entries added since the last call, in order."""
        with self._lock:
            count = len(self._pending)
            entries = self._pending[:count]
            del self._pending[:count]
            return entries
