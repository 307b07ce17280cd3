"""Builds a ``Finding`` from a row of one side, or from a matched pair of rows.

Owns its display: op, site, module, step and optimizer count, kernel text, digests as hex. Decides nothing.
"""

from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.base.kernels import settings_differences
from rltrace.diff.base.model import (
    Cause,
    Finding,
    FindingEvent,
    InputsMatch,
    NotRestored,
    OptimizerCount,
    Pair,
    Received,
)
from rltrace.diff.base.view import StreamView
from rltrace.errors import HoleError
from rltrace.trace.format.rows import Link, Rows
from rltrace.trace.format.schema import Column, Kind, Phase, Step
from rltrace.trace.kernels.evidence import Evidence, kernel_texts, whole_names
from rltrace.trace.read.names import Site
from rltrace.trace.read.process import ProcessTrace

PROFILER = "profiler."
"""Start of the names of ops that only label a part of the program; ``optimizer.step()`` begins with one."""


@dataclass(frozen=True)
class RowAt:
    """One row of a stream, and the rows that it was read with."""

    view: StreamView
    rows: Rows
    place: int
    """Within ``rows``."""

    @property
    def index(self) -> int:
        """Row number in the stream."""
        return self.rows.first + self.place

    @property
    def is_op(self) -> bool:
        """Not an event."""
        return bool(self.rows.columns[self.place, Column.KIND] == Kind.OP)

    @property
    def is_opening(self) -> bool:
        """One of a window's opening rows."""
        return bool(self.rows.columns[self.place, Column.KIND] == Kind.WINDOW)

    @property
    def op(self) -> str:
        return self.view.op(self.rows, self.place)

    @property
    def module(self) -> str:
        return self.view.module(self.rows, self.place)

    @property
    def stack(self) -> tuple[Site, ...]:
        return self.view.stack(self.rows, self.place)

    @property
    def kernel(self) -> Evidence:
        return self.view.kernel(self.rows, self.place)

    @property
    def settings(self) -> dict[str, object]:
        return self.view.settings(self.rows, self.place)

    @property
    def step(self) -> int:
        return int(self.rows.columns[self.place, Column.STEP])

    @property
    def phase(self) -> str:
        number = int(self.rows.columns[self.place, Column.PHASE])
        return Phase(number).name.lower() if number in list(Phase) else str(number)

    def __str__(self) -> str:
        """``aten.mm.default at train.py:12 (forward)``; for a profiler label, its source line instead of the op."""
        if not self.stack:
            return self.op
        site = self.stack[0]
        named = site.source if site.source and self.op.startswith(PROFILER) else self.op
        return f"{named} at {site.file}:{site.line} ({site.function})"


@dataclass(frozen=True)
class Judgement:
    """The cause of a difference, and what it rests on."""

    cause: Cause
    inputs_match: InputsMatch
    explanation: str
    received: Received | None = None
    not_restored: NotRestored | None = None
    made: tuple[str, ...] = ()


def row_at(view: StreamView, index: int) -> RowAt:
    """Row ``index`` of a stream; HoleError where it cannot be read."""
    return RowAt(view, *view.row(index))


def make_finding(
    a: RowAt | None, b: RowAt | None, judgement: Judgement, identical_before: int, *, event: FindingEvent | None = None
) -> Finding:
    """The finding at a row of A, of B, or of both."""
    row = a or b
    assert row is not None
    stack = row.stack
    attempt = attempt_of(row)
    return Finding(
        cause=judgement.cause,
        stream=row.view.name,
        a_index=a.index if a else None,
        b_index=b.index if b else None,
        step=row.step if row.view.process.step_count else None,
        optimizer=attempt[0] if attempt else None,
        environment_step=attempt[1] if attempt else None,
        phase=row.phase,
        op=row.op,
        module=row.module or None,
        site=stack[0] if stack else None,
        stack=stack,
        kernel=Pair(*kernel_texts(a.kernel if a else {}, b.kernel if b else {})),
        inputs_match=judgement.inputs_match,
        outputs=_outputs(a, b),
        identical_before=identical_before,
        explanation=judgement.explanation,
        received=judgement.received,
        event=event,
        not_restored=judgement.not_restored,
        made=judgement.made,
        settings=settings_differences(a.settings, b.settings) if a and b else (),
        output_names=tuple(row.view.words.written(int(row.rows.columns[row.place, Column.SCALARS]))),
        kernel_names=Pair(*(whole_names(row.kernel) if row else None for row in (a, b))),
    )


def one_sided_finding(row: RowAt, of_a: bool, judgement: Judgement, identical_before: int) -> Finding:
    """The finding at a row that A or B alone has."""
    return make_finding(row if of_a else None, None if of_a else row, judgement, identical_before)


def attempt_of(row: RowAt) -> tuple[OptimizerCount, int | None] | None:
    """The attempt that ends the step of a row, and the environment steps so far; None: no attempt ended it."""
    found = row.view.attempt_after(row.index)
    if found is None:
        steps = row.view.process.steps
        same = steps[steps[:, Step.STEP] == np.uint64(row.step)]
        if not len(same):
            return None
        found = same[0]
    return optimizer_count(row.view.process, found), int(found[Step.ENVIRONMENT_STEPS]) or None


def optimizer_count(process: ProcessTrace, step: NDArray[np.uint64]) -> OptimizerCount:
    """The optimizer of one row of ``steps``, and how many attempts it had made."""
    payloads = process.tables["optimizers"].payloads
    number = int(step[Step.OPTIMIZER])
    payload = payloads[number] if number < len(payloads) else None
    known = payload if isinstance(payload, dict) else {}
    owner = str(known.get("owner") or "") or None
    return OptimizerCount(int(known.get("ordinal", 0)), str(known.get("class", "?")), int(step[Step.COUNT]), owner)


def _outputs(a: RowAt | None, b: RowAt | None) -> tuple[Pair[str], ...]:
    digests = [[f"{digest:016x}" for digest in row.rows.outputs(row.place)] if row else [] for row in (a, b)]
    return tuple(Pair(*pair) for pair in zip_longest(*digests))


def writer_of(row: RowAt, link: Link) -> RowAt | None:
    """The row that wrote what a link reads, through rows that only read the same view; None: not known."""
    for _ in range(8):
        target = reach(row, link.distance)
        if target is None or not link.known or link.slot is None:
            return target
        links = list(target.rows.inputs(target.place))
        if link.slot >= len(links):
            return None
        row, link = target, links[link.slot]
    return None


def reach(row: RowAt, distance: int) -> RowAt | None:
    """The row ``distance`` rows before ``row``; None where it cannot be read."""
    if not 0 < distance <= row.index:
        return None
    try:
        return row_at(row.view, row.index - distance)
    except HoleError:
        return None
