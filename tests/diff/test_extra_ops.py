"""An op of one side is harmful where the first matched row that differs computes with what it wrote."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from views import both, compare_in, context_of, view_of

from rltrace.diff.base.findings import row_at
from rltrace.diff.base.model import Cause
from rltrace.diff.causes.extra_ops import one_sided_writers
from rltrace.testing import In, TraceBuilder
from rltrace.trace.format.schema import Origin

MM = "aten.mm.default"
NONE = np.empty(0, np.int64)


@pytest.mark.parametrize(
    ("reads", "other", "harmful"),
    [
        (1, 0, True),
        (In(1, "y"), In(0, "x"), True),
        (In(1, "x"), In(0, "x"), False),
        (0, 0, False),
        (In(1, known=True), In(0, known=True), False),
        ("mixed", 0, True),
        (In(origin=Origin.MIXED, last_writer=1), "mixed", True),
        ("mixed", "mixed", False),
        ("mixed", None, False),
        ("unknown", "unknown", False),
    ],
)
def test_what_a_matched_row_computes_with(tmp_path: Path, reads: Any, other: Any, harmful: bool) -> None:
    """It reads what the extra row 1 of A wrote, alone or as the last of several that wrote in place."""

    def long(trace: TraceBuilder) -> None:
        trace.op(MM, outputs=["x"])
        trace.op("aten.add_.Tensor", inputs=["unknown"], outputs=["y"])
        trace.op(MM, inputs=["unknown", reads], outputs=["z"])

    def short(trace: TraceBuilder) -> None:
        trace.op(MM, outputs=["x"])
        trace.op(MM, inputs=["unknown", *([] if other is None else [other])], outputs=["z"])

    views = view_of(tmp_path / "long.zarr", long), view_of(tmp_path / "short.zarr", short)
    rows, extra = (row_at(views[0], 2), row_at(views[1], 1)), np.array([1])
    context = context_of(*views, [(0, 0), (2, 1)])
    found = next(one_sided_writers(context, *rows, (extra, NONE)), None)
    assert (found and (found.view is views[0], found.index)) == ((True, 1) if harmful else None)
    found = next(one_sided_writers(context_of(*views[::-1], [(0, 0), (1, 2)]), *rows[::-1], (NONE, extra)), None)
    assert (found and (found.view is views[0], found.index)) == ((True, 1) if harmful else None)
    assert next(one_sided_writers(context, *rows, (NONE, NONE)), None) is None


def test_the_last_of_several_writers(tmp_path: Path) -> None:
    """The writer is the last row of one side before it that writes what it is given."""

    def long(trace: TraceBuilder) -> None:
        trace.op("aten.add_.Tensor", inputs=["unknown"], outputs=["x"])
        trace.op("aten.add_.Tensor", inputs=["unknown"], outputs=["y"])
        trace.op("aten.add.Tensor", inputs=["unknown"], outputs=["y"])
        trace.op(MM, inputs=["mixed"], outputs=["z"])

    a = view_of(tmp_path / "a.zarr", long)
    b = view_of(tmp_path / "b.zarr", lambda trace: trace.op(MM, inputs=["unknown"], outputs=["z"]))
    found = next(
        one_sided_writers(context_of(a, b, [(3, 0)]), row_at(a, 3), row_at(b, 0), (np.array([0, 1, 2]), NONE)), None
    )
    assert found.index == 1


DRAWS = {"names": ["aten.randint.low_out", "cpp_fused_add_0"]}


@pytest.mark.parametrize(
    ("of_ops", "draws", "kernel", "said"),
    [
        ("forward", True, DRAWS, "A op by op; it draws its random numbers by Inductor's code, not as those ops do"),
        ("forward", True, {"names": ["cpp_fused_add_0"]}, "A op by op; it draws random numbers;"),
        ("forward", False, {}, "A op by op; it may round otherwise;"),
        ("other", False, {}, "only B runs it; there A continues with aten.mm.default"),
    ],
)
def test_a_compiled_region_of_one_side(tmp_path: Path, of_ops: str, draws: bool, kernel: Any, said: str) -> None:
    """What A runs op by op and B as one compiled region is named as that, and B without it is the next command."""
    for trace, side in both(tmp_path):
        trace.op(MM, outputs=["x"])
        if side == "a":
            trace.op(MM, ("train.py", 5, of_ops, "x @ w"), inputs=[0], outputs=["y"])
        else:
            drawn = {"rng": "state", "generator": 0} if draws else {}
            site = ("train.py", 4, "forward", "def forward")
            trace.op("inductor.compiled_graph", site, inputs=[0], outputs=["z"], kernel=kernel, **drawn)
        trace.op("aten.add.Tensor", inputs=[1], outputs=[f"read by {side}"])
    found = compare_in(tmp_path)
    region = found.decisive
    assert region is not None
    assert (region.cause, region.op) == (Cause.CONTROL_FLOW, "inductor.compiled_graph")
    assert said in region.explanation
    assert "rltrace record --compile eager -o " in found.advice[0]
