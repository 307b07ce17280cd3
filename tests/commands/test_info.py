"""``rltrace info``: what it says of a trace, as text and as JSON."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltrace.commands.main import main
from rltrace.extensions.jax import JAX_ENGINE
from rltrace.report.info import describe, info_document
from rltrace.report.text import document_text
from rltrace.testing import TraceBuilder
from rltrace.trace.read.reader import open_trace


def build(path: Path) -> TraceBuilder:
    """Two processes; two optimizers, one of which skips an attempt; facts of several kinds."""
    trace = TraceBuilder(path)
    for name, value in {
        "torch.version": "2.13.0",
        "env.OMP_NUM_THREADS": "2",
        "source.train.py": "ab12",
        "git.revision": "deadbeef",
        "host.cpu": "A CPU",
    }.items():
        trace.fact(name, value)
    trace.op("aten.addmm.default", outputs=["x"])
    trace.end_step("Adam", 0)
    trace.op("aten.mm.default", outputs=["y"])
    trace.end_step("SGD", 1, skipped=1)
    trace.end_step("Adam", 0)
    worker = trace.process("rank0/worker:1")
    worker.fact("env.OMP_NUM_THREADS", "1")
    worker.stream().op("aten.stack.default", outputs=["z"])
    return trace


def info(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["info", str(path), "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def text(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["info", str(path)]) == 0
    return capsys.readouterr().out


def test_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How many there are, where there are any."""
    trace = TraceBuilder(tmp_path / "t.zarr")
    for number in range(3):
        trace.sample(("return", "loss")[number % 2], number)
    trace.process("rank0/worker:1")
    trace.finish()
    assert [process["series"] for process in info(tmp_path / "t.zarr", capsys)["processes"]] == [
        {"count": 2, "samples": 3},
        None,
    ]
    assert text(tmp_path / "t.zarr", capsys).count("  series   2 recorded, 3 numbers") == 1


def test_rows_of_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """How many tensors were recorded by row, of which ops and modules, along which axes, and which were not."""
    builder = TraceBuilder(tmp_path / "t.zarr")
    builder.main.request_activations("module=*", axes=(0, 1))
    with builder.call("Net", {"ids": np.array([[1, 2]])}):
        builder.op("aten.mm.default", outputs=["x"])
    builder.rows_left_out("the limit was reached", 9)
    builder.finish()
    found = info(tmp_path / "t.zarr", capsys)["processes"][0]
    assert found["values"]["selectors"] == []
    assert (found["rows"]["calls"], found["rows"]["tensors"], found["rows"]["digests"]) == (1, 1, 2)
    shown = " ".join(text(tmp_path / "t.zarr", capsys).split())
    assert " values 1, 16 bytes of at most 1,073,741,824 (what identifies activation rows) " in shown
    assert " rows 1 tensor by row, 1 call of modules (module=*, along axes 0, 1) " in shown
    assert " not by row: 1 tensor, at rows 1 to 1 of rank0/main: the limit was reached " in shown


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"rerunnable": ["step=1", "op=mm"]}, "what step=1 or op=mm needs to be run again"),
        ({"rerunnable": ["step=1"], "state": "0:1"}, "what step=1 needs to be run again; state of steps 0:1"),
        ({"asleep": True}, "what runs ops again, or state"),
    ],
)
def test_values_of_no_selector(tmp_path: Path, options: dict[str, object], wanted: str) -> None:
    """They are named by what they were recorded for; a run that was asleep does not know."""
    builder = TraceBuilder(tmp_path / "t.zarr")
    builder.main.request_values(only_with_rows=True)
    builder.value(np.zeros(2))
    builder.op("aten.mm.default", outputs=["x"])
    described = describe(open_trace(builder.finish()))
    described = replace(described, launch={**(described.launch or {}), "options": options})
    shown = " ".join(document_text(info_document(described)).split())
    assert f" values 1, 16 bytes of at most 1,073,741,824 ({wanted}) " in shown


