"""The runs of ``rltrace check`` as the tasks of an array job of Slurm, joined when they have ended.

Owns the batch script and the file with the plan, which the tasks and the join read. Submits nothing.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rltrace.errors import RecordError, UsageError
from rltrace.experiment.check import CheckPlan, requests
from rltrace.experiment.runner import Runner, RunRequest, RunResult
from rltrace.json import JsonError, from_json, to_json
from rltrace.trace.format.root import is_trace
from rltrace.trace.read.reader import open_trace

PLAN, SCRIPT = "plan.json", "array.sbatch"
"""Files in the folder of the runs, which all nodes share."""


def write_array(plan: CheckPlan, cpus: float, gpus: float) -> Path:
    """Write the batch script and the plan into ``plan.output``; returns the script. Raises UsageError for fractions."""
    if cpus != int(cpus) or gpus != int(gpus):
        raise UsageError("Slurm gives whole processors and GPUs: give --cpus and --gpus without fractions")
    (plan.output / PLAN).write_text(json.dumps(to_json(plan), indent=1) + "\n", encoding="utf-8")
    script = plan.output / SCRIPT
    script.write_text(batch_script(plan, int(cpus), int(gpus)), encoding="utf-8")
    return script


def batch_script(plan: CheckPlan, cpus: int, gpus: int) -> str:
    """The script of an array job: a task for each run, and one for the run at level step."""
    output = plan.output.absolute()
    options = [
        "--job-name=rltrace-check",
        f"--array=1-{plan.runs + plan.control}",
        f"--cpus-per-task={max(cpus, 1)}",
        *([f"--gpus-per-task={gpus}"] if gpus else []),
        f"--chdir={plan.folder}",
        f"--output={output}/slurm-%a.log",
    ]
    task = shlex.join([sys.executable, "-P", "-m", "rltrace.experiment.slurm_array", os.fspath(output / PLAN)])
    return "\n".join(["#!/bin/sh", *(f"#SBATCH {option}" for option in options), f"exec {task}", ""])


def read_plan(folder: Path) -> CheckPlan:
    """The plan of the runs in a folder. Raises UsageError where there is none."""
    try:
        plan = from_json(CheckPlan, json.loads((folder / PLAN).read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise UsageError(f"{folder} has no {PLAN}: name the folder that rltrace check --on slurm wrote") from None
    except (OSError, ValueError, JsonError) as error:
        raise UsageError(f"{folder / PLAN} cannot be read: {error}") from None
    return replace(plan, output=folder)


class EndedRuns:
    """Runs that were made before: the tasks of an array job that has ended."""

    def run(self, jobs: Iterable[RunRequest]) -> Iterator[RunResult]:
        """Yield each. Raises RecordError where one is missing, or has not ended."""
        for job in jobs:
            ending = open_trace(job.trace).exit if is_trace(job.trace) else None
            if ending is None:
                what = "has not ended" if is_trace(job.trace) else "was not recorded"
                again = f"sbatch --array={job.name} {job.trace.parent / SCRIPT}"
                raise RecordError(f"run {job.name} {what} (see {job.trace.parent}/slurm-{job.name}.log): {again}")
            status = ending.get("status")
            yield RunResult(job, status if isinstance(status, int) else -_number(ending.get("signal")))


def _number(name: object) -> int:
    with suppress(KeyError):
        return int(signal.Signals[str(name)])
    return 0


def main(plan_file: str, number: str) -> None:
    """Make one run of a plan: what a task of the array does."""
    plan = read_plan(Path(plan_file).parent)
    job = requests(plan)[int(number) - 1]
    shutil.rmtree(job.trace, ignore_errors=True)  # of a task that was lost, and is made again
    if job.copy is not None:
        shutil.rmtree(job.copy, ignore_errors=True)
    with Runner() as runner:
        list(runner.run([job]))


if __name__ == "__main__":
    main(sys.argv[1], os.environ["SLURM_ARRAY_TASK_ID"])
