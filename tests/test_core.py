"""The core alone: without the folder of extensions programs are recorded, compared, replayed and confirmed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rltrace
from rltrace.command_lines import in_folder, line, runnable

PROGRAM = """
import sys
import torch

torch.manual_seed(0)
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(2):
    batch = torch.tensor([1.0, 2.0, 3.0 + float(sys.argv[1])])
    (weight * batch).square().sum().backward()
    optimizer.step()
"""

FEW_RUNS = ("--samples", "1", "--until", "0", "--no-search")


class Core:
    """The command line of a copy of the library without its extensions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        source = Path(rltrace.__file__).parent
        shutil.copytree(source, folder / "rltrace", ignore=shutil.ignore_patterns("extensions"))
        (folder / "train.py").write_text(PROGRAM)

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        """The command line with these words."""
        return self.python("-m", "rltrace", *words)

    def python(self, *words: object) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile the copy anew
        command = [sys.executable, *map(str, words)]
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Core:
    """With two recordings of a program, of which the second reads another number."""
    core = Core(tmp_path_factory.mktemp("core"))
    for name, more in (("a", "0"), ("b", "1")):
        program = (sys.executable, "train.py", more)
        recorded = core.run("record", "--values", "all", "-o", f"{name}.zarr", "--", *program)
        assert recorded.returncode == 0, recorded.stderr
    return core


def test_no_extension_is_there(core: Core) -> None:
    """Nor any of their verbs."""
    shown = core.run("--help").stdout
    assert "diff" in shown
    assert "compare" not in shown
    assert core.run("compare", "a.zarr").returncode == 2


def test_two_recordings_are_compared(core: Core) -> None:
    """The first op that differs, and its cause."""
    compared = core.run("diff", "a.zarr", "b.zarr", "--format", "json")
    assert compared.returncode == 1, compared.stderr
    found = json.loads(compared.stdout)["first_value"]
    assert (found["op"], found["cause"]) == ("aten.mul.Tensor", "outside")


def test_no_verb_of_an_extension_is_suggested(core: Core) -> None:
    """Only commands that can be run."""
    texts = [line("explain", "a.zarr"), in_folder("~/runs", {"A": "1"}, line("diff", "a.zarr", "b.zarr"))]
    code = f"from rltrace.command_lines import runnable; print(*runnable({texts}))"
    assert core.python("-c", code).stdout == f"{texts[1]}\n"
    assert runnable(texts) == tuple(texts)


def test_a_cause_is_confirmed(core: Core) -> None:
    """A's values are injected into B's program, and B's into A's."""
    confirmed = core.run("confirm", "a.zarr", "b.zarr", *FEW_RUNS, "--yes", "--format", "json")
    assert confirmed.returncode == 0, confirmed.stdout + confirmed.stderr
    assert json.loads(confirmed.stdout)["word"] == "confirmed"


def test_what_needs_an_extension_says_so(core: Core) -> None:
    """What is captured besides values, traces at URLs; pytest is not disturbed."""
    missing = {
        "activation rows": ("--rows", "all"),
        "parameters and gradients": ("--state", "1:2"),
        "launches of kernels": ("--kernels", "all"),
        "repeated ops": ("--repeat",),
    }
    for what, options in missing.items():
        not_recorded = core.run("record", *options, "-o", "d.zarr", "--", sys.executable, "train.py", "0")
        assert not_recorded.returncode == 125
        assert f"{what} cannot be recorded: rltrace was installed without that extension" in not_recorded.stderr
    assert not (core.folder / "d.zarr").exists()
    remote = core.run("info", "https://localhost/a.zarr")
    assert remote.returncode == 2
    assert "URLs cannot be read: rltrace was installed without that extension" in remote.stderr
    code = "import rltrace.pytest_plugin as plugin; print(plugin.pytest_plugins)"
    found = core.python("-c", code)
    assert found.stdout == "[]\n", found.stderr
