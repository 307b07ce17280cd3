"""Two ranks that train in every way of several: the origin of a difference is named, and others received it."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from rltrace.commands.main import main
from rltrace.diff import Comparison, compare
from rltrace.diff.base.model import Cause, Verdict
from rltrace.trace.format.records import FaultKind
from rltrace.trace.read.reader import Trace, open_trace

PROGRAM = Path(__file__).parent / "programs" / "collectives.py"
STEPS, CHANGED_AT = 2, 1

RECEIVED = {
    "fsdp": "c10d._reduce_scatter_base_.default",
    "fsdp1": "c10d._reduce_scatter_base_.default",
    "tensor_parallel": "_c10d_functional.all_reduce.default",
    "sequence_parallel": "_c10d_functional.all_gather_into_tensor.default",
    "messages": "c10d.recv_.default",
    "pipeline": "c10d.recv_.default",
    "experts": "c10d.alltoall_base_.default",
    "functional_experts": "_c10d_functional.all_to_all_single.default",
    "replicas": "c10d.allreduce_.default",
    "compressed": "c10d.allreduce_.default",
    "factorized": "c10d.allreduce_.default",
    "coalesced": "c10d.reduce_scatter_tensor_coalesced_.default",
    "sums": "_c10d_functional.all_reduce.default",
}
"""By the way of training, in the order of the program: the collective that brings the other rank the difference."""

PLANTED = {way: ((1, Cause.ARGUMENTS), (0, Cause.CONTROL_FLOW))[number % 2] for number, way in enumerate(RECEIVED)}
"""By the way: the rank that computes with another number, or runs an op more, in ``changed.zarr``."""

pytestmark = [
    pytest.mark.skipif(not distributed.is_available(), reason="this build of torch has no torch.distributed"),
    pytest.mark.skipif(
        torch.__version__ < "2.12" and torch.version.cuda is not None and not torch.cuda.is_available(),
        reason="without a device, FakeTensorMode in a thread ends this build of torch, recorded or not",
    ),
]


@dataclass(frozen=True)
class Runs:
    """The program recorded twice as it is, and with a difference in every way of training, on one of the ranks."""

    folder: Path

    def of(self, name: str, way: str) -> Trace:
        """A trace with the streams of one way alone."""
        trace = open_trace(self.folder / f"{name}.zarr")
        for process in trace.processes:
            process._streams = {i: s for i, s in process._streams.items() if s.name.endswith(f"thread:{way}")}
        return trace

    def compare(self, name: str, way: str) -> Comparison:
        return compare(self.of("a", way), self.of(name, way))


@pytest.fixture(scope="module")
def runs(new_cli: Callable[[], Any]) -> Runs:
    cli = new_cli()
    for name, options in (
        ("a", ()),
        ("b", ("--check-links", "--rerunnable", "all")),
        ("changed", ()),
    ):
        planted = "changed" if name == "changed" else ""
        memory = "17" if name == "a" else "66"  # what empty memory holds
        cli.record_ranks(f"{name}.zarr", 2, options, sys.executable, PROGRAM, planted, MALLOC_PERTURB_=memory)
    return Runs(cli.folder)


def test_unchanged_runs_are_identical(runs: Runs) -> None:
    """Whatever is in flight, waits, or is uninitialised memory."""
    found = compare(runs.folder / "a.zarr", runs.folder / "b.zarr")
    assert found.verdict is Verdict.IDENTICAL
    assert len([name for name in found.compared if "thread:" in name]) >= 2 * len(RECEIVED)
    assert found.marked.differing


def test_every_write_is_a_row(runs: Runs) -> None:
    """Of sharded and tensor-parallel parameters, of what is received, and of buckets that are reduced."""
    for process in open_trace(runs.folder / "b.zarr").processes:
        assert process.checks_links
        assert {fault.kind for fault in process.link_faults} == {FaultKind.CALL}, "DDP fills what it broadcasts"


def test_a_rank_is_run_again_alone(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """Every op of every way gives the recorded bits without the other rank, on what collectives left in memory."""
    status = main(["rerun", str(runs.folder / "b.zarr"), "--process", "rank1/main", "--format", "json"])
    result = json.loads(capsys.readouterr().out)
    assert (status, result["bitwise"], result["first"]) == (0, True, None), result["first"]
    assert result["ops"] > 1_000
    assert all("c10d" in name for name, _ in result["from_record"])


@pytest.mark.parametrize("way", RECEIVED)
def test_the_origin_is_named_and_the_other_rank_received_it(runs: Runs, way: str) -> None:
    """The headline is the planted op, on its rank; the other's first difference came with a collective."""
    found, (rank, cause) = runs.compare("changed", way), PLANTED[way]
    assert found.verdict is Verdict.DIVERGED
    assert found.unordered == ()
    first = found.first
    assert first is not None and first == found.decisive
    assert (first.stream, first.op) == (f"rank{rank}/main/thread:{way}", "aten.mul.Tensor")
    assert first.cause is cause
    assert first.step == STEPS * list(RECEIVED).index(way) + CHANGED_AT
    (later,) = found.later
    assert (later.stream, later.cause) == (f"rank{1 - rank}/main/thread:{way}", Cause.OUTSIDE)
    assert (later.received.op, later.received.ranks) == (RECEIVED[way], (0, 1))
    assert later.received.origins == (first.stream,)
