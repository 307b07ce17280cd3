"""The native engine writes the rows that the mode in Python writes, cell by cell; what it cannot do, Python does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engines import differences
from op_programs import PROGRAMS, Program
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


class RandomProgram:
    """Ops, views, in-place writes, ``out=``, foreach ops and memory of NumPy on a few tensors, chosen by a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._tensors: list[torch.Tensor] = []

    def __call__(self) -> None:
        self._tensors = [torch.randn(4, 3), torch.ones(3, 4), torch.arange(12.0), torch.zeros(4, 3)]
        for _ in range(80):
            try:
                made = self._random.choice(list(self._actions()))()
            except (RuntimeError, IndexError, ValueError):  # of shapes, overlap, or a leaf that is written
                continue
            if isinstance(made, torch.Tensor):
                self._tensors = [*self._tensors[-9:], made]
        self._tensors.clear()

    def _any(self) -> torch.Tensor:
        return self._random.choice(self._tensors)

    def _actions(self) -> Iterator[Callable[[], Any]]:
        r, t, u = self._random, self._any(), self._any()
        yield lambda: t + r.choice([1, 2.5, u])
        yield lambda: torch.mul(t, u)
        yield lambda: t.mm(u)
        yield lambda: t.reshape(-1)[r.randrange(3) :: r.randrange(1, 3)]
        yield lambda: t.view(-1).narrow(0, 0, r.randrange(1, t.numel()))
        yield t.t
        yield lambda: t.clone(memory_format=r.choice([torch.contiguous_format, torch.preserve_format]))
        yield lambda: t.add_(r.choice([1, u]))
        yield lambda: t.copy_(u)
        yield lambda: t.view(-1)[: r.randrange(4)].fill_(r.random())
        same = [each for each in self._tensors if each.shape == t.shape]
        yield lambda: torch.add(t, 2, out=r.choice(same))
        yield lambda: torch.sub(t, 1, out=torch.empty(0))
        yield lambda: torch._foreach_add_([t, u], 1.0)
        yield lambda: torch._foreach_mul([t, u], [2.0, 3.0])
        yield lambda: t.resize_(r.randrange(1, t.numel() + 1))
        yield lambda: torch.empty_like(t).copy_(u)
        yield lambda: torch.from_numpy(np.full(6, r.random(), dtype=np.float32))
        yield lambda: t.detach().numpy() is None
        yield lambda: t.index_put_((torch.tensor([0]),), torch.tensor(5.0))
        yield lambda: torch.cat([t.reshape(-1), u.reshape(-1)])
        yield lambda: t.sort().values
        yield lambda: t.max(0)[1].float()
        yield lambda: t.sum().item()
        yield lambda: torch.rand_like(t)
        yield lambda: torch.addmm(t, u.mm(u.t()), u, beta=r.choice([0, 1]))
        yield lambda: t.detach().requires_grad_().pow(2).sum().backward()
        yield lambda: t.to(r.choice([torch.float64, torch.bfloat16])).float()
        yield rltrace.step


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
