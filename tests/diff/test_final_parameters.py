"""Parameters that were written after their last use: no op shows it, but their last state does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import rltrace
from rltrace.diff import Comparison, compare
from rltrace.diff.base.model import Cause, Verdict
from rltrace.testing import TraceBuilder


def train(end: str = "") -> None:
    """A little training; ``end``: what happens to the weights after their last use."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        loss = model(torch.ones(4, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    KEPT.append((model, optimizer))
    with torch.no_grad():
        if end == "op":
            model.weight.mul_(0.5)
        elif end == "op without effect":
            model.weight.mul_(1.0)
        elif end == "log":
            model.weight.norm().item()
        elif end.startswith("numpy"):
            np.asarray(model.weight.detach())[:] += 1 if end == "numpy" else 0


KEPT: list[object] = []
"""As a program's globals do, it keeps optimizers alive until the process has ended."""


def compared(folder: Path, a: str, b: str, level: str = "op") -> Comparison:
    """Two trainings with these ends."""
    traces = []
    for end in (a, b):
        KEPT.clear()
        traces.append(folder / f"{len(traces)}.zarr")
        with rltrace.record(traces[-1], level=level):
            train(end)
    return compare(*traces)


@pytest.mark.parametrize(
    ("a", "b", "level", "cause"),
    [
        ("", "op", "op", Cause.UNKNOWN),
        ("numpy read", "numpy", "op", Cause.UNTRACKED_WRITE),
        ("", "op", "step", Cause.UNKNOWN),
    ],
)
def test_weights_that_were_changed_at_the_end(tmp_path: Path, a: str, b: str, level: str, cause: Cause) -> None:
    """After the last attempt, and read by no op that both run: diverged, with the digests that the two ended with."""
    found = compared(tmp_path, a, b, level)
    assert found.verdict is Verdict.DIVERGED
    finding = found.decisive
    assert finding is not None and found.first_value is None
    assert found.first.op == ("aten.mul_.Tensor" if (b, level) == ("op", "op") else None)
    assert (finding.cause, finding.op, finding.step) == (cause, None, 1)
    assert "at the end of the processes" in finding.explanation
    assert finding.optimizer.name == "SGD"
    gradients, parameters = finding.outputs
    assert (gradients.a, gradients.b) == (None, None) and parameters.a != parameters.b


@pytest.mark.parametrize(
    ("b", "verdict"), [("", "identical"), ("log", "same-values"), ("op without effect", "same-values")]
)
def test_weights_that_stayed(tmp_path: Path, b: str, verdict: str) -> None:
    """What reads them at the end, or writes the same bytes, makes no difference."""
    assert compared(tmp_path, "", b).verdict.value == verdict


def test_a_change_that_both_make(tmp_path: Path) -> None:
    """Weights that both sides change at the end in the same way are equal."""
    assert compared(tmp_path, "op", "op").verdict is Verdict.IDENTICAL


def made(path: Path, parameters: dict[int, object], state: str = "complete", last: str = "p1") -> Path:
    trace = TraceBuilder(path)
    for step in range(2):
        trace.op("aten.mm.default", outputs=[f"x{step}"])
        trace.end_step(parameters=last if step else "p0", gradients="g", generators="r")
    return trace.finish(state, parameters=parameters)


def test_an_optimizer_that_one_side_lost(tmp_path: Path) -> None:
    """Nothing is said of an optimizer that did not live to the end on both sides."""
    a, b = made(tmp_path / "a.zarr", {0: "other"}), made(tmp_path / "b.zarr", {})
    assert compare(a, b).verdict is Verdict.IDENTICAL


def test_a_killed_run_has_no_end(tmp_path: Path) -> None:
    """There is no last state of a run that was killed; it stays equal so far."""
    a, b = made(tmp_path / "a.zarr", {0: "other"}), made(tmp_path / "b.zarr", {}, "killed")
    assert compare(a, b).verdict is Verdict.UNKNOWN


def test_no_step_is_read_where_the_ends_are_equal(tmp_path: Path) -> None:
    """Two equal traces are compared without reading one chunk."""
    a, b = made(tmp_path / "a.zarr", {0: "e"}), made(tmp_path / "b.zarr", {0: "e"})
    found = compare(a, b)
    assert (found.verdict, found.search.chunks_read) == (Verdict.IDENTICAL, 0)
