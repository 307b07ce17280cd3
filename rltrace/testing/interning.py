"""The tables of a process that is being built: what the ids in its rows stand for."""

from __future__ import annotations

from collections.abc import Sequence

from rltrace.identity import frame_key, site_key
from rltrace.testing.inputs import key_of
from rltrace.trace.rows import TableEntry
from rltrace.trace.schema import FIRST_ENTRIES, TABLES

Frame = tuple[str, int, str, str]
"""(file, line, function, source)."""


class Interned:
    """The tables of one process."""

    def __init__(self) -> None:
        self._ids: dict[str, dict[int, int]] = {name: {} for name in TABLES}
        self._sites: dict[tuple[Frame, ...], int] = {}
        self.new: list[TableEntry] = []
        for table, payload in FIRST_ENTRIES.items():
            self.plain(table, payload)

    def intern(self, table: str, key: int, payload: object) -> int:
        ids = self._ids[table]
        if key not in ids:
            ids[key] = len(ids)
            self.new.append(TableEntry(table, ids[key], key, payload))
        return ids[key]

    def plain(self, table: str, payload: object) -> int:
        return self.intern(table, key_of(table, payload), payload)

    def site(self, frames: Sequence[Frame]) -> int:
        known = self._sites.get(tuple(frames))
        if known is not None:
            return known
        keys, ids = [], []
        for file, line, function, source in frames:
            key = frame_key(file, function, source)
            payload = {"file": file, "path": f"/src/{file}", "line": line, "function": function, "source": source}
            ids.append(self.intern("frames", key, {**payload, "internal": False}))
            keys.append(key)
        made = self._sites[tuple(frames)] = self.intern("sites", site_key(keys), ids)
        return made

    def structure(self, layouts: Sequence[object]) -> int:
        ids = [self.plain("layouts", layout) for layout in layouts]
        return self.intern("structures", key_of("structure", list(layouts)), ids)
