"""A run that is resumed from a checkpoint, against the one that wrote it: equal from there on, or not and why."""

import io
import os
import runpy
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from shortcuts import EACH, compare_checked

import rltrace

PROGRAM = Path(__file__).parent / "programs" / "resumed.py"
LEFT_OUT = ("generator", "optimizer", "loader", "environment", "parameter")


@pytest.fixture(scope="module")
def runs(new_cli: Callable[[], Any]) -> Any:
    """``a.zarr`` and ``a-step.zarr``: eight steps in one go; ``all.zarr`` and so on: four more from a checkpoint. The
    links of ``all.zarr`` are checked. All in this process, one after the other."""
    cli, printed = new_cli(), {}
    straight = [("a", "", {}), ("a-step", "", {"level": "step"})]
    resumed = [("all", "all", {"check_links": True}), *((what, what, {}) for what in LEFT_OUT)]
    for name, resume, options in (*straight, *resumed):
        printed[name] = io.StringIO()
        with (
            patch.dict(os.environ, RESUME=resume),
            chdir(cli.folder),
            redirect_stdout(printed[name]),
            rltrace.record(f"{name}.zarr", **options),
        ):
            runpy.run_path(str(PROGRAM), run_name="__main__")
    steps, later = (printed[name].getvalue().splitlines() for name in ("a", "all"))
    assert steps[4:] == later, "the programs themselves are equal from step 4 on"
    return cli


def test_everything_restored_is_identical_from_there_on(runs: Any) -> None:
    """Op by op, although B built a model and loaded a checkpoint, and A wrote it; in either order of the two."""
    status, found = runs.diff("a.zarr", "all.zarr")
    assert (status, found["verdict"], found["first"]) == (0, "identical", None)
    assert (found["shift"]["a_step"], found["shift"]["b_step"]) == (4, 0)
    status, found = runs.diff("all.zarr", "a.zarr")
    assert (status, found["verdict"]) == (0, "identical")
    assert (found["shift"]["a_step"], found["shift"]["b_step"]) == (0, 4)
    status, found = runs.diff("a-step.zarr", "all.zarr")
    assert (status, found["verdict"], found["level"], found["shift"]["a_step"]) == (0, "identical", "step", 4)
    assert runs.rltrace("diff", "a.zarr", "all.zarr").stdout.startswith("IDENTICAL  from step 4 on (B's step 0)\n")


@pytest.mark.parametrize(
    ("what", "cause", "op", "kind", "name"),
    [
        ("generator", "rng", "aten.bernoulli_.float", "generator", "torch's generator on the CPU"),
        ("optimizer", "before-window", "aten.add_.Tensor", "optimizer", "Adam: exp_avg, exp_avg_sq, step"),
        ("loader", "control-flow", "aten.randperm.generator", "data", "data loader"),
        ("environment", "outside", "aten.cat.default", "environment", "environment 0 (Walk)"),
        ("parameter", "before-window", "aten.addmm.default", "tensor", "input 0 (float32[2]) of Sequential.2"),
    ],
)
def test_what_was_not_restored_is_named(runs: Any, what: str, cause: str, op: str, kind: str, name: str) -> None:
    """With the steps of both sides, and the first op that differs because of it."""
    # with another parameter, B begins where A never stood
    options = ("--b-starts-at", "4") if what == "parameter" else ()
    status, found = runs.diff("a.zarr", f"{what}.zarr", *options)
    decisive = found["decisive"]
    assert (status, found["verdict"], decisive["cause"], decisive["op"]) == (1, "diverged", cause, op)
    assert (decisive["step"], decisive["b_step"]) == (4, 0)
    assert decisive["not_restored"] == {"kind": kind, "name": name}
    assert "restored" in decisive["explanation"]


@pytest.mark.parametrize(
    ("what", "kind"),
    [("generator", "generator"), ("optimizer", "optimizer"), ("loader", "data"), ("environment", "data")],
)
def test_what_was_not_restored_by_the_digests_of_steps(runs: Any, what: str, kind: str) -> None:
    """Without ops, the digests of the first common step show which of them it was."""
    status, found = runs.diff("a-step.zarr", f"{what}.zarr")
    assert (status, found["level"], found["decisive"]["step"], found["decisive"]["b_step"]) == (1, "step", 4, 0)
    assert found["decisive"]["not_restored"]["kind"] == kind


def test_parameters_that_the_other_never_had_are_not_guessed(runs: Any) -> None:
    """B loaded an optimizer's state, but begins with a parameter that A had at no step: compared from the beginnings,
    and the note names the option."""
    _, found = runs.diff("a.zarr", "parameter.zarr")
    assert found["shift"] is None
    assert any("--b-starts-at" in note for note in found["notes"])
    _, found = runs.diff("a-step.zarr", "parameter.zarr", "--b-starts-at", "4")
    assert found["decisive"]["not_restored"] == {"kind": "tensor", "name": "parameters of Adam"}


def test_the_option_decides(runs: Any) -> None:
    """0 compares from the beginnings; a step that A has not, and both options at once, are errors that say so."""
    status, found = runs.diff("a.zarr", "all.zarr", "--b-starts-at", "0")
    assert (status, found["shift"], found["decisive"]["step"]) == (1, None, 0)
    result = runs.read("diff", "a.zarr", "all.zarr", "--b-starts-at", "8")
    assert result.returncode == 2
    assert "A's rank0/main has no such step; it has steps 0 to 7" in result.stderr
    result = runs.read("diff", "a.zarr", "all.zarr", "--b-starts-at", "4", "--a-starts-at", "1")
    assert (result.returncode, "exclude each other" in result.stderr) == (2, True)
    result = runs.read("diff", "a.zarr", "all.zarr", "generator.zarr", "--b-starts-at", "4")
    assert (result.returncode, "two traces" in result.stderr) == (2, True)


@pytest.mark.parametrize(("a", "b"), [("a", "all"), ("a", "loader"), ("a", "parameter"), ("a-step", "optimizer")])
def test_no_shortcut_decides(runs: Any, a: str, b: str) -> None:
    """The result is the same without each of the shortcuts."""
    compare_checked(runs.folder / f"{a}.zarr", runs.folder / f"{b}.zarr", EACH)


def test_the_page_shows_it(runs: Any, tmp_path: Path) -> None:
    """Markdown and the page have the sentence of the verdict, and where the runs begin."""
    for name in ("report.md", "report.html"):
        result = runs.read("report", "a.zarr", "optimizer.zarr", "-o", tmp_path / name)
        assert result.returncode == 0, result.stderr
        text = (tmp_path / name).read_text()
        assert "step 4 (B&#x27;s step 0)" in text or "step 4 (B's step 0)" in text
        assert "optimizer" in text and "not restored" in text
