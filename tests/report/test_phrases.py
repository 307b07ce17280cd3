"""Words of a finding that every report uses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from programs import recorded, training

from rltrace.diff import compare
from rltrace.diff.base.model import OptimizerCount
from rltrace.report.document import when
from rltrace.report.phrases import counted


@pytest.mark.parametrize(("count", "words"), [(1, "1 environment step"), (12100, "12,100 environment steps")])
def test_environment_steps_are_those_before_the_attempt(tmp_path: Path, count: int, words: str) -> None:
    """The count is that at the end of the step: it is left out of a rollout, which lies before the attempt."""
    program = training()
    for name, noise in (("a", ""), ("b", "x")):
        recorded(tmp_path / name, [replace(do, noise=noise) if k == 2 else do for k, do in enumerate(program)])
    finding = compare(tmp_path / "a", tmp_path / "b").first_value
    assert finding is not None
    told = when(replace(finding, environment_step=count))
    assert told == f"optimizer step 0 (Adam's 1st attempt, after {words})"
    for phase in ("init", "rollout", "evaluation"):
        before = replace(finding, environment_step=count, phase=phase)
        assert when(before) == f"before the first optimizer step (Adam), phase {phase}"
        later = replace(before, step=37, optimizer=OptimizerCount(0, "Adam", 36, "critic"))
        assert when(later) == f"before optimizer step 37 (critic's Adam, 37th attempt), phase {phase}"
        assert when(replace(before, optimizer=None)) == f"before the first optimizer step, phase {phase}"
    of_step = replace(later, op=None, phase="optimizer")
    assert when(of_step) == f"optimizer step 37 (critic's Adam, 37th attempt, after {words})"


def test_one_of_a_thing_is_singular() -> None:
    """A count of one is told as one, and thousands stand apart."""
    assert [counted(n, "identical op") for n in (0, 1, 2_000)] == [
        "0 identical ops",
        "1 identical op",
        "2,000 identical ops",
    ]
