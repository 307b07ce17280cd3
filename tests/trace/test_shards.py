"""Which elements of a tensor a rank has: those that DTensor gives it, also where a dimension cannot be divided."""

from pathlib import Path

import pytest
import torch
from torch import distributed

from rltrace.testing import TraceBuilder
from rltrace.trace.format.shards import (
    Placement,
    Shard,
    ShardKind,
    StepShards,
    parse_placement,
    parse_shards,
    shards_record,
)
from rltrace.trace.read.reader import open_trace

if not distributed.is_available():
    pytest.skip("this build of torch has no torch.distributed", allow_module_level=True)

from torch.distributed.tensor import Shard as TorchShard
from torch.distributed.tensor.placement_types import _StridedShard


def indices(size: int, mesh: tuple[int, ...], coordinate: tuple[int, ...], *placements: str) -> list[int]:
    placed = tuple(map(parse_placement, placements))
    found = Shard(ShardKind.AFTER, "Net.w", "", 0, "", (size,), placed, mesh, coordinate)
    return [int(index) for index in found.indices()[0]]


@pytest.mark.parametrize("size", range(1, 14))
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_dimension_is_divided_as_dtensor_divides_it(size: int, ranks: int) -> None:
    """A dimension is divided as DTensor splits a tensor of indices, over one mesh dimension or two."""
    split = TorchShard(0)._split_tensor(torch.arange(size), ranks, with_padding=False)[0]
    assert [indices(size, (ranks,), (at,), "S(0)") for at in range(ranks)] == [part.tolist() for part in split]
    strided = _StridedShard(0, split_factor=2)._split_tensor(torch.arange(size), ranks, with_padding=False)[0]
    for at in range(ranks):
        assert indices(size, (ranks,), (at,), "_S(0, 2)") == strided[at].tolist()
        inner = TorchShard(0)._split_tensor(strided[at], 2, with_padding=False)[0]
        both = [indices(size, (ranks, 2), (at, below), "_S(0, 2)", "S(0)") for below in range(2)]
        assert both == [part.tolist() for part in inner]


def test_records_are_read_as_written() -> None:
    """With a placement of each kind, and a tensor that was not recorded."""
    placed = tuple(map(parse_placement, ("S(1)", "_S(0, 2)", "R", "P(sum)")))
    whole = Shard(ShardKind.STATE, "Net.w", "exp_avg", None, "the limit was reached", (3, 4))
    part = Shard(ShardKind.GRADIENT, "Net.w", "", 7, "", (3, 4), placed, (2, 2, 1, 1), (1, 0, 0, 0))
    written = StepShards(3, 1, 1, 4, (part, whole))
    assert parse_shards(shards_record(written)) == written
    assert parse_placement("P(sum)").is_partial
    assert parse_placement("S(1)") == Placement("S(1)", 1)


def test_shards_of_a_process(tmp_path: Path) -> None:
    """Shards are those of each attempt, in the order of the journal."""
    builder = TraceBuilder(tmp_path / "a.zarr")
    written = [StepShards(step, 0, 0, 1, (Shard(ShardKind.GRADIENT, "w", "", 7 + step, "", (3,)),)) for step in (0, 1)]
    for shards in written:
        builder.main.writer.append(shards_record(shards))
    assert open_trace(builder.finish()).processes[0].shards == written


@pytest.mark.parametrize(
    "change",
    [
        {"placements": ["S(2)"]},
        {"placements": ["Z"]},
        {"coordinate": [2]},
        {"mesh": []},
        {"kind": "other"},
        {"name": 5},
        {"why": 5},
        {"shape": [1] * 65},
    ],
)
def test_records_that_describe_no_shard_are_refused(change: dict[str, object]) -> None:
    """A damaged trace is never read wrong."""
    part = Shard(ShardKind.GRADIENT, "Net.w", "", 7, "", (3, 4), (parse_placement("S(0)"),), (2,), (1,))
    record = shards_record(StepShards(0, 0, 0, 2, (part,)))
    (entry,) = record["tensors"]  # type: ignore[misc]
    with pytest.raises(ValueError, match=r"."):
        parse_shards({**record, "tensors": [{**entry, **change}]})
