"""A collective is known by its row: who takes part, who sends, who receives, and which one of its group it is."""

from pathlib import Path
from typing import Any

import pytest
from views import rows_of, view_of

from rltrace.diff.causes import collectives
from rltrace.diff.causes.collectives import (
    arrives,
    collective_at,
    collectives_between,
    own_rank,
    ranks_of,
    receiving_collective,
)
from rltrace.testing import In, TraceBuilder
from rltrace.trace.format.schema import Origin

GROUP = {"group": "g", "rank": 4, "ranks": [2, 4, 6]}
EVERYONE = {2, 4, 6}


@pytest.mark.parametrize(
    ("name", "words", "integers", "key", "senders", "receivers"),
    [
        ("c10d.allreduce_", [["T"], GROUP], [], ("g",), EVERYONE, EVERYONE),
        ("c10d.broadcast_", [["T"], GROUP, "i"], [2], ("g",), {6}, EVERYONE),
        ("c10d.reduce_", [["T"], GROUP, "i"], [0], ("g",), EVERYONE, {2}),
        ("c10d.gather_", [[], GROUP, "i"], [0], ("g",), EVERYONE, {2}),
        ("c10d.broadcast_", [["T"], GROUP, "i"], [3], ("g",), set(), EVERYONE),
        ("c10d.broadcast_", [["T"], GROUP, "i"], [-1], ("g",), set(), EVERYONE),
        ("c10d.send", [["T"], GROUP, "i"], [0], ("g", 4, 2), {4}, {2}),
        ("c10d.recv_", [["T"], GROUP, "i"], [2], ("g", 6, 4), {6}, {4}),
        ("c10d.recv_", [["T"], GROUP], [], None, None, None),
        ("c10d.recv_any_source_", [["T"], GROUP], [], None, None, None),
        ("c10d.allreduce_", [["T"]], [], None, None, None),
        ("c10d.allreduce_", [["T"], {**GROUP, "ranks": 3}], [], None, None, None),
        ("c10d.allreduce_", [["T"], {**GROUP, "ranks": ["2"]}], [], None, None, None),
        ("c10d.allreduce_", [["T"], {**GROUP, "rank": None}], [], None, None, None),
        ("c10d.allreduce_", [["T"], {**GROUP, "group": 5}], [], None, None, None),
        ("_c10d_functional.all_reduce", ["T", GROUP], [], ("g",), EVERYONE, EVERYONE),
    ],
)
def test_one_row(
    tmp_path: Path, name: str, words: list[Any], integers: list[int], key: Any, senders: Any, receivers: Any
) -> None:
    """Its group and members as the skeleton names them, and the other process by its first number."""

    def build(trace: TraceBuilder) -> None:
        trace.op("aten.add.Tensor", integers=[1])
        trace.op(f"{name}.default", integers=integers, scalars=words)
        trace.op("aten.add.Tensor", integers=[1])

    row = rows_of(tmp_path / "a.zarr", build)[1]
    call = collective_at(row.view, row.rows, row.place, name)
    if key is None:
        assert call is None and ranks_of(row) == ()
        return
    assert (call.row, call.ranks, call.own, call.key) == (1, (2, 4, 6), 4, key)
    assert (call.senders, call.receivers, call.synchronous) == (senders, receivers, False)
    assert ranks_of(row) == (2, 4, 6)
    assert own_rank(row.view.process) == 4


@pytest.mark.parametrize(
    ("name", "words", "arrival", "synchronous"),
    [
        ("c10d.allreduce_", [["T"], GROUP, False], True, True),
        ("c10d.allreduce_", [["T"], GROUP, True], True, False),
        ("c10d.gather_", [[["T"], ["T"]], ["T"], GROUP], True, False),
        ("c10d.gather_", [[], ["T"], GROUP], False, False),
        ("c10d.allreduce_", [], False, False),
        ("c10d.send", [["T"], GROUP], False, False),
        ("_c10d_functional.all_reduce", ["T", GROUP, False], True, False),
        ("aten.add", [["T"]], False, False),
    ],
)
def test_arrival(tmp_path: Path, name: str, words: list[Any], arrival: bool, synchronous: bool) -> None:
    """Data arrives where a tensor of the first argument receives it; at once where the op waits."""
    (row,) = rows_of(tmp_path / "a.zarr", lambda trace: trace.op(f"{name}.default", scalars=words, integers=[0]))
    assert arrives(row.view, row.rows, 0, name) is arrival
    call = collective_at(row.view, row.rows, 0, name)
    assert call is None or call.synchronous is synchronous


