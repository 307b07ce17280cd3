"""Steps that have ended, until the rows before their end are written.

Owns the filling in of what only the writer knows of a step: the digests of its rows. Writes nothing itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from rltrace.trace.chains import Chains
from rltrace.trace.rows import StepRecord
from rltrace.trace.schema import GENERATORS, Step, StepFlag


@dataclass
class _Waiting:
    record: StepRecord
    filled: list[int] | None = None


class WaitingSteps:
    """Ended steps in the order of their ending; each leaves once it and all before it are filled in."""

    def __init__(self) -> None:
        self._steps: deque[_Waiting] = deque()

    def add(self, step: StepRecord, rows: int) -> None:
        """Take in a step of a stream that has ``rows`` rows so far."""
        if step.end_row < rows:
            raise ValueError(f"step {step.step} ended at row {step.end_row}; rows up to {rows} are written already")
        self._steps.append(_Waiting(step))

    def ends(self, stream: int) -> set[int]:
        """Rows of the stream at which a step ends that is not filled in yet."""
        return {w.record.end_row for w in self._steps if w.filled is None and w.record.stream == stream}

    def reached(self, stream: int, chains: Chains) -> None:
        """Fill in the steps of the stream that end where its chains now stand."""
        for waiting in self._steps:
            record = waiting.record
            if waiting.filled is None and record.stream == stream and record.end_row == chains.rows:
                waiting.filled = _fill(record, chains)

    def take(self, streams: Sequence[Chains], *, give_up: bool = False) -> list[list[int]]:
        """Rows for the ``steps`` array. ``give_up``: those whose rows never came too, as not recorded."""
        taken = []
        for stream, chains in enumerate(streams):
            self.reached(stream, chains)
        while self._steps and (self._steps[0].filled is not None or give_up):
            waiting = self._steps.popleft()
            taken.append(waiting.filled or _fill(waiting.record, streams[waiting.record.stream], complete=False))
        return taken


def _fill(record: StepRecord, chains: Chains, *, complete: bool = True) -> list[int]:
    alone = chains.end_step()
    recorded = record.recorded and complete
    digested = None not in (record.parameters, record.gradients, record.generators)
    prefix = chains.digests()
    row = [0] * len(Step)
    row[Step.STEP] = record.step
    row[Step.STREAM] = record.stream
    row[Step.OPTIMIZER] = record.optimizer
    row[Step.COUNT] = record.count
    row[Step.SKIPPED] = record.skipped
    row[Step.BACKWARDS] = record.backwards
    row[Step.ENVIRONMENT_STEPS] = record.environment_steps
    row[Step.END_ROW] = chains.rows
    row[Step.STRUCTURE], row[Step.VALUES], row[Step.ANY_ORDER] = alone if recorded else (0, 0, 0)
    row[Step.PREFIX_STRUCTURE], row[Step.PREFIX_VALUES] = prefix.structure, prefix.values
    row[Step.PARAMETERS] = record.parameters or 0
    row[Step.GRADIENTS] = record.gradients or 0
    for column, state in zip(GENERATORS, record.generators or (0, 0, 0, 0), strict=True):
        row[column] = state
    row[Step.FLAGS] = (StepFlag.RECORDED if recorded else 0) | (StepFlag.DIGESTED if digested else 0)
    return row
