"""Kernels of Triton, which its interpreter runs, are rows, linked and compared as ops are."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import engines
import pytest
from recorded import Recorded

from rltrace.diff import compare
from rltrace.diff.base.coverage import coverage_notes
from rltrace.diff.base.model import Cause, Finding, InputsMatch, Verdict
from rltrace.trace.format.schema import Origin, Phase

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

PROGRAM = Path(__file__).parent / "programs" / "triton_update.py"

ENGINES = ("mode",) if engines.native_library().why_not else ("mode", "native")


@pytest.fixture(scope="module")
def traces(once: Any) -> Path:
    """A folder with each variant of the program, recorded in one process by each engine."""

    def make(folder: Path) -> str:
        command = (sys.executable, PROGRAM, "--record", folder, "--engines", *ENGINES)
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        return ""

    folder: Path = once("kernel-launches", make)[0]
    return folder


def first(traces: Path, variant: str) -> Finding:
    found = compare(traces / "plain-mode.zarr", traces / f"{variant}-mode.zarr").first
    assert found is not None
    return found


def test_a_launch_is_a_row(traces: Path) -> None:
    """With its kernel's name, arguments, configuration and grid, at the line of the program, linked both ways."""
    got = Recorded(traces / "plain-mode.zarr")
    scale, total = got.named("scale")[0], got.named("total")[0]
    product = got.named("mul")[0]
    assert scale.op == "triton.scale"
    assert scale.scalars == [["x=", "T"], ["factor=", "f"], ["n=", "i"], ["block=", "i"]]
    assert (scale.integers, scale.floats) == ([1000, 64], [0.5])
    code = scale.kernel["code"]
    assert scale.kernel == {"library": "Triton", "num_warps": 4, "grid": "16", "code": code}
    assert scale.line.startswith("scale[lambda given:")
    assert scale.phase is Phase.INIT
    assert scale.inputs[0].row == got.named("add")[0].index
    assert len(scale.outputs) == 1
    assert total.inputs[0].row == scale.index
    assert total.inputs[1].origin is Origin.OVERWRITTEN
    assert not total.marked
    assert total.line == "total[(1,)](x, out, 1000)"
    assert product.inputs[1].row == total.index
    assert not product.marked


def test_only_what_may_be_written_has_a_digest(traces: Path) -> None:
    """By the kernel's source, through a function that it calls: the sum is written, what is summed is not."""
    total = Recorded(traces / "plain-mode.zarr").named("total")[0]
    assert len(total.layouts) == 2
    assert len(total.outputs) == 1


def test_trials_of_an_autotuner_are_no_rows(traces: Path) -> None:
    """Their number depends on timing. What it chose is the row's kernel, and no argument."""
    got = Recorded(traces / "picked-mode.zarr")
    assert [row.name for row in got.rows].count("total") == 2
    total = got.named("total")[0]
    assert total.scalars == [["x=", "T"], ["out=", "T"], ["n=", "i"]]
    assert (total.kernel["block"], total.kernel["num_warps"]) == (64, 8)


@pytest.mark.skipif(len(ENGINES) == 1, reason="needs the native engine")
@pytest.mark.parametrize("variant", ["plain", "picked"])
def test_both_engines_write_the_same_rows(traces: Path, variant: str) -> None:
    assert engines.differences(traces / f"{variant}-mode.zarr", traces / f"{variant}-native.zarr") == []


@pytest.mark.parametrize("variant", ["again", "warps"])
def test_equal_bits_are_no_difference(traces: Path, variant: str) -> None:
    """An unchanged run is identical, and so is one with another configuration that computes the same."""
    found = compare(traces / "plain-mode.zarr", traces / f"{variant}-mode.zarr")
    assert found.verdict is Verdict.IDENTICAL


@pytest.mark.parametrize(
    ("variant", "op", "cause", "words"),
    [
        ("picked", "triton.total", Cause.KERNEL, "another kernel ran (block 32 against 64, num_warps 4 against 8)"),
        ("constant", "triton.scale", Cause.ARGUMENTS, "it was called with block=64 in A, 128 in B"),
        ("argument", "triton.scale", Cause.ARGUMENTS, "it was called with factor=0.5 in A, 0.25 in B"),
        ("input", "aten.add.Tensor", Cause.ARGUMENTS, "it was called with other="),
    ],
)
def test_planted_differences(traces: Path, variant: str, op: str, cause: Cause, words: str) -> None:
    """Another choice of the autotuner is the kernel; another constant is the program's, as another input is."""
    found = first(traces, variant)
    assert (found.op, found.cause) == (op, cause)
    assert words in found.explanation
    if cause is Cause.KERNEL:
        assert found.inputs_match in (InputsMatch.READ, InputsMatch.INFERRED)


def test_a_launch_that_cannot_be_read_is_reported(traces: Path) -> None:
    """It runs, and the recording goes on."""
    got = Recorded(traces / "unreadable-mode.zarr")
    assert "scale" not in got.ops
    assert got.ops[-1] == "_local_scalar_dense"
    [note] = coverage_notes(got.trace)
    assert "triton.scale (ValueError)" in note


def test_a_launched_program(cli: Any) -> None:
    """It prints what it does unrecorded, and a launch is no op that runs alone."""
    plain = cli.run(sys.executable, PROGRAM)
    assert cli.rltrace("record", "-o", "a.zarr", "--", sys.executable, PROGRAM).stdout == plain.stdout
    total = Recorded(cli.folder / "a.zarr").named("total")[0]
    refused = cli.rltrace("repro", "a.zarr", "--at", f"rank0/main:{total.index}")
    assert "a call of code outside torch" in refused.stderr
