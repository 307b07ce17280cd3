"""How much of a gap each module brings: a trainer of known faults, run for real with the generator's rows put in."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from recorded import recorder

from rltrace.commands.main import main

PROGRAM = """
import sys
import torch
from torch import nn

IDS = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])


class Faulty(nn.Linear):
    fault = 0.0

    def forward(self, x):
        return super().forward(x) * (1 + self.fault)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.one, self.two = Faulty(8, 8), Faulty(8, 8)

    def forward(self, input_ids, position_ids):
        hidden = self.embed(input_ids)
        hidden = hidden + self.one(hidden)
        return {"logits": (hidden + self.two(hidden)) @ self.embed.weight.T}


torch.manual_seed(0)
policy = Policy()


def round_weights():  # to numbers whose sums are exact, so equal in calls of any number of rows
    with torch.no_grad():
        for each in policy.parameters():
            each.copy_((each * 8).round() / 8)


round_weights()


def generate():
    with torch.no_grad():
        for at in range(IDS.shape[1]):
            policy(IDS[:, at : at + 1], torch.full((2, 1), at))


def train():
    policy.one.fault, policy.two.fault = 0.1, 0.08
    policy(IDS, torch.arange(IDS.shape[1]).expand(2, -1))["logits"].sum().backward()


if __name__ == "__main__":
    train()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Holds the program, the trace of the generator and the trainer's."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    record = recorder(tmp_path)
    for name in ("generate", "train"):
        recorded = record(getattr(_module(file), name), rows="all", values="module=*")
        recorded.path.rename(tmp_path / f"{name}.zarr")
    torch.manual_seed(0)
    return tmp_path


def _module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("program", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compare(*options: str) -> int:
    status = main(["compare", "generate.zarr", "train.zarr", "--format", "json", *options])
    assert isinstance(status, int)
    return status


def test_each_module_removes_its_part(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first fault weighs more than the second; put in on top of each other, what they remove adds up to the whole,
    and nothing is left; alone the second leaves what the first does beside it, so the parts fall short."""
    status = compare("--contributions", "--most", "2", "--runs", "runs", "--", sys.executable, "program.py")
    said = capsys.readouterr()
    assert status == 1, said.err
    found = json.loads(said.out)
    parts = found["contributions"]
    assert [one["module"] for one in parts["shares"]] == ["Policy.one", "Policy.two"]
    assert parts["repeats"] is True
    assert parts["control"]["gap"] == parts["recorded"] == found["gap"]["mean"]
    one, two = parts["shares"]
    assert one["in_turn"] == one["single"]
    assert one["in_turn"]["removed"] > two["in_turn"]["removed"] > 0
    assert parts["together"]["gap"] == two["in_turn"]["gap"] == 0.0
    assert two["single"]["gap"] > 0
    assert sum(part["in_turn"]["removed"] for part in parts["shares"]) == pytest.approx(parts["recorded"])
    assert parts["add_up"] is False
    assert parts["removed_single"] < 0.9 * parts["together"]["removed"]
    assert (folder / "runs" / "control.zarr").is_dir()
    assert not (folder / "runs" / "folders").exists()


RENAMED = PROGRAM.replace("Policy", "Trainer").replace("self.one, self.two", "self.first, self.second")
RENAMED = RENAMED.replace("self.one(", "self.first(").replace("self.two(", "self.second(")
RENAMED = RENAMED.replace("policy.one", "policy.first").replace("policy.two", "policy.second")


def test_a_map_goes_along(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a map file says which module is which, rows are put in by it as well."""
    (folder / "program.py").write_text(RENAMED)
    recorded = recorder(folder)(_module(folder / "program.py").train, rows="all", values="module=*")
    (folder / "names").write_text("Policy* = Trainer*\nPolicy.one = Trainer.first\nPolicy.two = Trainer.second\n")
    command = "compare", "generate.zarr", str(recorded.path), "--map", "names", "--format", "json"
    assert main([*command, "--contributions", "--most", "2", "--", sys.executable, "program.py"]) == 1
    parts = json.loads(capsys.readouterr().out)["contributions"]
    assert [one["module"] for one in parts["shares"]] == ["Trainer.first", "Trainer.second"]
    assert parts["together"]["gap"] == 0.0 < parts["recorded"]


LEARNING = (
    PROGRAM.replace(
        """if __name__ == "__main__":
    train()
""",
        """def learn():
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.5)
    for _ in range(2):
        generate()
        train()
        optimizer.step()
        round_weights()


if __name__ == "__main__":
    learn()
""",
    )
    .replace("policy.one.fault, policy.two.fault = 0.1, 0.08", "policy.two.fault = 0.1")
    .replace("    with torch.no_grad():", "    policy.two.fault = 0.0\n    with torch.no_grad():")
)


def test_steps_after_rows_were_put_in_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one fault is all of the gap, though its rows, put in, change the gradients: the second step, in which the
    weights are no more the generator's, is left out, and that is told."""
    (tmp_path / "program.py").write_text(LEARNING)
    monkeypatch.chdir(tmp_path)
    recorded = recorder(tmp_path)(_module(tmp_path / "program.py").learn, rows="all", values="module=*")
    command = ["compare", str(recorded.path), "--contributions", "--most", "1", "--", sys.executable, "program.py"]
    assert main([*command[:2], "--format", "json", *command[2:]]) == 1
    found = json.loads(capsys.readouterr().out)
    parts = found["contributions"]
    assert (parts["step"], parts["repeats"]) == (0, True)
    (one,) = parts["shares"]
    assert one["module"] == "Policy.two"
    assert one["single"]["gap"] == 0.0 < parts["recorded"] != found["gap"]["mean"]


def test_what_makes_no_sense_is_told_before_anything_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that nothing is to be done with, options for no runs, and a folder that holds something."""
    for options, why in (
        (["--", "python", "train.py"], "is for --contributions"),
        (["--most", "3"], "need --contributions"),
        (["--contributions", "--runs", ".", "--", sys.executable, "program.py"], "is not empty; name a new folder"),
    ):
        assert compare(*options) == 2
        assert why in capsys.readouterr().err
