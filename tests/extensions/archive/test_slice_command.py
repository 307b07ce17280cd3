"""``rltrace slice``: what a slice carries, seen through the other verbs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrace.commands.main import main
from rltrace.testing import TraceBuilder


def build(path: Path) -> Path:
    """Four steps of three ops, a segment each."""
    trace = TraceBuilder(path)
    for step in range(4):
        for number in range(3):
            trace.op("aten.mul.Tensor", outputs=[f"{step} {number}"])
        trace.end_step()
        trace.commit()
    return trace.finish()


def test_a_slice_is_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is sound, lists the ops of its window, and says of the others that they were left out."""
    path, cut = build(tmp_path / "t.zarr"), tmp_path / "cut.zarr"
    assert main(["slice", str(path), "--steps", "1:3", "-o", str(cut)]) == 0
    assert "6 ops of 12 in full" in capsys.readouterr().err
    assert main(["verify", str(cut)]) == 0
    capsys.readouterr()
    assert main(["ops", str(cut)]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert [("LEFT OUT" in line) for line in lines] == [True, *[False] * 6, True]
    assert "could not be read" not in err
    assert main(["info", str(cut)]) == 0
    assert "slice    first_step 1, end_step 3" in capsys.readouterr().out


@pytest.mark.parametrize("steps", ["3", "1:", "2:1", "x", "90:91"])
def test_steps_that_make_no_slice(tmp_path: Path, capsys: pytest.CaptureFixture[str], steps: str) -> None:
    """An open or empty range, or one beyond the trace, is refused and nothing is written; one number is one step."""
    path, cut = build(tmp_path / "t.zarr"), tmp_path / "cut.zarr"
    status = main(["slice", str(path), "--steps", steps, "-o", str(cut)])
    assert status == (0 if steps == "3" else 2)
    assert cut.exists() == (steps == "3")


def test_nothing_is_overwritten_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A trace in the way stays, unless ``--force``."""
    path, cut = build(tmp_path / "t.zarr"), build(tmp_path / "cut.zarr")
    arguments = ["slice", str(path), "--steps", "0:1", "-o", str(cut)]
    assert main(arguments) == 2
    assert main([*arguments, "--force"]) == 0
