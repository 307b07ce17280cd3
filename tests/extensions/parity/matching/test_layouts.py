"""Which rows of a tensor are which token's, by shapes alone; more than one reading is named, none is guessed."""

from __future__ import annotations

import pytest

from rltrace.extensions.parity.matching.layouts import RowLayout, layouts, placement


@pytest.mark.parametrize(
    ("shape", "grid", "expected"),
    [
        ((4, 20), (4, 20), ["plain"]),
        ((80,), (4, 20), ["flat"]),
        ((4, 20, 8), (4, 20), ["grouped"]),
        ((80, 8), (4, 20), ["flat-grouped"]),
        ((4, 8, 20), (4, 20), ["heads-first"]),
        ((4, 20, 20), (4, 20), ["grouped", "heads-first"]),
        ((4, 8, 1), (4, 1), ["heads-first"]),
        ((4, 1, 8), (4, 1), ["grouped"]),
        ((1, 20), (4, 20), ["shared"]),
        ((1, 20, 3), (4, 20), ["shared-grouped"]),
        ((4, 1), (4, 20), []),  # of which tokens, only content can say
        ((1, 8, 1), (1, 1), ["heads-first"]),
        ((1, 1, 1), (1, 1), ["grouped"]),
        ((4,), (4, 20), []),
        ((13,), (4, 20), []),
        ((20, 4), (4, 20), []),
        ((64,), (64,), ["plain"]),
        ((64, 3), (64,), ["grouped"]),
        ((63,), (64,), []),
        ((4, 20, 0), (4, 20), []),
        ((20,), (4, 20), ["shared"]),
    ],
)
def test_shapes_that_allow_a_reading(shape: tuple[int, ...], grid: tuple[int, ...], expected: list[str]) -> None:
    """Every way in which rows of this shape may be the grid's tokens."""
    assert [layout.value for layout in layouts(shape, grid)] == expected


def test_heads_of_a_token_are_its_own() -> None:
    """[2 sequences, 3 heads, 2 tokens]: token 1 of sequence 0 has rows 1, 3, 5; token 0 of sequence 1 rows 6, 8, 10."""
    placed = placement((2, 3, 2), (2, 2), RowLayout.HEADS_FIRST)
    assert placed.tensor_rows.tolist() == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]


def test_what_all_sequences_share_is_each_ones() -> None:
    placed = placement((1, 2, 2), (2, 2), RowLayout.SHARED_GROUPED)
    assert placed.tensor_rows.tolist() == [[0, 1], [2, 3], [0, 1], [2, 3]]
    assert placed.tokens.tolist() == [0, 1, 2, 3]
