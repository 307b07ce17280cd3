"""What an experiment judges: the steps it covers alone."""

from pathlib import Path

import pytest
import torch

import rltrace
from rltrace.diff.compare import compare
from rltrace.experiment.confirm.arms import state_difference
from rltrace.experiment.confirm.steps_covered import StepsCovered, agrees
from rltrace.trace.read.reader import Trace, open_trace

APART = 2
"""The step in which the second of two runs computes something else."""


def run(path: Path, other: bool) -> Trace:
    """Four steps, ops of the first one recorded."""
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    with rltrace.record(path, steps=(0, 1)):
        for step in range(4):
            (weight * (2.0 if other and step >= APART else 1.0)).sum().backward()
            optimizer.step()
    return open_trace(path)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Trace]:
    folder = tmp_path_factory.mktemp("covered")
    first, second = (run(folder / name, other) for name, other in (("a.zarr", False), ("b.zarr", True)))
    return first, second


@pytest.mark.parametrize(("end", "same"), [(1, True), (2, True), (3, False), (4, False)])
def test_what_comes_after_it_does_not_count(traces: tuple[Trace, Trace], end: int, same: bool) -> None:
    """Two runs that diverge in step 2 are the same to the end of step 1, whatever they end with."""
    found, covered = compare(*traces), StepsCovered(0, end)
    assert agrees(found, covered) is same
    assert (state_difference(*traces, covered) is None) is same
    assert agrees(found) is False
