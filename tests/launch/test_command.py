"""What a command line runs, found as the system finds it, named as a person would call it; what processes inherit."""

from pathlib import Path

import pytest

import rltrace
from rltrace.launch.command import (
    CommandLookup,
    child_environment,
    look_up,
    recording_variables,
    script_folder,
    trace_stem,
)
from rltrace.recorder.base.options import RecordOptions


@pytest.mark.parametrize(
    ("line", "stem"),
    [
        ("python train.py --lr 1", "train"),
        ("python -u /some/where/ppo_atari.py", "ppo_atari"),
        ("torchrun --nproc-per-node 2 train.py", "train"),
        ("python -m cleanrl.ppo", "ppo"),
        ("python -m cleanrl_utils.benchmark --command x", "benchmark"),
        ("/opt/bin/sb3-train --algo ppo", "sb3-train"),
        ("python -c pass", "python"),
        ("./my$tool", "my-tool"),
        ("./$", "trace"),
    ],
)
def test_trace_stem(line: str, stem: str) -> None:
    """Script, else module, else the command itself; only characters that are safe in a file name."""
    assert trace_stem(line.split()) == stem


def test_look_up(tmp_path: Path) -> None:
    """On PATH or by its path: executable, there but not executable, not there."""
    (tmp_path / "tool").write_text("")
    (tmp_path / "tool").chmod(0o755)
    (tmp_path / "text").write_text("")
    (tmp_path / "folder").mkdir()
    path = {"PATH": f"/no/such/folder:{tmp_path}"}
    assert look_up("tool", path) is CommandLookup.EXECUTABLE
    assert look_up(f"{tmp_path}/tool", {"PATH": ""}) is CommandLookup.EXECUTABLE
    assert look_up("text", path) is CommandLookup.NOT_EXECUTABLE
    assert look_up(f"{tmp_path}/folder", path) is CommandLookup.NOT_EXECUTABLE
    assert look_up("folder", path) is CommandLookup.NOTHING
    assert look_up("tool", {"PATH": "/no/such/folder"}) is CommandLookup.NOTHING
    assert look_up("", path) is CommandLookup.NOTHING


def test_script_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the script, else where the command is started."""
    monkeypatch.chdir(tmp_path)
    assert script_folder(["python", "src/train.py"]) == tmp_path / "src"
    assert script_folder(["sb3-train"]) == tmp_path


def test_recording_variables_are_all_that_a_child_inherits(tmp_path: Path) -> None:
    """Given to an environment with nothing else, it makes of it what the launcher made of the program's."""
    variables = child_environment(
        RecordOptions(str(tmp_path / "a.zarr")), {"host.cores": 2}, {"PYTHONPATH": "/home/me/lib"}
    )
    assert recording_variables({**variables, "HOME": "/home/me/"}) == variables
    cached = {**variables, "RLTRACE_CACHE": "/cache"}
    assert recording_variables({**cached, "HOME": "/home/me/"}) == cached


def test_outside_of_a_recording_nothing_is() -> None:
    """A program may ask whether it is recorded or not."""
    assert recording_variables({"PYTHONPATH": "/home/me/lib"}) == {}
    assert rltrace.environment() == {}
