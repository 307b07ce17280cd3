"""Real reports of "same seed, different result", each as a small program that was started twice."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

TRAINING = """
import numpy as np
import torch
{top}
torch.manual_seed(1)
environment = np.random.default_rng(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for update in range(6):
    observations = torch.from_numpy(environment.standard_normal((8, 4)).astype(np.float32))
    noise = torch.randn(8, 2)
    {middle}
    loss = ((model(observations) - noise) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {end}
"""


def training(top: str = "", middle: str = "pass", end: str = "pass") -> str:
    """A small training program with lines of one's own."""
    return TRAINING.format(top=top, middle=middle, end=end)


@pytest.fixture(scope="session")
def unchanged(new_cli: Any) -> Path:
    """The trace of the training program as it is: the other side of most stories."""
    return record(new_cli(), training())


def record(cli: Any, code: str, status: int = 0) -> Path:
    """Record a program, which ends with ``status``, from a folder of its own."""
    folder = cli.folder / "checkout"
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(code)
    result = cli.rltrace("record", "--quiet", "-o", "b.zarr", "--", sys.executable, folder / "train.py")
    assert result.returncode == status, result.stderr
    trace: Path = cli.folder / "b.zarr"
    return trace


def compare(cli: Any, unchanged: Path, changed: str) -> tuple[int, Mapping[str, Any]]:
    """Exit status and findings of the unchanged program against ``changed``."""
    found: tuple[int, Mapping[str, Any]] = cli.diff(unchanged, record(cli, changed))
    return found


def test_weights_changed_through_numpy(cli: Any, unchanged: Path) -> None:
    """A write that goes around torch is named as such, at the layer whose weight it is, not as a layer gone wrong."""
    alias = "weight = model[2].weight.data.numpy()"
    changed = training(middle="weight[0, 0] += 0.5 if update == 3 else 0.0")
    changed = changed.replace("for update", f"{alias}\nfor update", 1)
    status, found = compare(cli, unchanged, changed)
    first = found["first_value"]
    assert (status, first["cause"], first["op"]) == (1, "untracked-write", "aten.addmm.default")
    assert (first["module"], first["step"], first["inputs_match"]) == ("Sequential.2", 3, "differ")
    assert first["site"]["source"] == "loss = ((model(observations) - noise) ** 2).mean()"
    assert "input 2 (float32[16,2])" in first["explanation"]
    assert "changed without any recorded op" in first["explanation"]


def test_a_set_of_strings(cli: Any) -> None:
    """Independent ops in the order of a set of strings: the values are the same, the ops changed places."""
    order = "print(*{'red', 'green', 'blue', 'black', 'white'})"
    orders = {seed: cli.run(sys.executable, "-c", order, PYTHONHASHSEED=seed).stdout for seed in "012345"}
    other = next(seed for seed in orders if orders[seed] != orders["0"])
    cli.record_both("agents.py", f"PYTHONHASHSEED={other}")
    status, found = cli.diff("a.zarr", "b.zarr")
    assert (status, found["verdict"], found["first_value"]) == (0, "same-values", None)
    structure = found["structure"]
    assert (structure["only_a"], structure["only_b"]) == (0, 0)
    assert structure["reordered"] > 0
    assert {hunk["kind"] for hunk in structure["hunks"]} == {"reordered"}
    assert all(hunk["first"].startswith("aten.mul.Tensor at agents.py:") for hunk in structure["hunks"])
    assert [d["name"] for d in found["system"]] == ["env.PYTHONHASHSEED"]


def test_a_run_that_raised_before_its_first_step(cli: Any) -> None:
    """Python takes the script's name away before the run is described: it was loaded all the same, and not edited."""
    (cli.folder / "helper.py").write_text("def square(x):\n    return (x * x).sum()\n")
    (cli.folder / "train.py").write_text(
        "import sys\nimport torch\nfrom helper import square\n"
        "w = torch.ones(3, requires_grad=True)\noptimizer = torch.optim.SGD([w], 0.1)\n"
        "square(w).backward()\nassert len(sys.argv) < 2\noptimizer.step()\n"
    )
    for name, words in (("a", ()), ("b", ("raise",))):
        cli.rltrace("record", "--quiet", "-o", f"{name}.zarr", "--", sys.executable, "train.py", *words)
    _, found = cli.diff("a.zarr", "b.zarr")
    assert (found["decisive"]["cause"], found["edits"], found["system"]) == ("ended", [], [])


BROKEN_OFF = """
import sys
import torch

updates, keeps_graph = int(sys.argv[1]), len(sys.argv) > 2
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
x = torch.randn(8, 4)
for update in range(updates):
    state = net(x)
    if not keeps_graph:
        state = state.detach()
    for _ in range(6):
        state = net(state).tanh()
    loss = state.square().mean()
    optimizer.zero_grad()
    loss.backward()
    assert not keeps_graph, "as autograd raises on the second backward pass"
    optimizer.step()
"""


def test_a_run_that_raised_within_a_longer_step(cli: Any) -> None:
    """What it ran is compared with the same step of the other run, however many more that one made."""
    (cli.folder / "train.py").write_text(BROKEN_OFF)
    runs = {"b": ("2", "keeps"), "short": ("1",), "long": ("20",)}
    for name, words in runs.items():
        cli.rltrace("record", "--quiet", "-o", f"{name}.zarr", "--", sys.executable, "train.py", *words)
    found = [cli.diff(f"{name}.zarr", "b.zarr")[1]["decisive"] for name in ("short", "long")]
    places = [[first[key] for key in ("cause", "op", "a_index", "b_index", "explanation")] for first in found]
    assert places[0] == places[1]


def test_a_run_that_raised(cli: Any, unchanged: Path) -> None:
    """Equal up to an exception: the run that has it ended early, the op that it did not come to is reported."""
    trace = record(cli, training(end="assert update < 3, 'no such update'"), status=1)
    status, found = cli.diff(unchanged, trace)
    first = found["first"]
    assert (status, found["verdict"], found["first_value"]) == (1, "diverged", None)
    assert (first["cause"], first["op"], first["step"]) == ("ended", "aten.lift_fresh.default", 4)
    assert "B ends here with an uncaught AssertionError" in first["explanation"]
    assert first["b_index"] is None and first["a_index"] == first["identical_before"]
    assert first["site"]["source"].startswith("observations = torch.from_numpy(")
