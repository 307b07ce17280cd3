"""The native engine writes the rows that the mode in Python writes, cell by cell; what it cannot do, Python does."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engines import differences
from op_programs import PROGRAMS, Program, RandomProgram
from recorded import Recorded
from torch import distributed, nn
from torch.distributed import _functional_collectives

import rltrace

Both = Callable[[Program], Recorded]


@pytest.fixture
def both(tmp_path: Path, native_library: Any) -> Both:
    """Record a program under both engines, and compare; returns what the native one recorded."""
    count = iter(range(1_000))

    def record(program: Program) -> Recorded:
        number = next(count)
        program()  # what only a first run loads, compiles or leaves set
        paths = [tmp_path / f"{number}-{engine}.zarr" for engine in ("mode", "native")]
        for path, engine in zip(paths, ("mode", "native"), strict=True):
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)
            with rltrace.record(path, engine=engine):
                program()
        assert differences(*paths) == []
        return Recorded(paths[1])

    return record


# --- programs of every kind -------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_are_equal(both: Both, name: str) -> None:
    """Rows, cells, steps and tables of both engines, id by id."""
    assert both(PROGRAMS[name]).rows


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("group")
def test_rows_of_a_distributed_program_are_equal(both: Both) -> None:
    """DTensors, collectives in flight, and what a process group does while the program waits for it."""
    placing = pytest.importorskip("torch.distributed.tensor")
    mesh = distributed.init_device_mesh("cpu", (1,))

    def program() -> None:
        model = placing.distribute_module(nn.Linear(4, 3), mesh)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        batch = placing.distribute_tensor(torch.randn(2, 4), mesh, [placing.Shard(0)])
        for _ in range(2):
            loss = model(batch).pow(2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total = _functional_collectives.all_reduce(torch.ones(4), "sum", distributed.group.WORLD)
        (total.view(2, 2) + 1).sin()
        distributed.reduce_scatter_tensor(part := torch.empty(4), total + 0)
        part.cos()

    got = both(program)
    assert got.one("cos").inputs[0].row is not None


# --- random programs --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(10))
def test_random_programs_have_equal_rows(both: Both, seed: int) -> None:
    """Whatever is combined with whatever."""
    both(lambda: RandomProgram(seed)())


# --- what Python does -------------------------------------------------------------------------------------------------


def test_what_the_library_cannot_do_is_counted(both: Both) -> None:
    """By operator and reason, in a fact of the trace."""
    found = both(lambda: torch.randn(2, generator=torch.Generator()) + 1)
    facts = found.process.facts
    assert (facts["engine.native"], facts["engine.native.ops"], facts["engine.native.handed"]) == (True, 2, 1)
    assert facts["engine.native.handed.most"] == "aten::randn.generator, a generator: 1"


def test_an_error_of_the_recorder_stays_its_own(
    tmp_path: Path, native_library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program computes on; the recording ends and says why."""
    from rltrace.recorder.core.native_engine import NativeRecorder

    def broken(*_: object) -> Any:
        raise ValueError("the recorder's own")

    monkeypatch.setattr(NativeRecorder, "layout_of", broken)
    results = []
    with (
        pytest.raises(rltrace.errors.RecordError, match="the recorder's own"),
        rltrace.record(tmp_path / "a.zarr", engine="native"),
    ):
        results.append((torch.ones(3, 5) * 2).sum().item())
    assert results == [30.0]
