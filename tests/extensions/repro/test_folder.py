"""``rltrace repro --module``: forward and backward of one module as a folder that runs without rltrace."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recorded import Recorded, recorder
from torch import nn

from rltrace.commands.main import main
from rltrace.extensions.repro.repro_main import _loaded, _memo, short_sha256
from rltrace.rerun import recorded_op
from rltrace.rerun.runner import OpCall, repeat

FILES = ["memory.npz", "repro.py", "repro_main.py", "runner.py", "torch_flags.py"]


class Layer(nn.Module):
    """Dropout, a buffer that forward changes, and a residual path."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear, self.drop = nn.BatchNorm1d(6), nn.Linear(6, 6), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.linear(self.norm(x)).tanh())


def training() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Layer(), Layer(), nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(5, 6)).square().sum().backward()
        optimizer.step()


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Step 1, recorded to be run again."""
    return recorder(tmp_path_factory.mktemp("step"))(training, rerunnable="all", steps=(1, 2))


def calls_of(folder: Path) -> list[OpCall]:
    """The ops that the folder lists, on the memory in it."""
    text = (folder / "repro.py").read_text()
    for package, name in (("extensions.repro", "repro_main"), ("rerun", "runner")):
        text = text.replace(f"from {name} import", f"from rltrace.{package}.{name} import")
    names: dict[str, Any] = {}
    exec(compile(text, "repro.py", "exec"), names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [str(folder / "repro.py")])
        return _loaded(names["OPS"])


def differing(ops: Sequence[OpCall]) -> list[int]:
    """Those that give other results than were recorded."""
    [outcome] = repeat(ops, 1, _memo(short_sha256))
    return [i for i, results in enumerate(outcome) if results != ops[i].results["a"]]


def test_the_script_runs_alone(step: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With torch and NumPy only it gives the recorded bits of the module's forward and backward."""
    assert main(["repro", str(step.path), "--module", "Sequential.1", "-o", str(tmp_path / "out")]) == 0
    assert "ops of Sequential.1, " in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == FILES
    (tmp_path / "rltrace").mkdir()
    (tmp_path / "rltrace" / "__init__.py").write_text("raise ImportError('not here')")
    command = [sys.executable, str(tmp_path / "out" / "repro.py")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    calls = calls_of(tmp_path / "out")
    assert (done.returncode, done.stdout) == (0, f"BITWISE  {len(calls)} ops: the recorded bits\n"), done.stderr
    again = subprocess.run([*command, "--json", "--times", "2"], capture_output=True, text=True)
    found = json.loads(again.stdout)
    assert (found["op"], found["repeats"]) == ("Sequential.1", True)
    assert [(one["count"], one["of"]) for one in found["results"]] == [(2, ["a"])]
    where = [call.where for call in calls]
    assert all("Sequential.1" in place for place in where)
    assert {"forward", "backward"} <= {place.split(", ")[1] for place in where}


def test_a_module_of_one_op_ends_with_1_where_its_bits_differ(tmp_path: Path) -> None:
    """As that of a module of several ops does."""
    found = recorder(tmp_path)(lambda: nn.Sequential(nn.Tanh())(torch.ones(3)), rerunnable="all")
    assert main(["repro", str(found.path), "--module", "Sequential.0", "-o", str(tmp_path / "out"), "--quiet"]) == 0
    script = tmp_path / "out" / "repro.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "BITWISE  1 ops: the recorded bits\n"), done.stderr
    (recorded,) = calls_of(tmp_path / "out")[0].results["a"]
    script.write_text(script.read_text().replace(recorded, "0" * len(recorded)))
    other = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert (other.returncode, other.stdout.splitlines()[0]) == (1, "DIFFERS  1 of 1 ops give other bits here")


def test_the_memory_of_a_module(step: Recorded, tmp_path: Path) -> None:
    """It is what a recording of this module alone has: nothing that its own ops left, each content once."""
    folders = [tmp_path / "all", tmp_path / "alone"]
    selector = ["module=Sequential.0", "module=Sequential.0.*"]
    alone = recorder(tmp_path)(training, rerunnable=selector, steps=(1, 2))
    for folder, found in zip(folders, (step, alone), strict=True):
        assert main(["repro", str(found.path), "--module", "Sequential.0", "-o", str(folder), "--quiet"]) == 0
    memory, expected = (np.load(folder / "memory.npz") for folder in folders)
    assert memory.files and sorted(memory.files) == sorted(expected.files)
    parameters = 4 * (6 * 6 + 6 + 6 + 6)
    assert parameters < sum(len(memory[name]) for name in memory.files) < 3 * parameters + 2 * 4 * 5 * 6 + 8_192
    assert differing(calls_of(folders[0])) == [] == differing(calls_of(folders[1]))


def test_an_op_that_gives_other_bits(step: Recorded, tmp_path: Path) -> None:
    """It is named with all that follow from it."""
    assert main(["repro", str(step.path), "--module", "Sequential.1", "-o", str(tmp_path / "out"), "--quiet"]) == 0
    calls = calls_of(tmp_path / "out")
    number = next(i for i, call in enumerate(calls) if call.name == "aten.tanh.default")
    calls[number] = replace(calls[number], call=lambda t, generator: t[0].tanh() + 1e-3)
    found = differing(calls)
    assert found[0] == number and len(found) > 3


def test_what_cannot_be_written(
    step: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another name, other options, or a machine that gives other bits: an error with what to do."""
    write = ["repro", str(step.path), "-o", str(tmp_path / "out"), "--module"]
    assert main([*write, "Sequential.7"]) == 2
    assert "no ops of the module Sequential.7 that can be run again; its modules:" in capsys.readouterr().err
    assert main([*write, "Sequential.1", "--at", "3"]) == 2
    assert "leave out --at" in capsys.readouterr().err
    operator = recorded_op.operator_of

    def otherwise(*args: Any) -> Any:
        func, plan = operator(*args)
        return (lambda *a, **k: func(*a, **k) + 1) if plan.name == "aten.tanh.default" else func, plan

    monkeypatch.setattr(recorded_op, "operator_of", otherwise)
    assert main([*write, "Sequential.1"]) == 2
    assert "gives other bits here, so what the ops after it read is not known" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
