"""``rltrace replay-rows`` as a person uses it: a rollout's routing in its trainer, and what cannot be asked."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mixture
import pytest
import torch

import rltrace
from rltrace.commands.main import main
from rltrace.testing import TraceBuilder
from rltrace.trace.read.reader import open_trace

RLTRACE = Path(sys.executable).parent / "rltrace"
SUPPORT = Path(mixture.__file__).parent

TRAINER = """
import mixture, row_replays, torch

ids, mask = torch.load("rollout.pt")
trained = mixture.train(row_replays.trainer(), mixture.Rollout(ids, mask), [[2, 0], [1]])
torch.save(trained.gradients, "gradients.pt")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rollout, recorded, and the program that trains on it."""
    made = tmp_path_factory.mktemp("rows")
    with rltrace.record(made / "gen.zarr", rows="all", values="all"):
        rollout = mixture.sample(mixture.make())
    torch.save((rollout.ids, rollout.mask), made / "rollout.pt")
    (made / "train.py").write_text(TRAINER)
    return made


def replay(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SUPPORT)}
    command = [str(RLTRACE), "replay-rows", "gen.zarr", *arguments, "--", sys.executable, "train.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_rollouts_routing_in_the_trainer(folder: Path) -> None:
    """Every row that both have is injected, those without a partner are named, and the replay can be compared."""
    done = replay(folder, "--inject", "op=aten.topk,module=*router*", "-o", "c.zarr", "--result", "r.json")
    assert done.returncode == 0, done.stderr
    said = done.stderr.partition("rltrace: injected ")[2].splitlines()
    result = json.loads((folder / "r.json").read_text())
    others = sum(module["injected"] for module in result["modules"])
    assert said == [
        f"A's rows at 2 places: 42 rows, {others} of them different here",
        "  6 rows are unmatched in A and were left unchanged, first token 7 of sequence 0, in forward pass 0 "
        "(Policy.layers.0.router, aten.topk.default)",
    ]
    assert (result["schema"], result["outcome"], result["weights"]) == ("rltrace.replay/1", "injected", False)
    assert (result["selected"], result["injected"]) == (42, 42)
    first = result["modules"][0]
    assert first.pop("first_unmatched") == [
        "token 7 of sequence 0, in forward pass 0",
        "token 6 of sequence 1, in forward pass 0",
        "token 8 of sequence 2, in forward pass 1",
    ]
    path = "Policy.layers.0.router"
    injected = first["injected"]
    counts = {"tensors": 2, "selected": 21, "injected": injected, "equal": 21 - injected, "unmatched": 3}
    none = {"failed": 0, "several": 0, "recomputed": 0, "failures": {}, "why": ""}
    assert first == {"module": path, "modules_b": [path], "op": "aten.topk.default", **counts, **none}
    assert (folder / "gradients.pt").exists()
    trace = open_trace(folder / "c.zarr")
    assert trace.launch["options"]["provider"] == "rows"
    assert trace.processes[0].activations.request is not None


def test_what_is_not_put_in_ends_with_125(folder: Path) -> None:
    """A module that the trainer calls on what it was given: UNRESOLVED, the place and the reason."""
    done = replay(folder, "--inject", "module=*.layers.1.keep", "-o", "d.zarr", "--result", "r.json")
    assert done.returncode == 125
    said = done.stderr.partition("rltrace: error: ")[2].splitlines()
    assert said[:2] == [
        "UNRESOLVED: at 1 of 1 places A's rows were not injected, or not all of them; this run proves nothing",
        "  Policy.layers.1.keep, output: 21 rows: the module returns memory that it was given; what is in it was "
        "computed before",
    ]
    assert json.loads((folder / "r.json").read_text())["outcome"] == "unresolved"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--", "true"], "--inject SELECTOR"),
        (["--inject", "op=mm", "--map", "none", "--", "true"], "none cannot be read"),
        (["--inject", "op=mm", "--", "true"], "record it again: rltrace record --rows 'module=*' --rows op=mm"),
    ],
)
def test_what_cannot_be_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """Each has its word, and 125; nothing is run and nothing is made."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.op("aten.mm.default", outputs=["x"])
    at = arguments.index("--")
    trace = str(builder.finish())
    assert main(["replay-rows", trace, *arguments[:at], "-o", str(tmp_path / "c.zarr"), *arguments[at:]]) == 125
    assert words in capsys.readouterr().err
    assert not (tmp_path / "c.zarr").exists()
