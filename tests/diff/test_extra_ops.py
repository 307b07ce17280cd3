"""An op of one side is harmful where a matched row may compute with what it wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from views import context_of, view_of

from rltrace.diff.causes.extra_ops import bytes_used_by_matched
from rltrace.testing import In, TraceBuilder
from rltrace.trace.format.schema import RowFlag

MM = "aten.mm.default"


@pytest.mark.parametrize(
    ("reads", "other", "flags", "harmful"),
    [
        (1, 0, 0, True),
        (In(1, "y"), In(0, "x"), 0, True),
        (In(1, "x"), In(0, "x"), 0, False),
        (0, 0, 0, False),
        (In(1, known=True), In(0, known=True), 0, False),
        (1, 0, RowFlag.VIEW, False),
        ("mixed", 0, 0, True),
        ("mixed", "mixed", 0, False),
        ("mixed", None, 0, False),
        ("unknown", "unknown", 0, False),
    ],
)
def test_what_matched_rows_compute_with(tmp_path: Path, reads: Any, other: Any, flags: RowFlag, harmful: bool) -> None:
    """A matched row reads what the extra row 1 of A wrote, alone or as the last of several that wrote in place."""

    def long(trace: TraceBuilder) -> None:
        trace.op(MM, outputs=["x"])
        trace.op("aten.add_.Tensor", inputs=["unknown"], outputs=["y"])
        trace.op(MM, inputs=["unknown", reads], outputs=["z"], flags=flags)

    def short(trace: TraceBuilder) -> None:
        trace.op(MM, outputs=["x"])
        trace.op(MM, inputs=["unknown", *([] if other is None else [other])], outputs=["z"], flags=flags)

    views = view_of(tmp_path / "long.zarr", long), view_of(tmp_path / "short.zarr", short)
    sides = [(views[0].read(0, 3), np.array([0, 2])), (views[1].read(0, 2), np.array([0, 1]))]
    none, extra = np.empty(0, np.int64), np.array([1])
    found = bytes_used_by_matched(context_of(*views, [(0, 0), (2, 1)]), sides[0], sides[1], (extra, none))
    assert (found and (found[0].index, found[1].index)) == ((1, 2) if harmful else None)
    found = bytes_used_by_matched(context_of(*views[::-1], [(0, 0), (1, 2)]), sides[1], sides[0], (none, extra))
    assert (found and (found[0].index, found[1].index)) == ((1, 2) if harmful else None)
    assert bytes_used_by_matched(context_of(*views, [(0, 0), (2, 1)]), sides[0], sides[1], (none, none)) is None


def test_the_last_of_several_writers(tmp_path: Path) -> None:
    """Of rows of one side before it, the last that writes what it is given."""

    def long(trace: TraceBuilder) -> None:
        trace.op("aten.add_.Tensor", inputs=["unknown"], outputs=["x"])
        trace.op("aten.add_.Tensor", inputs=["unknown"], outputs=["y"])
        trace.op("aten.add.Tensor", inputs=["unknown"], outputs=["y"])
        trace.op(MM, inputs=["mixed"], outputs=["z"])

    views = (
        view_of(tmp_path / "a.zarr", long),
        view_of(tmp_path / "b.zarr", lambda trace: trace.op(MM, inputs=["unknown"], outputs=["z"])),
    )
    sides = [(views[0].read(0, 4), np.array([3])), (views[1].read(0, 1), np.array([0]))]
    found = bytes_used_by_matched(context_of(*views, [(3, 0)]), *sides, (np.array([0, 1, 2]), np.empty(0, np.int64)))
    assert found is not None and found[0].index == 1


@pytest.mark.parametrize("earlier", [0, 1])
def test_extra_rows_of_both_sides(tmp_path: Path, earlier: int) -> None:
    """The one whose bytes a matched row reads first."""

    def build(trace: TraceBuilder, reads: tuple[int, int]) -> None:
        trace.op(MM, outputs=["x"])
        trace.op(MM, outputs=["y"])
        for row in reads:
            trace.op(MM, inputs=[row], outputs=["z"])

    reads = [(1, 0), (0, 1)] if earlier == 0 else [(0, 1), (1, 0)]
    views = [view_of(tmp_path / f"{k}.zarr", lambda trace, own=own: build(trace, own)) for k, own in enumerate(reads)]
    matched, extra = np.array([0, 2, 3]), np.array([1])
    sides = [(view.read(0, 4), matched) for view in views]
    context = context_of(*views, [(row, row) for row in (0, 2, 3)])
    found = bytes_used_by_matched(context, sides[0], sides[1], (extra, extra))
    assert found is not None and (found[0].index, found[1].index) == (1, 2)
    assert found[0].view is found[1].view is views[earlier]
