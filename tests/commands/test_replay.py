"""``rltrace replay`` as a person uses it: a real program whose second run is made the first, and what does not fit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rltrace.commands.main import main
from rltrace.diff import compare
from rltrace.diff.base.model import Verdict
from rltrace.testing import TraceBuilder
from rltrace.trace.read.reader import open_trace

RLTRACE = Path(sys.executable).parent / "rltrace"

PROGRAM = """
import sys
import torch

torch.manual_seed(int(sys.argv[1]))
weight = torch.rand(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(4):
    (weight * 2).sum().backward()
    optimizer.step()
print(weight.tolist())
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one program, and a trace of it that has the values of its draw."""
    made = tmp_path_factory.mktemp("replay")
    (made / "train.py").write_text(PROGRAM)
    run(made, "record", "-o", "a.zarr", "--values", "op=rand", "--", sys.executable, "train.py", "1", "0")
    return made


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [str(RLTRACE), *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_b_becomes_a(folder: Path) -> None:
    """Another seed, and A's values at the draw: A's rows, an account that says so, and the program's own status."""
    program = (sys.executable, "train.py", "2", "3")
    options = ("--inject", "op=rand", "-o", "c.zarr", "--until", "2", "--result", "result.json")
    done = run(folder, "replay", "a.zarr", *options, "--", *program)
    lines = done.stderr.splitlines()
    assert lines[0] == "rltrace: recording to c.zarr (every op, until step 2 is done, with values injected)"
    at = lines.index("rltrace: injected A's values at the selected op")
    assert lines[at + 1 : at + 3] == [
        "  at 1 of them the program had different values, of one kind:",
        "    1  aten.rand.default at train.py:6 (<module>)",
    ]
    assert lines[at + 3] == "       RNG states differ; first at op 0 of rank0/main, step 0"
    result = json.loads((folder / "result.json").read_text())
    (kind,) = result["other"]
    assert kind["kernel"]["a"] == kind["kernel"]["b"]
    assert kind.pop("kind").startswith("aten.rand.default at train.py:6 (<module>), ATen ")
    assert len(kind.pop("kinds_b")) == 1
    assert result == {
        "schema": "rltrace.replay/1",
        "outcome": "injected",
        "a": "a.zarr",
        "trace": "c.zarr",
        "inject": ["op=rand"],
        "selected": 1,
        "injected": 1,
        "missed": [],
        "other": [
            {
                "op": "aten.rand.default",
                "kernel": kind["kernel"],
                "site": {
                    "file": "train.py",
                    "line": 6,
                    "function": "<module>",
                    "source": "weight = torch.rand(3, requires_grad=True)",
                },
                "count": 1,
                "parts": ["generator"],
                "stream": "rank0/main",
                "row": 0,
                "step": 0,
                "max_ulp": None,
                "max_relative": None,
                "rows": {"rank0/main": [0]},
            }
        ],
        "propagated": 0,
        "verdict": None,
    }
    assert open_trace(folder / "c.zarr").processes[0].state == "stopped"
    whole = run(folder, "replay", "a.zarr", "--inject", "op=rand", "--quiet", "-o", "d.zarr", "--", *program)
    assert (whole.returncode, whole.stderr) == (3, "")
    assert compare(folder / "a.zarr", folder / "d.zarr").verdict is Verdict.IDENTICAL


def test_a_lockstep(folder: Path) -> None:
    """Values at every op: the one kind of op at which B has other ones, though all that follow read them; it became A.
    Of no kinds at all: nothing is injected, which is refused."""
    run(folder, "record", "-o", "all.zarr", "--values", "all", "--quiet", "--", sys.executable, "train.py", "1", "0")
    program = ("--", sys.executable, "train.py", "2", "0")
    done = run(folder, "replay", "all.zarr", "--lockstep", "-o", "l.zarr", "--result", "l.json", *program)
    assert done.returncode == 0
    assert "it now equals A: identical" in done.stderr
    result = json.loads((folder / "l.json").read_text())
    assert (result["outcome"], result["verdict"]) == ("injected", "identical")
    assert [(kind["op"], kind["count"]) for kind in result["other"]] == [("aten.rand.default", 1)]
    (folder / "kinds.json").write_text(json.dumps([result["other"][0]["kind"]]))
    done = run(folder, "replay", "all.zarr", "--kinds", "kinds.json", "-o", "k.zarr", "--result", "k.json", *program)
    assert json.loads((folder / "k.json").read_text())["selected"] == 1
    assert compare(folder / "all.zarr", folder / "k.zarr").verdict is Verdict.IDENTICAL
    (folder / "kinds.json").write_text("{}")
    done = run(folder, "replay", "all.zarr", "--kinds", "kinds.json", "-o", "n.zarr", *program)
    assert done.returncode == 125
    assert "no JSON list of kinds" in done.stderr


WORKERS = """
import multiprocessing, sys
import torch

def work(pipe):
    torch.manual_seed(int(sys.argv[1]))
    pipe.send(torch.rand(3).tolist())
    pipe.recv()

if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    worker = context.Process(target=work, args=(there,))
    worker.start()
    print(torch.tensor(here.recv()).sum())
    worker.terminate()
    worker.join()
"""


def test_injections_of_a_worker_that_its_parent_terminates(folder: Path) -> None:
    """Its account is in its journal, as its rows are."""
    (folder / "workers.py").write_text(WORKERS)
    run(folder, "record", "--values", "op=rand", "-o", "w.zarr", "--", sys.executable, "workers.py", "1")
    done = run(
        folder, "replay", "w.zarr", "--inject", "op=rand", "-o", "v.zarr", "--", sys.executable, "workers.py", "2"
    )
    assert "injected A's values at the selected op" in done.stderr
    assert done.returncode == 0
    assert compare(folder / "w.zarr", folder / "v.zarr").verdict is Verdict.IDENTICAL


def test_what_did_not_happen(folder: Path) -> None:
    """A program that never draws: UNRESOLVED, with the op and the reason; it does not end with 0."""
    command = ("--", sys.executable, "-c", "import torch; torch.zeros(3) + 1")
    done = run(folder, "replay", "a.zarr", "--inject", "op=rand", "--result", "r.json", "-o", "e.zarr", *command)
    assert done.returncode == 125
    said = done.stderr.partition("rltrace: error: ")[2]
    assert said.startswith(
        "UNRESOLVED: 1 of 1 injections did not happen; this run proves nothing\n  aten.rand.default, "
    )
    assert said.rstrip().endswith("the program made no such call in this step")
    result = json.loads((folder / "r.json").read_text())
    assert (result["outcome"], result["selected"], result["injected"]) == ("unresolved", 1, 0)
    assert result["missed"][0]["op"] == "aten.rand.default"


def without_values(path: Path) -> Path:
    builder = TraceBuilder(path)
    builder.op("aten.mm.default", outputs=["x"])
    return builder.finish()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--inject", "op=mm", "--", "true"], "name the trace whose values are injected first"),
        (["A", "--", "true"], "--inject SELECTOR"),
        (["A", "--inject", "op=mm"], "name a command"),
        (["A", "--inject", "opp=mm", "--", "true"], "there is no key 'opp'"),
        (["A", "--inject", "op=add", "--", "true"], "the selector finds no op"),
        (["A", "--inject", "op=mm", "--", "true"], "lacks the values of 1 of the 1 selected ops"),
        (["nothing.zarr", "--inject", "op=mm", "--", "true"], "is no trace"),
    ],
)
def test_what_cannot_be_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    """Each has its word, and 125; nothing is run and nothing is made."""
    trace = str(without_values(tmp_path / "a.zarr"))
    at = arguments.index("--") if "--" in arguments else len(arguments)
    own = [trace if word == "A" else word for word in arguments[:at]]
    assert main(["replay", *own, "-o", str(tmp_path / "c.zarr"), *arguments[at:]]) == 125
    assert words in capsys.readouterr().err
    assert not (tmp_path / "c.zarr").exists()


def test_a_trace_without_ops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A recording of steps alone has nothing to inject, which is reported."""
    builder = TraceBuilder(tmp_path / "a.zarr", level="step")
    builder.end_step()
    builder.finish()
    assert main(["replay", str(tmp_path / "a.zarr"), "--inject", "all", "--", "true"]) == 125
    assert "level step" in capsys.readouterr().err


def test_the_trace_itself_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``-o`` that names A, with ``--force``: refused before A is gone."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.op("aten._local_scalar_dense.default", value=1.5)
    path = str(builder.finish())
    assert main(["replay", path, "--inject", "all", "--force", "-o", path, "--", "true"]) == 125
    assert "another name" in capsys.readouterr().err
    assert open_trace(path).processes[0].state == "complete"
