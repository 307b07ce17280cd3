"""A single trace for display: its optimizer steps, and its logged scalars.

Steps are summarised without reading rows. The scalars are sampled as those of two traces are.
"""

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
    """Recorded ops of its thread since its last attempt; None: they were not recorded."""
    skipped: bool
    """The attempt was skipped, by a GradScaler for example."""
    optimizer: int
    """Number of the optimizer, in the order of construction."""


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
    ordinals = [payload.get("ordinal", n) if isinstance(payload, dict) else n for n, payload in enumerate(payloads)]
    found = []
    columns = [Step.STEP, Step.STREAM, Step.END_ROW, Step.SKIPPED, Step.FLAGS, Step.OPTIMIZER]
    for number, stream, end, skipped, flags, optimizer in steps[:, columns].tolist():
        ops = end - before.get(stream, 0) if flags & StepFlag.RECORDED else None
        before[stream] = end
        ordinal = ordinals[optimizer] if optimizer < len(ordinals) else optimizer
        found.append(OwnStep(number, ops, skipped == 1, int(ordinal)))
    return tuple(found)


def own_curves(trace: Trace, cancelled: Callable[[], bool] = lambda: False) -> tuple[Curve, ...]:
    """Curves of the trace's series, those with the most steps first; their side B is empty."""
    series = all_series(trace, segments=timeline.MAX_SEGMENTS, cancelled=cancelled)
    found = [timeline.own_curve(one) for one in series if timeline.is_curve(one)]
    flat = [len(np.unique([value for _, value in curve.a])) < 2 for curve in found]
    ordered = sorted(zip(flat, found, strict=True), key=lambda pair: (pair[0], -len(pair[1].a)))
    return tuple(curve for _, curve in ordered)
