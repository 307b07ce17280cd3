"""Independent rows of one site in another order are matched by what they compute and read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from views import view_of

from rltrace.diff.align.reorder import match_reordered
from rltrace.diff.align.rows import Alignment
from rltrace.testing import In, TraceBuilder
from rltrace.trace.format.schema import RowFlag

Row = tuple[str, str, tuple[Any, ...]]
"""Site, what it returns (with a ``?`` it may be unwritten memory), inputs."""

MAKE = [("make", "x", ()), ("make", "y", ())]
USE = [("use", "u", (0,)), ("use", "v", (1,))]


def matched(folder: Path, a: list[Row], b: list[Row]) -> tuple[list[int], list[bool]]:
    """The partner of each row of A, and whether it moved, where rows were matched by their places before."""
    ranges = []
    for side, rows in (("a", a), ("b", b)):

        def build(trace: TraceBuilder, rows: list[Row] = rows, side: str = side) -> None:
            trace.op("aten.zeros.default", outputs=["before"])
            for site, output, inputs in rows:
                links = [one + 1 if isinstance(one, int) else one for one in inputs]
                flags = RowFlag.MARKED if output.endswith("?") else 0
                frame = (f"{site}.py", 1, site, site)
                trace.op(
                    f"aten.{site}.default", frame, links, [f"{output} of {side}" if flags else output], flags=flags
                )

        view = view_of(folder / f"{side}.zarr", build)
        ranges.append(view.read(1, view.rows))
    at = np.arange(len(a))
    found = match_reordered(*ranges, Alignment(len(a), len(b), at, at, np.zeros(len(a), bool), None))
    assert found.a.tolist() == list(range(len(a)))
    return found.b.tolist(), found.moved.tolist()


@pytest.mark.parametrize(
    ("a", "b", "partners"),
    [
        ([*MAKE, *USE], [*MAKE, *USE], [0, 1, 2, 3]),
        ([*MAKE, *USE], [*MAKE[::-1], ("use", "v", (0,)), ("use", "u", (1,))], [1, 0, 3, 2]),
        ([*MAKE, *USE], [*MAKE[::-1], ("use", "u", (1,)), ("use", "v", (0,))], [1, 0, 2, 3]),
        ([*MAKE, *USE], [*MAKE, *USE[::-1]], [0, 1, 3, 2]),
        # the same results from other inputs: not the same rows
        ([*MAKE, *USE], [*MAKE, ("use", "v", (0,)), ("use", "u", (1,))], [0, 1, 2, 3]),
        ([*MAKE, *USE], [*MAKE, ("use", "v", (In(1, slot=0),)), ("use", "w", (0,))], [0, 1, 2, 3]),
        # read on both sides: by the bytes, whoever wrote them
        (
            [*MAKE, ("use", "u", (("outside", "p"),)), ("use", "v", (("outside", "q"),))],
            [*MAKE, ("use", "v", (("outside", "q"),)), ("use", "u", (("outside", "p"),))],
            [0, 1, 3, 2],
        ),
        (
            [*MAKE, ("use", "u", (("outside", "p"),)), ("use", "v", (("outside", "q"),))],
            [*MAKE, ("use", "v", (("outside", "p"),)), ("use", "u", (("outside", "q"),))],
            [0, 1, 2, 3],
        ),
        # written before the range
        (
            [*MAKE, ("use", "u", (-1,)), ("use", "v", (0,))],
            [*MAKE, ("use", "v", (0,)), ("use", "u", (-1,))],
            [0, 1, 3, 2],
        ),
        (
            [*MAKE, ("use", "u", (-1,)), ("use", "v", (0,))],
            [*MAKE, ("use", "v", (-1,)), ("use", "u", (0,))],
            [0, 1, 2, 3],
        ),
        # one row of its site, or other results: nothing to permute
        ([("make", "x", ())], [("make", "y", ())], [0]),
        ([*MAKE, ("use", "u", (0,))], [("make", "y", ()), ("make", "z", ()), ("use", "u", (1,))], [0, 1, 2]),
        # rows that may hold unwritten memory are told apart by what they read
        (
            [*MAKE, ("fill", "p?", (0,)), ("fill", "q?", (1,))],
            [*MAKE[::-1], ("fill", "q?", (0,)), ("fill", "p?", (1,))],
            [1, 0, 3, 2],
        ),
        (
            [*MAKE, ("fill", "p?", (0,)), ("fill", "q?", (1,))],
            [*MAKE[::-1], ("fill", "q?", (1,)), ("fill", "p?", (0,))],
            [1, 0, 2, 3],
        ),
    ],
)
def test_rows_of_a_site_change_places(tmp_path: Path, a: list[Row], b: list[Row], partners: list[int]) -> None:
    """Where they read what matched rows wrote, all rows of the site; otherwise none of them."""
    found, moved = matched(tmp_path, a, b)
    assert found == partners
    assert all(own for k, own in enumerate(moved) if partners[k] != k)
