"""``rltrace check`` as a person uses it: real runs of a real program, in folders of their own."""

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from programs import recorded, training

from rltrace.commands.main import main
from rltrace.trace.read.reader import open_trace

PROGRAM = """
import os
from pathlib import Path
import torch
torch.manual_seed(0)
diary = Path("diary.txt")
diary.write_text(diary.read_text() + "ran\\n" if diary.exists() else "ran\\n")
assert diary.read_text() == "ran\\n", "another run was here"
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
odd = os.environ.get("RLTRACE_RUN") == "3"
for step in range(3):
    loss = (weight * (3.0 if odd and step == 1 else 2.0)).sum()
    loss.backward()
    optimizer.step()
print("run", os.environ.get("RLTRACE_RUN"))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


@dataclass(frozen=True)
class Checked:
    status: int
    out: str
    err: str


def check(folder: Path, *options: str) -> Checked:
    """``rltrace check`` of the program in a folder, within this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(["check", *options, "--", sys.executable, "train.py"])
    return Checked(status, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Checked]:
    """Three runs of the program and one hardly recorded, and where that was asked for."""
    folder = tmp_path_factory.mktemp("checked")
    (folder / "train.py").write_text(PROGRAM)
    return folder, check(folder, "-n", "3", "--jobs", "2", "-o", "out", "--format", "json")


def test_runs_that_diverge(checked: tuple[Path, Checked]) -> None:
    """Three runs and one hardly recorded, each where no other left anything: one of them diverges, by its argument."""
    folder, result = checked
    assert result.status == 1, result.err
    found: dict[str, Any] = json.loads(result.out)
    assert (found["verdict"], found["groups"]) == ("diverged", [[1, 2], [3]])
    finding = found["tree"]["finding"]
    assert (finding["cause"], finding["op"], finding["step"]) == ("arguments", "aten.mul.Tensor", 1)
    assert found["control"]["group"] == 1
    assert not (folder / "diary.txt").exists()
    kept = {run["trace"] for run in found["runs"]}
    assert kept - {None} == {f"out/{path.name}" for path in (folder / "out").glob("run-*.zarr")}
    assert len(kept - {None}) == 2 and {run["same_as"] for run in found["runs"]} in ({None, 1}, {None, 2})
    assert (folder / "out" / "run-3.out").read_text() == "run 3\n"
    assert not (folder / "out" / "folders").exists()


def test_a_trace_names_the_folder_it_is_of(checked: tuple[Path, Checked]) -> None:
    """Commands that are made from such a trace run in the program's own folder, not in a copy that is gone."""
    folder, _ = checked
    traces = (folder / "out").glob("run-*.zarr")
    assert {open_trace(trace).launch["cwd"] for trace in traces} == {str(folder)}


def test_no_more_traces_are_on_the_disk_than_groups_and_the_run_at_work(folder: Path) -> None:
    """A run is compared as it ends; one that merely logs more than an earlier one leaves no trace either."""
    program = folder / "train.py"
    program.write_text(
        f"{PROGRAM}\nif not odd: weight.sum()\nprint(sum(1 for _ in Path('../..').glob('run-*.zarr')))\n"
    )
    program.write_text(program.read_text().replace("if odd and step == 1", "if False"))
    result = check(folder, "-n", "3", "--no-control", "-o", "out")
    assert result.status == 0, result.out
    assert [path.name for path in (folder / "out").glob("run-*.zarr")] == ["run-1.zarr"]
    printed = [(folder / "out" / f"run-{number}.out").read_text().split()[-1] for number in range(1, 4)]
    assert printed == ["1", "2", "2"]
    assert "run 3 ended with status 0, 28 ops; the same values as run 1" in result.err
    assert "; identical to run 1" in result.err


def test_in_place(folder: Path) -> None:
    """Where it is: what one run left, the next one finds; and a run that fails is said to have."""
    result = check(folder, "-n", "2", "--in-place", "--no-control", "-o", "out")
    assert "ended with status 1" in result.out
    assert "another run was here" in (folder / "out" / "run-2.out").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "nothing to check"),
        (["--in-place", "--jobs", "2", "--", "true"], "one after another"),
        (["--", "./nowhere"], "./nowhere cannot be run"),
        (["--steps", "x", "--", "true"], "give a step, as in 100"),
        (["-o", "full", "--", "true"], "full is not empty"),
        (["--share", "data", "--", "true"], "--share data"),
    ],
)
def test_bad_input(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    """Each is an error, reported in a sentence, before anything runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    assert main(["check", *options]) == 2
    assert message in capsys.readouterr().err


def test_a_command_without_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """Nothing was recorded: an error, with what the command printed."""
    monkeypatch.chdir(tmp_path)
    assert main(["check", "--", "sh", "-c", "echo no torch here"]) == 2
    assert "no torch here" in capfd.readouterr().err


def test_diff_of_several_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """More than two traces are put into groups, and the exit status says whether they are one."""
    monkeypatch.chdir(tmp_path)
    for name, steps in (("a", 4), ("b", 4), ("c", 3)):
        recorded(Path(f"{name}.zarr"), training(steps))
    assert main(["diff", "a.zarr", "b.zarr", "c.zarr"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("DIVERGED  2 groups of 3 runs") and "group 1  2 runs: a.zarr, b.zarr" in shown
    assert main(["diff", "a.zarr", "b.zarr", "c.zarr", "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["groups"], found["tree"]["finding"]["cause"]) == ([[1, 2], [3]], "ended")
    assert main(["diff", "a.zarr"]) == 2