def test_a_program_of_jax(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its functions with loops a line each, its settings under a heading, and no word of torch."""
    builder = TraceBuilder(tmp_path / "t.zarr", level="step", engine=JAX_ENGINE)
    builder.fact(
        "jax.loops", "jit.train: 6 iterations, digested by the host; jit.test: 2 iterations, digested by the host"
    )
    builder.fact("jax.boundary_only", "jit.run: it takes donated arrays")
    builder.fact("jax.enable_x64", False)
    builder.op("jit.train.iteration", outputs=["x"])
    builder.sample("loss", 1.0, "stacked")
    builder.end_step("jit.train", 0)
    builder.finish()
    shown = text(tmp_path / "t.zarr", capsys)
    for words in (
        "  recorded level step, engine jax-iterations",
        "  steps    jit.train #0  1 iteration\n",
        "(rltrace series draws them)\n",
        "  loops    jit.test: 2 iterations, digested by the host\n",
        "  opaque   jit.run is one op: it takes donated arrays\n",
        "\nJAX\n  jax.enable_x64  ",
    ):
        assert words in shown
    assert shown.count("donated") == 1


def test_json_has_every_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The object names its schema; counts, steps by optimizer, facts and size are there."""
    build(tmp_path / "t.zarr").finish()
    found = info(tmp_path / "t.zarr", capsys)
    assert found["schema"] == "rltrace.info/1"
    assert found["launch"]["command"] == ["python", "train.py"]
    assert found["ops"] == 3
    size = sum(p.stat().st_size for p in (tmp_path / "t.zarr").rglob("*") if p.is_file())
    assert found["size"]["bytes"] == size
    assert found["size"]["bytes_per_op"] == round(size / 3, 2)
    process = found["processes"][0]
    assert (process["name"], process["state"], process["after_op"]) == ("rank0/main", "complete", 2)
    assert process["optimizers"] == [
        {"ordinal": 0, "class": "Adam", "attempts": 2, "skipped": 0},
        {"ordinal": 1, "class": "SGD", "attempts": 1, "skipped": 1},
    ]
    assert process["facts"]["torch.version"] == "2.13.0"


def test_text_has_every_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for people: facts under headings, other processes' facts only where they differ."""
    build(tmp_path / "t.zarr").finish()
    shown = text(tmp_path / "t.zarr", capsys)
    for words in (
        "command python train.py",
        "process rank0/main, complete after op 2",
        "stream rank0/worker:1 1 op ",
        "steps SGD #1 1 step, 1 skipped",
        "hardware host.cpu",
        "torch torch.version",
        "variables env.OMP_NUM_THREADS",
        "source files git.revision",
        "only in rank0/worker:1 (against rank0/main) env.OMP_NUM_THREADS",
    ):
        assert words in " ".join(shown.split())


def test_states_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A killed process says how far it came; a damaged one names the damage."""
    build(tmp_path / "killed.zarr").finish("killed")
    assert "killed after op 2: it ended without an end record" in text(tmp_path / "killed.zarr", capsys)
    build(tmp_path / "damaged.zarr").finish()
    cells = tmp_path / "damaged.zarr" / "processes" / "0" / "streams" / "0" / "cells"
    next(p for p in cells.rglob("*") if p.is_file() and p.name != "zarr.json").unlink()
    shown = text(tmp_path / "damaged.zarr", capsys)
    assert "damaged after op 2" in shown
    assert "hole     rank0/main rows 0 to 1: " in shown


def test_a_trace_without_a_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A launch that recorded nothing is still a trace, and says which processes started."""
    from rltrace.trace.format.process_start import write_start
    from rltrace.trace.format.root import create_trace

    create_trace(tmp_path / "t.zarr", {"command": ["true"]})
    write_start(tmp_path / "t.zarr", {"argv": ["python", "x.py"]})
    found = info(tmp_path / "t.zarr", capsys)
    assert (found["ops"], found["size"]["bytes_per_op"], found["processes"]) == (0, None, [])
    assert "python x.py" in text(tmp_path / "t.zarr", capsys)


def native(ops: int, handed: int, most: str = "") -> dict[str, Any]:
    """Facts of a process whose ops the native engine recorded, and how many of them, which most, Python did."""
    found = {"native": True, "native.ops": ops, "native.handed": handed}
    return found | ({"native.handed.most": most} if most else {})


ENGINES: list[tuple[list[dict[str, Any]], str]] = [
    ([{}], ""),
    ([{"native": False, "native.why_not": "--engine mode"}], "engine dispatch mode in Python: --engine mode"),
    ([{"native": True}], "engine native"),
    ([native(7, 0)], "engine native; 0.0 % of 7 ops in Python"),
    (
        [native(51_538, 160, "c10d::x, an object: 9; y: 1")],
        "engine native; 0.3 % of 51,538 ops in Python (most: c10d::x, an object)",
    ),
    (
        [native(10, 1, "a, b: 1"), {"native": False, "native.why_not": "none is built"}, native(90, 4, "c, d: 4")],
        "engine native in 2 of 3 processes; 5.0 % of 100 ops in Python (most: c, d)",
    ),
]


@pytest.mark.parametrize(("processes", "expected"), ENGINES)
def test_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], processes: list[dict[str, Any]], expected: str
) -> None:
    """One line of all processes: what recorded ops, and how many of them in Python."""
    trace = TraceBuilder(tmp_path / "t.zarr")
    for number, facts in enumerate(processes):
        process = trace.process(f"rank0/worker:{number}") if number else trace.main
        for name, value in facts.items():
            process.fact(f"engine.{name}", value)
    trace.finish()
    shown = " ".join(text(tmp_path / "t.zarr", capsys).split())
    assert shown.partition("engine testing ")[2].partition(" on disk ")[0].rpartition("ops ")[0].strip() == expected
