"""Collectives of ``torch.distributed``: their schemas say neither what they write nor when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from recorded import Record, Row
from torch import distributed

from rltrace.record.operators import ARRIVING
from rltrace.trace.schema import Origin

pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="this build of torch has no torch.distributed")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_the_table_names_operators_and_arguments_that_there_are() -> None:
    """A name that is misspelt would never be found."""
    for name, arguments in ARRIVING.items():
        op = getattr(torch.ops.c10d, name.partition("::")[2]).default
        assert set(arguments) <= {a.name for a in op._schema.arguments}, name


def collectives() -> None:
    one = torch.ones(3)
    for collective in (
        distributed.all_reduce,
        lambda t: distributed.broadcast(t, 0),
        lambda t: distributed.reduce(t, 0),
    ):
        tensor = torch.ones(3)
        collective(tensor)
        tensor + 1
    for scatter in (
        lambda t: distributed.all_gather([t], one),
        lambda t: distributed.all_gather_into_tensor(t, one),
        lambda t: distributed.gather(one, [t]),
        lambda t: distributed.scatter(t, [one]),
        lambda t: distributed.all_to_all_single(t, one),
    ):
        tensor = torch.empty(3)
        scatter(tensor)
        tensor + 2


def reads(rows: list[Row]) -> list[tuple[Origin | None, bool, bool]]:
    return [(row.inputs[0].origin, row.inputs[0].digest is not None, row.marked) for row in rows]


@pytest.mark.filterwarnings("ignore")
def test_what_arrives_is_outside_and_was_written(record: Record, group: None) -> None:
    """The next reader digests it and leads to no op; memory that it fills is marked no longer."""
    got = record(collectives)
    assert reads(got.named("add")) == [(Origin.OUTSIDE, True, False)] * 8


@pytest.mark.filterwarnings("ignore")
def test_a_collective_has_no_digest_of_what_is_on_its_way(record: Record, group: None) -> None:
    """The bytes may come after the op has returned: a digest would tell when it was taken."""
    rows = [row for row in record(collectives).rows if row.op.startswith("c10d.")]
    assert len(rows) == 8
    assert [row.outputs for row in rows] == [[]] * 8
    assert not any(row.marked for row in rows)
    assert [row.inputs[0].origin for row in rows] == [None] * 3 + [Origin.OVERWRITTEN] * 5
