"""action.yml: its steps, run as the runner of GitHub Actions runs them, on real programs, but for the upload."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rltrace.extensions.regression.lock import lock_of, write_lock
from rltrace.trace.read.reader import open_trace

ACTION = yaml.safe_load((Path(__file__).parents[1] / "action.yml").read_text())
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
EXPRESSION = re.compile(r"\$\{\{ (\S+) \}\}")

PROGRAM = """
import os, sys
import torch
import rltrace
assert sys.argv[1:] == ["a b", "$HOME"]
factor = float(os.environ["RLTRACE_RUN"])
result = torch.ones(3) * factor
torch.manual_seed(int(factor))
rltrace.step()
"""


class Job:
    """A checkout with a program in a folder of it, and the files that the runner gives its steps."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.temporary = folder / "checkout", folder / "temporary"
        self.program = self.checkout / "agents"
        for made in (self.program, self.temporary):
            made.mkdir(parents=True)
        (self.program / "train.py").write_text(PROGRAM)

    def run(self, **given: str) -> tuple[int, dict[str, str], str]:
        """The status of the job, the action's outputs, and its log; the inputs are ``given``."""
        known = {f"inputs.{name}": str(spec.get("default", "")) for name, spec in ACTION["inputs"].items()}
        known |= {f"inputs.{name.replace('_', '-')}": value for name, value in given.items()}
        log = ""
        for step in STEPS:
            if "uses" in step or not self._is_due(step, known):
                continue
            status, text = self._run_step(step, known)
            log += text
            if status:
                break
        outputs = {name: _expanded(spec["value"], known) for name, spec in ACTION["outputs"].items()}
        self.folder = Path(known["steps.check.outputs.folder"])
        return status, outputs, log

    def _is_due(self, step: dict[str, Any], known: dict[str, str]) -> bool:
        name, _, value = str(step.get("if", "true != ''")).partition(" != ")
        return known.get(name, name) != value.strip("'")

    def _run_step(self, step: dict[str, Any], known: dict[str, str]) -> tuple[int, str]:
        script, output, summary = (self.temporary / name for name in ("step.sh", "output", "summary"))
        script.write_text(step["run"])
        output.write_text("")
        environment = {
            **os.environ,
            **{name: _expanded(value, known) for name, value in step.get("env", {}).items()},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "GITHUB_WORKSPACE": str(self.checkout),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(summary),
            "RUNNER_TEMP": str(self.temporary),
        }
        folder = self.checkout / _expanded(step.get("working-directory", "."), known)
        line = ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)]
        ended = subprocess.run(line, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for text in output.read_text().splitlines():
            name, _, value = text.partition("=")
            known[f"steps.{step['id']}.outputs.{name}"] = value
        return ended.returncode, ended.stdout.decode()


def _expanded(text: str, known: dict[str, str]) -> str:
    return EXPRESSION.sub(lambda match: known[match[1]], text)


def test_a_program_that_diverges_and_its_lock(tmp_path: Path) -> None:
    """Two runs fail with an annotation at the line, a page and the traces; a lock of the first run holds."""
    job = Job(tmp_path)
    given = {"command": f"{sys.executable} train.py 'a b' $HOME", "working_directory": "agents"}
    status, outputs, log = job.run(**given, rltrace_args="--no-control")
    assert (status, outputs) == (1, {"verdict": "diverged", "status": "1"}), log
    title = "title=rltrace%3A diverged%2C cause arguments"
    assert re.findall("^::error .*?::", log, re.MULTILINE) == [f"::error file=agents/train.py,line=7,{title}::"], log
    assert "Where they diverge" in (job.temporary / "summary").read_text()
    assert "::error" not in (job.temporary / "summary").read_text()
    made = {path.name for path in job.folder.iterdir() if path.stat().st_size}
    assert {"report.html", "report.txt", "verdict.json", "traces.tar.gz"} <= made
    assert [path.name for path in job.program.iterdir()] == ["train.py"]

    write_lock(job.program / "train.lock", lock_of(open_trace(job.folder / "traces" / "run-1.zarr")))
    status, outputs, log = job.run(**given, lock="train.lock", until="5")
    assert (status, outputs) == (0, {"verdict": "agree", "status": "0"}), log
    assert "::notice title=rltrace%3A identical::" in log


def test_trouble(tmp_path: Path) -> None:
    """A command that cannot be run fails the job with rltrace's status, and no input is run as a script."""
    status, outputs, log = Job(tmp_path).run(command='$(touch "x y") `touch z`; touch w')
    assert (status, outputs) == (2, {"verdict": "trouble", "status": "2"}), log
    assert "$(touch cannot be run" in log
    assert list((tmp_path / "checkout").iterdir()) == [tmp_path / "checkout" / "agents"]


@pytest.mark.parametrize("step", [step for step in STEPS if "run" in step])
def test_no_expression_is_written_into_a_script(step: dict[str, Any]) -> None:
    """What an input says is data."""
    assert "${{" not in step["run"] and step["shell"] == "bash"