def program(trace: TraceBuilder) -> None:
    """Three collectives in flight, of which the last two are read; then one that waits, and one at the end."""
    for number in range(3):
        trace.op("c10d.allreduce_.default", scalars=[["T"], GROUP, True], outputs=[f"r{number}"])
    trace.op("aten.add.Tensor", inputs=[("outside", "o")])
    trace.end_step()
    read = In(origin=Origin.OUTSIDE, digest="r1", sent=2), In(origin=Origin.UNKNOWN, digest="r2", sent=1)
    trace.op(
        "aten.add.Tensor",
        inputs=[*read, In(origin=Origin.OUTSIDE, sent=3), In(origin=Origin.MIXED, digest="m", sent=3)],
    )
    trace.op("c10d.barrier.default", scalars=[{**GROUP, "group": "h"}, False])
    trace.op("c10d.broadcast_.default", scalars=[["T"], GROUP, "i", False], integers=[0])
    trace.op("c10d.allreduce_.default", scalars=[["T"], GROUP, True])


def test_counted_along_a_stream(tmp_path: Path) -> None:
    """Each has a number within its group; complete is what waited, or what a later row has read."""
    view = view_of(tmp_path / "a.zarr", program)
    found = collectives_between(view, 0, 7)
    shown = {key: [(call.row, call.synchronous, call.read_by) for call in calls] for key, calls in found.items()}
    of_group = [(0, False, None), (1, False, 4), (2, False, 4), (6, True, None), (7, False, None)]
    assert shown == {("g",): of_group, ("h",): [(5, True, None)]}
    assert [call.op for call in found[("g",)]] == ["c10d.allreduce_"] * 3 + ["c10d.broadcast_", "c10d.allreduce_"]
    start = collectives_between(view, 0, 2)
    assert [(call.row, call.read_by) for call in start[("g",)]] == [(0, None), (1, None), (2, None)]


def test_too_many_rows_to_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of more rows than are scanned."""
    view = view_of(tmp_path / "a.zarr", program)
    monkeypatch.setattr(collectives, "MAX_SCANNED", 6)
    assert collectives_between(view, 1, 7) is not None
    assert collectives_between(view, 0, 7) is None


def test_from_which_an_input_came(tmp_path: Path) -> None:
    """By how many receiving rows before it that was; an input that was not read, or came otherwise, has none."""
    row = rows_of(tmp_path / "a.zarr", program)[4]
    found = [receiving_collective(row, link) for link in row.rows.inputs(row.place)]
    assert [None if one is None else one.index for one in found] == [1, 2, None, None]
    other = rows_of(tmp_path / "b.zarr", program)[3]
    assert [receiving_collective(other, link) for link in other.rows.inputs(other.place)] == [None]


def test_from_which_functional_collective_an_input_came(tmp_path: Path) -> None:
    """Those that return before their data has arrived are counted as well."""

    def build(trace: TraceBuilder) -> None:
        trace.op("aten.add.Tensor")
        for number in range(2):
            trace.op("_c10d_functional.all_reduce.default", scalars=["T", GROUP], outputs=[f"r{number}"])
        trace.op("aten.add.Tensor", inputs=[In(origin=Origin.OUTSIDE, digest="r", sent=sent) for sent in (1, 2, 3)])

    row = rows_of(tmp_path / "a.zarr", build)[3]
    found = [receiving_collective(row, link) for link in row.rows.inputs(row.place)]
    assert [None if one is None else one.index for one in found] == [2, 1, None]
