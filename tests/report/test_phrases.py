"""Words of a finding that every report uses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from programs import recorded, training

from rltrace.diff import compare
from rltrace.report.document import when
from rltrace.report.phrases import counted


@pytest.mark.parametrize(("count", "words"), [(1, "1 environment step"), (12100, "12,100 environment steps")])
def test_environment_steps_are_those_before_the_attempt(tmp_path: Path, count: int, words: str) -> None:
    """An op of a rollout lies before them: the number belongs to the attempt that ends the step, and is told of it."""
    program = training()
    for name, noise in (("a", ""), ("b", "x")):
        recorded(tmp_path / name, [replace(do, noise=noise) if k == 2 else do for k, do in enumerate(program)])
    finding = compare(tmp_path / "a", tmp_path / "b").first_value
    assert finding is not None
    told = when(replace(finding, environment_step=count))
    assert told == f"optimizer step 0 (Adam's 1st attempt, after {words})"
    of_init = when(replace(finding, environment_step=count, phase="init"))
    assert of_init == "optimizer step 0 (Adam's 1st attempt), phase init"  # before there was any


def test_one_of_a_thing_is_singular() -> None:
    """A count of one is told as one, and thousands stand apart."""
    assert [counted(n, "identical op") for n in (0, 1, 2_000)] == [
        "0 identical ops",
        "1 identical op",
        "2,000 identical ops",
    ]
