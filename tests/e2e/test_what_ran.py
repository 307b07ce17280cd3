"""What oneDNN and MKL ran for every op, under two settings: asked behind the program's back, and attributed right."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rltrace
from rltrace.errors import UsageError
from rltrace.extensions.kernels.command import command as what_ran
from rltrace.extensions.kernels.queries import query_kernels
from rltrace.rerun.library_output import parse
from rltrace.trace.format.schema import Column
from rltrace.trace.read.reader import open_trace

SETTING = "ONEDNN_MAX_CPU_ISA=SSE41"
"""Every processor has more than that."""

PROGRAM = """
import torch
from torch import nn

torch.manual_seed(0)
x, weight = torch.randn(64, 784), torch.randn(784, 256)
layer = nn.Linear(784, 256)
print("begin", end="")
nn.functional.conv2d(torch.ones(2, 3, 16, 16), torch.ones(8, 3, 3, 3))
for stride in (1, 2):
    hidden = nn.functional.gelu(layer(x))
    x @ weight
    nn.functional.linear(x.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16())
    nn.functional.conv2d(torch.ones(2, 3, 16, 16), torch.ones(8, 3, 3, 3), stride=stride)
    hidden.sum().backward()
x.softmax(-1)
torch.linalg.qr(x)
torch.set_num_threads(2)
x @ weight
print("end")
"""

pytestmark = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()),
    reason="this torch was built without oneDNN or MKL: there is no library to ask",
)


@pytest.fixture(scope="module")
def asked(new_cli: Callable[[], Any]) -> Any:
    """The program recorded as ``a.zarr``, under SETTING as ``b.zarr``: nothing of what it prints is lost."""
    cli = new_cli()
    (cli.folder / "train.py").write_text(PROGRAM)
    for trace, setting in (("a.zarr", ""), ("b.zarr", SETTING)):
        command = [sys.executable, "train.py"]
        done = cli.rltrace("record", "--kernels", "all", "-o", trace, "--", *command, setting=setting)
        assert (done.returncode, done.stdout) == (0, "beginend\n")
        assert "asked what runs for" in done.stderr
    return cli


def rows_of(path: Path) -> list[tuple[str, int, tuple[str, ...]]]:
    """Operator, threads and what ran, of every row."""
    process = open_trace(path).processes[0]
    rows = process.streams[0].read(0, process.streams[0].rows)
    found = []
    for op, kernel in zip(rows.column(Column.OP), rows.column(Column.KERNEL), strict=True):
        evidence: Any = process.tables["kernels"].payloads[kernel]
        name = str(process.tables["ops"].payloads[op]).split(".")[1]
        found.append((name, evidence.get("threads", 0), tuple(evidence.get("names", ()))))
    return found


def one_by_one(names: tuple[str, ...]) -> list[str]:
    counted = [re.fullmatch(r"(.*?)(?: ×(\d+))?", name) for name in names]
    return [match[1] for match in counted if match is not None for _ in range(int(match[2] or 1))]


def test_it_is_what_the_libraries_say_within_the_program_itself(asked: Any) -> None:
    """Row by row, in the same order, as the program prints it where it is run with their variables set."""
    own = asked.run(sys.executable, "train.py", ONEDNN_VERBOSE="1", MKL_VERBOSE="1").stdout.splitlines()
    said = [name for line in own for name in parse([line]).names]
    found = [name for _, _, names in rows_of(asked.folder / "a.zarr") for name in one_by_one(names)]
    assert len(said) > 15
    assert found == said


@pytest.mark.processor
def test_each_op_has_its_own(asked: Any) -> None:
    """A product in float32 is MKL's, one in bfloat16 oneDNN's (or no library's); what is ATen's own has no names."""
    rows = rows_of(asked.folder / "a.zarr")
    ran = {name: [names for op, _, names in rows if op == name] for name, _, _ in rows}
    assert ran["mm"][0] == ("MKL SGEMM(N,N,256,64,784)",)
    assert ran["addmm"][0] == ("MKL SGEMM(T,N,256,64,784)",)
    assert ran["addmm"][1] != ran["addmm"][0]
    assert all(names[-1].startswith("oneDNN eltwise") for names in ran["gelu"])
    assert all(any(name.startswith("oneDNN convolution") for name in names) for names in ran["convolution"])
    assert ran["_softmax"] == [()]
    assert [threads for op, threads, _ in rows if op == "mm"] == [1, 1, 1, 1, 2]
    strides = open_trace(asked.folder / "a.zarr").processes[0].library_reports
    assert strides is not None
    convolutions = {line for call in strides.calls.values() for line in call.reported if line.startswith("convolution")}
    assert len(convolutions) == 2, "two kinds of convolution differ in their stride alone"


@pytest.mark.processor
def test_under_another_setting_other_names(asked: Any) -> None:
    """oneDNN's ops ran another implementation, MKL's the same; the first difference names both."""
    changed = {
        op
        for (op, _, names), (_, _, others) in zip(
            rows_of(asked.folder / "a.zarr"), rows_of(asked.folder / "b.zarr"), strict=True
        )
        if names != others
    }
    assert {"gelu", "convolution"} <= changed
    assert not {"mm", "_softmax", "linalg_qr"} & changed
    found = asked.diff("a.zarr", "b.zarr")[1]
    first = found["first_value"]
    if first is None:
        pytest.skip("it computes the same bits on this processor")
    assert (first["op"], first["cause"]) == ("aten.gelu.default", "kernel")
    assert first["kernel"]["a"].startswith("oneDNN eltwise ") and first["kernel"]["a"].endswith(", 1 thread")
    assert f"kernels {first['kernel']['a'].removesuffix(', 1 thread')} against oneDNN eltwise" in first["explanation"]
    others = {(other["op"], other["same_bits"]) for other in found["other_kernels"]}
    assert ("aten.gelu.default", False) in others and ("aten.convolution.default", None) in others


@pytest.mark.processor
def test_another_kernel_with_the_same_bits_is_no_difference(asked: Any) -> None:
    """A convolution of ones comes to the same whatever computes it: said, and the first difference is a later one."""
    found = asked.diff("a.zarr", "b.zarr")[1]
    convolutions = [other for other in found["other_kernels"] if other["op"] == "aten.convolution.default"]
    assert convolutions[0]["same_bits"] is True and convolutions[0]["a"] != convolutions[0]["b"]
    (note,) = [note for note in found["notes"] if note.startswith("different kernels, same bits")]
    assert "1 kind of call (aten.convolution.default: kernels oneDNN" in note
    assert "rltrace kernels a.zarr b.zarr" in note
    assert ": same bits" in asked.rltrace("kernels", "a.zarr", "b.zarr").stdout


def test_asked_of_a_trace_that_is_there_already(tmp_path: Path) -> None:
    """Libraries are asked of some steps of a trace; one that was not asked says how it is done."""
    layer = torch.nn.Linear(300, 40)
    optimizer = torch.optim.SGD(layer.parameters())
    with rltrace.record(tmp_path / "a.zarr"):
        layer(torch.ones(3, 300)).sum().backward()
        optimizer.step()
        layer(torch.ones(5, 300))
    with pytest.raises(UsageError, match="--ask"):
        what_ran.main([str(tmp_path / "a.zarr")], standalone_mode=False)
    found = query_kernels(tmp_path / "a.zarr", (1, 2))
    assert found.answered == 1
    products = [names for name, _, names in rows_of(tmp_path / "a.zarr") if name == "addmm"]
    assert products == [(), ("MKL SGEMM(T,N,40,5,300)",)]


def test_the_list(asked: Any) -> None:
    """As text a line for the call and one for what ran, as JSON everything; of two traces what ran otherwise."""
    lines = asked.rltrace("kernels", "a.zarr").stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if "aten.mm.default" in line and "float32[64,784]" in line)
    assert "×2" in lines[at] and lines[at + 1].strip() == "MKL SGEMM(N,N,256,64,784), 1 thread"
    assert not any("softmax" in line for line in lines)
    assert "softmax" in asked.rltrace("kernels", "a.zarr", "--all").stdout
    report = json.loads(asked.rltrace("kernels", "a.zarr", "--format", "json").stdout)
    (process,) = report["processes"]
    assert report["schema"] == "rltrace.kernels/1" and {"MKL", "oneDNN"} <= set(process["libraries"])
    assert {"op", "inputs", "row", "times", "kernel", "names", "reported"} <= set(process["calls"][0])
