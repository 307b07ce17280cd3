"""Two processes compared step by step, by what was digested at each optimizer attempt; no op is looked at.

Owns the first step that differs and in which of parameters, gradients and generators. All of it stands in the
``steps`` tables, so it works on traces of any level that carry those digests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rltrace.diff.align.blocks import Steps, match_steps
from rltrace.diff.base.findings import optimizer_count
from rltrace.diff.base.model import Cause, Finding, InputsMatch, Pair
from rltrace.trace.format.schema import Step, StepFlag
from rltrace.trace.read.process import ProcessTrace

WATCHED: dict[Step, str] = {
    Step.GRADIENTS: "gradients",
    Step.PARAMETERS: "parameters",
    Step.TORCH_GENERATOR: "torch generator states",
    Step.DEVICE_GENERATORS: "device generator states",
}
"""What decides, in the order in which it comes about within a step."""

BESIDE: dict[Step, str] = {Step.PYTHON_GENERATOR: "Python", Step.NUMPY_GENERATOR: "NumPy"}
"""Generators that nobody has to seed and that no op draws from. What their states tell is noted, and decides nothing:
where it matters, another number reaches an op."""


@dataclass(frozen=True)
class StepResult:
    """What the step digests of one pair of processes tell."""

    matched: int
    """Attempts of both sides that could be compared."""
    finding: Finding | None = None
    numbers: tuple[int, int] | None = None
    """The number of the step that differs, on both sides."""
    ended: Finding | None = None
    """One complete process made fewer attempts."""
    open: str | None = None
    """The same, where the shorter one is not complete."""
    lonely: tuple[int, int] = (0, 0)
    """Attempts that one side alone made, before its last matched one."""
    notes: tuple[str, ...] = ()
    """Which of Python's and NumPy's generators stood elsewhere, and from where on."""


def compare_steps(a: ProcessTrace, b: ProcessTrace, *, without: NDArray[np.uint64] | None = None) -> StepResult:
    """Compare the digests of the steps that both sides made; ``without``: numbers of A's steps to leave out."""
    steps_a, steps_b = a.steps, b.steps
    at_a, at_b = match_steps(a, steps_a, b, steps_b)
    own_a, own_b = steps_a[at_a], steps_b[at_b]
    both = _digested(own_a) & _digested(own_b)
    if without is not None:
        both &= ~np.isin(own_a[:, Step.STEP], without)
    columns = list(WATCHED)
    unequal = both[:, None] & (own_a[:, columns] != own_b[:, columns])
    differing = np.flatnonzero(unequal.any(axis=1))
    notes = tuple(_beside(own_a[both], own_b[both]))
    if len(differing):
        k = int(differing[0])
        told = [c for c in columns if own_a[k, c] or own_b[k, c] or c is not Step.DEVICE_GENERATORS]
        found = _finding(
            a, own_a[k], own_b[k], {c: bool(unequal[k, columns.index(c)]) for c in told}, int(both[:k].sum())
        )
        numbers = int(own_a[k, Step.STEP]), int(own_b[k, Step.STEP])
        return StepResult(int(both.sum()), found, numbers, notes=notes)
    more_a = len(steps_a) - (int(at_a[-1]) + 1 if len(at_a) else 0)
    more_b = len(steps_b) - (int(at_b[-1]) + 1 if len(at_b) else 0)
    lonely = len(steps_a) - len(at_a) - more_a, len(steps_b) - len(at_b) - more_b
    ended, open_ = _end(a, b, more_a, more_b) if (more_a > 0) != (more_b > 0) else (None, None)
    return StepResult(int(both.sum()), ended=ended, open=open_, lonely=lonely, notes=notes)


def _beside(a: Steps, b: Steps) -> Iterator[str]:
    """What the states of generators outside of torch tell."""
    firsts: dict[int, list[str]] = {}
    for column, name in BESIDE.items():
        there = np.flatnonzero((a[:, column] != 0) & (b[:, column] != 0))  # a side may not have imported it yet
        differing = there[a[there, column] != b[there, column]]
        if len(differing):
            from_the_start = differing[0] == there[0]
            firsts.setdefault(-1 if from_the_start else int(a[differing[0], Step.STEP]), []).append(name)
    for first, names in sorted(firsts.items()):
        if first < 0:
            yield (
                f"the {_and(names)} generator states differ from the first step on, as those of unseeded generators "
                "do, and are ignored"
            )
        else:
            yield (
                f"the {_and(names)} generator states are equal before step {first:,} and differ from there on: "
                "outside torch, the runs drew differently"
            )


def _digested(steps: Steps) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (steps[:, Step.FLAGS] & np.uint64(StepFlag.DIGESTED)) != 0
    return found


def _finding(a: ProcessTrace, step_a: Steps, step_b: Steps, unequal: dict[Step, bool], before: int) -> Finding:
    """``unequal``: of every digest that tells something, whether it differs."""
    differ = [WATCHED[column] for column, is_unequal in unequal.items() if is_unequal]
    equal = [WATCHED[column] for column, is_unequal in unequal.items() if not is_unequal]
    why = f"the {_and(differ)} differ at the end of this step; every step before is equal"
    if equal:
        why += f", and so are the {_and(equal)} of this one"
    why += "; to find the op, record this step"
    outputs = tuple(Pair(f"{int(step_a[column]):016x}", f"{int(step_b[column]):016x}") for column in unequal)
    return bare_finding(a, step_a, Cause.UNKNOWN, why, before, outputs)


def bare_finding(
    process: ProcessTrace,
    step: Steps,
    cause: Cause,
    why: str,
    before: int,
    outputs: tuple[Pair[str], ...] = (),
    phase: str = "optimizer",
) -> Finding:
    """A finding that no op is known of."""
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


def _end(a: ProcessTrace, b: ProcessTrace, more_a: int, more_b: int) -> tuple[Finding | None, str | None]:
    shorter, longer, more = (a, b, more_b) if more_b else (b, a, more_a)
    side, other = ("A", "B") if more_b else ("B", "A")
    if shorter.state != "complete":
        return None, f"equal so far, but {side} is {shorter.state}" + (f" ({shorter.why})" if shorter.why else "")
    why = f"{side} is complete and ends after {len(shorter.steps):,} steps; {other} goes on for {more:,} more"
    return bare_finding(longer, longer.steps[-more], Cause.ENDED, why, len(shorter.steps)), None


def _and(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
