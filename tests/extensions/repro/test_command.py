"""``rltrace repro`` as a person uses it: the folder runs without rltrace, and says whose bits these are."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from recorded import Recorded
from suggested import parse

import rltrace
from rltrace.commands.console import ExitCode
from rltrace.commands.main import main
from rltrace.extensions.jax import JAX_ENGINE
from rltrace.testing import TraceBuilder


def softmax() -> None:
    x = torch.arange(60.0).reshape(4, 15).sin()
    for _ in range(2):
        (x @ x.t()).softmax(-1).bfloat16().exp()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a trace that holds everything, and one of digests alone."""
    monkeypatch.chdir(tmp_path)
    for name, values in (("a.zarr", ("all",)), ("b.zarr", ())):
        with rltrace.record(name, values=values, values_inputs=bool(values)):
            softmax()
    return tmp_path


@pytest.fixture
def without_rltrace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs find torch and NumPy, and not rltrace."""
    blocked = tmp_path / "blocked"
    for name in ("rltrace", "xxhash", "zarr"):
        (blocked / name).mkdir(parents=True)
        (blocked / name / "__init__.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(blocked))


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "out/repro.py", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("without_rltrace")
def test_the_script_runs_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It gives A's digest without rltrace; settings that act at the start of a process act; bfloat16 comes through."""
    assert main(["repro", "a.zarr", "--at", "op=exp,nth=1", "-o", "out"]) == 0
    assert "python out/repro.py" in capsys.readouterr().err
    files = sorted(path.name for path in Path("out").iterdir())
    assert files == ["digest.py", "memory.npz", "repro.py", "repro_main.py", "runner.py", "torch_flags.py"]
    text = Path("out/repro.py").read_text()
    assert "TensorSpec('bfloat16', (4, 4), (4, 1), storage=0)" in text
    assert "torch.ops.aten.exp.default(t[0])" in text
    assert "in softmax" in text
    more = ["--set", "cudnn.benchmark=on", "--set", "CUBLAS_WORKSPACE_CONFIG=:16:8", "--set", "sdp=math"]
    more += ["--tf32", "on", "--alignment", "16"]
    done = script("--json", "--times", "3", "--cpu-capability", "default", *more)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    switches = {"cudnn.benchmark": True, "deterministic_algorithms": False, "sdp": "math", "tf32": True}
    assert (outcome["here"]["switches"], outcome["here"]["alignments"]) == (switches, [16])
    assert outcome["here"]["environment"]["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    found = Recorded(folder / "a.zarr")
    assert outcome["results"] == [{"digests": [f"{found.named('exp')[1].outputs[0]:016x}"], "count": 3, "of": ["a"]}]
    assert (outcome["schema"], outcome["repeats"], outcome["times"]) == ("rltrace.rerun/1", True, 3)
    assert outcome["here"]["cpu_capability"] == "DEFAULT"
    assert outcome["here"]["environment"]["ATEN_CPU_CAPABILITY"] == "default"


def test_another_run_s_result_is_shown_beside_it(folder: Path) -> None:
    """B by the same identity: its digest, its settings; a digest of neither run is reported as neither."""
    assert main(["repro", "a.zarr", "--against", "b.zarr", "--at", "op=_softmax,nth=1", "-o", "out", "--quiet"]) == 0
    text = Path("out/repro.py").read_text()
    digest = f"{Recorded(folder / 'a.zarr').named('_softmax')[1].outputs[0]:016x}"
    assert text.count(digest) == 2
    Path("out/repro.py").write_text(text.replace(digest, "0" * 16, 1).replace(digest, "1" * 16))
    lines = script("--times", "2", "--threads", "1", "--deterministic", "--as", "b").stdout.splitlines()
    assert lines[0] == "aten._softmax.default"
    assert "1 thread, torch" in lines[1]
    assert "deterministic algorithms" in lines[1]
    assert lines[2] == "  deterministic: 2 runs, one result"
    assert lines[3].split() == ["2", "x", digest, "neither", "A's", "nor", "B's"]


def test_the_first_difference_without_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two traces and no --at: the op that diff names, on both sides, though its row is another one in B."""
    monkeypatch.chdir(tmp_path)

    def program(is_b: bool) -> None:
        x = torch.ones(3)
        if is_b:
            x.mean()
        y = x * (2.0 if is_b else 3.0)
        y.exp()

    for name, is_b in (("a.zarr", False), ("b.zarr", True)):
        with rltrace.record(name, values="all", values_inputs=True):
            program(is_b)
    assert main(["repro", "a.zarr", "--against", "b.zarr", "-o", "out", "--quiet"]) == 0
    text = Path("out/repro.py").read_text()
    for trace in ("a.zarr", "b.zarr"):
        assert f"{Recorded(tmp_path / trace).one('mul').outputs[0]:016x}" in text


@pytest.mark.parametrize("text", ["{row}", "rank0/main:{row}", "{row} of rank0/main", "op=_softmax,nth=1", " {row} "])
def test_how_an_op_is_named(folder: Path, text: str) -> None:
    """As diff and ops print it, or by a selector that finds one."""
    row = Recorded(folder / "a.zarr").named("_softmax")[1].index
    assert main(["repro", "a.zarr", "--at", text.format(row=row), "--quiet"]) == 0
    assert Path(f"repro-softmax-{row}/repro.py").is_file()


@pytest.mark.parametrize(
    ("at", "error"),
    [
        ("op=_softmax", "more than one op; name one of them:\n  --at rank0/main:"),
        ("op=nothing", "matches no op"),
        ("op=view", "matches no op"),
        ("softmax", "give a row, as in 1234"),
        ("9,999", "has rows 0 to"),
        ("rank1/main:3", "streams with rows: rank0/main"),
        ("step=x", "a number from 0"),
    ],
)
def test_an_op_that_is_not_one(folder: Path, capsys: pytest.CaptureFixture[str], at: str, error: str) -> None:
    """Which there are, or what to write."""
    assert main(["repro", "a.zarr", "--at", at]) == ExitCode.TROUBLE
    assert error in capsys.readouterr().err


def test_values_that_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands that it prints keep them: they are run here, and the op they name is the op that was meant."""
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\nx = torch.ones(4, requires_grad=True)\no = torch.optim.SGD([x], 0.1)\n"
        "for _ in range(3):\n    (x * 2).sum().backward()\n    o.step()\n"
    )
    command = ["--", sys.executable, str(program)]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["rltrace", "record", "-o", "a.zarr", *command], cwd=tmp_path, env=environment, check=True)
    row = next(row for row in Recorded(tmp_path / "a.zarr").named("mul") if row.step == 1)
    assert main(["repro", str(tmp_path / "a.zarr"), "--at", str(row.index)]) == ExitCode.TROUBLE
    message = capsys.readouterr().err
    assert "no values were recorded" in message
    _, _, commands = message.partition("hint: ")
    for line in commands.strip().splitlines():
        check = " record " not in line  # whose program ends within a step
        subprocess.run(["sh", "-c", line], cwd=tmp_path, env=environment, check=check, capture_output=True)
    (made,) = tmp_path.glob("repro-mul-*")
    assert f"{row.outputs[0]:016x}" in (made / "repro.py").read_text()


