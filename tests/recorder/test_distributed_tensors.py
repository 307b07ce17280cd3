"""Ops on DTensors: a row with their placements, then the rows of the ops that run in this process, linked by memory."""

from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import Record, Recorded, Row
from replayed import replay
from torch import distributed
from torch.utils._python_dispatch import TorchDispatchMode

from rltrace.diff import compare
from rltrace.diff.base.model import Cause
from rltrace.trace.format.schema import RowFlag
from rltrace.trace.read.names import layout_text

tensors = pytest.importorskip("torch.distributed.tensor")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("group")]


def mesh() -> Any:
    return distributed.init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))


def placed(tensor: torch.Tensor, *placements: Any) -> Any:
    return tensors.DTensor.from_local(tensor, mesh(), list(placements), run_check=False)


def weight_and_batch(placement: Any) -> None:
    weight, batch = placed(torch.ones(4, 3), placement), placed(torch.zeros(2, 4), tensors.Replicate())
    hidden = batch @ weight
    with torch.no_grad():
        weight.to_local().mul_(2)
        weight.add_(1)
    (batch @ weight) + hidden


def pairs(got: Recorded, name: str) -> list[tuple[Row, Row]]:
    """Rows of an operator on DTensors, and those of the local op."""
    rows = got.named(name)
    return list(zip(rows[::2], rows[1::2], strict=True))


def program() -> None:
    weight_and_batch(tensors.Shard(1))


def test_an_op_has_a_row_with_placements_and_one_that_computes(record: Record) -> None:
    """The former has the global shapes and no results; the latter is an op on the tensors of this process."""
    first, second = pairs(record(program), "mm")
    for whole, local in (first, second):
        shown = [layout_text(layout) for layout in whole.layouts]
        assert shown == ["float32[2,4]{tp=1: Replicate}", "float32[4,3]{tp=1: Shard(1)}"]
        assert (whole.outputs, bool(whole.flags & RowFlag.VIEW)) == ([], True)
        assert [layout_text(layout) for layout in local.layouts] == ["float32[2,4]", "float32[4,3]"]
        assert len(local.outputs) == 1
        assert whole.line == local.line


def test_rows_are_linked_by_the_memory_of_this_process(record: Record) -> None:
    """Whether an op wrote it as a DTensor's or as a plain tensor's."""
    got = record(program)
    (_, first), (_, second) = pairs(got, "mm")
    [(_, shifted)], [(_, total)] = pairs(got, "add_"), pairs(got, "add")
    weight, batch, scaled = got.one("ones").index, got.one("zeros").index, got.one("mul_")
    assert [part.row for part in first.inputs] == [batch, weight]
    assert (scaled.inputs[0].row, shifted.inputs[0].row) == (weight, scaled.index)
    assert [part.row for part in second.inputs] == [batch, shifted.index]
    assert [part.row for part in total.inputs] == [second.index, first.index]


def test_ops_on_tensors_without_memory_have_no_rows(record: Record) -> None:
    """torch runs every operator on such tensors once, for the shape of its result."""
    with record.block() as got:
        placed(torch.ones(4, 3), tensors.Shard(0)).atan()
    assert got.ops[-3:] == ["view", "atan", "atan"]


def test_other_placements_are_other_arguments(record: Record) -> None:
    """Though every number is the same."""
    traces = [record(lambda by=by: weight_and_batch(tensors.Shard(by))).path for by in (0, 1)]
    found = compare(*traces).first
    assert (found.op, found.cause) == ("aten.mm.default", Cause.ARGUMENTS)
    assert "float32[4,3]{tp=1: Shard(0)}" in found.explanation


@pytest.mark.parametrize(
    ("mesh", "text"),
    [
        (
            {"names": ["dp", "tp"], "sizes": [2, 4], "placements": ["Replicate", "Partial(sum)"]},
            "{dp=2: Replicate, tp=4: Partial(sum)}",
        ),
        ({"names": None, "sizes": [2], "placements": ["Shard(0)"]}, "{2: Shard(0)}"),
        ({"names": 7, "sizes": [2], "placements": ["Shard(0)"]}, "{2: Shard(0)}"),
        ({"names": None, "sizes": 2, "placements": None}, ""),
        ("more", ""),
    ],
)
def test_placements_are_shown_for_each_dimension_of_the_mesh(mesh: Any, text: str) -> None:
    """A trace is data, from any writer."""
    assert layout_text(["float32", [4], [1], "cpu", mesh]) == f"float32[4]{text}"


class Counting(TorchDispatchMode):
    """A mode of the program."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_mode_of_the_program_sees_what_it_sees_unrecorded(record: Record) -> None:
    """Above the recorder's, and below it."""

    def inside() -> list[str]:
        with Counting() as mode:
            program()
        return mode.seen

    assert record(inside).returned == inside()
    with Counting() as below:
        record(program)
    assert [name for name in below.seen if "aten.mm" in name] == ["aten.mm.default"] * 2


def test_values_are_injected_into_the_local_op(tmp_path: Path) -> None:
    """The row on DTensors counts as an occurrence, and has nothing to inject."""

    def scaled(is_b: bool) -> list[float]:
        weight = placed(torch.ones(2, 2), tensors.Shard(0))
        return (weight * (3.0 if is_b else 2.0)).to_local().flatten().tolist()

    runs = replay(tmp_path, scaled, ["op=mul.Tensor"])
    assert (runs.a, runs.b, runs.replayed) == ([2.0] * 4, [3.0] * 4, [2.0] * 4)
    assert (runs.account.selected, runs.account.injected) == (1, 1)
