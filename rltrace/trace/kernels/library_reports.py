"""Kernels that libraries under torch reported, call by call: records ``library_reports`` of the launch's journal.

Owns the key of a call, the form of the record, and how it replaces the kernel evidence of rows that are read. A call is
an operator, the layouts of its inputs and its other arguments. All rows of one call in one process run the same code,
so it is queried once, when the program has ended. In no hash.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltrace.portable_keys import portable_key
from rltrace.trace.format.journal import Record
from rltrace.trace.format.records import check_fields, number
from rltrace.trace.format.row_hashes import FLOATS, GOLDEN, INTEGERS, Hashes, Keyed, cell_sums, salt, splitmix64
from rltrace.trace.format.rows import Rows
from rltrace.trace.format.schema import Column, Kind
from rltrace.trace.format.tables import Table

CALL = ((Column.OP, "ops"), (Column.STRUCTURE, "structures"), (Column.SCALARS, "scalars"))
"""The columns that identify a call, with the row's numbers, and the tables of their ids."""


@dataclass(frozen=True)
class ReportedCall:
    """One distinct call of a process, and the kernels that ran for it."""

    key: int
    """As in ``call_keys``: equal in every process and trace."""
    kernel: int
    """Id in table "kernels" of its rows as they were written, which names the number of threads."""
    stream: int
    row: int
    """Of the first occurrence."""
    times: int
    """Number of its rows, in the part of the trace that was searched."""
    names: tuple[str, ...]
    """In order; empty: no library reported any."""
    reported: tuple[str, ...] = ()
    """Output of the libraries without times and addresses, a line for each of ``names``."""


@dataclass
class LibraryReports:
    """All reports of one process."""

    libraries: dict[str, str] = field(default_factory=dict)
    """Version and instruction set of each library, by name."""
    calls: dict[tuple[int, int], ReportedCall] = field(default_factory=dict)
    """By key and kernel."""
    unknown: list[tuple[str, int]] = field(default_factory=list)
    """Reasons why calls could not be queried, and their counts."""

    def add(self, record: Record) -> None:
        """Add a record; it replaces earlier reports of the same calls. Raises ValueError, KeyError or TypeError."""
        check_fields(record, libraries=dict, said=list, calls=list, unknown=list)
        outputs = [_output(entry) for entry in record["said"]]
        calls = [_call(entry, outputs) for entry in record["calls"]]
        unknown = [(str(why), number({"unknown": count}, "unknown")) for why, count in record["unknown"]]
        libraries = {str(name): str(version) for name, version in record["libraries"].items()}
        self.calls |= {(call.key, call.kernel): call for call in calls}
        self.libraries |= libraries
        self.unknown = unknown


def library_reports_record(
    process: int, libraries: Mapping[str, str], calls: Iterable[ReportedCall], unknown: Iterable[tuple[str, int]]
) -> Record:
    """The record for process number ``process``."""
    outputs: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
    entries = [
        [f"{c.key:016x}", c.kernel, c.stream, c.row, c.times, outputs.setdefault((c.names, c.reported), len(outputs))]
        for c in calls
    ]
    record: Record = {"type": "library_reports", "process": process, "libraries": dict(libraries)}
    return record | {"said": [list(map(list, one)) for one in outputs], "calls": entries, "unknown": list(unknown)}


def _output(entry: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names, reported = entry
    return tuple(map(str, names)), tuple(map(str, reported))


def _call(entry: Any, outputs: Sequence[tuple[tuple[str, ...], tuple[str, ...]]]) -> ReportedCall:
    key, *counts = entry
    known = dict(zip(("kernel", "stream", "row", "times", "said"), counts, strict=True))
    index = number(known, "said", len(outputs) - 1)
    if not isinstance(key, str) or len(key) != 16:
        raise ValueError(f"{key!r} is no key of a call")
    kernel, stream, row, times = (number(known, name) for name in ("kernel", "stream", "row", "times"))
    return ReportedCall(int(key, 16), kernel, stream, row, times, *outputs[index])


def call_keys(rows: Rows, tables: Mapping[str, Keyed]) -> Hashes:
    """A 64-bit hash of each row's call: operator, tensors' layouts, arguments, numbers. Shape [n]."""
    zero = np.zeros(1, np.uint64)
    sums = cell_sums(rows.integers.view(np.uint64), rows.integer_offsets, INTEGERS)
    sums += cell_sums(rows.floats.view(np.uint64), rows.float_offsets, FLOATS)
    for column, table in CALL:
        sums += splitmix64(np.take(tables[table].keys, rows.column(column)) ^ salt(column, zero))
    return splitmix64(sums)


class ReportedKernels:
    """The kernel evidence of a process, extended by the reports of libraries."""

    def __init__(self, stored: Table, calls: Iterable[ReportedCall]) -> None:
        self.table = Table(stored.name, 0)
        self.table.payloads = list(stored.payloads)
        keys, entries, found = stored.keys.tolist(), dict[tuple[object, ...], int](), dict[int, int]()
        for call in calls:
            plain = stored.payloads[call.kernel] if call.kernel < len(stored) else None
            if not isinstance(plain, dict):
                continue  # lost to damage, and so are the rows
            entry = (call.kernel, call.names, call.reported)
            if entry not in entries:
                entries[entry] = len(self.table.payloads)
                payload = plain | {"names": list(call.names), "reported": list(call.reported)}
                self.table.payloads.append(payload)
                keys.append(portable_key("kernel", payload))
            found[(call.key + call.kernel * int(GOLDEN)) % 2**64] = entries[entry]
        self.table.keys = np.array(keys, np.uint64)
        self.table.present = np.concatenate([stored.present, np.ones(len(keys) - len(stored), bool)])
        self.table.ids = {key: i for i, key in reversed(list(enumerate(keys)))}
        order = sorted(found)
        self._known = np.array(order, np.uint64)
        self._ids = np.array([found[key] for key in order], np.uint32)

    def apply(self, rows: Rows, tables: Mapping[str, Keyed]) -> Rows:
        """The rows, with the reported kernels of the calls that were queried."""
        if not len(self._known) or not len(rows):
            return rows
        kernels = rows.column(Column.KERNEL)
        keys = call_keys(rows, tables) + kernels.astype(np.uint64) * GOLDEN
        at = np.minimum(np.searchsorted(self._known, keys), len(self._known) - 1)
        reported = (self._known[at] == keys) & (rows.column(Column.KIND) == Kind.OP)
        columns: NDArray[np.uint32] = rows.columns.copy(order="K")
        columns[reported, Column.KERNEL] = self._ids[at[reported]]
        return replace(rows, columns=columns)