def test_an_op_whose_line_several_callers_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No selector names it alone, so the hint names its row; each hint names the other trace as it was given."""
    monkeypatch.chdir(tmp_path)

    def layer() -> torch.Tensor:
        return torch.ones(3).exp()

    for name in ("a.zarr", "b.zarr"):
        with rltrace.record(name):
            layer()
            layer()
            torch.ones(3).sin()
    first, second = (row.index for row in Recorded(tmp_path / "a.zarr").named("exp"))
    for verb, words in (("repro", ["--against", "b.zarr", "--at"]), ("explain", ["b.zarr", "--at"])):
        for row, shared in ((second, True), (first, True), (second + 2, False)):
            assert main([verb, "a.zarr", *words, str(row)]) == ExitCode.TROUBLE
            record, again = capsys.readouterr().err.partition("hint: ")[2].strip().splitlines()
            parse(tuple(shlex.split(record)))
            parse(tuple(shlex.split(again)))
            assert again.split()[1:3] == [verb, "a-values.zarr"]
            assert "b.zarr" in again and "--until 0" in record
            assert (f"--at rank0/main:{row}" in again, "--steps" in record) == (shared, not shared)


def test_a_folder_that_is_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written over without --force."""
    (folder / "out").mkdir()
    (folder / "out" / "mine").write_text("kept")
    arguments = ["repro", "a.zarr", "--at", "op=exp,nth=0", "-o", "out"]
    assert main(arguments) == ExitCode.TROUBLE
    assert "--force" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0
    assert (folder / "out" / "mine").read_text() == "kept"


def test_no_op_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of one trace it has to be said which; an operator that is not registered is reported with what to do."""
    assert main(["repro", "a.zarr"]) == ExitCode.TROUBLE
    assert "give the op with --at OP" in capsys.readouterr().err
    assert main(["repro", "a.zarr", "--at", "0", "--import", "no_such_module"]) == ExitCode.TROUBLE
    assert "ModuleNotFoundError" in capsys.readouterr().err


# --- programs of JAX --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [("repro", "--at", "0"), ("rerun",)])
def test_calls_of_jax_are_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """And no command is suggested that would record them for that."""
    trace = TraceBuilder(tmp_path / "a.zarr", engine=JAX_ENGINE)
    trace.op("jit.update", outputs=["x"])
    assert main([words[0], str(trace.finish()), *words[1:]]) == 2
    error = capsys.readouterr().err
    assert "is of a JAX program: only ops of torch can be run again" in error
    assert "rltrace record" not in error
