"""``torchrun``, two ranks under DistributedDataParallel with gloo: what they compute and receive."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import Recorded
from torch import distributed, nn

from rltrace.digest import digest_buffer, seed_of
from rltrace.trace.format.schema import Origin
from rltrace.trace.read.reader import Trace, open_trace

PROGRAM = Path(__file__).parent / "programs" / "ranks.py"
TORCHRUN = Path(sys.executable).parent / "torchrun"
STEPS = 6

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="this build of torch has no torch.distributed")


@dataclass(frozen=True)
class Runs:
    """The program, recorded."""

    folder: Path

    @property
    def trace(self) -> Trace:
        return open_trace(self.folder / "a.zarr")

    def stream(self, rank: int) -> Recorded:
        names = [process.name for process in self.trace.processes]
        return Recorded(self.folder / "a.zarr", process=names.index(f"rank{rank}/main"))


@pytest.fixture(scope="module")
def runs(new_cli: Callable[[], Any]) -> Runs:
    cli = new_cli()
    (cli.folder / "a").mkdir()
    command = [TORCHRUN, "--standalone", "--nproc-per-node", 2, PROGRAM, "a"]
    result = cli.rltrace("record", "--quiet", "-o", "a.zarr", "--", *command)
    assert result.returncode == 0, result.stderr
    return Runs(cli.folder)


def weights() -> bytes:
    """Those of the model, trained in one process on the mean of both ranks' gradients."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generators = [torch.Generator().manual_seed(rank) for rank in (0, 1)]
    for _ in range(STEPS):
        halves = []
        for generator in generators:
            inputs, targets = (torch.randn(16, width, generator=generator) for width in (8, 2))
            model.zero_grad()
            (model(inputs * 1.0) - targets).pow(2).mean().backward()
            halves.append([p.grad / 2 for p in model.parameters() if p.grad is not None])
        for p, one, other in zip(model.parameters(), *halves, strict=True):
            p.grad = one + other
        optimizer.step()
    return b"".join(p.detach().numpy().tobytes() for p in model.parameters())


def test_ranks_are_named_by_their_rank(runs: Runs) -> None:
    """What starts them is none, and computes nothing."""
    processes = {process.name: process for process in runs.trace.processes}
    assert sorted(processes) == ["launcher:torchrun", "rank0/main", "rank1/main"]
    assert {process.state for process in processes.values()} == {"complete"}
    assert [len(processes[f"rank{rank}/main"].steps) for rank in (0, 1)] == [STEPS, STEPS]
    assert processes["launcher:torchrun"].after_op == 0


def test_what_the_ranks_compute_is_unchanged(runs: Runs) -> None:
    """Their weights are those of one process that takes the mean of both ranks' gradients, bit by bit."""
    expected = weights()
    assert [(runs.folder / "a" / f"rank{rank}.weights").read_bytes() == expected for rank in (0, 1)] == [True, True]


MEETINGS = ["barrier", "allgather_", "allgather_", "allreduce_", "broadcast_", "allgather_", "allreduce_", "all_reduce"]


@pytest.mark.parametrize(("rank", "message"), [(0, "send"), (1, "recv_")])
def test_what_came_has_its_digest_when_it_was_there(runs: Runs, rank: int, message: str) -> None:
    """No digest of bytes on their way; the first op to read them has digested what all ranks sent together."""
    rows = runs.stream(rank)
    collectives = [row for row in rows.rows if row.op.startswith(("c10d.", "_c10d_functional.all"))]
    names = ["allgather_" if row.name == "_allgather_base_" else row.name for row in collectives]  # from torch 2.15 on
    assert names[:9] == [*MEETINGS, message]
    assert sum(row.line == "loss.backward()" for row in collectives) == STEPS
    assert all(row.outputs == [] for row in collectives)
    came = {"sin": torch.full((4,), 3.0), "tan": torch.arange(3.0), "sqrt": torch.ones(2)}
    came |= {"neg": torch.ones(5)} if rank else {}
    for name, tensor in came.items():
        (read,) = rows.one(name).inputs
        assert (read.origin, read.slot) == (Origin.OUTSIDE, 1)
        assert read.digest == digest_buffer(tensor.numpy().tobytes(), seed_of("float32", tensor.shape))
