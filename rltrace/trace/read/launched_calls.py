"""Distinct calls whose launches a profiler saw, with the kernels that ran for each.

Owns the search of the rows for them, up to a limit. One call may run other kernels on another row, depending on
alignment or on autotuning.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from rltrace.errors import HoleError
from rltrace.trace.format.schema import Column, Kind
from rltrace.trace.kernels.evidence import LAUNCHES, Evidence
from rltrace.trace.kernels.library_reports import call_keys
from rltrace.trace.read.process import ProcessTrace

MAX_ROWS_READ = 1 << 18
"""In one process."""


@dataclass
class SeenCall:
    """One distinct call of a process."""

    key: int
    """As in ``call_keys``: equal in every process and trace."""
    stream: int
    row: int
    """Of the first occurrence."""
    kernels: Counter[int] = field(default_factory=Counter)
    """Number of rows by id in table "kernels"."""

    @property
    def times(self) -> int:
        return self.kernels.total()

    def evidence(self, process: ProcessTrace) -> list[Evidence]:
        """What ran, what ran most often first."""
        return [process.words.evidence(kernel) for kernel, _ in self.kernels.most_common()]


def seen_calls(process: ProcessTrace) -> list[SeenCall]:
    """The distinct calls, in the order of first occurrence."""
    found: dict[int, SeenCall] = {}
    budget = MAX_ROWS_READ
    words = process.words
    seen = np.array([LAUNCHES in words.evidence(kernel) for kernel in range(words.size("kernels"))], bool)
    for stream in process.streams:
        for first, count in process.launches.parts(stream.index):
            stop = min(first + count, first + budget, stream.rows)
            if stop <= first:
                continue
            budget -= stop - first
            try:
                rows = stream.read(first, stop)
            except HoleError:
                continue
            kernels = rows.column(Column.KERNEL)
            profiled = np.flatnonzero(seen[kernels] & (rows.column(Column.KIND) == Kind.OP))
            keys = call_keys(rows, process.tables)
            for place, key, kernel in zip(
                profiled.tolist(), keys[profiled].tolist(), kernels[profiled].tolist(), strict=True
            ):
                call = found.get(key)
                if call is None:
                    call = found[key] = SeenCall(key, stream.index, first + place)
                call.kernels[kernel] += 1
    return list(found.values())
