"""One trace by itself, for whoever looks at it: its optimizer steps at a glance, and the numbers it read out.

Owns what is counted of a step without reading its rows. The numbers are sampled as those of two traces are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rltrace.diff.metrics import timeline
from rltrace.diff.metrics.series import all_series
from rltrace.diff.metrics.timeline import Curve
from rltrace.trace.format.schema import Step, StepFlag
from rltrace.trace.read.process import ProcessTrace
from rltrace.trace.read.reader import Trace


@dataclass(frozen=True)
class OwnStep:
    """One optimizer attempt."""

    number: int
    ops: int | None
    """Ops of its thread that became rows since its last attempt; None: they were not recorded."""
    skipped: bool
    """The attempt left the parameters alone, as GradScaler makes it."""
    optimizer: int
    """Which, in the order of their creation."""


@dataclass(frozen=True)
class OwnSteps:
    """The attempts of one process, in order."""

    process: str
    steps: tuple[OwnStep, ...]


def own_steps(trace: Trace) -> tuple[OwnSteps, ...]:
    """One for every process that made attempts; reads the steps, never a row."""
    found = (OwnSteps(process.name, _steps(process)) for process in trace.processes)
    return tuple(steps for steps in found if steps.steps)


def _steps(process: ProcessTrace) -> tuple[OwnStep, ...]:
    steps = process.steps
    before: dict[int, int] = {}
    payloads = process.tables["optimizers"].payloads
    born = [payload.get("ordinal", n) if isinstance(payload, dict) else n for n, payload in enumerate(payloads)]
    found = []
    columns = [Step.STEP, Step.STREAM, Step.END_ROW, Step.SKIPPED, Step.FLAGS, Step.OPTIMIZER]
    for number, stream, end, skipped, flags, optimizer in steps[:, columns].tolist():
        ops = end - before.get(stream, 0) if flags & StepFlag.RECORDED else None
        before[stream] = end
        which = born[optimizer] if optimizer < len(born) else optimizer
        found.append(OwnStep(number, ops, skipped == 1, int(which)))
    return tuple(found)


def own_curves(trace: Trace, cancelled: Callable[[], bool] = lambda: False) -> tuple[Curve, ...]:
    """The numbers that the trace's streams read out, those of most steps first; there is no side B in them."""
    series = all_series(trace, segments=timeline.MOST_SEGMENTS, cancelled=cancelled)
    found = [timeline.own_curve(one) for one in series if timeline.is_curve(one)]
    flat = [len(np.unique([value for _, value in curve.a])) < 2 for curve in found]
    ordered = sorted(zip(flat, found, strict=True), key=lambda pair: (pair[0], -len(pair[1].a)))
    return tuple(curve for _, curve in ordered)
