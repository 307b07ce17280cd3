"""What a trace says of how to run its command again, and what is reported where it does not say."""

from pathlib import Path
from typing import Any

import pytest

from rltrace.errors import UsageError
from rltrace.experiment.rerun_command import machine_difference, recipe_of
from rltrace.testing import ProcessBuilder
from rltrace.trace.format.root import create_trace, end_launch
from rltrace.trace.read.reader import Trace, open_trace


def trace_of(path: Path, facts: dict[str, Any] | None = None, **launch: object) -> Trace:
    create_trace(path, launch)
    process = ProcessBuilder(path, "rank0/main", "op", "testing")
    process.stream().op("aten.mm.default", outputs=["x"])
    for name, value in (facts or {}).items():
        process.fact(name, value)
    process.finish()
    end_launch(path, {"status": 0})
    return open_trace(path)


def test_command_folder_and_variables(tmp_path: Path) -> None:
    """They are as recorded; variables of the recorded kinds that were not set are not set again."""
    facts = {"env.OMP_NUM_THREADS": "2", "env.MKL_CBWR": None, "env.LD_PRELOAD": "libx.so", "host.cpu": "x"}
    trace = trace_of(tmp_path / "a.zarr", facts, command=["python", "train.py", "a b"], cwd=str(tmp_path))
    recipe = recipe_of(trace)
    assert (recipe.command, recipe.folder) == (("python", "train.py", "a b"), tmp_path)
    given = {"OMP_NUM_THREADS": "8", "MKL_CBWR": "AVX2", "LD_PRELOAD": "/lib/libx.so", "PATH": "/bin"}
    assert recipe.environment(given) == {"OMP_NUM_THREADS": "2", "LD_PRELOAD": "/lib/libx.so", "PATH": "/bin"}
    assert recipe.shown == f"(cd {tmp_path} && OMP_NUM_THREADS=2 python train.py 'a b')"


def test_what_is_given_by_hand_wins(tmp_path: Path) -> None:
    """Another command, folder and variable replace the trace's own."""
    trace = trace_of(tmp_path / "a.zarr", {"env.OMP_NUM_THREADS": "2"}, command=["x"], cwd="/nowhere")
    recipe = recipe_of(trace, command=["y"], folder=tmp_path, variables={"OMP_NUM_THREADS": "1"})
    assert (recipe.command, recipe.folder, recipe.variables) == (("y",), tmp_path, {"OMP_NUM_THREADS": "1"})


def test_home_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``~`` in a trace is the home folder of the user who runs it again."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "project").mkdir()
    trace = trace_of(tmp_path / "a.zarr", command=["~/bin/python", "train.py"], cwd="~/project")
    recipe = recipe_of(trace)
    assert (recipe.command[0], recipe.folder) == (f"{tmp_path}/bin/python", tmp_path / "project")


@pytest.mark.parametrize(
    ("launch", "message"),
    [
        ({"cwd": "/"}, "does not record its command.*--cmd-a"),
        ({"command": ["python", "train.py", "--token", "***"], "cwd": "/"}, "secret was masked.*--cmd-a"),
        ({"command": ["python"], "cwd": "/nowhere/at/all"}, "/nowhere/at/all, which does not exist here.*--folder"),
    ],
)
def test_what_a_trace_does_not_say(tmp_path: Path, launch: dict[str, Any], message: str) -> None:
    """Each is said, with the option that gives it."""
    with pytest.raises(UsageError, match=message):
        recipe_of(trace_of(tmp_path / "a.zarr", **launch), option="--cmd-a")


def test_a_masked_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program would run without it: it has to be given, unless it is set here."""
    monkeypatch.delenv("DATASET", raising=False)
    trace = trace_of(tmp_path / "a.zarr", {"env.DATASET": "***"}, command=["x"], cwd=str(tmp_path))
    with pytest.raises(UsageError, match=r"recorded with DATASET.*give it with --env-b DATASET="):
        recipe_of(trace, option="--cmd-b")
    assert recipe_of(trace, variables={"DATASET": "/data"}).environment({})["DATASET"] == "/data"
    monkeypatch.setenv("DATASET", "/here")
    assert recipe_of(trace).environment()["DATASET"] == "/here"


def test_compiled_functions_are_treated_as_they_were(tmp_path: Path) -> None:
    """A recording that ran what the program compiles op by op is made that way again; any other is not."""
    launch = {"command": ["python", "train.py"], "cwd": str(tmp_path)}
    eager = trace_of(tmp_path / "a.zarr", **launch, options={"compile": "eager"})
    assert recipe_of(eager).options == ("--compile", "eager")
    assert recipe_of(trace_of(tmp_path / "b.zarr", **launch, options={"level": "op"})).options == ()


def test_another_machine(tmp_path: Path) -> None:
    """An arm runs on its trace's machine; what neither side knows is no difference."""
    trace = trace_of(tmp_path / "a.zarr", {"host.cpu": "one", "host.isa": "avx2"})
    assert machine_difference(trace, {"host.cpu": "one", "host.isa": None}) is None
    assert "host.cpu is two here and was one" in str(machine_difference(trace, {"host.cpu": "two"}))
