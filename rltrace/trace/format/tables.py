"""The interned tables of a process: JSON lines, packed into chunks of bytes.

Owns the lines, their packing, and the arrays of keys for hashing. An entry lost to damage keeps its id; its key and
payload are unknown.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from rltrace.trace.format.files import ValueBudget, has_control, printable
from rltrace.trace.format.rows import TableEntry
from rltrace.trace.format.schema import TABLE_CHUNK, TABLES

# --- payloads ---------------------------------------------------------------------------------------------------------
#
# The types that readers of payloads rely on. An entry of another type counts as lost: rows with its id are a hole. More
# fields and longer lists are allowed, for newer versions of the format.


def fits(table: str, payload: object) -> bool:
    """Whether a payload is valid in this table; any is in an unknown table."""
    shape = SHAPES.get(table)
    return shape is None or shape(payload)


def _is_text(payload: object) -> bool:
    return isinstance(payload, str)


def _is_list(payload: object) -> bool:
    return isinstance(payload, list)


def _is_layout(payload: Any) -> bool:
    """dtype, shape, strides (or the name of a layout without strides), device."""
    if not isinstance(payload, list) or len(payload) < 4:
        return False
    dtype, shape, strides, device = payload[:4]
    return isinstance(dtype, str) and isinstance(device, str) and _is_list(shape) and isinstance(strides, (list, str))


def _is_kernel(payload: object) -> bool:
    return isinstance(payload, dict) and isinstance(payload.get("names", []), list)


def _has(payload: object, **fields: type) -> bool:
    return isinstance(payload, dict) and all(isinstance(payload.get(name), kind) for name, kind in fields.items())


SHAPES: Final[Mapping[str, Callable[[object], bool]]] = {
    "ops": _is_text,
    "schemas": partial(_has, op=int, arguments=list),
    "layouts": _is_layout,
    "structures": _is_list,
    "frames": partial(_has, file=str, line=int, function=str, source=str),
    "sites": _is_list,
    "modules": _is_text,
    "scalars": _is_list,
    "kernels": _is_kernel,
    "optimizers": partial(_has, ordinal=int, **{"class": str}),
    "series": partial(_has, kind=str, name=str),
    "names": _is_text,
}


# --- tables -----------------------------------------------------------------------------------------------------------


MAX_LOST, MAX_GAPS = 1 << 18, 16
"""Ids are accepted up to MAX_LOST plus MAX_GAPS for each readable line: damage can take entries, but a false count
or id must not allocate any number of them."""

ID_LISTS = {"structures": "layouts", "sites": "frames"}
"""Tables whose payloads are lists of ids of another table."""


class KeyTable:
    """The keys of one growing table."""

    def __init__(self) -> None:
        self._keys = np.zeros(64, np.uint64)
        self.count = 0

    @property
    def keys(self) -> NDArray[np.uint64]:
        return self._keys[: self.count]

    def append(self, key: int) -> None:
        if self.count == len(self._keys):
            self._keys = np.concatenate([self._keys, np.zeros_like(self._keys)])
        self._keys[self.count] = key
        self.count += 1


class KeyTables(dict[str, KeyTable]):
    """The keys of all tables of the format, empty at first."""

    def __init__(self) -> None:
        super().__init__({name: KeyTable() for name in TABLES})

    def extend(self, entries: Iterable[TableEntry]) -> None:
        """Append entries. Raises ValueError where ids are not consecutive."""
        for entry in entries:
            table = self[entry.table]
            if entry.id != table.count:
                raise ValueError(f"the next id of table {entry.table} is {table.count}, not {entry.id}")
            table.append(entry.key)

    def counts(self) -> dict[str, int]:
        return {name: table.count for name, table in self.items()}


def table_line(entry: TableEntry) -> bytes:
    """One entry as a line of the ``tables`` array."""
    line = [entry.table, entry.id, f"{entry.key:016x}", entry.payload]
    return json.dumps(line, separators=(",", ":"), default=str).encode() + b"\n"


def pack_lines(lines: Sequence[bytes]) -> list[bytes]:
    """Pack lines into chunks. A line is split across chunks only where it is longer than a chunk."""
    chunks: list[bytes] = []
    pending: list[bytes] = []
    size = 0
    for line in lines:
        if size + len(line) > TABLE_CHUNK and pending:
            chunks.append(b"".join(pending))
            pending, size = [], 0
        while len(line) > TABLE_CHUNK:
            chunks.append(line[:TABLE_CHUNK])
            line = line[TABLE_CHUNK:]
        pending.append(line)
        size += len(line)
    if pending:
        chunks.append(b"".join(pending))
    return chunks


class Table:
    """One table of a trace."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.keys: NDArray[np.uint64] = np.zeros(count, np.uint64)
        """Portable keys by id; 0: the entry is lost."""
        self.payloads: list[object] = [None] * count
        """By id; None: the entry is lost."""
        self.present: NDArray[np.bool_] = np.zeros(count, bool)
        """Whether each entry could be read, by id."""
        self.ids: dict[int, int] = {}
        """The first id of each key."""

    def __len__(self) -> int:
        return len(self.payloads)

    def lacks(self, ids: NDArray[np.uint32]) -> int | None:
        """The first of these ids without a readable entry; None: all have one."""
        missing = ids >= len(self)
        missing |= ~np.take(self.present, ids, mode="clip") if len(self) else True
        found = np.flatnonzero(missing)
        return int(ids[found[0]]) if len(found) else None


def parse_tables(data: bytes, counts: Mapping[str, int]) -> dict[str, Table]:
    """Tables of at most ``counts`` entries from the readable lines; never raises.

    A table ends with its last readable entry, so that its size is bounded by the data.
    """
    lines = data.split(b"\n")
    limit = MAX_LOST + MAX_GAPS * len(lines)
    entries = {name: _Entries(min(counts.get(name, 0), limit)) for name in TABLES}
    budget = ValueBudget()
    for line in lines:
        if line:
            _add_line(entries, budget, line)
    tables = {name: _table(name, found) for name, found in entries.items()}
    for name, other in ID_LISTS.items():
        _drop_incomplete(tables[name], tables[other])
    return tables


class _Entries:
    """Entries of one table in the order of their lines."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.found: list[tuple[int, int, object]] = []
        """(id, key, payload)."""


def _add_line(entries: Mapping[str, _Entries], budget: ValueBudget, line: bytes) -> None:
    try:
        name, number, text, payload = budget.load(line)
        payload = printable(payload) if has_control(line) else payload
        table = entries.get(name)
        key = int(text, 16)
    except (ValueError, TypeError):
        return
    if table is None or type(number) is not int or not 0 <= number < table.limit or not 0 <= key < 1 << 64:
        return
    if fits(name, payload):
        table.found.append((number, key, payload))


def _table(name: str, entries: _Entries) -> Table:
    table = Table(name, max((number for number, _, _ in entries.found), default=-1) + 1)
    for number, key, payload in entries.found:
        table.keys[number] = key
        table.payloads[number] = payload
        table.present[number] = True
        table.ids.setdefault(key, number)
    return table


def _drop_incomplete(table: Table, other: Table) -> None:
    """Drop the entries of ``table`` that refer to a lost entry of ``other``."""
    readable = other.present.tolist()
    for number, payload in enumerate(table.payloads):
        ids = cast(list[object], payload) if table.present[number] else []  # as SHAPES has it of these tables
        if not all(isinstance(i, int) and 0 <= i < len(readable) and readable[i] for i in ids):
            table.present[number] = False
            table.payloads[number] = None
