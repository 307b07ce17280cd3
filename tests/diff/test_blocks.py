"""Streams are cut where both sides ended the same attempt of an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from views import view_of

from rltrace.diff.align.blocks import Block, blocks, first_block, first_unequal_step, same_in_any_order
from rltrace.diff.base.view import StreamView
from rltrace.testing import TraceBuilder

Steps = Sequence[str]
"""Digests that the ops of a step return, as letters; the last one may lack its end."""


def side(path: Path, steps: Steps, left: str = "", recorded: Sequence[bool] = ()) -> StreamView:
    def build(trace: TraceBuilder) -> None:
        for number, ops in enumerate(steps):
            for op in ops:
                trace.op("aten.mm.default", site=(f"{op}.py", 1, "f", op), outputs=[op])
            trace.end_step(recorded=recorded[number] if recorded else True)
        for op in left:
            trace.op("aten.mm.default", outputs=[op])

    return view_of(path, build)


def cut(a: StreamView, b: StreamView) -> list[tuple[int, int, int, int, str]]:
    """Ranges of A and B, and what is known of them."""
    words = ("ended", "same", "recorded", "reordered")
    return [
        (
            one.a0,
            one.a1,
            one.b0,
            one.b1,
            "".join(word[-1 if word == "reordered" else 0] for word in words if getattr(one, word)),
        )
        for one in blocks(a, b)
    ]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([], [], [(0, 2, 0, 2, "r")]),
        (["xy"], ["xy"], [(0, 2, 0, 2, "esr"), (2, 4, 2, 4, "r")]),
        (["xy", "z"], ["xy", "z"], [(0, 3, 0, 3, "esr"), (3, 5, 3, 5, "r")]),
        (["xy", "z"], ["xyw", "z"], [(0, 2, 0, 3, "er"), (2, 3, 3, 4, "esr"), (3, 5, 4, 6, "r")]),
        (["xy", "z"], ["yx", "z"], [(0, 2, 0, 2, "erd"), (2, 3, 2, 3, "esr"), (3, 5, 3, 5, "r")]),
        (["xy", "z", "pq"], ["xy"], [(0, 2, 0, 2, "esr"), (2, 3, 2, 4, "r")]),
        (["xy"], ["xy", "z", "pq"], [(0, 2, 0, 2, "esr"), (2, 4, 2, 3, "r")]),
        (["xy", "z", "pq"], [], [(0, 2, 0, 2, "r")]),
    ],
)
def test_blocks(tmp_path: Path, a: Steps, b: Steps, expected: list[tuple[int, int, int, int, str]]) -> None:
    """Adjacent equal steps are one block; what follows the last common step goes to the end of the next of one side."""
    views = side(tmp_path / "a.zarr", a, "kl"), side(tmp_path / "b.zarr", b, "kl")
    assert cut(*views) == expected
    assert [(y0, y1, x0, x1) for x0, x1, y0, y1, _ in cut(*views[::-1])] == [block[:4] for block in expected]


def test_steps_that_were_not_recorded(tmp_path: Path) -> None:
    """Their digests prove nothing."""
    a = side(tmp_path / "a.zarr", ["x", "y", "z"], recorded=[True, False, True])
    b = side(tmp_path / "b.zarr", ["x", "y", "w"])
    assert [(*block[:2], block[4]) for block in cut(a, b)] == [(0, 1, "esr"), (1, 2, "e"), (2, 3, "er"), (3, 3, "r")]
    assert first_unequal_step(a, b) == (2, 2)
    assert first_unequal_step(a, a) is None


def test_the_block_of_the_first_difference(tmp_path: Path) -> None:
    """From a row to the end of its step; to the end where no step follows; none where only one side has a step."""
    a, b = side(tmp_path / "a.zarr", ["xy", "zz"], "k"), side(tmp_path / "b.zarr", ["xy", "w"], "kl")
    assert first_block(a, b, 1) == Block(1, 2, 1, 2, True, False, True)
    assert first_block(a, b, 2) == Block(2, 4, 2, 3, True, False, True)
    assert first_block(a, b, 4) == Block(4, 5, 4, 5, False, False, True)
    assert first_block(a, b, 3) is None


def test_the_end_of_a_step_in_another_order(tmp_path: Path) -> None:
    """Only where the block ends with the step on both sides and has as many rows, all of them recorded."""
    a, b = side(tmp_path / "a.zarr", ["xyz", "pq"]), side(tmp_path / "b.zarr", ["xzy", "pr"])
    assert same_in_any_order(a, b, Block(1, 3, 1, 3, True, False, True))
    assert not same_in_any_order(a, b, Block(1, 3, 1, 3, False, False, True))
    assert not same_in_any_order(a, b, Block(1, 3, 1, 3, True, False, False))
    assert not same_in_any_order(a, b, Block(1, 3, 0, 3, True, False, True))
    assert not same_in_any_order(a, b, Block(1, 2, 1, 2, True, False, True))
    assert not same_in_any_order(a, b, Block(3, 5, 3, 5, True, False, True))
