"""Whether the digests that were written of a stream are those of its rows, computed again from the first row on.

Owns the end of what can be proved: the first row that is missing. Reads the stream segment by segment, in order.
"""

from __future__ import annotations

from itertools import islice, takewhile

import numpy as np
from numpy.typing import NDArray

from rltrace.errors import HoleError
from rltrace.trace.chains import Chains
from rltrace.trace.process import ProcessTrace
from rltrace.trace.schema import Step, StepFlag
from rltrace.trace.segment import Segment
from rltrace.trace.stream import StreamTrace

STEP_DIGESTS = (Step.PREFIX_STRUCTURE, Step.PREFIX_VALUES, Step.STRUCTURE, Step.VALUES, Step.ANY_ORDER)


class StreamProof:
    """Reads a stream from its first row on and compares the digests that were written with those of the rows."""

    def __init__(self, process: ProcessTrace, stream: StreamTrace, steps: NDArray[np.uint64] | None) -> None:
        self.read = 0
        self.damage: list[str] = []
        self._process = process
        self._stream = stream
        self._chains: Chains | None = Chains()
        self._steps = [] if steps is None else steps.tolist()
        self._next = 0
        self.proved = 0

    def segment(self, segment: Segment) -> None:
        try:
            rows = self._stream.read_segment(segment)
        except HoleError:
            self._chains = None
            return
        self.read += len(rows)
        if self._chains is None or self._chains.rows != segment.first:
            self._chains = None
            return
        marks = {mark[0]: mark[1:] for mark in segment.marks}
        to_come = (step[Step.END_ROW] for step in islice(self._steps, self._next, None))
        ends = set(takewhile(lambda row: row <= segment.stop, to_come))
        self._chains.hold(rows, self._process.tables, ends)
        for row in sorted({row for row in marks.keys() | ends if row >= segment.first}):
            self._chains.advance_to(row)
            if row in marks and marks[row] != tuple(self._chains.digests()):
                self._wrong(f"prefix digests at row {row} of {self._stream.name} do not match its rows")
                return
            self._check_steps(self._chains)
        self.proved = self._chains.rows

    def _check_steps(self, chains: Chains) -> None:
        prefix = chains.digests()
        while self._next < len(self._steps) and self._steps[self._next][Step.END_ROW] == chains.rows:
            step = self._steps[self._next]
            self._next += 1
            alone = list(chains.end_step())
            expected = alone if step[Step.FLAGS] & StepFlag.RECORDED else [0, 0, 0]
            found = [step[column] for column in STEP_DIGESTS]
            if found != [prefix.structure, prefix.values, *expected]:
                self.damage.append(f"digests of step {step[Step.STEP]} of {self._stream.name} do not match its rows")

    def _wrong(self, text: str) -> None:
        self.damage.append(text)
        self._chains = None
