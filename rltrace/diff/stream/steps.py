"""Comparison of two processes step by step, by the digests taken at each optimizer attempt; reads no rows.

Finds the first step whose parameters, gradients or RNG states differ. Needs only the ``steps`` tables, so it works on
traces of any level with these digests.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.align.blocks import Steps, knows_optimizers, match_steps
from rltrace.diff.base.coverage import unfinished_text
from rltrace.diff.base.findings import optimizer_count
from rltrace.diff.base.model import Cause, Finding, InputsMatch, Pair
from rltrace.diff.base.view import is_shifted
from rltrace.diff.causes.carried_state import carried_step
from rltrace.trace.format.schema import Step, StepFlag
from rltrace.trace.read.process import ProcessTrace
from rltrace.wording import joined

DECISIVE: dict[Step, str] = {
    Step.GRADIENTS: "gradients",
    Step.PARAMETERS: "parameters",
    Step.TORCH_GENERATOR: "torch generator states",
    Step.DEVICE_GENERATORS: "device generator states",
}
"""Digests that decide, in their order within a step."""

UNDECISIVE: dict[Step, str] = {Step.PYTHON_GENERATOR: "Python", Step.NUMPY_GENERATOR: "NumPy"}
"""Generators that need not be seeded and that no op draws from. Their states are noted and decide nothing: where they
matter, other numbers reach an op."""


@dataclass(frozen=True)
class StepResult:
    """The comparison of the step digests of one pair of processes."""

    matched: int
    """Matched attempts that could be compared."""
    finding: Finding | None = None
    numbers: tuple[int, int] | None = None
    """Numbers, in A and B, of the step that differs."""
    ended: Finding | None = None
    """The finding where one complete process made fewer attempts."""
    open: str | None = None
    """Why that is open, where the shorter process is not complete."""
    one_sided: tuple[int, int] = (0, 0)
    """Unmatched attempts of A and B before the last matched one."""
    notes: tuple[str, ...] = ()
    """Sentences on the states of Python's and NumPy's generators that differ."""


def compare_steps(a: ProcessTrace, b: ProcessTrace, *, exclude: NDArray[np.uint64] | None = None) -> StepResult:
    """Compare the digests of the steps that both sides made; ``exclude``: numbers of A's steps to leave out."""
    steps_a, steps_b = a.steps, b.steps
    at_a, at_b = match_steps(a, steps_a, b, steps_b)
    own_a, own_b = _matched(steps_a, at_a), _matched(steps_b, at_b)
    both = _digested(own_a) & _digested(own_b)
    if exclude is not None:
        both &= ~np.isin(own_a[:, Step.STEP], exclude)
    columns = list(DECISIVE)
    unequal = np.stack([both & (own_a[:, column] != own_b[:, column]) for column in columns], axis=1)
    differing = np.flatnonzero(unequal.any(axis=1))
    notes = tuple(_generator_notes(own_a, own_b, both))
    if len(differing):
        k = int(differing[0])
        shown = [c for c in columns if own_a[k, c] or own_b[k, c] or c is not Step.DEVICE_GENERATORS]
        differs = {column: bool(unequal[k, columns.index(column)]) for column in shown}
        found = _finding(a, b, own_a[k], own_b[k], differs, int(both[:k].sum()))
        numbers = int(own_a[k, Step.STEP]), int(own_b[k, Step.STEP])
        return StepResult(int(both.sum()), found, numbers, notes=notes)
    more_a = len(steps_a) - (int(at_a[-1]) + 1 if len(at_a) else 0)
    more_b = len(steps_b) - (int(at_b[-1]) + 1 if len(at_b) else 0)
    if more_a and more_b and exclude is None:
        other = _other_optimizer(a, b, steps_a[-more_a], steps_b[-more_b], int(both.sum()))
        if other is not None:
            return StepResult(int(both.sum()), other, notes=notes)
    one_sided = len(steps_a) - len(at_a) - more_a, len(steps_b) - len(at_b) - more_b
    ended, open_ = _end(a, b, more_a, more_b) if (more_a > 0) != (more_b > 0) else (None, None)
    return StepResult(int(both.sum()), ended=ended, open=open_, one_sided=one_sided, notes=notes)


def _matched(steps: Steps, at: NDArray[np.int64]) -> Steps:
    """The matched steps; not a copy where that is all, as a long run has gigabytes of them."""
    return steps if len(at) == len(steps) else steps[at]


