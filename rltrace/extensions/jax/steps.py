"""The steps of a JAX program: iterations of its loops, and calls that compute a gradient.

Owns the number of the step, which iterations of a loop are seen, and the attempts that are not committed yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rltrace.digest import digest_buffer
from rltrace.extensions.jax.loops import LoopRule, computes_gradient, every_scan
from rltrace.extensions.jax.rows import NewRow
from rltrace.portable_keys import portable_key
from rltrace.recorder.base.intern_tables import Tables
from rltrace.recorder.base.options import RecordOptions
from rltrace.trace.format.rows import StepRecord

MAX_ITERATIONS: Final = 4_096
"""Iterations of a loop that are steps, unless they are in the window; of a longer loop, every second, third …"""

MAX_BYTES: Final = 1 << 36
"""Bytes of the carries of a loop that are digested, outside of the window: 64 GiB, some 10 s."""


class LoopSteps:
    """The steps of one process."""

    def __init__(self, options: RecordOptions, tables: Tables) -> None:
        self._options, self._tables = options, tables
        self.now = 0
        """Iterations of all loops so far."""
        self.running: Callable[[], int] = lambda: 0
        """How many more have ended in the piece of a loop that runs now."""
        self.attempt: tuple[int, int] | None = None
        """(ordinal of the loop, its count of iterations) of the last iteration seen; None: there was none."""
        self._ended: list[tuple[StepRecord, NewRow | None]] = []
        """Each with the row whose results its digest is of, where they are not digested yet."""
        self._has_opened = False
        """Whether the window has begun within the run."""
        self._loops: dict[str, int] = {}
        """Ids in table "optimizers", by the name of the function with the loop."""
        self._counts: dict[int, int] = {}

    @property
    def in_window(self) -> bool:
        """Whether the rows of the current step are recorded."""
        end = self._options.end_step
        return self.now >= self._options.first_step and (end is None or self.now < end)

    def opens_window(self) -> bool:
        """Whether the window begins with the step that comes next, and not with the process; True only once."""
        if not self._options.first_step == self.now > 0 or self._has_opened:
            return False
        self._has_opened = True
        return True

    def next_piece(self, done: int, length: int, size: int, most: int) -> tuple[int, int]:
        """Of a loop that has done so many iterations: every how many are seen next, and where the host is to look.

        Of a carry of ``size`` bytes, and ``most`` iterations seen. Which iterations are seen depends on nothing but
        the loop, the window and the end asked for, so that two runs see the same; where the host looks does not matter.
        """
        options = self._options
        stride = 1 if options.windowed and self.in_window else _stride(length, size)
        stop = min(length, (done // stride + most) * stride)
        for step in (options.first_step, options.end_step, None if options.until is None else options.until + 1):
            if step is not None and self.now < step < self.now + stop - done:
                stop = done + step - self.now
        return stride, stop

    def sees_each(self, length: int, size: int) -> bool:
        """Whether each iteration of a loop is seen, or each of the window; ``size``: of its carry, in bytes."""
        return self._options.windowed or _stride(length, size) == 1

    def loop_rule(self, name: str) -> LoopRule:
        """Which scans are training loops of a function of this name."""
        return every_scan if any(fnmatchcase(name, each) for each in self._options.loops) else computes_gradient

    def end(
        self,
        loop: str,
        ends: Sequence[int],
        stream: int,
        row_ends: Sequence[int],
        digests: Sequence[int],
        row: NewRow | None = None,
    ) -> None:
        """Iterations of a loop have ended, counted from the last one seen, each with the row after it and its digest.

        ``row``: of which the digest will be.
        """
        number = self._loop(loop)
        count, begin, recorded = self._counts.get(number, 0), self.now, self.in_window
        for end, row_end, digest in zip(ends, row_ends, digests, strict=True):
            done = (number, count + end - 1, 0, 0, 0, row_end, recorded, digest, 0, (0, 0, 0, 0))
            self._ended.append((StepRecord(begin + end - 1, stream, *done), row))
        self._counts[number] = count + ends[-1]
        self.attempt = list(self._loops).index(loop), count + ends[-1] - 1
        self.now = begin + ends[-1]

    def take(self) -> list[StepRecord]:
        """Remove and return the steps up to the first whose results are not digested yet."""
        unread = (i for i, (_, row) in enumerate(self._ended) if row is not None and row[-1] is not None)
        count = next(unread, len(self._ended))
        taken, self._ended = self._ended[:count], self._ended[count:]
        for record, row in taken:
            if row is not None:
                record.parameters = digest_of([cell[0] for cell in row[4]])
        return [record for record, _ in taken]

    def _loop(self, name: str) -> int:
        """Id of a loop in table "optimizers"."""
        loop = self._loops.get(name)
        if loop is None:
            identity = {"ordinal": len(self._loops), "class": name}
            key = portable_key("optimizers", identity)
            loop = self._loops[name] = self._tables.intern("optimizers", key, identity)
        return loop


def digest_of(digests: Sequence[Any] | NDArray[np.uint64]) -> int:
    """Of what a step passes on, by the digests of its arrays."""
    return digest_buffer(np.asarray(digests, np.uint64), 0)


def _stride(length: int, size: int) -> int:
    """Every how many iterations of a loop are seen, unless they are in the window."""
    return -(-length // max(min(MAX_ITERATIONS, MAX_BYTES // max(size, 1)), 1))
