"""``rltrace doctor`` as a person uses it: of a fresh Python, of a command, of a trace."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from engines import cached, fitting_record, write_library

from rltrace.commands.main import main
from rltrace.extensions.doctor.report import DoctorReport, JaxRecorder, doctor_document
from rltrace.native.library import find, torch_folder
from rltrace.report.text import document_text
from rltrace.testing import TraceBuilder

PROGRAM = """
import torch
torch.use_deterministic_algorithms(True)
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(10**9):
    weight.sum().backward()
    optimizer.step()
"""

JAX_PROGRAM = """
import jax, jax.numpy as jnp, sys
step = jax.jit(lambda x: jax.lax.scan(lambda c, _: (c * 0.5, None), x, None, 1_000_000_000)[0])
step(jnp.ones(3))
"""


Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run(word, …, VARIABLE="…")``: what ``rltrace doctor`` prints in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, **variables: str) -> str:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert main(["doctor", *words]) == 0
        return capsys.readouterr().out

    return run


def test_of_a_command(run: Run, tmp_path: Path) -> None:
    """The settings that the program makes count; it is ended after its first step, and leaves nothing behind."""
    (tmp_path / "train.py").write_text(PROGRAM)
    variables = {"MKL_CBWR": "COMPATIBLE", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    found = json.loads(run("--format", "json", "--", sys.executable, "train.py", **variables))
    assert found["schema"] == "rltrace.doctor/1"
    assert found["facts"]["flag.deterministic_algorithms"] is True
    assert found["facts"]["torch.threads"] == 1
    assert found["engine"]["target"]["torch"] == found["facts"]["torch.version"]
    obstacles = " ".join(obstacle["what"] for obstacle in found["obstacles"])
    assert "PYTHONHASHSEED" not in obstacles
    assert "MKL chooses" not in obstacles
    assert {obstacle["scope"] for obstacle in found["obstacles"]} <= {"elsewhere"}
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_of_a_fresh_python(run: Run) -> None:
    """Both questions, each with an answer."""
    text = run(PYTHONHASHSEED="random")
    assert "Kernel selection on this machine" in text
    assert "PYTHONHASHSEED is not set" in text
    assert "Sources of differences on another machine" in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is there and for what it was built; else what to do."""
    monkeypatch.setenv("RLTRACE_CACHE", str(tmp_path))
    words = shown(DoctorReport({}, (), find(torch_folder()))).partition("Recording on this machine ")[2]
    assert words.startswith("engine dispatch mode in Python: no native engine is built for torch ")
    assert words.endswith("rltrace build-engine compiles the native one")
    write_library(cached(tmp_path))
    words = shown(DoctorReport({}, (), find(torch_folder()))).partition("Recording on this machine ")[2]
    assert words == f"engine native, built for {fitting_record().target.text} by c++ (GNU 12)"


def shown(report: DoctorReport) -> str:
    """Its words."""
    return " ".join(document_text(doctor_document(report)).split())


def test_of_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is run: the facts are in the trace."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    builder.main.fact("torch.threads", 6)
    builder.main.fact("flag.deterministic_algorithms", False)
    builder.op("aten.ones.default", outputs=["x"])
    path = str(builder.finish())
    assert main(["doctor", "--trace", path]) == 0
    shown = capsys.readouterr().out
    assert "6 threads" in shown
    assert "engine" not in shown
    assert main(["doctor", "--trace", path, "--", "true"]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_what_cannot_be_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that is not there, and one that never loads torch."""
    assert main(["doctor", "--", str(tmp_path / "nothing")]) == 2
    assert "cannot be run" in capsys.readouterr().err
    assert main(["doctor", "--", "true"]) == 2
    assert "rltrace: error" in capsys.readouterr().err


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_of_a_program_in_jax(run: Run, tmp_path: Path) -> None:
    """It is ended after the first iteration of its loop; the library is that for JAX, and torch is not asked for."""
    (tmp_path / "train.py").write_text(JAX_PROGRAM)
    variables = {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2", "PYTHONHASHSEED": "0", "RLTRACE_CACHE": str(tmp_path)}
    found = json.loads(run("--format", "json", "--", sys.executable, "train.py", **variables))
    assert found["engine"] is None
    assert found["jax"] == {"jaxlib": found["facts"]["jax.jaxlib"], "platform": "cpu", "library": None}
    assert {obstacle["scope"] for obstacle in found["obstacles"]} == {"elsewhere"}
    assert not any("max_isa" in obstacle["what"] for obstacle in found["obstacles"])
    assert found["facts"]["jax.compilation_cache"] is False


def test_of_a_trace_of_jax(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its platform, its devices and the settings of JAX that choose numbers, and what to set for them on a GPU."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    facts = {
        "version": "0.10.2",
        "jaxlib": "0.10.2",
        "platform": "gpu",
        "devices": "1 × NVIDIA H200",
        "enable_x64": True,
    }
    for name, value in facts.items():
        builder.main.fact(f"jax.{name}", value)
    builder.op("jit.train.iteration", outputs=["x"])
    assert main(["doctor", "--trace", str(builder.finish())]) == 0
    shown = capsys.readouterr().out
    assert "  devices  1 × NVIDIA H200" in shown
    assert "  settings enable_x64=True" in shown
    assert "XLA times several kernels" in shown
    assert "Recording on this machine" not in shown


@pytest.mark.parametrize(
    ("platform", "library", "text"),
    [
        ("cpu", Path("jaxlib.so"), "digested within their programs, by a library for jaxlib 0.10.2"),
        ("cpu", None, "digested by the host: no library is built for jaxlib 0.10.2 rltrace build-engine compiles it"),
        ("gpu", Path("jaxlib.so"), "digested by the host: no library is used on a gpu"),
    ],
)
def test_what_records_jax(platform: str, library: Path | None, text: str) -> None:
    """Who digests the carry of a loop, and what to do where the library is missing."""
    report = DoctorReport({}, (), jax=JaxRecorder("0.10.2", platform, library))
    assert shown(report).partition("loops ")[2] == text
