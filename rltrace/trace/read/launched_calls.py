"""Kinds of call whose launches a profiler saw: which kernels ran for each, and where it was met first.

Owns going through the rows for that, of which it reads so many at most. One kind of call may run other kernels on
another row: by where its tensors begin in memory, by what was fastest when it was tried.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from rltrace.errors import HoleError
from rltrace.trace.format.schema import Column, Kind
from rltrace.trace.kernels.evidence import LAUNCHES, Evidence
from rltrace.trace.kernels.library_reports import call_keys
from rltrace.trace.read.process import ProcessTrace

MAX_ROWS_READ = 1 << 18
"""Of one process."""


@dataclass
class SeenCall:
    """One kind of call of a process."""

    key: int
    """As ``call_keys`` has it: equal in every process and trace."""
    stream: int
    row: int
    """Where it was met first."""
    kernels: Counter[int] = field(default_factory=Counter)
    """Ids in table "kernels", and how many rows have each."""

    @property
    def times(self) -> int:
        return self.kernels.total()

    def evidence(self, process: ProcessTrace) -> list[Evidence]:
        """What ran, what ran most often first."""
        return [process.words.evidence(kernel) for kernel, _ in self.kernels.most_common()]


def seen_calls(process: ProcessTrace) -> list[SeenCall]:
    """In the order in which they were met first."""
    found: dict[int, SeenCall] = {}
    room = MAX_ROWS_READ
    words = process.words
    seen = np.array([LAUNCHES in words.evidence(kernel) for kernel in range(words.size("kernels"))], bool)
    for stream in process.streams:
        for first, count in process.launched.parts(stream.index):
            stop = min(first + count, first + room, stream.rows)
            if stop <= first:
                continue
            room -= stop - first
            try:
                rows = stream.read(first, stop)
            except HoleError:
                continue
            kernels = rows.column(Column.KERNEL)
            told = np.flatnonzero(seen[kernels] & (rows.column(Column.KIND) == Kind.OP))
            keys = call_keys(rows, process.tables)
            for place, key, kernel in zip(told.tolist(), keys[told].tolist(), kernels[told].tolist(), strict=True):
                call = found.get(key)
                if call is None:
                    call = found[key] = SeenCall(key, stream.index, first + place)
                call.kernels[kernel] += 1
    return list(found.values())
