"""Programs that a process starts are numbered as it starts them, and their arguments are theirs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rltrace.recorder.base.process_names import Children, _program_of, own_number
from rltrace.trace.format.process_start import STARTS

ASK = "import sys; from rltrace.recorder.base.process_names import own_number; print(own_number(sys.argv[1]))"


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["python", "-u", "dir/evaluate.py", "--seed", "3"], "evaluate.py"),
        ("python evaluate.py --seed 3 | tee log", "evaluate.py"),
        (["sh", "-c", "cd x && python evaluate.py"], "evaluate.py"),
        (["torchrun", "-m", "pack.train"], "pack.train"),
        ([Path("/usr/bin/git"), b"status"], "git"),
        (Path("/opt/tool"), "tool"),
        ("an 'unfinished quote", ""),
        ([], ""),
        (None, ""),
        ([3], ""),
    ],
)
def test_what_runs(args: object, what: str) -> None:
    """The script, the module, or the program."""
    assert _program_of(args) == what


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / STARTS).mkdir()
    return tmp_path


@pytest.fixture
def numbered(trace: Path) -> Callable[..., str]:
    """Start a child that says its number."""

    def start(*command: object, **how: object) -> str:
        line = [*command, sys.executable, "-c", ASK, trace]
        result = subprocess.run([str(word) for word in line], capture_output=True, text=True, **how)
        assert result.returncode == 0, result.stderr
        return str(result.stdout.strip())

    return start


def test_numbers(trace: Path, numbered: Callable[..., str]) -> None:
    """By what they run; by way of other programs, too; none outside of the watch, and what was there is put back."""
    original = subprocess.Popen.__init__
    children = Children(str(trace), f"{os.getpid()}-x")
    children.install()
    children.install()
    assert [numbered(), numbered(), numbered("env", "A=b"), numbered("env", "A=c")] == ["1", "2", "1", "2"]
    assert numbered("sh", "-c", '"$@"; exit $?', "sh") == "1"
    with pytest.raises(FileNotFoundError):
        subprocess.run(["no-such-program"])
    children.uninstall()
    assert subprocess.Popen.__init__ is original
    assert numbered() == "None"
    assert own_number(str(trace)) is None


def test_arguments_that_can_be_read_once(trace: Path) -> None:
    """They are left to the program that gave them."""
    children = Children(str(trace), f"{os.getpid()}-x")
    children.install()
    try:
        words = iter([sys.executable, "-c", "print('ran')"])
        assert subprocess.run(words, capture_output=True, text=True).stdout == "ran\n"
    finally:
        children.uninstall()
