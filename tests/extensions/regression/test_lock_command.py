"""``rltrace lock`` as a person uses it."""

import json
import sys
from pathlib import Path

import pytest

from rltrace.commands.main import main
from rltrace.extensions.regression.lock import read_lock

PROGRAM = """
import torch
import rltrace
torch.manual_seed(0)
for step in range(4):
    torch.rand(3)
    rltrace.step()
print("done")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


def test_a_program(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is locked up to a step, and a later run ends there, holds under another setting of the processor that changes
    none of its numbers, names that setting with both values, and leaves nothing behind."""
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    line = ["--", sys.executable, "train.py"]
    assert main(["lock", "--until", "2", *line]) == 0
    assert "locked 3 steps in train.lock" in capsys.readouterr().err
    locked = read_lock("train.lock")
    assert locked.until == 2
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert main(["lock", "--check", "train.lock", "--format", "json", *line]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["agrees"], found["comparison"]["steps"]) == ("rltrace.lock/1", True, 3)
    moved = {fact["name"]: (fact["a"], fact["b"]) for fact in found["comparison"]["system"]}
    assert moved["env.ATEN_CPU_CAPABILITY"] == (None, "default")
    assert moved.get("cpu.capability", ("DEFAULT", "DEFAULT")) == (locked.facts["cpu.capability"], "DEFAULT")
    assert sorted(path.name for path in folder.iterdir()) == ["train.lock", "train.py"]


def test_a_program_that_goes_on_after_its_interruption(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The steps after it are no part of the lock, and not compared."""
    (folder / "train.py").write_text(
        "import torch\nw = torch.ones(2, requires_grad=True)\nsgd = torch.optim.SGD([w], lr=0.1)\n"
        "for _ in range(5):\n    try:\n        w.square().sum().backward()\n        sgd.step()\n"
        "    except KeyboardInterrupt:\n        pass\n"
    )
    line = ["--", sys.executable, "train.py"]
    assert main(["lock", "--until", "2", *line]) == 0
    assert "locked 3 steps in train.lock" in capsys.readouterr().err
    assert main(["lock", "--check", "train.lock", *line]) == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["lock"], "nothing to lock"),
        (["lock", "--", "./nowhere"], "./nowhere cannot be run"),
        (["lock", "-o", "train.py", "--", "true"], "train.py exists: rltrace lock --check train.py --update -- true"),
        (["lock", "-o", ".", "--", "true"], ". is a folder; give the name of a file"),
        (["lock", "-o", "no/where.lock", "--", "true"], "there is no folder"),
        (["lock", "--share", "data", "--", "true"], "--share data"),
        (["lock", "--check", "none.lock", "--", "true"], "rltrace lock -o none.lock -- CMD makes one"),
        (["lock", "--check", "train.py", "--", "true"], "train.py is not a lock: it is no TOML"),
        (["lock", "--check", ".", "--", "true"], ". cannot be read: Is a directory"),
        (["lock", "--update", "--", "true"], "name its lock with --check LOCK"),
        (["lock", "--check", "train.py", "-o", "b.lock", "--", "true"], "leave out -o"),
    ],
)
def test_bad_input(folder: Path, capsys: pytest.CaptureFixture[str], line: list[str], message: str) -> None:
    """Each is trouble, in a sentence, before anything runs or is made."""
    assert main(line) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["train.py"]
