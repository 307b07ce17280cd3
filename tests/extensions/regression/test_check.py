"""What is said of the run that is hardly recorded, whatever the runs did; the runs themselves are made up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rltrace.experiment.runner import RunRequest, RunResult
from rltrace.extensions.regression.check import CheckPlan, CheckResult, check
from rltrace.testing import TraceBuilder


class MadeUp:
    """Leaves for each run what one would have left; the run at level step ends with a status of its own."""

    def __init__(self, control_status: int) -> None:
        self.status = control_status
        self.names: list[str] = []

    def __enter__(self) -> MadeUp:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, jobs: Sequence[RunRequest]) -> Iterator[RunResult]:
        for job in jobs:
            self.names.append(job.name)
            level = "step" if "step" in job.options else "op"
            trace = TraceBuilder(job.trace, level=level)
            for _ in range(2):
                if level == "op":
                    trace.op("aten.mm.default", outputs=["x"])
                trace.end_step(parameters="p", gradients="g", generators="r")
            trace.finish()
            yield RunResult(job, self.status if level == "step" else 0)


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> tuple[CheckResult, MadeUp]:
    runner = MadeUp(request.param)
    monkeypatch.setattr("rltrace.extensions.regression.check.Runner", lambda _: runner)
    return check(CheckPlan(("true",), 2, 1, tmp_path, tmp_path, in_place=True)), runner


@pytest.mark.parametrize("checked", [0], indirect=True)
def test_it_is_numbered_like_any_other_run(checked: tuple[CheckResult, MadeUp]) -> None:
    """A program that reads RLTRACE_RUN as a number finds one there; the run falls into its group."""
    found, runner = checked
    assert runner.names == ["1", "2", "3"]
    assert found.control.group == 1
    assert found.control.run.output.name == "control.out"


@pytest.mark.parametrize("checked", [1], indirect=True)
def test_one_that_failed_alone_is_compared_with_none(checked: tuple[CheckResult, MadeUp]) -> None:
    """That it computed the same up to there proves nothing; what is said is how it ended, and where to look."""
    found, _ = checked
    assert found.control.group is None
    assert "it ended with status 1, as no other run did: " in found.control.why
    assert found.control.why.endswith("control.out has what it printed")
