"""``rltrace ops``: which rows it finds, what a line says, and how holes show."""

import json
from pathlib import Path
from typing import Any

import pytest

from rltrace.commands.main import main
from rltrace.testing import In, TraceBuilder
from rltrace.trace.format.schema import Kind, RowFlag

OUTER = ("train.py", 40, "main", "train(model)")
INNER = ("lib/ppo.py", 210, "PPO.train", "loss  =  model(x)")
KERNEL = {"library": "MKL", "isa": "AVX2", "threads": 2}


def build(path: Path) -> Path:
    """Two steps of a small program in two streams."""
    trace = TraceBuilder(path)
    trace.op("aten.randn.default", site=OUTER, outputs=["noise"], rng="seeded", phase="init")
    for step in range(2):
        linear = trace.op(
            "aten.addmm.default",
            site=[INNER, OUTER],
            inputs=[("outside", "batch"), 0],
            outputs=[f"hidden {step}"],
            module="policy.0",
            phase="forward",
            kernel=KERNEL,
        )
        trace.op("aten.view.default", site=[INNER, OUTER], inputs=[linear], flags=RowFlag.VIEW)
        trace.op("aten._local_scalar_dense.default", site=OUTER, inputs=[In(linear, "x")], value=0.5 + step)
        trace.end_step()
    trace.stream("rank0/main/thread:loader").op("aten.stack.default", inputs=["mixed"], outputs=["stacked"])
    return trace.finish()


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return build(tmp_path / "t.zarr")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    """Lines of standard output of a run that ends with 0."""
    assert main(["ops", *map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


def rows(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[tuple[str, int]]:
    """(stream, row) of each line found."""
    found = [json.loads(line) for line in run(capsys, *arguments, "--format", "json")]
    return [(line["stream"], line["row"]) for line in found]


def test_rows_around_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Ten before and ten after it, of the stream that is selected; ``nth`` needs whole steps."""
    trace = TraceBuilder(tmp_path / "long.zarr")
    for _ in range(40):
        trace.op("aten.sin.default")
    trace.stream("rank0/main/thread:loader").op("aten.stack.default")
    path = trace.finish()
    assert main_rows(capsys, path, "stream=rank0/main", "--around", 20) == list(range(10, 31))
    assert rows(capsys, path, "--around", 3) == [
        *(("rank0/main", row) for row in range(14)),
        ("rank0/main/thread:loader", 0),
    ]
    assert rows(capsys, path, "--around", 99) == []
    assert main(["ops", str(path), "op=sin,nth=3", "--around", "3"]) == 2


def main_rows(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[int]:
    return [row for stream, row in rows(capsys, *arguments) if stream == "rank0/main"]


def test_a_line_says_it_all(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The text of a line, field by field."""
    line = run(capsys, trace, "op=addmm", "--limit", 1)[0]
    digest = json.loads(run(capsys, trace, "op=addmm", "--limit", 1, "--format", "json")[0])["outputs"][0]
    assert [field.strip() for field in line.split("  ") if field.strip()] == [
        "rank0/main",
        "1",
        "step 0",
        "forward",
        "aten.addmm.default",
        "float32[4] float32[4]",
        "policy.0",
        "lib/ppo.py:210 PPO.train: loss = model(x)",
        f"-> {digest}",
    ]


def test_every_line_has_nine_fields(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a row lacks stands as ``-``, so that lines can be cut into columns."""
    lines = run(capsys, trace)
    assert len(lines) == 8
    assert {len([f for f in line.split("  ") if f.strip()]) for line in lines} == {9}
    assert "value=0.5" in lines[3]
    assert "(view)" in lines[2]


def test_json_says_where_inputs_came_from(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Producers are rows, origins have names, digests stand where the op read the bytes."""
    found = json.loads(run(capsys, trace, "op=addmm,step=1", "--format", "json")[0])
    outside, noise = found["inputs"]
    assert (outside["origin"], outside["producer"]) == ("outside", None)
    assert len(outside["digest"]) == 16
    noise_is = {
        "layout": "float32[4]",
        "origin": "row",
        "producer": 0,
        "digest": None,
        "result": 0,
        "storage_offset": 0,
    }
    assert noise == noise_is
    assert [frame["function"] for frame in found["stack"]] == ["PPO.train", "main"]
    assert found["kernel"] == "MKL AVX2, 2 threads"


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        ([], [0, 1, 2, 3, 4, 5, 6]),
        (["all"], [0, 1, 2, 3, 4, 5, 6]),
        (["op=addmm"], [1, 4]),
        (["op=addmm,step=1"], [4]),
        (["op=addmm", "op=randn"], [0, 1, 4]),
        (["phase=init"], [0]),
        (["module=policy.*"], [1, 4]),
        (["site=ppo.py:train"], [1, 2, 4, 5]),
        (["site=train.py"], [0, 1, 2, 3, 4, 5, 6]),
        (["kernel=*AVX2*"], [1, 4]),
        (["stream=rank0/main"], [0, 1, 2, 3, 4, 5, 6]),
        (["stream=*loader"], []),
        (["step=1:"], [4, 5, 6]),
        (["step=0,op=view", "step=1,op=addmm"], [2, 4]),
        (["nth=1:"], []),
        (["op=nothing"], []),
    ],
)
def test_selectors(trace: Path, capsys: pytest.CaptureFixture[str], selectors: list[str], expected: list[int]) -> None:
    """Each key of the grammar, and, or, finds exactly its rows."""
    assert main_rows(capsys, trace, *selectors) == expected


def test_steps_and_limit(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--steps`` is half open and goes with every selector; ``--limit`` counts lines."""
    assert main_rows(capsys, trace, "--steps", "1:2") == [4, 5, 6]
    assert main_rows(capsys, trace, "op=addmm", "--steps", ":1") == [1]
    assert main_rows(capsys, trace, "--limit", 2) == [0, 1]


def damaged(tmp_path: Path) -> Path:
    """Three segments of ten rows in one step, and a fourth in the next; the second cannot be read."""
    trace = TraceBuilder(tmp_path / "t.zarr")
    for segment in range(4):
        for row in range(10):
            trace.op("aten.mul.Tensor", outputs=[f"{segment} {row}"])
        trace.commit()
        if segment == 2:
            trace.end_step()
    trace.finish()
    chunks = sorted(p for p in (tmp_path / "t.zarr").rglob("*") if p.is_file() and "cells" in p.parts)
    chunk = [p for p in chunks if p.name != "zarr.json"][1]
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"?")
    return tmp_path / "t.zarr"


def test_holes_are_where_the_rows_would_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that cannot be read are one line in their place, and a word on standard error."""
    path = damaged(tmp_path)
    assert main(["ops", str(path)]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert len(lines) == 31
    assert "HOLE  rows 10 to 19" in lines[10]
    assert "10 rows could not be read" in err


def test_mistakes_have_their_own_words(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong selector or range is an error (2), with a caret."""
    for arguments in (["opp=mm"], ["--steps", "5:2"]):
        assert main(["ops", str(trace), *arguments]) == 2
        assert "^" in capsys.readouterr().err


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 1 + 2j, True, 3])
def test_any_number_is_valid_json(tmp_path: Path, capsys: pytest.CaptureFixture[str], value: Any) -> None:
    """Numbers that JSON has no word for still make a valid line."""
    trace = TraceBuilder(tmp_path / "t.zarr")
    trace.op("aten._local_scalar_dense.default", inputs=["outside"], value=value)
    trace.finish()
    text = run(capsys, tmp_path / "t.zarr", "--format", "json")[0]
    shown = json.loads(text, parse_constant=lambda constant: pytest.fail(constant))["value"]
    assert shown == {"nan": "nan", "-inf": "-inf", "(1+2j)": [1.0, 2.0]}.get(str(value), value)


def test_events_are_found_by_their_names_and_operators_by_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``op=*`` means operators, as ever. An event shows its cells by name, evidence in brackets."""
    trace = TraceBuilder(tmp_path / "e.zarr")
    trace.op("aten.mm.default", outputs=["x"])
    trace.event(
        Kind.ENVIRONMENT_STEP,
        "environment 3",
        owner="Hopper-v5",
        counts={"step": 812},
        digests={"observation": "seen"},
        integers={"terminated": 0},
        floats={"reward": 1.5},
    )
    path = trace.finish()
    assert main_rows(capsys, path, "op=*") == [0]
    assert main_rows(capsys, path, "op=environment-*") == [1]
    assert main_rows(capsys, path) == [0, 1]
    (line,) = run(capsys, path, "op=environment-step")
    assert "environment 3  Hopper-v5" in line
    assert line.endswith("terminated=0 reward=1.5")
    assert "[step=812] observation=" in line
    (found,) = run(capsys, path, "op=environment-step", "--format", "json")
    assert json.loads(found)["event"]["context"] == {"step": 812}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["op=nothing"], "no op of {trace} matches op=nothing"),
        (["op=nothing", "module=x", "--steps", "0:1"], " matches op=nothing or module=x and --steps 0:1"),
        (["op=randn", "--limit", "0"], ""),
        (["op=randn"], ""),
    ],
)
def test_nothing_found_is_said(
    trace: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A selector that finds nothing lists nothing, which is no error and is said beside the data."""
    assert main(["ops", str(trace), *arguments]) == 0
    shown = capsys.readouterr().err
    assert (said.format(trace=trace) in shown) if said else shown == ""
