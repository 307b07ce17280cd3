"""Parameters that were written after their last use: no op shows it, but their last state does."""

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
    ("a", "b", "verdict"),
    [
        ("", "", "identical"),
        ("", "log", "same-values"),
        ("", "op without effect", "same-values"),
        ("op", "op", "identical"),
    ],
)
def test_weights_that_are_equal_at_the_end(tmp_path: Path, a: str, b: str, verdict: str) -> None:
    """What reads them, or writes the same bytes on one side, makes no difference, nor what both write."""
    assert compared(tmp_path, a, b).verdict.value == verdict


def made(path: Path, parameters: dict[int, object], state: str = "complete") -> Path:
    trace = TraceBuilder(path)
    for step in range(2):
        trace.op("aten.mm.default", outputs=[f"x{step}"])
        trace.end_step(parameters=f"p{step}", gradients="g", generators="r")
    return trace.finish(state, parameters=parameters)


@pytest.mark.parametrize(
    ("a", "b", "state", "verdict"),
    [
        ({0: "other"}, {}, "complete", Verdict.IDENTICAL),
        ({0: "other"}, {}, "killed", Verdict.UNKNOWN),
        ({0: "end"}, {0: "end"}, "complete", Verdict.IDENTICAL),
    ],
    ids=["an optimizer that one side lost", "a killed run has no end", "equal ends"],
)
def test_last_states(tmp_path: Path, a: dict[int, object], b: dict[int, object], state: str, verdict: Verdict) -> None:
    """They are compared where both sides have them; where they are equal no chunk is read."""
    found = compare(made(tmp_path / "a.zarr", a), made(tmp_path / "b.zarr", b, state))
    assert (found.verdict, found.search.chunks_read if a == b else 0) == (verdict, 0)
