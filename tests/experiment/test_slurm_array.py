"""An array job of Slurm: its script, what a task does, and how the runs are joined."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rltrace.commands.main import main
from rltrace.errors import RecordError, UsageError
from rltrace.experiment.check import CheckPlan, requests
from rltrace.experiment.slurm_array import EndedRuns, batch_script, read_plan, write_array
from rltrace.testing import TraceBuilder


@pytest.fixture
def plan(tmp_path: Path) -> CheckPlan:
    """Two runs and the run at level step, of a program that needs no torch."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "data.txt").write_text("data")
    (tmp_path / "out").mkdir()
    command = (sys.executable, "-c", "import os; print(os.environ['RLTRACE_RUN'], open('data.txt').read())")
    return CheckPlan(command, 2, 1, tmp_path / "project", tmp_path / "out")


def test_the_script(plan: CheckPlan) -> None:
    """A task for each run and the control, with the processors and GPUs of each."""
    lines = batch_script(plan, 4, 1).splitlines()
    assert lines[0] == "#!/bin/sh"
    assert {"#SBATCH --array=1-3", "#SBATCH --cpus-per-task=4", "#SBATCH --gpus-per-task=1"} <= set(lines)
    assert f"#SBATCH --chdir={plan.folder}" in lines
    with pytest.raises(UsageError, match="without fractions"):
        write_array(plan, 0.5, 0)


def test_a_task_makes_its_run(plan: CheckPlan) -> None:
    """In a copy of the folder, which is removed, with its number; what no run recorded is an error of its task."""
    script = write_array(plan, 1, 0)
    assert read_plan(plan.output) == plan
    task = {**os.environ, "SLURM_ARRAY_TASK_ID": "2"}
    ended = subprocess.run(["sh", script], env=task, cwd=plan.folder, capture_output=True, text=True)
    assert ended.returncode != 0 and "run 2 was not recorded: it printed" in ended.stderr
    assert (plan.output / "run-2.out").read_text().startswith("2 data\n")
    assert not list((plan.output / "folders").iterdir())


def test_joined_runs(plan: CheckPlan, capsys: pytest.CaptureFixture[str]) -> None:
    """The report is that of runs made here; a run that is missing is named, with the command that makes it."""
    write_array(plan, 1, 0)
    jobs = requests(plan)
    for job, values in zip(jobs, ["x", "y", "x"], strict=True):
        with pytest.raises(RecordError, match=f"run {job.name} was not recorded .*sbatch --array={job.name} "):
            list(EndedRuns().run([job]))
        trace = TraceBuilder(job.trace, level="step" if "step" in job.options else "op")
        if "step" not in job.options:
            trace.op("aten.mm.default", outputs=[values])
        trace.end_step(parameters=values, gradients="g", generators="r")
        trace.finish()
    for _ in range(2):  # nothing is removed
        assert main(["check", "--join", str(plan.output), "--format", "json", "--quiet"]) == 1
        found = json.loads(capsys.readouterr().out)
        assert (found["groups"], found["control"]["group"]) == ([[1], [2]], 1)


def test_a_folder_without_runs(tmp_path: Path) -> None:
    """The error says which folder is meant."""
    with pytest.raises(UsageError, match=r"has no plan\.json: name the folder that rltrace check --on slurm wrote"):
        read_plan(tmp_path)
