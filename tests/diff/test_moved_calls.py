"""A pair of rows with different call sites is one op where what it reads, or who reads it, says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from views import context_of, view_of

from rltrace.diff.align.moved_calls import drop_false_matches, with_matching_users
from rltrace.diff.align.rows import Alignment
from rltrace.testing import In, TraceBuilder
from rltrace.trace.format.schema import RowFlag

Row = dict[str, Any]


def row(output: str, *inputs: Any, site: str = "", draws: str = "") -> Row:
    """``site``: one of its own; otherwise that of its place."""
    return {"output": output, "inputs": inputs, "site": site, "draws": draws}


def sides(folder: Path, *words: list[Row]) -> list[Any]:
    """The rows of each side from the second one on; the first is the same on all."""
    found = []
    for side, rows in zip("ab", words, strict=True):

        def build(trace: TraceBuilder, rows: list[Row] = rows) -> None:
            trace.op("aten.zeros.default", outputs=["before"])
            for place, one in enumerate(rows):
                links = [given + 1 if isinstance(given, int) else given for given in one["inputs"]]
                name = one["site"] or f"line{place}"
                flags = RowFlag.VALUE_FLOAT if one["output"] == "number" else 0
                more: dict[str, Any] = {"rng": one["draws"]} if one["draws"] else {}
                more |= {"value": 0.5} if flags else {"outputs": [one["output"]] if one["output"] else []}
                trace.op("aten.mul.Tensor", (f"{name}.py", 1, name, name), links, **more)

        found.append(view_of(folder / f"{side}.zarr", build))
    return found


X, SAME, OTHER = row("x"), row("s"), row("o")


@pytest.mark.parametrize(
    ("a", "b", "dropped"),
    [
        # equal, or of one site: nothing is in doubt
        ([X, row("y", 0, site="p"), SAME], [X, row("y", 0, site="q"), SAME], []),
        ([X, row("y", 0), SAME], [X, row("z", 0), SAME], []),
        # it reads what matched rows wrote
        ([X, row("y", 0, site="p"), SAME], [X, row("z", 0, site="q"), SAME], []),
        ([X, SAME, row("y", 0, site="p")], [X, SAME, row("z", 1, site="q")], [2]),
        ([X, row("y", site="p"), SAME], [X, row("z", site="q"), SAME], [1]),
        ([X, row("y", "overwritten", site="p"), SAME], [X, row("z", "overwritten", site="q"), SAME], [1]),
        ([X, row("y", -1, site="p"), SAME], [X, row("z", -1, site="q"), SAME], []),
        ([X, row("y", -1, site="p"), SAME], [X, row("z", 0, site="q"), SAME], [1]),
        ([X, row("y", 0, site="p"), SAME], [X, row("z", ("outside", "o"), site="q"), SAME], [1]),
        # or the same outside data
        ([X, row("y", ("outside", "o"), site="p"), SAME], [X, row("z", ("outside", "o"), site="q"), SAME], []),
        ([X, row("y", ("outside", "o"), site="p"), SAME], [X, row("z", ("outside", "k"), site="q"), SAME], [1]),
        # or matched rows read what it wrote, at the same input
        ([X, row("y", site="p"), row("w", 1)], [X, row("z", site="q"), row("w", 1)], []),
        ([X, row("y", site="p"), row("w", 1, 0)], [X, row("z", site="q"), row("w", 0, 1)], [1]),
        (
            [X, row("y", site="p"), row("w", 1, site="k"), row("v", 2)],
            [X, row("z", site="q"), row("t", 1, site="l"), row("v", 2)],
            [],
        ),
        # or both rows before it have other sites as well, without inputs to tell by
        ([X, row("e", site="k"), row("y", site="p")], [X, row("e", site="l"), row("z", site="q")], []),
        # draws have no inputs: a neighbour that is equal tells
        ([X, row("y", site="p", draws="g"), SAME], [X, row("z", site="q", draws="h"), SAME], []),
        ([X, OTHER, row("y", site="p", draws="g"), OTHER], [X, SAME, row("z", site="q", draws="h"), SAME], [2]),
        ([X, row("t"), row("y", site="p", draws="g")], [X, row("o"), row("z", site="q", draws="h")], []),
        ([X, row("t"), row("y", site="p", draws="g"), row("t")], [X, row("o"), row("z", site="q"), row("o")], [2]),
        # only up to the first pair that differs and is one op
        (
            [X, row("y", site="p"), row("v", 0, site="k"), row("u", site="m")],
            [X, row("z", site="q"), row("w", 0, site="l"), row("t", site="n")],
            [1],
        ),
    ],
)
def test_pairs_that_are_two_different_ops(tmp_path: Path, a: list[Row], b: list[Row], dropped: list[int]) -> None:
    """They are dropped, and no difference of values; rows were matched by their places."""
    views = sides(tmp_path, a, b)
    context = context_of(*views, [(0, 0)])
    ranges = [view.read(1, view.rows) for view in views]
    at = np.arange(len(a))
    found = drop_false_matches(context, *ranges, Alignment(len(a), len(b), at, at, np.zeros(len(a), bool), None))
    kept = [k for k in range(len(a)) if k not in dropped]
    assert (found.a.tolist(), found.b.tolist(), len(found.moved)) == (kept, kept, len(kept))


@pytest.mark.parametrize(
    ("users_a", "users_b", "used"),
    [
        ([row("w", 0, site="u")], [row("w", 0, site="u")], True),
        ([row("w", 0, site="u")], [row("w", 0, site="v")], False),
        ([row("w", 0, 1, site="u")], [row("w", 1, 0, site="u")], False),
        ([row("w", 1, site="u")], [row("w", 1, site="u")], False),
        ([row("w", In(1, known=True), site="u")], [row("w", In(1, known=True), site="u")], False),
        ([], [], False),
    ],
)
def test_consumers_after_the_range(tmp_path: Path, users_a: list[Row], users_b: list[Row], used: bool) -> None:
    """Where the range holds none, rows after it that read the same input of the same site tell."""
    first = [row("y", site="p"), row("k")], [row("z", site="q"), row("k")]
    views = sides(tmp_path, first[0] + users_a, first[1] + users_b)
    ranges = [view.read(1, 3) for view in views]
    at = np.arange(2)
    found = Alignment(2, 2, at, at, np.zeros(2, bool), None)
    sure = np.array([False, True])
    assert with_matching_users(*ranges, found, sure, ahead=True).tolist()[0] is used
    assert not with_matching_users(*ranges, found, sure)[0]