def _generator_notes(a: Steps, b: Steps, both: NDArray[np.bool_]) -> Iterator[str]:
    """Sentences on the states of generators outside torch; ``both``: steps that are compared."""
    firsts: dict[int, list[str]] = {}
    for column, name in UNDECISIVE.items():
        present = np.flatnonzero(both & (a[:, column] != 0) & (b[:, column] != 0))  # a side may import it later
        differing = present[a[present, column] != b[present, column]]
        if len(differing):
            from_the_start = differing[0] == present[0]
            firsts.setdefault(-1 if from_the_start else int(a[differing[0], Step.STEP]), []).append(name)
    for first, names in sorted(firsts.items()):
        if first < 0:
            yield (
                f"the {joined(names)} generator states differ from the first step on, as those of unseeded generators "
                "do, and are ignored"
            )
        else:
            yield (
                f"the {joined(names)} generator states are equal before step {first:,} and differ from there on: "
                "outside torch, the runs drew differently"
            )


def _digested(steps: Steps) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (steps[:, Step.FLAGS] & np.uint64(StepFlag.DIGESTED)) != 0
    return found


def _finding(
    a: ProcessTrace, b: ProcessTrace, step_a: Steps, step_b: Steps, unequal: dict[Step, bool], before: int
) -> Finding:
    """``unequal``: whether each digest that was taken differs."""
    differ = [DECISIVE[column] for column, is_unequal in unequal.items() if is_unequal]
    equal = [DECISIVE[column] for column, is_unequal in unequal.items() if not is_unequal]
    why = f"the {joined(differ)} differ at the end of this step"
    why += "; every step before is equal" if before or not is_shifted(a, b) else ""
    if equal and why.endswith("equal"):
        why += f", and so are the {joined(equal)} of this one"
    elif equal:
        why += f", and the {joined(equal)} are equal"
    lost = None
    if not before and is_shifted(a, b):
        lost, because = carried_step(a, b, step_a, [column for column, is_unequal in unequal.items() if is_unequal])
        why = f"{because}; {why}"
    why += "; to find the op, record this step"
    outputs = tuple(Pair(f"{int(step_a[column]):016x}", f"{int(step_b[column]):016x}") for column in unequal)
    return replace(bare_finding(a, step_a, Cause.UNKNOWN, why, before, outputs), not_restored=lost)


def bare_finding(
    process: ProcessTrace,
    step: Steps,
    cause: Cause,
    why: str,
    before: int,
    outputs: tuple[Pair[str], ...] = (),
    phase: str = "optimizer",
) -> Finding:
    """A finding without an op."""
    stream = next((s.name for s in process.streams if s.index == int(step[Step.STREAM])), process.name)
    return Finding(
        cause=cause,
        stream=stream,
        a_index=None,
        b_index=None,
        step=int(step[Step.STEP]),
        optimizer=optimizer_count(process, step),
        environment_step=int(step[Step.ENVIRONMENT_STEPS]) or None,
        phase=phase,
        op=None,
        module=None,
        site=None,
        stack=(),
        kernel=Pair(None, None),
        inputs_match=InputsMatch.UNKNOWN,
        outputs=outputs,
        identical_before=before,
        explanation=why,
    )


def _other_optimizer(a: ProcessTrace, b: ProcessTrace, step_a: Steps, step_b: Steps, before: int) -> Finding | None:
    """The finding where the two go on with attempts of two classes of optimizer; None: they are not known to."""
    if not (knows_optimizers(a, step_a[None]) and knows_optimizers(b, step_b[None])):
        return None
    names = [optimizer_count(process, step).name for process, step in ((a, step_a), (b, step_b))]
    if names[0] == names[1]:
        return None
    why = f"A makes a step of {names[0]} here, and B one of {names[1]}"
    return bare_finding(a, step_a, Cause.CONTROL_FLOW, why, before)


def _end(a: ProcessTrace, b: ProcessTrace, more_a: int, more_b: int) -> tuple[Finding | None, str | None]:
    shorter, longer, more = (a, b, more_b) if more_b else (b, a, more_a)
    side, other = ("A", "B") if more_b else ("B", "A")
    if shorter.state != "complete":
        return None, unfinished_text(side, shorter)
    why = f"{side} is complete and ends after {len(shorter.steps):,} steps; {other} goes on for {more:,} more"
    return bare_finding(longer, longer.steps[-more], Cause.ENDED, why, len(shorter.steps)), None
